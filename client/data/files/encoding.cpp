#include "client/data/files/encoding.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <string_view>

#include "client/data/files/unicode.h"
#include "client/data/files/unpack.h"
#include "common/core/printable.h"
#include "common/core/units.h"
#include "common/files/file_kind.h"

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

// The command that converts the file. `options`: of iconv.
std::string conversion(const std::string& options, const std::string& path) {
  const bool isGzip = path.ends_with(".gz");
  const std::filesystem::path plain = isGzip ? path.substr(0, path.size() - 3) : path;
  return fmt::format("{}iconv {} -t UTF-8{} > NEW{}",
                     isGzip ? "zcat " + shellQuoted(path) + " | " : "", options,
                     isGzip ? "" : " " + shellQuoted(path), plain.extension().string());
}

bool isNotAscii(char c) { return static_cast<unsigned char>(c) >= 0x80; }

// Whether a character of Windows-1252, the usual encoding of Western Europe's older files, begins
// with this byte.
bool isWindows1252(char c) {
  return std::string_view("\x81\x8D\x8F\x90\x9D").find(c) == std::string_view::npos;
}

void checkUtf8(std::string_view text, const std::string& path) {
  const std::size_t first = findInvalidUtf8(text);
  if (first == std::string_view::npos) return;
  const char lineEnd = text.find('\n') == std::string_view::npos ? '\r' : '\n';
  std::size_t bytes = 0, lines = 0, counted = 0;  // that are not UTF-8; the end of the last line
  bool isUsual = true;
  for (std::size_t at = first; at != std::string_view::npos; at = findInvalidUtf8(text, at + 1)) {
    ++bytes;
    isUsual &= isWindows1252(text[at]);
    if (at < counted) continue;
    ++lines;
    counted = std::min(text.find(lineEnd, at), text.size());
  }
  const std::string_view before = text.substr(0, first);
  const std::size_t lineBegin = before.rfind(lineEnd) + 1;  // 0 if there is none
  const auto notAscii =
      static_cast<std::size_t>(std::count_if(text.begin(), text.end(), isNotAscii));
  std::string hint;
  if (2 * bytes < notAscii) {
    hint = "correct these lines, or remove the bytes: " + conversion("-c -f UTF-8", path);
  } else if (isUsual) {
    hint = "convert it, for example from the encoding of Western Europe: " +
           conversion("-f WINDOWS-1252", path);
  } else {
    hint = "convert it from its encoding, of which iconv -l lists the names: " +
           conversion("-f ENCODING", path);
  }
  throw DataError(
      "data-damaged",
      fmt::format("{}:{}: byte {} of the line, 0x{:02X}, is not UTF-8; the file has {} with such "
                  "bytes",
                  path, 1 + std::count(before.begin(), before.end(), lineEnd),
                  first - lineBegin + 1, static_cast<unsigned char>(text[first]),
                  countText(lines, "line")),
      hint);
}

}  // namespace

std::vector<std::uint8_t> readText(const std::string& path) {
  std::vector<std::uint8_t> bytes = readUnpacked(path, kMaxDataBytes, Needs::eightTimes);
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const auto refuseEncoding = [&](const std::string& fault, const std::string& encoding) {
    throwDamaged(path, fault, "convert it: " + conversion("-f " + encoding, path));
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
  if (text.starts_with("\xFF\xFE\0\0"sv)) refuseEncoding("is UTF-32", "UTF-32");
  if (text.starts_with("\xFF\xFE"sv)) return fromUtf16(bytes, ByteOrder::little, path);
  if (text.starts_with("\xFE\xFF"sv)) return fromUtf16(bytes, ByteOrder::big, path);
  constexpr std::size_t kInspected = 4096;
  const std::string_view head = text.substr(0, kInspected);
  const std::size_t nul = head.find('\0');
  if (nul != std::string_view::npos) {
    const auto count = static_cast<std::size_t>(std::count(head.begin(), head.end(), '\0'));
    if (4 * count < head.size())  // half of most texts in UTF-16
      throwDamaged(path, "is not text: it has NUL bytes",
                   "give a text file, such as a table in CSV");
    refuseEncoding("has NUL bytes, as UTF-16 without a byte order mark",
                   nul % 2 == 1 ? "UTF-16LE" : "UTF-16BE");
  }
  if (text.starts_with("\xEF\xBB\xBF"sv)) bytes.erase(bytes.begin(), bytes.begin() + 3);
  checkUtf8({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, path);
  return bytes;
}

}  // namespace cleave
