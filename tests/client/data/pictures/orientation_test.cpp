// The orientation in EXIF and XMP. The expected values are those of ImageOps.exif_transpose of
// Pillow 13.0, which got the same bytes.
#include "client/data/pictures/orientation.h"

#include <png.h>
#include <zlib.h>

#include <catch2/catch.hpp>
#include <string>

#include "client/data/pictures/image_file.h"
#include "tests/support/files/image_files.h"

namespace cleave::test {
namespace {

using Bytes = std::vector<std::uint8_t>;

constexpr unsigned kOrientation = 0x0112;

Bytes bytesOf(const std::string& text) { return {text.begin(), text.end()}; }

std::string number(std::uint64_t value, std::size_t bytes, bool isLittle) {
  std::string text;
  for (std::size_t n = 0; n < bytes; ++n) {
    const std::size_t shift = 8 * (isLittle ? n : bytes - 1 - n);
    text += static_cast<char>(value >> shift & 0xFF);
  }
  return text;
}

// An entry of a TIFF directory. `value` is the text of its four bytes.
struct Entry {
  unsigned tag, type;
  std::uint64_t count;
  std::string value;
};

std::string tiffOf(const std::vector<Entry>& entries, bool isLittle = false,
                   const std::string& rest = "") {
  const auto of = [&](std::uint64_t value, std::size_t bytes) {
    return number(value, bytes, isLittle);
  };
  std::string tiff = isLittle ? "II" : "MM";
  tiff += of(42, 2) + of(8, 4) + of(entries.size(), 2);
  for (const Entry& entry : entries) {
    tiff += of(entry.tag, 2) + of(entry.type, 2) + of(entry.count, 4);
    tiff += entry.value + std::string(4 - entry.value.size(), '\0');
  }
  return tiff + of(0, 4) + rest;
}

std::string exifOf(const std::string& tiff) { return std::string("Exif\0\0", 6) + tiff; }

std::string xmpOf(const std::string& xml) {
  return std::string("http://ns.adobe.com/xap/1.0/\0", 29) + xml;
}

int orientationOf(const std::string& exif, const std::string& xmp = "") {
  return orientationIn({bytesOf(exif), bytesOf(xmp)});
}

const std::string kXmp8 = R"(<rdf:Description tiff:Orientation="8"/>)";

TEST_CASE("the orientation is read from EXIF numbers of every type, in both byte orders") {
  for (const bool isLittle : {false, true}) {
    CAPTURE(isLittle);
    const auto of = [&](unsigned type, const std::string& value, std::uint64_t count = 1,
                        const std::string& rest = "") {
      return orientationOf(tiffOf({{kOrientation, type, count, value}}, isLittle, rest), kXmp8);
    };
    const auto six = [&](std::size_t bytes) { return number(6, bytes, isLittle); };
    const std::string atEnd = number(26, 4, isLittle);    // the position after the directory
    CHECK(of(3, six(2)) == 6);                            // SHORT
    CHECK(of(4, six(4)) == 6);                            // LONG
    CHECK(of(6, six(1)) == 6);                            // signed byte
    CHECK(of(8, six(2)) == 6);                            // signed short
    CHECK(of(9, six(4)) == 6);                            // signed long
    CHECK(of(13, six(4)) == 6);                           // a directory
    CHECK(of(11, number(0x40C00000, 4, isLittle)) == 6);  // float
    CHECK(of(12, atEnd, 1, number(0x4018000000000000, 8, isLittle)) == 6);          // double
    CHECK(of(16, atEnd, 1, six(8)) == 6);                                           // LONG8
    CHECK(of(5, atEnd, 1, number(12, 4, isLittle) + number(2, 4, isLittle)) == 6);  // 12 / 2
    CHECK(of(10, atEnd, 1, number(6, 4, isLittle) + number(1, 4, isLittle)) == 6);  // 6 / 1
    CHECK(of(5, atEnd, 1, number(6, 4, isLittle) + number(0, 4, isLittle)) == 1);   // 6 / 0
    CHECK(of(3, six(2) + number(3, 2, isLittle), 2) == 6);                          // the first
    CHECK(of(3, atEnd, 3, six(2) + number(3, 2, isLittle) + number(3, 2, isLittle)) == 6);
    // Bytes and texts are no numbers for Pillow, and the tag hides the one in XMP.
    CHECK(of(1, six(1)) == 1);
    CHECK(of(2, "6") == 1);
    CHECK(of(7, six(1)) == 1);
    CHECK(of(3, number(0, 2, isLittle)) == 1);
    CHECK(of(3, number(9, 2, isLittle)) == 1);
    CHECK(of(9, number(0xFFFFFFFF, 4, isLittle)) == 1);
    CHECK(of(11, number(0x40C80000, 4, isLittle)) == 1);  // 6.25
    // These are no entries, so XMP counts.
    CHECK(of(3, six(2), 0) == 8);
    CHECK(of(99, six(2)) == 8);
  }
}

TEST_CASE("of several EXIF entries the first readable one counts") {
  const Entry other = {0x0110, 2, 4, "abc"}, six = {kOrientation, 3, 1, number(6, 2, false)},
              three = {kOrientation, 3, 1, number(3, 2, false)};
  CHECK(orientationOf(tiffOf({other, six, three})) == 6);
  CHECK(orientationOf(tiffOf({{kOrientation, 99, 1, "x"}, three})) == 3);
  // An entry larger than the file is skipped; one that points beyond its end ends the directory.
  const Entry tooLarge = {0x0110, 2, 5000, number(8, 4, false)};
  const Entry beyond = {0x0110, 2, 20, number(5000, 4, false)};
  CHECK(orientationOf(tiffOf({tooLarge, six})) == 6);
  CHECK(orientationOf(tiffOf({beyond, six}), kXmp8) == 8);
  CHECK(orientationOf(tiffOf({other, beyond, six})) == 6);  // a tag's second entry is ignored
}

TEST_CASE("damaged EXIF data never turns an image by accident") {
  const std::string tiff = tiffOf({{kOrientation, 3, 1, number(6, 2, false)}});
  CHECK(orientationOf(exifOf(tiff)) == 6);
  CHECK(orientationOf(exifOf(exifOf(tiff))) == 6);
  CHECK(orientationOf(exifOf(exifOf(exifOf(tiff)))) == 1);
  for (std::size_t size = 0; size < 22; ++size) {
    CAPTURE(size);
    CHECK(orientationOf(tiff.substr(0, size)) == 1);
  }
  CHECK(orientationOf("", kXmp8) == 8);
  CHECK(orientationOf(exifOf(""), kXmp8) == 8);
  CHECK(orientationOf("XX" + tiff.substr(2), kXmp8) == 1);
  CHECK(orientationOf(std::string("II\0*", 4) + tiffOf({}, true).substr(4), kXmp8) == 8);
  std::string many = tiffOf({});
  many[8] = many[9] = '\xFF';  // claims 65535 entries
  CHECK(orientationOf(many, kXmp8) == 8);
  many[4] = '\xFF';  // the directory is beyond the end
  CHECK(orientationOf(many, kXmp8) == 8);
}

TEST_CASE("without one in EXIF, the orientation in XMP counts") {
  for (const auto& [xml, expected] : std::vector<std::pair<std::string, int>>{
           {R"(<x tiff:Orientation="6">)", 6},
           {"<tiff:Orientation>3</tiff:Orientation>", 3},
           {R"(<x tiff:Orientation='6'>)", 1},
           {R"(<x tiff:Orientation = "6">)", 1},
           {R"(<x tiff:Orientation="0">)", 1},
           {R"(<x tiff:Orientation="9">)", 1},
           {R"(<x tiff:Orientation="65">)", 6},
           {R"(<x tiff:Orientation=""><tiff:Orientation>8<)", 8},
           {R"(<x tiff:Orientation="2"><tiff:Orientation>8<)", 2},
           {"tiff:Orientation", 1},
           {"tiff:Orientation>", 1},
           {"", 1}}) {
    CAPTURE(xml);
    CHECK(orientationOf("", xml) == expected);
  }
  CHECK(orientationOf(tiffOf({{kOrientation, 4, 1, number(6, 4, false)}}), kXmp8) == 6);
}

TEST_CASE("a JPEG's orientation may be divided among several segments") {
  const std::string tiff = tiffOf({{kOrientation, 4, 1, number(6, 4, false)}});
  const auto sizeOf = [](std::vector<std::string> segments) {
    const ImageBytes file = jpegOf(makePixels(8, 16, 3), {.segments = std::move(segments)});
    const Pixels image = decodeImage(file, 3, "file");
    const ImageHeader header = readImageHeader(file, "file");
    CHECK(header.height == image.height);
    CHECK(header.width == image.width);
    return std::pair(image.height, image.width);
  };
  const std::pair<std::int64_t, std::int64_t> flat{8, 16}, tall{16, 8};
  CHECK(sizeOf({}) == flat);
  CHECK(sizeOf({exifOf(tiff)}) == tall);
  CHECK(sizeOf({exifOf(tiff.substr(0, 12)), exifOf(tiff.substr(12))}) == tall);
  CHECK(sizeOf({tiff}) == flat);  // a segment without the mark is not EXIF
  CHECK(sizeOf({xmpOf(kXmp8)}) == tall);
  CHECK(sizeOf({xmpOf(kXmp8), exifOf(tiffOf({}))}) == tall);
  CHECK(sizeOf({xmpOf(kXmp8), xmpOf("<x/>")}) == flat);  // the last packet counts
  const std::string three = tiffOf({{kOrientation, 3, 1, number(3, 2, false)}});
  CHECK(sizeOf({xmpOf(kXmp8), exifOf(three)}) == flat);
}

// Inserts chunks after the header of a PNG.
ImageBytes withChunks(const std::vector<std::pair<std::string, std::string>>& chunks) {
  ImageBytes file = encodePng(makePixels(8, 16, 3));
  std::string inserted;
  for (const auto& [type, content] : chunks) {
    const std::string body = type + content;
    const auto* first = reinterpret_cast<const Bytef*>(body.data());
    inserted += number(content.size(), 4, false) + body +
                number(crc32(0, first, static_cast<uInt>(body.size())), 4, false);
  }
  const ImageBytes bytes = textBytes(inserted);
  file.insert(file.begin() + 33, bytes.begin(), bytes.end());
  return file;
}

std::string deflated(const std::string& text) {
  std::string out(compressBound(text.size()), '\0');
  uLongf size = out.size();
  compress(reinterpret_cast<Bytef*>(out.data()), &size, reinterpret_cast<const Bytef*>(text.data()),
           text.size());
  return out.substr(0, size);
}

std::string joined(const std::vector<std::string>& texts) {  // separated by zero bytes
  std::string all;
  for (const std::string& text : texts)
    all += (&text == texts.data() ? "" : std::string(1, '\0')) + text;
  return all;
}

TEST_CASE("a PNG's orientation is applied, wherever it is written") {
  const std::string tiff = tiffOf({{kOrientation, 3, 1, number(6, 2, false)}});
  std::string profile = "\nexif\n      32\n";
  for (const char c : exifOf(tiff)) {
    constexpr const char* kDigits = "0123456789abcdef";
    profile += kDigits[static_cast<std::uint8_t>(c) / 16];
    profile += kDigits[static_cast<std::uint8_t>(c) % 16];
  }
  const std::string key = "XML:com.adobe.xmp";
  using Chunks = std::vector<std::pair<std::string, std::string>>;
  const auto isTall = [](const Chunks& chunks) {
    const ImageBytes file = withChunks(chunks);
    const Pixels image = decodeImage(file, 3, "file");
    CHECK(readImageHeader(file, "file").height == image.height);
    return image.height == 16;
  };
  CHECK_FALSE(isTall({}));
  CHECK(isTall({{"eXIf", tiff}}));
  CHECK(isTall({{"tEXt", joined({"Raw profile type exif", profile})}}));
  CHECK(isTall({{"zTXt", joined({"Raw profile type exif", "", deflated(profile)})}}));
  CHECK(isTall({{"iTXt", key + std::string("\0\0\0\0\0", 5) + kXmp8}}));
  CHECK(isTall({{"iTXt", key + std::string("\0\1\0\0\0", 5) + deflated(kXmp8)}}));
  CHECK_FALSE(isTall({{"iTXt", key + std::string("\0\1\0\0\0", 5) + "not deflated"}}));
  CHECK_FALSE(isTall({{"iTXt", key + std::string("\0\0", 2)}}));
  CHECK_FALSE(isTall({{"tEXt", joined({"Comment", kXmp8})}}));
  CHECK_FALSE(isTall({{"zTXt", joined({key, "", deflated(std::string(2 << 20, ' ') + kXmp8)})}}));
}

TEST_CASE("a WebP's orientation is applied if its header announces it") {
  const std::string tiff = tiffOf({{kOrientation, 3, 1, number(6, 2, false)}});
  const auto webp = [](unsigned flags, const std::string& type, const std::string& content) {
    const ImageBytes plain = webpOf(makePixels(8, 16, 3));
    const std::string image(reinterpret_cast<const char*>(plain.data()) + 12, plain.size() - 12);
    std::string file = "WEBPVP8X" + number(10, 4, true) + number(flags, 4, true) +
                       number(15, 3, true) + number(7, 3, true) + image;
    file += type + number(content.size(), 4, true) + content;
    if (content.size() % 2 != 0) file += '\0';
    return textBytes("RIFF" + number(file.size(), 4, true) + file);
  };
  const auto isTall = [&](const ImageBytes& file) {
    const Pixels image = decodeImage(file, 3, "file");
    CHECK(readImageHeader(file, "file").height == image.height);
    return image.height == 16;
  };
  CHECK(isTall(webp(0x08, "EXIF", tiff)));
  CHECK(isTall(webp(0x08, "EXIF", exifOf(tiff))));
  CHECK(isTall(webp(0x04, "XMP ", kXmp8)));
  CHECK_FALSE(isTall(webp(0, "EXIF", tiff)));
  CHECK_FALSE(isTall(webp(0x04, "XMP ", "<x/>")));
}

}  // namespace
}  // namespace cleave::test
