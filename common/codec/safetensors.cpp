#include "common/codec/safetensors.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string_view>

#include "common/codec/tensor.h"

namespace cleave {

using Json = nlohmann::json;

std::string inAscii(const std::string& text) {
  const std::string quoted = Json(text).dump(-1, ' ', true, Json::error_handler_t::replace);
  return quoted.substr(1, quoted.size() - 2);
}

namespace {

constexpr std::size_t kLengthBytes = 8;
constexpr std::size_t kMaxHeaderBytes = 100'000'000;
constexpr std::size_t kMaxTensors = 100'000;
// A tensor has four names (its own, dtype, shape, data_offsets); __metadata__ may have kMaxTensors
// names.
constexpr std::size_t kMaxNames = 5 * kMaxTensors;
// The header is an object of objects that contain arrays.
constexpr int kMaxDepth = 3;
// The writer pads its header with spaces so that the data starts at a multiple of this in the file.
constexpr std::size_t kDataAlignment = 64;
constexpr std::string_view kMetadata = "__metadata__";

struct DTypeRow {
  std::string_view name;
  std::size_t bytes;
};
constexpr std::array<DTypeRow, 15> kDTypes = {{{"F32", 4},
                                               {"F16", 2},
                                               {"BF16", 2},
                                               {"I64", 8},
                                               {"F64", 8},
                                               {"F8_E4M3", 1},
                                               {"F8_E5M2", 1},
                                               {"U64", 8},
                                               {"I32", 4},
                                               {"U32", 4},
                                               {"I16", 2},
                                               {"U16", 2},
                                               {"I8", 1},
                                               {"U8", 1},
                                               {"BOOL", 1}}};

std::optional<std::size_t> dtypeBytesOf(std::string_view dtype) {
  for (const DTypeRow& row : kDTypes) {
    if (row.name == dtype) return row.bytes;
  }
  return std::nullopt;
}

// Size of a tensor in bytes; nullopt if the dtype is unknown or the shape is invalid.
std::optional<std::size_t> bytesOf(const SafetensorsEntry& entry) {
  const std::optional<std::size_t> elementBytes = dtypeBytesOf(entry.dtype);
  const std::optional<std::size_t> elements = TensorSpec{.shape = entry.shape}.checkedElements();
  if (!elementBytes || !elements) return std::nullopt;
  return *elements * *elementBytes;  // at most 2^43
}

std::string inQuotes(const std::string& text) { return '"' + inAscii(text) + '"'; }

[[noreturn]] void fail(const std::string& file, const std::string& fault) {
  throw UsageError("bad-safetensors", file + ": " + fault,
                   "download or write the file again; it is damaged, or not a safetensors file");
}

// Checks the header's tokens before a document is built from them, so that a malicious header
// cannot use up memory. It also detects repeated names; a document would keep only the last value.
// (The parser's own callback is no substitute: it is quadratic, since at the end of each object it
// searches all earlier ones.)
class HeaderGuard : public nlohmann::json_sax<Json> {
 public:
  explicit HeaderGuard(const std::string& file) : file_(file) {}

  bool start_object(std::size_t) override { return open(false); }
  bool end_object() override { return close(); }
  bool start_array(std::size_t) override { return open(true); }
  bool end_array() override { return close(); }
  bool null() override { return value(); }
  bool boolean(bool) override { return value(); }
  bool number_integer(std::int64_t) override { return value(); }
  bool number_unsigned(std::uint64_t) override { return value(); }
  bool number_float(double, const std::string&) override { return value(); }
  bool string(std::string&) override { return value(); }
  bool binary(Json::binary_t&) override { return value(); }

  bool key(std::string& key) override {
    std::set<std::string>& keys = open_.back().keys;
    if (!keys.insert(key).second) fail(file_, "its header names " + inQuotes(key) + " twice");
    if (open_.size() == 1 && keys.size() > kMaxTensors + 1) {  // plus __metadata__
      fail(file_, "its header has more than " + std::to_string(kMaxTensors) + " tensors");
    }
    if (++names_ > kMaxNames) {
      fail(file_, "its header has more than " + std::to_string(kMaxNames) + " names");
    }
    return true;
  }

  bool parse_error(std::size_t byte, const std::string&, const Json::exception&) override {
    fail(file_, "its header cannot be read as JSON, at byte " + std::to_string(byte));
  }

