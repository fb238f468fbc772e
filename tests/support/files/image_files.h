// Makes images in memory, encodes them, and writes the files.
#pragma once

#include <cstdio>  // before jpeglib.h, which uses FILE

#include <jpeglib.h>
#include <webp/encode.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "client/data/pictures/image_file.h"

namespace cleave::test {

using ImageBytes = std::vector<std::byte>;

// A smooth image that lossy formats change only little. Each `seed` gives a different image.
inline Pixels makePixels(std::int64_t height, std::int64_t width, std::int64_t channels,
                         unsigned seed = 0) {
  Pixels image{height, width, channels, {}};
  for (std::int64_t y = 0; y < height; ++y) {
    for (std::int64_t x = 0; x < width; ++x) {
      for (std::int64_t c = 0; c < channels; ++c) {
        const std::int64_t value = 3 * y + 2 * x * (c + 1) + 40 * c + 17 * std::int64_t{seed};
        image.bytes.push_back(static_cast<std::uint8_t>(std::abs(value % 400 - 200) + 20));
      }
    }
  }
  return image;
}

struct JpegOptions {
  int quality = 95;
  bool isProgressive = false;
  int orientation = 0;                     // value in the EXIF segment; 0: no segment
  std::vector<std::string> segments = {};  // content of further APP1 segments
};

// The image has 1, 3 or 4 channels; 4 channels are inverted CMYK.
inline ImageBytes jpegOf(const Pixels& image, const JpegOptions& options = {}) {
  jpeg_compress_struct info = {};
  jpeg_error_mgr errors;
  info.err = jpeg_std_error(&errors);  // ends the program
  jpeg_create_compress(&info);
  unsigned char* memory = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&info, &memory, &size);
  info.image_width = static_cast<JDIMENSION>(image.width);
  info.image_height = static_cast<JDIMENSION>(image.height);
  info.input_components = static_cast<int>(image.channels);
  info.in_color_space = image.channels == 1   ? JCS_GRAYSCALE
                        : image.channels == 3 ? JCS_RGB
                                              : JCS_CMYK;
  jpeg_set_defaults(&info);
  jpeg_set_quality(&info, options.quality, TRUE);
  if (options.isProgressive) jpeg_simple_progression(&info);
  jpeg_start_compress(&info, TRUE);
  if (options.orientation > 0) {
    std::uint8_t exif[] = {'E', 'x',  'i',  'f', 0, 0, 'M', 'M', 0, 42, 0, 0, 0, 8, 0, 1,
                           0x1, 0x12, 0x00, 3,   0, 0, 0,   1,   0, 0,  0, 0, 0, 0, 0, 0};
    exif[25] = static_cast<std::uint8_t>(options.orientation);
    jpeg_write_marker(&info, JPEG_APP0 + 1, exif, sizeof exif);
  }
  for (const std::string& segment : options.segments) {
    jpeg_write_marker(&info, JPEG_APP0 + 1, reinterpret_cast<const JOCTET*>(segment.data()),
                      static_cast<unsigned>(segment.size()));
  }
  while (info.next_scanline < info.image_height) {
    auto* row = const_cast<std::uint8_t*>(
        image.bytes.data() +
        static_cast<std::size_t>(info.next_scanline * image.width * image.channels));
    jpeg_write_scanlines(&info, &row, 1);
  }
  jpeg_finish_compress(&info);
  jpeg_destroy_compress(&info);
  const auto* first = reinterpret_cast<const std::byte*>(memory);
  const ImageBytes bytes(first, first + size);
  std::free(memory);
  return bytes;
}

// The image has 3 or 4 channels (RGBA).
inline ImageBytes webpOf(const Pixels& image, bool isLossless = true) {
  std::uint8_t* memory = nullptr;
  const int width = static_cast<int>(image.width), height = static_cast<int>(image.height);
  const int stride = static_cast<int>(image.width * image.channels);
  std::size_t size = 0;
  if (image.channels == 4) {
    size = isLossless ? WebPEncodeLosslessRGBA(image.bytes.data(), width, height, stride, &memory)
                      : WebPEncodeRGBA(image.bytes.data(), width, height, stride, 90, &memory);
  } else {
    size = isLossless ? WebPEncodeLosslessRGB(image.bytes.data(), width, height, stride, &memory)
                      : WebPEncodeRGB(image.bytes.data(), width, height, stride, 90, &memory);
  }
  const auto* first = reinterpret_cast<const std::byte*>(memory);
  const ImageBytes bytes(first, first + size);
  WebPFree(memory);
  return bytes;
}

inline void writeFile(const std::string& path, const ImageBytes& bytes) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
}

inline ImageBytes textBytes(const std::string& text) {
  const auto* first = reinterpret_cast<const std::byte*>(text.data());
  return {first, first + text.size()};
}

}  // namespace cleave::test
