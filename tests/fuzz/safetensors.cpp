// Fuzz target: bytes that are read as a safetensors file. Only UsageError is allowed. Accepted
// tensors must be within the file, and the same after writing and reading them again.
#include <algorithm>
#include <cstring>

#include "common/codec/safetensors.h"
#include "tests/fuzz/seeds.h"

using namespace cleave;
using namespace cleave::fuzz;

namespace {

bool isSame(const SafetensorsEntry& a, const SafetensorsEntry& b) {
  return a.name == b.name && a.dtype == b.dtype && a.shape == b.shape &&
         std::ranges::equal(a.bytes, b.bytes);
}

Bytes fileOf(const std::string& header, std::size_t dataBytes) {
  Bytes bytes;
  for (int j = 0; j < 8; ++j) bytes.push_back(static_cast<std::byte>(header.size() >> (8 * j)));
  for (const char c : header) bytes.push_back(static_cast<std::byte>(c));
  bytes.resize(bytes.size() + dataBytes);
  return bytes;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span<const std::byte> file(reinterpret_cast<const std::byte*>(data), size);
  std::vector<SafetensorsEntry> entries;
  try {
    entries = readSafetensors(file, "file");
  } catch (const UsageError&) {
    return 0;
  }
  for (const SafetensorsEntry& entry : entries) {
    if (!entry.bytes.empty() && (entry.bytes.data() < file.data() ||
                                 entry.bytes.data() + entry.bytes.size() > file.data() + size))
      find("an entry is outside the file");
  }
  const Bytes written = writeSafetensors(entries);
  if (!std::ranges::equal(readSafetensors(written, "again"), entries, isSame))
    find("entries change when written and read again");
  return 0;
}

std::vector<Seed> cleave::fuzz::seeds() {
  const Bytes values(24);
  const std::vector<SafetensorsEntry> entries = {
      {"a.weight", "F32", {2, 3}, values},
      {"b", "BF16", {}, std::span(values).first(2)},
      {"empty", "I64", {0, 4}, {}},
  };
  return {
      {"two tensors", writeSafetensors(entries, {{"format", "pt"}})},
      {"none", fileOf("{}", 0)},
      {"nested", fileOf(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":[[[]]]})", 2)},
      {"gap", fileOf(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})", 2)},
      {"large", fileOf(R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],)"
                       R"("data_offsets":[0,18446744073709551615]}})",
                       4)}};
}
