// Reads a data file into memory and unpacks it if it is gzip.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "client/data/files/damage.h"

namespace cleave {

inline constexpr std::size_t kMaxDataBytes = std::size_t{4} << 30;  // of one split, unpacked

// Bytes of memory per byte of content, while the content is read and the data are made from it.
enum class Needs : std::uint8_t { twice = 2, eightTimes = 8 };  // arrays; tables and texts

// Returns the content of the file at `path`, unpacked if it is gzip (detected by content, not by
// name). Throws UsageError: data-missing, data-empty, data-damaged, and "data-too-large" if the
// content has more than `limit` bytes. Packed content is also refused if the memory available does
// not suffice for `needs`, or if it looks like a bomb (kMaxRatio). No memory is used for the
// content of a file that declares too large a size; for any other, the bytes are counted.
std::vector<std::uint8_t> readUnpacked(const std::string& path, std::size_t limit, Needs needs);

// Packed content of more than kAnyRatio bytes may be at most kMaxRatio times as large as the file.
inline constexpr std::size_t kMaxRatio = 200;
inline constexpr std::size_t kAnyRatio = std::size_t{64} << 20;

// The maximum bytes of the content of a packed file, and why.
struct UnpackLimit {
  std::size_t bytes;
  std::string fault;  // if there are more: "has more than …"
  std::string hint;
};
UnpackLimit unpackLimit(std::size_t packed, std::size_t limit, Needs needs,
                        std::uint64_t availableBytes);

// Throws UsageError data-damaged: "PATH FAULT".
[[noreturn]] void throwDamaged(const std::string& path, const std::string& fault,
                               const std::string& hint = "download the file again");

}  // namespace cleave
