#include "client/data/pictures/image_file.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cassert>
#include <csetjmp>
#include <cstdio>  // before jpeglib.h, which uses FILE
#include <cstring>
#include <new>
#include <utility>

#include <jpeglib.h>

#include <jerror.h>
#include <png.h>
#include <webp/decode.h>

#include "client/data/files/damage.h"
#include "client/data/pictures/orientation.h"
#include "client/data/pictures/other_pictures.h"
#include "common/core/printable.h"

namespace cleave {
namespace {

using Encoded = std::span<const std::byte>;

const std::uint8_t* firstByte(Encoded file) {
  return reinterpret_cast<const std::uint8_t*>(file.data());
}

ByteView viewOf(Encoded file) { return {firstByte(file), file.size()}; }

std::string printableName(const std::string& name) {
  constexpr std::size_t kMaxBytes = 4096;  // length of a path
  return printable(name, kMaxBytes);
}

void checkPixelCount(std::int64_t height, std::int64_t width, const std::string& name,
                     std::int64_t maxPixels) {
  if (height <= 0 || width <= 0) throwDamagedImage(name, "has no pixels");
  // A narrow image of many rows would need a lot of memory when it is resized.
  constexpr std::int64_t kMaxSide = 65'535;
  if (height > kMaxSide || width > kMaxSide) {
    throwDamagedImage(name, fmt::format("has {} x {} pixels; no side may have more than {}", width,
                                        height, kMaxSide));
  }
  if (height <= maxPixels / width) return;
  throwDamagedImage(name, fmt::format("has {} x {} pixels, more than the maximum of {}", width,
                                      height, maxPixels));
}

// ---- Orientation ----

// Turns the image upright. Without pixels, only its size changes.
Pixels oriented(Pixels image, int orientation) {
  if (orientation == 1) return image;
  const bool swap = orientation >= 5;
  const bool flipRow = orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7;
  const bool flipColumn =
      orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8;
  Pixels turned{swap ? image.width : image.height, swap ? image.height : image.width,
                image.channels, std::vector<std::uint8_t>(image.bytes.size())};
  if (image.bytes.empty()) return turned;
  std::uint8_t* to = turned.bytes.data();
  for (std::int64_t y = 0; y < turned.height; ++y) {
    for (std::int64_t x = 0; x < turned.width; ++x, to += image.channels) {
      std::int64_t row = swap ? x : y, column = swap ? y : x;
      if (flipRow) row = image.height - 1 - row;
      if (flipColumn) column = image.width - 1 - column;
      std::copy_n(image.bytes.data() + (row * image.width + column) * image.channels,
                  image.channels, to);
    }
  }
  return turned;
}

// ---- JPEG ----

// libjpeg reports errors through a callback that must not return, so the callback uses longjmp.
// Functions that call setjmp, and the functions that they call, must have no objects with
// destructors.
class JpegReader {
 public:
  explicit JpegReader(Encoded file) : file_(file) {
    info_.err = jpeg_std_error(&errors_);
    info_.client_data = this;
    errors_.error_exit = [](j_common_ptr info) { of(info).leaveWithMessage(); };
    errors_.emit_message = [](j_common_ptr info, int level) {
      if (level < 0 && info->err->msg_code == JWRN_JPEG_EOF) of(info).leaveWithMessage();
    };
    progress_.progress_monitor = [](j_common_ptr info) { of(info).limitScans(); };
  }
  ~JpegReader() { jpeg_destroy_decompress(&info_); }
  JpegReader(const JpegReader&) = delete;
  JpegReader& operator=(const JpegReader&) = delete;

  // False if the file is damaged.
  bool readHeader() {
    if (setjmp(onError_) != 0) return false;
    jpeg_create_decompress(&info_);
    info_.progress = &progress_;
    constexpr long kMaxBytes = 1L << 30;  // a progressive file needs 2 bytes per value
    info_.mem->max_memory_to_use = kMaxBytes;
    jpeg_mem_src(&info_, firstByte(file_), static_cast<unsigned long>(file_.size()));
    jpeg_save_markers(&info_, JPEG_APP0 + 1, 0xFFFF);
    jpeg_read_header(&info_, TRUE);
    info_.out_color_space = info_.num_components == 1   ? JCS_GRAYSCALE
                            : info_.num_components == 4 ? JCS_CMYK
                                                        : JCS_RGB;
    info_.dct_method = JDCT_ISLOW;
    info_.do_fancy_upsampling = TRUE;
    return true;
  }