 private:
  struct Container {
    bool isArray;
    std::set<std::string> keys;
    std::size_t values;
  };

  bool open(bool isArray) {
    if (open_.size() == kMaxDepth) fail(file_, "its header nests deeper than 3 levels");
    if (!open_.empty() && open_.back().isArray) {
      fail(file_, "its header has an array with values that are not numbers");
    }
    open_.push_back({isArray, {}, 0});
    return true;
  }

  bool close() {
    open_.pop_back();
    return true;
  }

  bool value() {
    // The longest arrays in the format are shapes.
    if (!open_.empty() && open_.back().isArray && ++open_.back().values > kMaxRank) {
      fail(file_, "its header has an array of more than " + std::to_string(kMaxRank) + " values");
    }
    return true;
  }

  const std::string& file_;
  std::vector<Container> open_;
  std::size_t names_ = 0;
};

std::span<const std::byte> headerOf(std::span<const std::byte> file, const std::string& name) {
  if (file.size() < kLengthBytes) {
    fail(name, "too short: " + std::to_string(file.size()) +
                   " bytes, but the header's length alone takes 8");
  }
  std::uint64_t length = 0;
  std::memcpy(&length, file.data(), kLengthBytes);
  if (length > kMaxHeaderBytes) {
    fail(name, "its header claims " + std::to_string(length) + " bytes; the limit is 100 MB");
  }
  if (length > file.size() - kLengthBytes) {
    fail(name, "its header claims " + std::to_string(length) + " bytes, but " +
                   std::to_string(file.size() - kLengthBytes) + " follow");
  }
  return file.subspan(kLengthBytes, length);
}

Json parseHeader(std::span<const std::byte> header, const std::string& name) {
  // The format requires the brace first; a JSON parser would also accept spaces or a byte order
  // mark.
  const auto* const text = reinterpret_cast<const char*>(header.data());
  if (header.empty() || *text != '{') fail(name, "its header is not a JSON object");
  // The parser treats NUL as the end of the text, so bytes after it would go unchecked.
  if (std::memchr(text, 0, header.size()) != nullptr) fail(name, "its header contains a NUL byte");
  HeaderGuard guard(name);
  Json::sax_parse(text, text + header.size(), &guard);
  return Json::parse(text, text + header.size());
}

void checkMetadata(const Json& metadata, const std::string& name) {
  const bool good =
      metadata.is_object() &&
      std::all_of(metadata.begin(), metadata.end(), [](const Json& v) { return v.is_string(); });
  if (!good) fail(name, "its __metadata__ is not an object of strings");
}

struct Located {
  SafetensorsEntry entry;  // its `bytes` are not set yet
  std::uint64_t begin, end;
};

// `where` names the file and the tensor in errors.
Located readEntry(const std::string& tensor, const Json& json, const std::string& where) {
  const bool hasKeys = json.is_object() && json.size() == 3 && json.contains("dtype") &&
                       json.contains("shape") && json.contains("data_offsets");
  if (!hasKeys) fail(where, "does not consist of dtype, shape and data_offsets");
  const Json& dtype = json["dtype"];
  const Json& shape = json["shape"];
  const Json& offsets = json["data_offsets"];
  const auto isCount = [](const Json& value) { return value.is_number_unsigned(); };

  if (!dtype.is_string()) fail(where, "its dtype is not a string");
  Located located{{tensor, dtype.get<std::string>(), {}, {}}, 0, 0};
  if (!dtypeBytesOf(located.entry.dtype)) {
    std::string known;
    for (const DTypeRow& row : kDTypes)
      known += (known.empty() ? "" : ", ") + std::string(row.name);
    fail(where, "unknown dtype " + inQuotes(located.entry.dtype) + "; supported are " + known);
  }
  if (!shape.is_array() || !std::all_of(shape.begin(), shape.end(), isCount)) {
    fail(where, "its shape is not an array of non-negative integers");
  }
  // A dimension above the signed range becomes negative here, and bytesOf rejects it.
  located.entry.shape = shape.get<std::vector<std::int64_t>>();
  if (!offsets.is_array() || offsets.size() != 2 || !isCount(offsets[0]) || !isCount(offsets[1])) {
    fail(where, "its data_offsets are not two non-negative integers");
  }
  located.begin = offsets[0].get<std::uint64_t>();
  located.end = offsets[1].get<std::uint64_t>();

  if (located.begin > located.end) fail(where, "its data_offsets are reversed");
  const std::optional<std::size_t> bytes = bytesOf(located.entry);
  if (!bytes) fail(where, "its shape has more elements than 2^40");
  if (*bytes != located.end - located.begin) {
    fail(where, "its shape and dtype make " + std::to_string(*bytes) + " bytes, its data_offsets " +
                    std::to_string(located.end - located.begin));
  }
  return located;
}

}  // namespace

std::vector<std::byte> safetensorsHeader(const std::vector<SafetensorsEntry>& entries,
                                         const std::map<std::string, std::string>& metadata) {
  // Concatenated by hand, since a JSON object would sort the entries.
  std::string header = "{";
  if (!metadata.empty()) header += "\"" + std::string(kMetadata) + "\":" + Json(metadata).dump();
  std::size_t dataBytes = 0;
  for (const SafetensorsEntry& entry : entries) {
    assert(bytesOf(entry) == entry.bytes.size());
    const Json json = {{"dtype", entry.dtype},
                       {"shape", entry.shape},
                       {"data_offsets", {dataBytes, dataBytes + entry.bytes.size()}}};
    if (header.size() > 1) header += ',';
    header += Json(entry.name).dump() + ':' + json.dump();
    dataBytes += entry.bytes.size();
  }
  header += '}';
  const std::size_t unpadded = kLengthBytes + header.size();
  header.append((kDataAlignment - unpadded % kDataAlignment) % kDataAlignment, ' ');

  std::vector<std::byte> bytes(kLengthBytes + header.size());
  const std::uint64_t headerBytes = header.size();
  std::memcpy(bytes.data(), &headerBytes, kLengthBytes);
  std::memcpy(bytes.data() + kLengthBytes, header.data(), header.size());
  return bytes;
}

std::vector<std::byte> writeSafetensors(const std::vector<SafetensorsEntry>& entries,
                                        const std::map<std::string, std::string>& metadata) {
  std::vector<std::byte> file = safetensorsHeader(entries, metadata);
  std::size_t size = file.size();
  for (const SafetensorsEntry& entry : entries) size += entry.bytes.size();
  file.reserve(size);
  for (const SafetensorsEntry& entry : entries) {
    file.insert(file.end(), entry.bytes.begin(), entry.bytes.end());
  }
  return file;
}

std::vector<SafetensorsEntry> readSafetensors(std::span<const std::byte> file,
                                              const std::string& name) {
  const std::span<const std::byte> header = headerOf(file, name);
  const std::span<const std::byte> data = file.subspan(kLengthBytes + header.size());
  const Json json = parseHeader(header, name);

  std::vector<Located> located;
  for (const auto& [tensor, description] : json.items()) {
    if (tensor == kMetadata) {
      checkMetadata(description, name);
    } else {
      located.push_back(readEntry(tensor, description, name + ": tensor " + inQuotes(tensor)));
    }
  }
  // In data order, each entry must start where the previous one ended.
  std::stable_sort(located.begin(), located.end(), [](const Located& a, const Located& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });

  std::vector<SafetensorsEntry> entries;
  std::uint64_t end = 0;
  for (Located& next : located) {
    const std::string where = name + ": tensor " + inQuotes(next.entry.name);
    if (next.begin < end) fail(where, "its bytes overlap those of another tensor");
    if (next.begin > end) fail(where, "there is a gap before its bytes");
    if (next.end > data.size()) {
      fail(where, "its bytes end at offset " + std::to_string(next.end) +
                      ", but the data has only " + std::to_string(data.size()) + " bytes");
    }
    end = next.end;
    next.entry.bytes = data.subspan(next.begin, next.end - next.begin);
    entries.push_back(std::move(next.entry));
  }
  if (end != data.size()) {
    fail(name,
         std::to_string(data.size() - end) + " bytes after the last tensor belong to no tensor");
  }
  return entries;
}

std::map<std::string, std::string> readSafetensorsMetadata(std::span<const std::byte> file,
                                                           const std::string& name) {
  const Json json = parseHeader(headerOf(file, name), name);
  const auto metadata = json.find(kMetadata);
  if (metadata == json.end()) return {};
  checkMetadata(*metadata, name);
  return metadata->get<std::map<std::string, std::string>>();
}

}  // namespace cleave
