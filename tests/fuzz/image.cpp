// Fuzz target: an image file, decoded with one and with three channels. The first byte of an input
// chooses the number of channels.
#include "client/data/pictures/image_file.h"
#include "tests/fuzz/seeds.h"
#include "tests/support/files/image_files.h"

using namespace cleave;
using namespace cleave::fuzz;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  constexpr std::int64_t kMaxPixels = 1 << 18;  // larger images only take more time
  const std::int64_t channels = data[0] % 2 == 0 ? 3 : 1;
  const std::span<const std::byte> file(reinterpret_cast<const std::byte*>(data) + 1, size - 1);
  try {
    const Pixels image = decodeImage(file, channels, "file", kMaxPixels);
    const ImageHeader header = readImageHeader(file, "file", kMaxPixels);
    if (header.height != image.height || header.width != image.width)
      find("the header has another size than the image");
    if (image.channels != channels || image.height < 1 || image.width < 1 ||
        image.height * image.width > kMaxPixels ||
        image.bytes.size() != static_cast<std::size_t>(image.height * image.width * channels))
      find("the image has a wrong size");
  } catch (const UsageError& error) {
    if (error.code() != "sample-damaged") find("another error: " + error.code());
  }
  return 0;
}

std::vector<Seed> cleave::fuzz::seeds() {
  const Pixels colour = test::makePixels(9, 11, 3), grey = test::makePixels(9, 11, 1);
  std::vector<Seed> all;
  const auto add = [&](const std::string& name, const Bytes& file) {
    for (const int first : {0, 1}) {
      Bytes input = {static_cast<std::byte>(first)};
      input.insert(input.end(), file.begin(), file.end());
      all.push_back({name, input});
    }
  };
  add("JPEG", test::jpegOf(colour));
  add("progressive JPEG", test::jpegOf(colour, {.isProgressive = true}));
  add("grey JPEG", test::jpegOf(grey));
  add("CMYK JPEG", test::jpegOf(test::makePixels(9, 11, 4)));
  add("turned JPEG", test::jpegOf(colour, {.orientation = 6}));
  const std::string exif("Exif\0\0II*\0\10\0\0\0\1\0\22\1\4\0\1\0\0\0\6\0\0\0\0\0\0\0", 32);
  const std::string xmp("http://ns.adobe.com/xap/1.0/\0<x tiff:Orientation=\"6\"/>", 54);
  add("JPEG with XMP", test::jpegOf(colour, {.segments = {xmp}}));
  add("JPEG with EXIF in two segments",
      test::jpegOf(colour, {.segments = {exif.substr(0, 20),
                                         "Exif" + exif.substr(4, 2) + exif.substr(20)}}));
  add("PNG", encodePng(colour));
  add("grey PNG", encodePng(grey));
  add("lossless WebP", test::webpOf(colour));
  add("lossy WebP", test::webpOf(colour, false));
  add("WebP with alpha", test::webpOf(test::makePixels(9, 11, 4)));
  add("none", {});
  add("text", bytesOf("RIFF....WEBP"));
  return all;
}
