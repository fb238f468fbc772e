#include "client/data/pictures/orientation.h"

#include <zlib.h>

#include <algorithm>
#include <bit>
#include <set>
#include <string_view>

namespace cleave {
namespace {

constexpr std::string_view kExifMark("Exif\0\0", 6);

std::string_view textOf(ByteView bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

bool startsWith(ByteView bytes, std::string_view prefix) {
  return textOf(bytes).starts_with(prefix);
}

void assign(std::vector<std::uint8_t>& to, ByteView from) { to.assign(from.begin(), from.end()); }

// ---- EXIF ----

// Reads numbers of a TIFF file. The caller checks that they are inside the file.
class TiffBytes {
 public:
  TiffBytes(ByteView bytes, bool isLittle) : bytes_(bytes), isLittle_(isLittle) {}

  std::uint64_t number(std::size_t at, std::size_t size) const {
    std::uint64_t value = 0;
    for (std::size_t n = 0; n < size; ++n) {
      value = value << 8 | bytes_[at + (isLittle_ ? size - 1 - n : n)];
    }
    return value;
  }
  std::size_t size() const { return bytes_.size(); }

 private:
  ByteView bytes_;
  bool isLittle_;
};

enum TiffType : unsigned {
  kByte = 1,
  kAscii = 2,
  kShort = 3,
  kLong = 4,
  kRational = 5,
  kSignedByte = 6,
  kUndefined = 7,
  kSignedShort = 8,
  kSignedLong = 9,
  kSignedRational = 10,
  kFloat = 11,
  kDouble = 12,
  kDirectory = 13,
  kLong8 = 16,
};

// Bytes of a value; 0: an unknown type.
std::size_t sizeOfType(std::uint64_t type) {
  switch (type) {
    case kByte:
    case kAscii:
    case kSignedByte:
    case kUndefined:
      return 1;
    case kShort:
    case kSignedShort:
      return 2;
    case kLong:
    case kSignedLong:
    case kFloat:
    case kDirectory:
      return 4;
    case kRational:
    case kSignedRational:
    case kDouble:
    case kLong8:
      return 8;
    default:
      return 0;
  }
}

// The first value of the tag. PIL compares the value with the numbers 2 to 8, so any numeric type
// counts; bytes and texts are not numbers in PIL. Signed values that are not in 1 … 8 as unsigned
// numbers are not either as signed ones.
double valueAt(const TiffBytes& tiff, std::size_t at, std::uint64_t type) {
  switch (type) {
    case kByte:
    case kAscii:
    case kUndefined:
      return 1;
    case kRational:
    case kSignedRational: {
      const std::uint64_t above = tiff.number(at, 4), below = tiff.number(at + 4, 4);
      if (type == kSignedRational && above >> 31 != 0 && below >> 31 != 0) {  // both are negative
        constexpr std::uint64_t kRange = std::uint64_t{1} << 32;
        return static_cast<double>(kRange - above) / static_cast<double>(kRange - below);
      }
      return below == 0 ? 1 : static_cast<double>(above) / static_cast<double>(below);
    }
    case kFloat:
      return std::bit_cast<float>(static_cast<std::uint32_t>(tiff.number(at, 4)));
    case kDouble:
      return std::bit_cast<double>(tiff.number(at, 8));
    default:
      return static_cast<double>(tiff.number(at, sizeOfType(type)));
  }
}

int orientationFrom(double value) {
  for (int orientation = 2; orientation <= 8; ++orientation) {
    if (value == orientation) return orientation;
  }
  return 1;
}

bool isTiffHeader(ByteView bytes) {
  using namespace std::string_view_literals;
  for (const std::string_view prefix : {"MM\0*"sv, "II*\0"sv, "MM*\0"sv, "II\0*"sv, "MM\0+"sv}) {
    if (startsWith(bytes, prefix)) return bytes.size() >= 8;
  }
  return false;  // "II+\0": BigTIFF, whose header PIL cannot read from EXIF
}

// Reads the first directory of a TIFF file. Empty: it has no orientation. An entry larger than the
// file is skipped, one that points beyond the file ends the directory, and the second
// one of a tag is ignored, as in PIL.
std::optional<int> exifOrientation(ByteView exif) {
  for (int n = 0; n < 2 && startsWith(exif, kExifMark); ++n) exif = exif.subspan(kExifMark.size());
  if (exif.empty()) return std::nullopt;
  if (!isTiffHeader(exif)) return 1;
  constexpr std::size_t kEntryBytes = 12;
  constexpr std::uint64_t kOrientationTag = 0x0112;
  const TiffBytes tiff(exif, exif[0] == 'I');
  const std::size_t directory = tiff.number(4, 4);
  if (directory + 2 > tiff.size()) return std::nullopt;
  const std::uint64_t entries = tiff.number(directory, 2);
  std::set<std::uint64_t> read;  // tags
  std::uint64_t outside = 0;     // bytes of all values that do not fit into their entries
  for (std::uint64_t n = 0; n < entries; ++n) {
    const std::size_t entry = directory + 2 + n * kEntryBytes;
    if (entry + kEntryBytes > tiff.size()) return std::nullopt;
    const std::uint64_t tag = tiff.number(entry, 2);
    if (read.contains(tag)) continue;
    const std::uint64_t type = tiff.number(entry + 2, 2);
    const std::uint64_t bytes = tiff.number(entry + 4, 4) * sizeOfType(type);
    if (bytes == 0) continue;
    std::size_t at = entry + 8;
    if (bytes > 4) {
      outside += bytes;
      if (outside > tiff.size()) continue;
      at = tiff.number(entry + 8, 4);
      if (at + bytes > tiff.size()) return std::nullopt;
    }
    if (tag == kOrientationTag) return orientationFrom(valueAt(tiff, at, type));
    read.insert(tag);
  }
  return std::nullopt;
}

// ---- XMP ----

// The first digit after `tiff:Orientation="` or `tiff:Orientation>`.
int xmpOrientation(ByteView xmp) {
  constexpr std::string_view kName = "tiff:Orientation";
  const std::string_view text = textOf(xmp);
  for (std::size_t at = text.find(kName); at != std::string_view::npos;
       at = text.find(kName, at + 1)) {
    std::string_view rest = text.substr(at + kName.size());
    if (rest.starts_with("=\"")) {
      rest.remove_prefix(2);
    } else if (rest.starts_with(">")) {
      rest.remove_prefix(1);
    } else {
      continue;
    }
    if (!rest.empty() && rest.front() >= '0' && rest.front() <= '9') {
      return orientationFrom(rest.front() - '0');
    }
  }
  return 1;
}

// ---- PNG ----

std::uint64_t bigEndian(ByteView bytes, std::size_t at) {
  return TiffBytes(bytes, false).number(at, 4);
}

// Splits off the text before the first zero byte. Empty if there is no zero byte.
std::optional<ByteView> takeText(ByteView& bytes) {
  const auto zero = std::find(bytes.begin(), bytes.end(), std::uint8_t{0});
  if (zero == bytes.end()) return std::nullopt;
  const auto size = static_cast<std::size_t>(zero - bytes.begin());
  const ByteView text = bytes.first(size);
  bytes = bytes.subspan(size + 1);
  return text;
}

// Empty if the data is damaged, or has more than 1 MiB.
std::vector<std::uint8_t> inflated(ByteView bytes) {
  std::vector<std::uint8_t> out(std::size_t{1} << 20);
  z_stream stream = {};
  if (inflateInit(&stream) != Z_OK) return {};
  stream.next_in = const_cast<std::uint8_t*>(bytes.data());
  stream.avail_in = static_cast<unsigned>(bytes.size());  // a chunk has less than 2 GiB
  stream.next_out = out.data();
  stream.avail_out = static_cast<unsigned>(out.size());
  const int result = inflate(&stream, Z_FINISH);
  inflateEnd(&stream);
  if (result != Z_STREAM_END) return {};
  out.resize(stream.total_out);
  return out;
}

struct PngText {
  std::string_view key;
  std::vector<std::uint8_t> value;
};

// The chunks tEXt, zTXt and iTXt; empty for other and damaged ones.
std::optional<PngText> pngText(std::string_view type, ByteView chunk) {
  if (type != "tEXt" && type != "zTXt" && type != "iTXt") return std::nullopt;
  const auto key = takeText(chunk);
  if (!key) return std::nullopt;
  bool isCompressed = type == "zTXt";
  if (type == "iTXt") {
    if (chunk.size() < 2 || (chunk[0] != 0 && chunk[1] != 0)) return std::nullopt;
    isCompressed = chunk[0] != 0;
    chunk = chunk.subspan(2);
    if (!takeText(chunk) || !takeText(chunk)) return std::nullopt;  // language, translated key
  } else if (isCompressed) {
    if (chunk.empty() || chunk[0] != 0) return std::nullopt;
    chunk = chunk.subspan(1);
  }
  PngText text{textOf(*key), {}};
  if (isCompressed) {
    text.value = inflated(chunk);
  } else {
    assign(text.value, chunk);
  }
  return text;
}

// The bytes of an ImageMagick profile: an empty line, its name, its length, then hex digits.
// Damaged: empty.
std::vector<std::uint8_t> profileBytes(ByteView profile) {
  std::string_view text = textOf(profile);
  for (int line = 0; line < 3; ++line) {
    const std::size_t end = text.find('\n');
    if (end == std::string_view::npos) return {};
    text.remove_prefix(end + 1);
  }
  std::vector<std::uint8_t> bytes;
  int high = -1;
  for (const char c : text) {
    if (c == '\n' || c == ' ' || c == '\r' || c == '\t') continue;
    const int digit = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                             : -1;
    if (digit < 0) return {};
    if (high < 0) {
      high = digit;
    } else {
      bytes.push_back(static_cast<std::uint8_t>(16 * high + digit));
      high = -1;
    }
  }
  return bytes;
}

}  // namespace

int orientationIn(const OrientationData& data) {
  if (!data.exif.empty()) {
    if (const auto orientation = exifOrientation(data.exif)) return *orientation;
  }
  return xmpOrientation(data.xmp);
}

// EXIF data of more than 64 KiB is divided among several segments.
void addJpegSegment(ByteView segment, OrientationData& data) {
  constexpr std::string_view kXmpMark("http://ns.adobe.com/xap/1.0/\0", 29);
  if (startsWith(segment, kExifMark)) {
    const ByteView added = data.exif.empty() ? segment : segment.subspan(kExifMark.size());
    data.exif.insert(data.exif.end(), added.begin(), added.end());
  } else if (startsWith(segment, kXmpMark)) {
    assign(data.xmp, segment.subspan(kXmpMark.size()));
  }
}

OrientationData pngOrientationData(ByteView file) {
  constexpr std::size_t kSignature = 8, kFrame = 12;  // length, type and checksum of a chunk
  OrientationData data;
  std::vector<std::uint8_t> profile;
  for (std::size_t at = kSignature; at + kFrame <= file.size();) {
    const std::uint64_t length = bigEndian(file, at);
    if (length > file.size() - at - kFrame) break;
    const std::string_view type = textOf(file.subspan(at + 4, 4));
    const ByteView chunk = file.subspan(at + 8, length);
    if (type == "IEND") break;
    if (type == "eXIf") assign(data.exif, chunk);
    if (auto text = pngText(type, chunk)) {
      if (text->key == "XML:com.adobe.xmp") data.xmp = std::move(text->value);
      if (text->key == "Raw profile type exif") profile = profileBytes(text->value);
    }
    at += kFrame + length;
  }
  if (data.exif.empty()) data.exif = std::move(profile);
  return data;
}

// Only files that begin with a chunk VP8X have metadata; its flags say which.
OrientationData webpOrientationData(ByteView file) {
  constexpr std::size_t kFirst = 12, kFrame = 8, kMinHeader = 10;
  constexpr unsigned kHasXmp = 0x04, kHasExif = 0x08;
  OrientationData data;
  if (file.size() < kFirst + kFrame + kMinHeader || !startsWith(file.subspan(kFirst), "VP8X")) {
    return data;
  }
  const unsigned flags = file[kFirst + kFrame];
  for (std::size_t at = kFirst; at + kFrame <= file.size();) {
    const std::uint64_t length = TiffBytes(file, true).number(at + 4, 4);
    if (length > file.size() - at - kFrame) break;
    const std::string_view type = textOf(file.subspan(at, 4));
    const ByteView chunk = file.subspan(at + kFrame, length);
    if (type == "EXIF" && (flags & kHasExif) != 0 && data.exif.empty()) assign(data.exif, chunk);
    if (type == "XMP " && (flags & kHasXmp) != 0 && data.xmp.empty()) assign(data.xmp, chunk);
    at += kFrame + length + length % 2;
  }
  return data;
}

}  // namespace cleave
