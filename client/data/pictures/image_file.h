// Decodes the content of image files, and encodes PNG. No Torch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "client/data/pictures/pixels.h"
#include "common/core/error.h"

namespace cleave {

inline constexpr std::int64_t kMaxImagePixels = 100'000'000;

struct ImageHeader {
  std::int64_t height = 0, width = 0;  // size of the decoded image
};

// JPEG, PNG or WebP, detected by content. All functions throw UsageError "sample-damaged" with
// `name` and the fault. An image with more than `maxPixels` is refused before memory for its pixels
// is allocated. Any thread.
ImageHeader readImageHeader(std::span<const std::byte> file, const std::string& name,
                            std::int64_t maxPixels = kMaxImagePixels);

// `channels` is 3 (RGB) or 1 (grey). The pixels are those of PIL's
// `ImageOps.exif_transpose(Image.open(file)).convert(mode)`, with these rules and exceptions:
// - Grey is (19595 R + 38470 G + 7471 B) / 65536, rounded.
// - Alpha is dropped: a pixel keeps its colour, however transparent it is.
// - If a channel has 16 bits, its upper 8 are used (PIL saturates 16-bit grey instead). Colour
//   profiles and gamma are ignored.
// - CMYK is read as Adobe's programs write it, inverted.
// - Files that end early are damaged, as are animated WebP files and JPEG files with more than 100
//   scans. JPEG data that is merely inconsistent is decoded as far as possible.
Pixels decodeImage(std::span<const std::byte> file, std::int64_t channels, const std::string& name,
                   std::int64_t maxPixels = kMaxImagePixels);

// `image` has 1 or 3 channels.
std::vector<std::byte> encodePng(const Pixels& image);

// Throws UsageError "sample-damaged": "NAME FAULT".
[[noreturn]] void throwDamagedImage(const std::string& name, const std::string& fault);

}  // namespace cleave
