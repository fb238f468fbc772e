// How the pixels of an image file must be turned to be upright. Follows PIL's
// ImageOps.exif_transpose, also for unusual and damaged metadata. No Torch.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace cleave {

using ByteView = std::span<const std::uint8_t>;

// The metadata of a file that may have an orientation.
struct OrientationData {
  // EXIF: a TIFF file, with or without "Exif\0\0" before it. Empty: the file has none.
  std::vector<std::uint8_t> exif;
  // XMP: XML with tiff:Orientation as attribute or element. Counts only if EXIF has no orientation.
  std::vector<std::uint8_t> xmp;
};

// 1 to 8, as EXIF defines them; 1: the pixels are upright, or the metadata is missing or damaged.
int orientationIn(const OrientationData& data);

// Adds the content of a JPEG's APP1 segment, in the order of the file.
void addJpegSegment(ByteView segment, OrientationData& data);
// Reads only the chunks with metadata. `file`: a whole file, which may be damaged.
OrientationData pngOrientationData(ByteView file);
OrientationData webpOrientationData(ByteView file);

}  // namespace cleave
