#include "client/data/unpack.h"

#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <new>

namespace cleave {
namespace {

constexpr std::size_t kChunk = std::size_t{1} << 20;

[[noreturn]] void throwMissing(const std::string& path, const std::string& why) {
  const bool fashion = path.find("fashion-mnist") != std::string::npos;
  throw UsageError(
      "data-missing", path + " cannot be read: " + why,
      fashion ? "install Debian's dataset-fashion-mnist with scripts/setup.sh"
      : path.starts_with('/')
          ? "check the path of the data in the configuration"
          : "check the path in the configuration; relative paths start from the current folder");
}

[[noreturn]] void throwTooLarge(const std::string& path, std::size_t limit) {
  throwDamaged(path, "has more than the maximum of " + std::to_string(limit) + " bytes",
               "split the data into smaller files, or download the file again");
}

struct FileCloser {
  void operator()(std::FILE* file) const { std::fclose(file); }
};

std::vector<std::uint8_t> readWhole(const std::string& path, std::size_t limit) {
  std::error_code failure;
  const auto status = std::filesystem::status(path, failure);
  if (!std::filesystem::exists(status)) throwMissing(path, "there is no such file");
  if (!std::filesystem::is_regular_file(status)) throwMissing(path, "it is not a regular file");
  const std::unique_ptr<std::FILE, FileCloser> file(std::fopen(path.c_str(), "rb"));
  if (file == nullptr) throwMissing(path, std::strerror(errno));

  std::vector<std::uint8_t> bytes;
  for (std::size_t got = kChunk; got == kChunk;) {
    const std::size_t before = bytes.size();
    bytes.resize(before + kChunk);
    got = std::fread(bytes.data() + before, 1, kChunk, file.get());
    bytes.resize(before + got);
    if (bytes.size() > limit) throwTooLarge(path, limit);
  }
  if (std::ferror(file.get()) != 0) throwMissing(path, std::strerror(errno));
  return bytes;
}

bool isGzip(const std::uint8_t* bytes, std::size_t size) {
  return size >= 2 && bytes[0] == 0x1f && bytes[1] == 0x8b;
}

class Inflater {
 public:
  Inflater() {
    // 16 + the largest window: accept only gzip framing, and verify its checksum and length.
    if (inflateInit2(&stream_, 16 + MAX_WBITS) != Z_OK) throw std::bad_alloc();
  }
  ~Inflater() { inflateEnd(&stream_); }
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;

  z_stream* operator->() { return &stream_; }
  z_stream* get() { return &stream_; }

 private:
  z_stream stream_ = {};
};

std::vector<std::uint8_t> unpack(const std::string& path, std::vector<std::uint8_t> packed,
                                 std::size_t limit) {
  Inflater inflater;
  std::vector<std::uint8_t> bytes;
  std::vector<std::uint8_t> chunk(kChunk);
  std::size_t taken = 0;  // packed bytes consumed
  for (;;) {
    // zlib's counters have 32 bits, so a large file is passed in pieces.
    const auto offered = static_cast<uInt>(std::min(packed.size() - taken, kChunk));
    inflater->next_in = packed.data() + taken;
    inflater->avail_in = offered;
    inflater->next_out = chunk.data();
    inflater->avail_out = static_cast<uInt>(chunk.size());
    const int result = inflate(inflater.get(), Z_NO_FLUSH);
    taken += offered - inflater->avail_in;
    const std::size_t made = chunk.size() - inflater->avail_out;
    if (bytes.size() + made > limit) throwTooLarge(path, limit);
    bytes.insert(bytes.end(), chunk.begin(), chunk.begin() + static_cast<std::ptrdiff_t>(made));

    if (result == Z_STREAM_END) {
      if (taken == packed.size()) return bytes;
      // A gzip file may have several members, one after another.
      if (!isGzip(packed.data() + taken, packed.size() - taken)) {
        throwDamaged(path, "has " + std::to_string(packed.size() - taken) +
                               " bytes after the end of its gzip data");
      }
      inflateReset(inflater.get());
    } else if (result == Z_BUF_ERROR) {  // no progress, because the input is exhausted
      throwDamaged(path, "is truncated: its gzip data ends in the middle, after " +
                             std::to_string(bytes.size()) + " unpacked bytes");
    } else if (result == Z_MEM_ERROR) {
      throw std::bad_alloc();
    } else if (result != Z_OK) {
      throwDamaged(path, std::string("is damaged: its gzip data cannot be unpacked (") +
                             (inflater->msg != nullptr ? inflater->msg : "unknown fault") + ")");
    }
  }
}

}  // namespace

std::vector<std::uint8_t> readUnpacked(const std::string& path, std::size_t limit) {
  std::vector<std::uint8_t> bytes = readWhole(path, limit);
  if (bytes.empty()) {
    throw UsageError("data-empty", path + " is empty", "download the file again");
  }
  if (!isGzip(bytes.data(), bytes.size())) return bytes;
  return unpack(path, std::move(bytes), limit);
}

void throwDamaged(const std::string& path, const std::string& fault, const std::string& hint) {
  throw UsageError("data-damaged", path + " " + fault, hint);
}

}  // namespace cleave
