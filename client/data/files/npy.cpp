#include "client/data/files/npy.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>

#include "client/data/files/unpack.h"
#include "common/core/printable.h"

namespace cleave {
namespace {

constexpr std::size_t kMaxRank = 32;  // NumPy's own limit

struct NpyHeader {
  std::string descr;
  std::optional<bool> isFortran;
  std::optional<std::vector<std::int64_t>> shape;
};

[[noreturn]] void damagedNpy(const std::string& path, const std::string& fault) {
  throwDamaged(path, fault, "write it again with numpy.save");
}

// The header is a dictionary in Python's syntax: {'descr': '<f4', 'fortran_order': False, 'shape':
// (3, 4), }
class HeaderParser {
 public:
  HeaderParser(std::string_view text, const std::string& path) : text_(text), path_(path) {}

  NpyHeader parse() {
    NpyHeader header;
    expect('{');
    while (!take('}')) {
      const std::string key = quoted();
      expect(':');
      if (key == "descr" && header.descr.empty()) {
        if (next() == '[') damagedNpy(path_, "has records, which are not supported");
        header.descr = quoted();
      } else if (key == "fortran_order" && !header.isFortran) {
        header.isFortran = boolean();
      } else if (key == "shape" && !header.shape) {
        header.shape = integers();
      } else {
        fail();
      }
      if (!take(',') && next() != '}') fail();
    }
    if (header.descr.empty() || !header.isFortran || !header.shape || next() != '\0') fail();
    return header;
  }

 private:
  [[noreturn]] void fail() const { damagedNpy(path_, "has an invalid header"); }

  // Skips blanks, and returns the next character; 0 at the end.
  char next() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n')) ++at_;
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  bool take(char c) {
    if (next() != c) return false;
    ++at_;
    return true;
  }
  void expect(char c) {
    if (!take(c)) fail();
  }

  std::string quoted() {
    const char quote = next();
    if (quote != '\'' && quote != '"') fail();
    const std::size_t end = text_.find(quote, at_ + 1);
    if (end == std::string_view::npos) fail();
    const std::string value(text_.substr(at_ + 1, end - at_ - 1));
    at_ = end + 1;
    return value;
  }

  bool boolean() {
    next();
    for (const std::string_view value : {"True", "False"}) {
      if (!text_.substr(at_).starts_with(value)) continue;
      at_ += value.size();
      return value == "True";
    }
    fail();
  }

  std::vector<std::int64_t> integers() {
    std::vector<std::int64_t> values;
    expect('(');
    while (!take(')')) {
      next();
      std::int64_t value = 0;
      const char* const begin = text_.data() + at_;
      const auto [end, error] = std::from_chars(begin, text_.data() + text_.size(), value);
      if (error != std::errc() || value < 0 || values.size() == kMaxRank) fail();
      values.push_back(value);
      at_ += static_cast<std::size_t>(end - begin);
      if (!take(',') && next() != ')') fail();
    }
    return values;
  }

  std::string_view text_;
  const std::string& path_;
  std::size_t at_ = 0;
};

// The file's parts: the header's text, and the bytes after it.
struct NpyParts {
  std::string_view header;
  std::span<const std::byte> data;
};

NpyParts partsOfNpy(std::span<const std::byte> file, const std::string& path) {
  constexpr std::string_view kMagic = "\x93NUMPY";
  const std::string_view text(reinterpret_cast<const char*>(file.data()), file.size());
  constexpr std::size_t kVersionBytes = 2;
  if (!text.starts_with(kMagic) || text.size() < kMagic.size() + kVersionBytes)
    damagedNpy(path, "is not a .npy file");
  const auto byte = [&](std::size_t n) { return static_cast<unsigned char>(text[n]); };
  const unsigned version = byte(kMagic.size());
  if (version < 1 || version > 3)
    damagedNpy(path, "has version " + std::to_string(version) + " of the format, not 1 to 3");
  const std::size_t lengthAt = kMagic.size() + kVersionBytes;
  const std::size_t lengthBytes = version == 1 ? 2 : 4;
  const std::size_t start = lengthAt + lengthBytes;
  std::size_t length = 0;
  if (text.size() < start) damagedNpy(path, "is truncated");
  for (std::size_t n = 0; n < lengthBytes; ++n) length |= std::size_t{byte(lengthAt + n)} << 8 * n;
  if (text.size() - start < length) damagedNpy(path, "is truncated in its header");
  return {text.substr(start, length), file.subspan(start + length)};
}

// Returns "f4" for "<f4". Refuses elements that are not little-endian numbers or booleans.
std::string dtypeOf(const std::string& descr, const std::string& path) {
  constexpr std::string_view kKinds = "fiub";
  if (descr.size() != 3 || kKinds.find(descr[1]) == std::string_view::npos) {
    damagedNpy(path, "has elements of type '" + printable(descr, 60) +
                         "'; only numbers and booleans are supported");
  }
  if (descr[0] == '>') {
    throwDamaged(path, "has big-endian elements",
                 "convert it: numpy.save(PATH, array.astype(array.dtype.newbyteorder('<')))");
  }
  return descr.substr(1);
}

}  // namespace

NpyArray readNpy(std::span<const std::byte> file, const std::string& path) {
  const NpyParts parts = partsOfNpy(file, path);
  const NpyHeader header = HeaderParser(parts.header, path).parse();
  NpyArray array{dtypeOf(header.descr, path), *header.shape, parts.data};
  if (*header.isFortran && array.shape.size() > 1) {
    throwDamaged(path, "is in Fortran order",
                 "convert it: numpy.save(PATH, numpy.ascontiguousarray(array))");
  }
  std::size_t bytes = static_cast<std::size_t>(array.dtype[1] - '0');
  if (bytes == 0 || bytes > 8) damagedNpy(path, "has elements of an unknown size");
  for (const std::int64_t dimension : array.shape) {
    const auto size = static_cast<std::size_t>(dimension);
    if (size == 0) throwDamaged(path, "has no elements", "write an array with samples");
    if (bytes > SIZE_MAX / size) damagedNpy(path, "has a shape that is too large");
    bytes *= size;
  }
  if (bytes != parts.data.size()) {
    damagedNpy(path, (bytes > parts.data.size() ? "is truncated" : "has trailing bytes") +
                         std::string(": its header declares ") + std::to_string(bytes) +
                         " bytes of elements, but it has " + std::to_string(parts.data.size()));
  }
  return array;
}

}  // namespace cleave
