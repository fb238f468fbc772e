#include "client/data/encoding.h"

#include <algorithm>
#include <string>
#include <string_view>

#include "client/data/unicode.h"
#include "client/data/unpack.h"
#include "common/core/file_kind.h"

namespace cleave {
namespace {

enum class ByteOrder : std::uint8_t { little, big };

// `bytes`: after the byte order mark. Unpaired surrogates become U+FFFD.
std::vector<std::uint8_t> fromUtf16(const std::vector<std::uint8_t>& bytes, ByteOrder order,
                                    const std::string& path) {
  if (bytes.size() % 2 != 0) {
    throwDamaged(path, "is UTF-16, but ends in the middle of a character",
                 "copy or write the file again");
  }
  const auto unitAt = [&](std::size_t at) {
    const char32_t first = bytes[at], second = bytes[at + 1];
    return order == ByteOrder::little ? first | second << 8 : first << 8 | second;
  };
  const auto isHigh = [](char32_t unit) { return unit >= 0xD800 && unit < 0xDC00; };
  const auto isLow = [](char32_t unit) { return unit >= 0xDC00 && unit < 0xE000; };
  constexpr std::size_t kAtOnce = std::size_t{1} << 16;
  std::vector<std::uint8_t> utf8;
  std::string part;
  for (std::size_t at = 2; at < bytes.size(); at += 2) {
    char32_t character = unitAt(at);
    if (isHigh(character) && at + 2 < bytes.size() && isLow(unitAt(at + 2))) {
      character = 0x10000 + ((character - 0xD800) << 10) + (unitAt(at + 2) - 0xDC00);
      at += 2;
    } else if (isHigh(character) || isLow(character)) {
      character = 0xFFFD;
    }
    appendCharacter(part, character);
    if (part.size() < kAtOnce && at + 2 < bytes.size()) continue;
    utf8.insert(utf8.end(), part.begin(), part.end());
    part.clear();
    if (utf8.size() > kMaxDataBytes)
      throwDamaged(path, "has more than 4 GiB as UTF-8", "split the data into smaller files");
  }
  return utf8;
}

}  // namespace

std::vector<std::uint8_t> readText(const std::string& path) {
  std::vector<std::uint8_t> bytes = readUnpacked(path, kMaxDataBytes, Needs::eightTimes);
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const auto refuseEncoding = [&](const std::string& fault, const std::string& encoding) {
    throwDamaged(path, fault,
                 "convert it: iconv -f " + encoding + " -t utf-8 " + path + " > NEW.csv");
  };
  using namespace std::string_view_literals;
  const FileKind kind = fileKindOf(text);
  if (kind == FileKind::spreadsheet || kind == FileKind::zip) {
    throwDamaged(path, "is a spreadsheet or an archive, not text",
                 "save it as CSV in the spreadsheet program, or unpack it");
  }
  if (kind != FileKind::unknown) {
    throwDamaged(path, "is " + std::string(nameOf(kind)) + ", not text",
                 "write the data as CSV, or set data.format to that of the file");
  }
  if (text.starts_with("\xFF\xFE\0\0"sv)) refuseEncoding("is UTF-32", "utf-32");
  if (text.starts_with("\xFF\xFE"sv)) return fromUtf16(bytes, ByteOrder::little, path);
  if (text.starts_with("\xFE\xFF"sv)) return fromUtf16(bytes, ByteOrder::big, path);
  constexpr std::size_t kInspected = 4096;
  const std::size_t nul = text.substr(0, kInspected).find('\0');
  if (nul != std::string_view::npos) {
    refuseEncoding("has NUL bytes, as UTF-16 without a byte order mark",
                   nul % 2 == 1 ? "utf-16le" : "utf-16be");
  }
  if (text.starts_with("\xEF\xBB\xBF"sv)) bytes.erase(bytes.begin(), bytes.begin() + 3);
  return bytes;
}

}  // namespace cleave