  // Call after readHeader() and before readPixels(), because a file may have more segments between
  // its scans.
  int orientation() const {
    OrientationData data;
    for (const jpeg_marker_struct* marker = info_.marker_list; marker != nullptr;
         marker = marker->next) {
      addJpegSegment({marker->data, marker->data_length}, data);
    }
    return orientationIn(data);
  }

  // Call after readHeader(). `out` has the shape [height, width, channels].
  bool readPixels(std::uint8_t* out) {
    if (setjmp(onError_) != 0) return false;
    jpeg_start_decompress(&info_);
    const auto rowBytes = static_cast<std::size_t>(width() * channels());
    while (info_.output_scanline < info_.output_height) {
      JSAMPROW row = out + rowBytes * info_.output_scanline;
      jpeg_read_scanlines(&info_, &row, 1);
    }
    return true;
  }

  std::int64_t height() const { return info_.image_height; }
  std::int64_t width() const { return info_.image_width; }
  std::int64_t channels() const {
    return info_.num_components == 1 ? 1 : info_.num_components == 4 ? 4 : 3;
  }
  const char* fault() const { return fault_; }

 private:
  static JpegReader& of(j_common_ptr info) { return *static_cast<JpegReader*>(info->client_data); }

  [[noreturn]] void leaveWithMessage() {
    errors_.format_message(reinterpret_cast<j_common_ptr>(&info_), fault_);
    std::longjmp(onError_, 1);
  }

  // Each scan of a progressive file costs a pass over the whole image, even if it has few bytes.
  void limitScans() {
    constexpr int kMaxScans = 100;
    if (info_.input_scan_number <= kMaxScans) return;
    std::snprintf(fault_, sizeof fault_, "it has more than %d scans", kMaxScans);
    std::longjmp(onError_, 1);
  }

  const Encoded file_;
  jpeg_decompress_struct info_ = {};
  jpeg_error_mgr errors_ = {};
  jpeg_progress_mgr progress_ = {};
  std::jmp_buf onError_ = {};
  char fault_[JMSG_LENGTH_MAX] = {};
};

// ---- PNG ----

// libpng's error callback also uses longjmp, so the same rules apply.
class PngReader {
 public:
  explicit PngReader(Encoded file) : file_(file) {
    png_ = png_create_read_struct(PNG_LIBPNG_VER_STRING, this, leaveWithMessage, ignoreWarning);
    if (png_ != nullptr) info_ = png_create_info_struct(png_);
    if (info_ == nullptr) {
      png_destroy_read_struct(&png_, nullptr, nullptr);
      throw std::bad_alloc();
    }
  }
  ~PngReader() { png_destroy_read_struct(&png_, &info_, nullptr); }
  PngReader(const PngReader&) = delete;
  PngReader& operator=(const PngReader&) = delete;

  bool readHeader() {
    if (setjmp(png_jmpbuf(png_)) != 0) return false;
    png_set_read_fn(png_, this, readBytes);
    png_set_benign_errors(png_, 1);
    // Ignores texts and profiles: they may be damaged or expand to many bytes, and are not used.
    png_set_keep_unknown_chunks(png_, PNG_HANDLE_CHUNK_NEVER, nullptr, -1);
    png_read_info(png_, info_);
    return true;
  }

  // Call after readHeader(). Converts to 8 bits per channel, grey or RGB.
  bool prepare() {
    if (setjmp(png_jmpbuf(png_)) != 0) return false;
    png_set_strip_16(png_);
    png_set_palette_to_rgb(png_);
    png_set_expand_gray_1_2_4_to_8(png_);
    png_set_strip_alpha(png_);
    png_set_interlace_handling(png_);
    png_read_update_info(png_, info_);
    return true;
  }

  // Call after prepare(). `rows` has one pointer per row.
  bool readPixels(std::uint8_t** rows) {
    if (setjmp(png_jmpbuf(png_)) != 0) return false;
    png_read_image(png_, rows);
    png_read_end(png_, nullptr);
    return true;
  }

  std::int64_t height() const { return png_get_image_height(png_, info_); }
  std::int64_t width() const { return png_get_image_width(png_, info_); }
  std::int64_t channels() const { return png_get_channels(png_, info_); }
  std::size_t rowBytes() const { return png_get_rowbytes(png_, info_); }
  const char* fault() const { return fault_; }

