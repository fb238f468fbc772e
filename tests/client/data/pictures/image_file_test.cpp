// Decoding images: formats, channels, orientation, and the error for each kind of damage.
#include "client/data/pictures/image_file.h"

#include <png.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <functional>

#include "tests/support/error_code.h"
#include "tests/support/files/image_files.h"

namespace cleave::test {
namespace {

Pixels decoded(const ImageBytes& file, std::int64_t channels) {
  return decodeImage(file, channels, "file");
}

std::string decodeCode(const ImageBytes& file, std::int64_t maxPixels = kMaxImagePixels) {
  return errorCode([&] { decodeImage(file, 3, "file", maxPixels); });
}

int maxDifference(const Pixels& a, const Pixels& b) {
  REQUIRE(a.bytes.size() == b.bytes.size());
  int max = 0;
  for (std::size_t n = 0; n < a.bytes.size(); ++n) {
    max = std::max(max, std::abs(int{a.bytes[n]} - int{b.bytes[n]}));
  }
  return max;
}

struct PngOptions {
  int colourType = PNG_COLOR_TYPE_RGB;
  int bits = 8;
  bool isInterlaced = false;
};

// Encodes rows in libpng's format: packed pixels, 16-bit values in big-endian order. `prepare` may
// add chunks.
ImageBytes pngOf(std::int64_t height, std::int64_t width, std::vector<std::uint8_t> bytes,
                 const PngOptions& options,
                 const std::function<void(png_structp, png_infop)>& prepare = nullptr) {
  png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, nullptr, nullptr, nullptr);
  png_infop info = png_create_info_struct(png);
  ImageBytes file;
  png_set_write_fn(
      png, &file,
      [](png_structp writer, png_bytep from, std::size_t size) {
        auto* to = static_cast<ImageBytes*>(png_get_io_ptr(writer));
        const auto* first = reinterpret_cast<const std::byte*>(from);
        to->insert(to->end(), first, first + size);
      },
      nullptr);
  png_set_IHDR(png, info, static_cast<png_uint_32>(width), static_cast<png_uint_32>(height),
               options.bits, options.colourType,
               options.isInterlaced ? PNG_INTERLACE_ADAM7 : PNG_INTERLACE_NONE,
               PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
  if (prepare) prepare(png, info);
  png_write_info(png, info);
  const std::size_t rowBytes = bytes.size() / static_cast<std::size_t>(height);
  std::vector<std::uint8_t*> rows;
  for (std::int64_t y = 0; y < height; ++y) {
    rows.push_back(bytes.data() + static_cast<std::size_t>(y) * rowBytes);
  }
  png_write_image(png, rows.data());
  png_write_end(png, info);
  png_destroy_write_struct(&png, &info);
  return file;
}

// Changes the size in a PNG's header to 60000 x 60000, and updates the checksum.
ImageBytes pngBomb() {
  ImageBytes file = encodePng(makePixels(4, 4, 3));
  const std::uint8_t header[] = {'I', 'H',  'D',  'R', 0, 0, 0xEA, 0x60, 0,
                                 0,   0xEA, 0x60, 8,   2, 0, 0,    0};
  std::uint32_t crc = 0xFFFFFFFF;
  for (const std::uint8_t byte : header) {
    crc ^= byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0xEDB88320u : 0);
  }
  crc = ~crc;
  std::memcpy(file.data() + 12, header, sizeof header);
  for (int n = 0; n < 4; ++n) {
    file[static_cast<std::size_t>(29 + n)] = static_cast<std::byte>(crc >> (24 - 8 * n));
  }
  return file;
}

// FNV-1a hash.
std::uint64_t digestOf(const Pixels& image) {
  std::uint64_t hash = 0xcbf29ce484222325ULL;
  for (const std::uint8_t byte : image.bytes) hash = (hash ^ byte) * 0x100000001b3ULL;
  return hash;
}

ImageBytes bytesOfHex(std::string_view hex) {
  ImageBytes bytes;
  const auto digit = [](char c) { return c <= '9' ? c - '0' : c - 'a' + 10; };
  for (std::size_t n = 0; n < hex.size(); n += 2) {
    bytes.push_back(static_cast<std::byte>(16 * digit(hex[n]) + digit(hex[n + 1])));
  }
  return bytes;
}

TEST_CASE("decoding a lossless file gives the encoded pixels") {
  const Pixels colour = makePixels(13, 9, 3), grey = makePixels(13, 9, 1);
  for (const ImageBytes& file : {encodePng(colour), webpOf(colour)}) {
    const Pixels image = decoded(file, 3);
    CHECK(image.height == 13);
    CHECK(image.width == 9);
    CHECK(image.channels == 3);
    CHECK(image.bytes == colour.bytes);
    const ImageHeader header = readImageHeader(file, "file");
    CHECK(header.height == 13);
    CHECK(header.width == 9);
  }
  CHECK(decoded(encodePng(grey), 1).bytes == grey.bytes);
}

TEST_CASE("decoding a lossy file gives nearly the encoded pixels") {
  const Pixels colour = makePixels(40, 56, 3), grey = makePixels(40, 56, 1);
  CHECK(maxDifference(decoded(jpegOf(grey, {.quality = 100}), 1), grey) <= 2);
  CHECK(decoded(jpegOf(colour), 3).bytes.size() == colour.bytes.size());
  CHECK(maxDifference(decoded(jpegOf(makePixels(40, 56, 3), {.isProgressive = true}), 3),
                      decoded(jpegOf(colour), 3)) == 0);  // both have the same coefficients
}

TEST_CASE("JPEG and lossy WebP give the same pixels as PIL") {
  struct Row {
    const char* name;
    const char* hex;
    std::uint64_t rgb, grey;  // digests of the pixels that PIL 13.0 decodes
  };
  // clang-format off
  const Row rows[] = {
    {"progressive JPEG, 4:2:0",
     "ffd8ffe000104a46494600010100000100010000ffdb0043000d090a0b0a080d0b0a0b0e0e0d0f1320151312"
     "1213271c1e17202e2931302e292d2c333a4a3e333646372c2d405741464c4e525352323e5a615a50604a5152"
     "4fffdb0043010e0e0e131113261515264f352d354f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f"
     "4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4fffc2001108000b000d030122000211010311"
     "01ffc400160001010100000000000000000000000000040205ffc40015010101000000000000000000000000"
     "00000102ffda000c030100021003100000011ea410afffc4001a100100010500000000000000000000000003"
     "000102121321ffda000801010001050221960f16b80ed49fffc4001911000105000000000000000000000000"
     "00020001030411ffda0008010301013f01a2e728eaffc4001a11000202030000000000000000000000000102"
     "00112151f0ffda0008010201013f0162c6cebb13ffc4001a1000020203000000000000000000000000000102"
     "21111281ffda0008010100063f02a287285333bbe1ffc4001a10000203010100000000000000000000000011"
     "0121315181ffda0008010100013f2146588a59356057e932617d23ffda000c03010002000300000010a3ffc4"
     "0017110003010000000000000000000000000000011131ffda0008010301013f1094b8b0ffc4001b11010002"
     "0203000000000000000000000011013100214161a1ffda0008010201013f108b620d70f8bdaf467fffc4001c"
     "1001000202030100000000000000000000010011217131419151ffda0008010100013f10c2dcb9eecb88a18c"
     "01f077b650dbf214f8513fffd9",
     0x84547ffefc06b5d4ULL,
     0x79ef268e12a1df38ULL},
    {"CMYK JPEG",
     "ffd8ffee000e41646f626500640000000000ffdb0043000d090a0b0a080d0b0a0b0e0e0d0f13201513121213"
     "271c1e17202e2931302e292d2c333a4a3e333646372c2d405741464c4e525352323e5a615a50604a51524fff"
     "c0001408000b000d044311004d11005911004b1100ffc4001800010101010100000000000000000000000007"
     "050603ffc4002e10000002080306070100000000000000000111000203061213143104052415162122232533"
     "3441425191a181ffda000e0443004d0059004b00003f00e65d9f6266e15d5b74ff0013cb2bd0cddc6ee51955"
     "d572cb23808e0b9aff00360b7ad392ab947944d662eaf2787f88caf433771bb94655755cb2c8e02382e6bfcd"
     "82dea4953b3ec4e8ded6ed32a74f1b8ec00aacb10ca5c0bc20b11b45407809858450fe766a0d8fa09d32652f"
     "4a32848e123231fb14255728f2892e5de2cef14d566cd335c62ab2c460c9b2ccd5b170555200fe021fcecd41"
     "b1f413a64ca5e9465091c246463f6284ffd9",
     0x587e9e9f2ece6e82ULL,
     0x8d54e4eded08d305ULL},
    {"lossy WebP",
     "524946469800000057454250565038208c0000005002009d012a0d000b0002c04c25b0027432a5bd8e80c7d7"
     "366d1000fef5ddd237b0a5eb53e3afacabbcbaa0e43562454939ef399e9a0d6703edfe26682932e5234a76c8"
     "101dfbea48c8f055f38a314e35f8e59df7acb7f82a7c72cefba7b1dcbafebe3dc6a7fde1ffbaca3ff9ff764f"
     "b9544051bfa53562947fec5ffc7e61a7fee64fbf5c5aeef1d769c000",
     0x817b7249d0103f4fULL,
     0x8ea7240f94ce8d62ULL},
  };
  // clang-format on
  for (const Row& row : rows) {
    CAPTURE(row.name);
    const ImageBytes file = bytesOfHex(row.hex);
    CHECK(decoded(file, 3).height == 11);
    CHECK(digestOf(decoded(file, 3)) == row.rgb);
    CHECK(digestOf(decoded(file, 1)) == row.grey);
  }
}

TEST_CASE("images are converted to the requested number of channels") {
  const Pixels colour = makePixels(5, 6, 3), grey = makePixels(5, 6, 1);
  const Pixels asGrey = decoded(encodePng(colour), 1);
  REQUIRE(asGrey.channels == 1);
  for (std::size_t n = 0; n < asGrey.bytes.size(); ++n) {
    const double expected = 0.299 * colour.bytes[3 * n] + 0.587 * colour.bytes[3 * n + 1] +
                            0.114 * colour.bytes[3 * n + 2];
    CHECK(asGrey.bytes[n] == Approx(expected).margin(0.51));
  }
  const Pixels asColour = decoded(encodePng(grey), 3);
  for (std::size_t n = 0; n < asColour.bytes.size(); ++n) {
    CHECK(asColour.bytes[n] == grey.bytes[n / 3]);
  }
  CHECK(decoded(jpegOf(makePixels(8, 8, 4)), 1).channels == 1);
}

TEST_CASE("CMYK without black ink is the inverse of its inks") {
  Pixels image{16, 16, 4, {}};
  for (int n = 0; n < 256; ++n) image.bytes.insert(image.bytes.end(), {200, 100, 50, 255});
  const Pixels rgb = decoded(jpegOf(image, {.quality = 100}), 3);
  CHECK(std::abs(rgb.bytes[0] - 200) <= 2);
  CHECK(std::abs(rgb.bytes[1] - 100) <= 2);
  CHECK(std::abs(rgb.bytes[2] - 50) <= 2);
}

TEST_CASE("alpha is dropped: a transparent pixel keeps its colour") {
  const Pixels rgba = makePixels(6, 7, 4);
  std::vector<std::uint8_t> expected;
  for (std::size_t n = 0; n < rgba.bytes.size(); ++n) {
    if (n % 4 != 3) expected.push_back(rgba.bytes[n]);
  }
  const ImageBytes png =
      pngOf(6, 7, rgba.bytes, {.colourType = PNG_COLOR_TYPE_RGB_ALPHA, .isInterlaced = true});
  CHECK(decoded(png, 3).bytes == expected);
  const Pixels webp = decoded(webpOf(rgba), 3);
  for (std::size_t n = 0; n < expected.size(); ++n) {
    if (rgba.bytes[n / 3 * 4 + 3] > 0) CHECK(webp.bytes[n] == expected[n]);
  }
  const Pixels greyAlpha = makePixels(6, 7, 2);
  const Pixels grey =
      decoded(pngOf(6, 7, greyAlpha.bytes, {.colourType = PNG_COLOR_TYPE_GRAY_ALPHA}), 1);
  for (std::size_t n = 0; n < grey.bytes.size(); ++n) {
    CHECK(grey.bytes[n] == greyAlpha.bytes[2 * n]);
  }
}

TEST_CASE("palettes, one bit and sixteen bits per channel are converted to 8 bits") {
  const auto addPalette = [](png_structp png, png_infop info) {
    png_color colours[] = {{1, 2, 3}, {40, 50, 60}, {7, 8, 9}};
    png_set_PLTE(png, info, colours, 3);
    png_byte alphas[] = {0, 128};
    png_set_tRNS(png, info, alphas, 2, nullptr);
  };
  const ImageBytes palette =
      pngOf(2, 2, {0, 1, 2, 1}, {.colourType = PNG_COLOR_TYPE_PALETTE}, addPalette);
  CHECK(decoded(palette, 3).bytes ==
        std::vector<std::uint8_t>{1, 2, 3, 40, 50, 60, 7, 8, 9, 40, 50, 60});
  const ImageBytes bits =
      pngOf(2, 3, {0b10100000, 0b01000000}, {.colourType = PNG_COLOR_TYPE_GRAY, .bits = 1});
  CHECK(decoded(bits, 1).bytes == std::vector<std::uint8_t>{255, 0, 255, 0, 255, 0});
  const ImageBytes deep =
      pngOf(1, 2, {0x12, 0xFF, 0xFE, 0x00}, {.colourType = PNG_COLOR_TYPE_GRAY, .bits = 16});
  CHECK(decoded(deep, 1).bytes == std::vector<std::uint8_t>{0x12, 0xFE});
}

TEST_CASE("the EXIF orientation is applied") {
  // The left half is dark, and its upper half is darker, so that each orientation has a different
  // dark corner.
  Pixels image{16, 32, 1, std::vector<std::uint8_t>(16 * 32, 250)};
  for (std::size_t y = 0; y < 8; ++y) {
    for (std::size_t x = 0; x < 16; ++x) image.bytes[y * 32 + x] = 10;
  }
  struct Row {
    int orientation;
    bool isTall;
    int darkRow, darkColumn;  // 0: the first half; 1: the second half
  };
  for (const Row& row :
       {Row{1, false, 0, 0}, Row{2, false, 0, 1}, Row{3, false, 1, 1}, Row{4, false, 1, 0},
        Row{5, true, 0, 0}, Row{6, true, 0, 1}, Row{7, true, 1, 1}, Row{8, true, 1, 0}}) {
    CAPTURE(row.orientation);
    const ImageBytes file = jpegOf(image, {.orientation = row.orientation});
    const Pixels turned = decoded(file, 1);
    CHECK(turned.height == (row.isTall ? 32 : 16));
    CHECK(turned.width == (row.isTall ? 16 : 32));
    CHECK(readImageHeader(file, "file").height == turned.height);
    const std::int64_t y = turned.height * (1 + 2 * row.darkRow) / 4;
    const std::int64_t x = turned.width * (1 + 2 * row.darkColumn) / 4;
    CHECK(turned.bytes[static_cast<std::size_t>(y * turned.width + x)] < 50);
    int dark = 0;
    for (const std::uint8_t value : turned.bytes) dark += value < 128 ? 1 : 0;
    CHECK(dark == 128);
  }
  for (const int orientation : {9, 255}) {  // unknown orientations leave the image as stored
    CHECK(decoded(jpegOf(image, {.orientation = orientation}), 1).height == 16);
  }
}

TEST_CASE("the format is detected by a file's content, not by its name") {
  CHECK(decodeImage(encodePng(makePixels(3, 4, 3)), 3, "photo.jpg").width == 4);
}

TEST_CASE("an empty file, a text file, and an unsupported format are refused") {
  for (const std::string text : {"", "GIF89a", "not an image", "\xFF\xD8", "RIFF1234WAVE"}) {
    CAPTURE(text);
    CHECK(decodeCode(textBytes(text)) == "sample-damaged");
    CHECK(errorCode([&] { readImageHeader(textBytes(text), "file"); }) == "sample-damaged");
  }
  CHECK(errorText([] { decodeImage({}, 3, "a/b.jpg"); }).starts_with("a/b.jpg "));
}

TEST_CASE("a file truncated at any byte is refused") {
  const Pixels image = makePixels(24, 32, 3);
  const std::vector<std::pair<const char*, ImageBytes>> files = {
      {"JPEG", jpegOf(image)},
      {"progressive JPEG", jpegOf(image, {.isProgressive = true})},
      {"CMYK JPEG", jpegOf(makePixels(24, 32, 4))},
      {"PNG", encodePng(image)},
      {"lossless WebP", webpOf(image)},
      {"lossy WebP", webpOf(image, false)}};
  for (const auto& [name, file] : files) {
    CAPTURE(name);
    REQUIRE(decodeCode(file).empty());
    // The last two bytes of a JPEG file only mark its end: without them, the file still has all
    // pixels.
    for (std::size_t size = 0; size + 2 < file.size(); size += size < 800 ? 1 : 13) {
      const ImageBytes cut(file.begin(), file.begin() + static_cast<std::ptrdiff_t>(size));
      if (decodeCode(cut) != "sample-damaged") {
        CAPTURE(size, file.size());
        CHECK(decodeCode(cut) == "sample-damaged");
      }
    }
  }
}

TEST_CASE("damaged bytes never end the program") {
  const Pixels image = makePixels(24, 32, 3);
  for (const ImageBytes& file :
       {jpegOf(image), jpegOf(image, {.isProgressive = true}), jpegOf(image, {.orientation = 6}),
        encodePng(image), webpOf(image), webpOf(image, false)}) {
    for (std::size_t at = 0; at < file.size(); at += 3) {
      ImageBytes damaged = file;
      damaged[at] ^= std::byte{0xA5};
      try {
        const Pixels result = decodeImage(damaged, 3, "file", 1 << 20);
        CHECK(result.bytes.size() == static_cast<std::size_t>(result.height * result.width * 3));
      } catch (const UsageError& error) {
        CHECK(error.code() == "sample-damaged");
      }
    }
  }
}

TEST_CASE("an image with too many pixels is refused before memory is allocated") {
  CHECK(decodeCode(pngBomb()) == "sample-damaged");
  CHECK(errorText([] { decodeImage(pngBomb(), 3, "file"); }).find("60000 x 60000") !=
        std::string::npos);
  ImageBytes jpeg = jpegOf(makePixels(8, 8, 3));
  for (std::size_t at = 2; at + 9 < jpeg.size(); ++at) {
    if (jpeg[at] != std::byte{0xFF} || jpeg[at + 1] != std::byte{0xC0}) continue;  // SOF0
    for (const std::size_t side : {5, 7}) {                                        // 65000
      jpeg[at + side] = std::byte{0xFD};
      jpeg[at + side + 1] = std::byte{0xE8};
    }
    break;
  }
  CHECK(errorText([&] { decodeImage(jpeg, 3, "file"); }).find("65000 x 65000") !=
        std::string::npos);
  CHECK(decodeCode(encodePng(makePixels(70'000, 1, 1))) == "sample-damaged");
  const Pixels image = makePixels(10, 10, 3);
  for (const ImageBytes& file : {jpegOf(image), encodePng(image), webpOf(image)}) {
    CHECK(decodeCode(file, 100).empty());
    CHECK(decodeCode(file, 99) == "sample-damaged");
  }
}

}  // namespace
}  // namespace cleave::test