 private:
  [[noreturn]] static void leaveWithMessage(png_structp png, png_const_charp message) {
    auto* reader = static_cast<PngReader*>(png_get_error_ptr(png));
    std::snprintf(reader->fault_, sizeof reader->fault_, "%s", message);
    png_longjmp(png, 1);
  }
  static void ignoreWarning(png_structp, png_const_charp) {}
  static void readBytes(png_structp png, png_bytep to, std::size_t bytes) {
    auto* reader = static_cast<PngReader*>(png_get_io_ptr(png));
    if (bytes > reader->file_.size() - reader->taken_) png_error(png, "the file ends early");
    std::memcpy(to, firstByte(reader->file_) + reader->taken_, bytes);
    reader->taken_ += bytes;
  }

  const Encoded file_;
  std::size_t taken_ = 0;
  png_structp png_ = nullptr;
  png_infop info_ = nullptr;
  char fault_[200] = {};
};

// ---- All formats ----

Pixels decodeJpeg(Encoded file, const std::string& name, std::int64_t maxPixels, bool headerOnly) {
  JpegReader reader(file);
  const auto fail = [&] {
    throwDamagedImage(name, std::string("cannot be decoded as JPEG: ") + reader.fault());
  };
  if (!reader.readHeader()) fail();
  checkPixelCount(reader.height(), reader.width(), name, maxPixels);
  const int orientation = reader.orientation();
  Pixels image{reader.height(), reader.width(), reader.channels(), {}};
  if (headerOnly) return oriented(std::move(image), orientation);
  image.bytes.resize(static_cast<std::size_t>(image.height * image.width * image.channels));
  if (!reader.readPixels(image.bytes.data())) fail();
  return oriented(std::move(image), orientation);
}

Pixels decodePng(Encoded file, const std::string& name, std::int64_t maxPixels, bool headerOnly) {
  PngReader reader(file);
  const auto fail = [&] {
    throwDamagedImage(name, std::string("cannot be decoded as PNG: ") + reader.fault());
  };
  if (!reader.readHeader()) fail();
  checkPixelCount(reader.height(), reader.width(), name, maxPixels);
  const int orientation = orientationIn(pngOrientationData(viewOf(file)));
  Pixels image{reader.height(), reader.width(), 0, {}};
  if (headerOnly) return oriented(std::move(image), orientation);
  if (!reader.prepare()) fail();
  image.channels = reader.channels();
  const auto rowBytes = static_cast<std::size_t>(image.width * image.channels);
  assert(reader.rowBytes() == rowBytes);
  image.bytes.resize(static_cast<std::size_t>(image.height) * rowBytes);
  std::vector<std::uint8_t*> rows(static_cast<std::size_t>(image.height));
  for (std::size_t y = 0; y < rows.size(); ++y) rows[y] = image.bytes.data() + y * rowBytes;
  if (!reader.readPixels(rows.data())) fail();
  return oriented(std::move(image), orientation);
}

Pixels decodeWebp(Encoded file, const std::string& name, std::int64_t maxPixels, bool headerOnly) {
  WebPBitstreamFeatures features;
  if (WebPGetFeatures(firstByte(file), file.size(), &features) != VP8_STATUS_OK) {
    throwDamagedImage(name, "cannot be decoded as WebP: its header is damaged");
  }
  if (features.has_animation != 0) throwDamagedImage(name, "is an animated WebP file");
  checkPixelCount(features.height, features.width, name, maxPixels);
  const int orientation = orientationIn(webpOrientationData(viewOf(file)));
  Pixels image{features.height, features.width, 3, {}};
  if (headerOnly) return oriented(std::move(image), orientation);
  image.bytes.resize(static_cast<std::size_t>(image.height * image.width * image.channels));
  if (WebPDecodeRGBInto(firstByte(file), file.size(), image.bytes.data(), image.bytes.size(),
                        static_cast<int>(image.width * image.channels)) == nullptr) {
    throwDamagedImage(name, "cannot be decoded as WebP: it is damaged or ends early");
  }
  return oriented(std::move(image), orientation);
}

// Returns the image with the file's own channels. With `headerOnly`, the pixels are left out.
Pixels decodeAny(Encoded file, const std::string& name, std::int64_t maxPixels, bool headerOnly) {
  const auto beginsWith = [&](std::string_view bytes, std::size_t at = 0) {
    return file.size() >= at + bytes.size() &&
           std::memcmp(file.data() + at, bytes.data(), bytes.size()) == 0;
  };
  if (file.empty()) throwDamagedImage(name, "is empty");
  if (beginsWith("\xFF\xD8\xFF")) return decodeJpeg(file, name, maxPixels, headerOnly);
  if (beginsWith("\x89PNG")) return decodePng(file, name, maxPixels, headerOnly);
  if (beginsWith("RIFF") && beginsWith("WEBP", 8)) {
    return decodeWebp(file, name, maxPixels, headerOnly);
  }
  if (const std::string_view format = otherPictureFormat(file); !format.empty()) {
    throw SampleDamaged(
        fmt::format("{} is a {} file, not JPEG, PNG or WebP", printableName(name), format),
        conversionHint(format));
  }
  throwDamagedImage(name, "is neither JPEG, PNG nor WebP");
}

std::uint8_t greyOf(const std::uint8_t* rgb) {
  constexpr unsigned kRed = 19595, kGreen = 38470, kBlue = 7471, kHalf = 1u << 15;
  return static_cast<std::uint8_t>((kRed * rgb[0] + kGreen * rgb[1] + kBlue * rgb[2] + kHalf) >>
                                   16);
}

// Converts inverted CMYK to RGB.
void toRgb(const std::uint8_t* cmyk, std::uint8_t* rgb) {
  const unsigned light = cmyk[3];
  for (int c = 0; c < 3; ++c) {
    const unsigned product = (255u - cmyk[c]) * light + 128;  // divided by 255 and rounded:
    rgb[c] = static_cast<std::uint8_t>(light - ((product + (product >> 8)) >> 8));
  }
}

Pixels withChannels(Pixels image, std::int64_t channels) {
  if (image.channels == channels) return image;
  const std::size_t count = static_cast<std::size_t>(image.height * image.width);
  std::vector<std::uint8_t> bytes(count * static_cast<std::size_t>(channels));
  const std::uint8_t* from = image.bytes.data();
  std::uint8_t* to = bytes.data();
  for (std::size_t n = 0; n < count; ++n, from += image.channels, to += channels) {
    std::uint8_t rgb[3] = {from[0], from[0], from[0]};
    if (image.channels == 3) std::copy_n(from, 3, rgb);
    if (image.channels == 4) toRgb(from, rgb);
    if (channels == 1) {
      *to = greyOf(rgb);
    } else {
      std::copy_n(rgb, 3, to);
    }
  }
  return {image.height, image.width, channels, std::move(bytes)};
}

}  // namespace

ImageHeader readImageHeader(std::span<const std::byte> file, const std::string& name,
                            std::int64_t maxPixels) {
  const Pixels header = decodeAny(file, name, maxPixels, true);
  return {header.height, header.width};
}

Pixels decodeImage(std::span<const std::byte> file, std::int64_t channels, const std::string& name,
                   std::int64_t maxPixels) {
  assert(channels == 1 || channels == 3);
  return withChannels(decodeAny(file, name, maxPixels, false), channels);
}

std::vector<std::byte> encodePng(const Pixels& image) {
  png_image png = {};
  png.version = PNG_IMAGE_VERSION;
  png.width = static_cast<png_uint_32>(image.width);
  png.height = static_cast<png_uint_32>(image.height);
  png.format = image.channels == 1 ? PNG_FORMAT_GRAY : PNG_FORMAT_RGB;
  png_alloc_size_t size = PNG_IMAGE_PNG_SIZE_MAX(png);
  std::vector<std::byte> bytes(size);
  if (png_image_write_to_memory(&png, bytes.data(), &size, 0, image.bytes.data(), 0, nullptr) ==
      0) {
    throw RunError("cannot-write", std::string("PNG cannot be encoded: ") + png.message);
  }
  bytes.resize(size);
  return bytes;
}

void throwDamagedImage(const std::string& name, const std::string& fault) {
  throw SampleDamaged(
      printableName(name) + " " + fault,
      "replace or remove it, or set data.skip to the number of damaged samples that "
      "may be replaced by others; to list all: cleave-client data check --config FILE");
}

}  // namespace cleave
