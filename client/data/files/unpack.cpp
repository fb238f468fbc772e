#include "client/data/files/unpack.h"

#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <new>

#include "common/core/units.h"
#include "common/resources/available_memory.h"

namespace cleave {
namespace {

constexpr std::size_t kChunk = std::size_t{1} << 20;

[[noreturn]] void throwMissing(const std::string& path, const std::string& why) {
  const bool fashion = path.find("fashion-mnist") != std::string::npos;
  throw DataMissing(
      path + " cannot be read: " + why,
      fashion ? "install Debian's dataset-fashion-mnist with scripts/setup.sh"
      : path.starts_with('/')
          ? "check the path of the data in the configuration"
          : "check the path in the configuration; relative paths start from the current folder");
}

constexpr const char* kSplitHint = "split the data into smaller files, or download the file again";

[[noreturn]] void throwTooLarge(const std::string& path, const std::string& fault,
                                const std::string& hint) {
  throw DataError("data-too-large", path + " " + fault, hint);
}

std::string maximumText(std::size_t limit) {
  return "has more than the maximum of " + std::to_string(limit) + " bytes";
}

struct FileCloser {
  void operator()(std::FILE* file) const { std::fclose(file); }
};

std::vector<std::uint8_t> readWhole(const std::string& path, std::size_t limit) {
  std::error_code failure;
  const auto status = std::filesystem::status(path, failure);
  if (!std::filesystem::exists(status)) throwMissing(path, "there is no such file");
  if (!std::filesystem::is_regular_file(status)) throwMissing(path, "it is not a regular file");
  const std::uintmax_t size = std::filesystem::file_size(path, failure);
  if (!failure && size > limit) throwTooLarge(path, maximumText(limit), kSplitHint);
  const std::unique_ptr<std::FILE, FileCloser> file(std::fopen(path.c_str(), "rb"));
  if (file == nullptr) throwMissing(path, std::strerror(errno));

  std::vector<std::uint8_t> bytes;
  for (std::size_t got = kChunk; got == kChunk;) {
    const std::size_t before = bytes.size();
    bytes.resize(before + kChunk);
    got = std::fread(bytes.data() + before, 1, kChunk, file.get());
    bytes.resize(before + got);
    if (bytes.size() > limit) throwTooLarge(path, maximumText(limit), kSplitHint);
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

// The size of the last member, modulo 2^32, as gzip declares it in its last 4 bytes.
std::size_t declaredSize(const std::vector<std::uint8_t>& packed) {
  std::size_t size = 0;
  for (std::size_t n = 0; n < std::min<std::size_t>(4, packed.size()); ++n) {
    size = size << 8 | packed[packed.size() - 1 - n];
  }
  return size;
}

std::vector<std::uint8_t> unpack(const std::string& path, std::vector<std::uint8_t> packed,
                                 const UnpackLimit& limit) {
  const std::size_t declared = declaredSize(packed);
  // Nothing is kept of a file that declares too much. It is still read, because the size that a
  // truncated file seems to declare is any number, and its error is another.
  const bool isKept = declared <= limit.bytes;
  std::size_t total = 0;
  Inflater inflater;
  std::vector<std::uint8_t> bytes;
  if (isKept) bytes.reserve(std::min(declared, packed.size() * kMaxRatio));
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
    total += made;
    if (total > limit.bytes) {
      throwTooLarge(path, limit.fault, limit.hint);
    }
    const auto end = chunk.begin() + static_cast<std::ptrdiff_t>(made);
    if (isKept) bytes.insert(bytes.end(), chunk.begin(), end);

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
                             std::to_string(total) + " unpacked bytes");
    } else if (result == Z_MEM_ERROR) {
      throw std::bad_alloc();
    } else if (result != Z_OK) {
      throwDamaged(path, std::string("is damaged: its gzip data cannot be unpacked (") +
                             (inflater->msg != nullptr ? inflater->msg : "unknown fault") + ")");
    }
  }
}

}  // namespace

UnpackLimit unpackLimit(std::size_t packed, std::size_t limit, Needs needs,
                        std::uint64_t availableBytes) {
  UnpackLimit result{limit, maximumText(limit), kSplitHint};
  const std::size_t ratio =
      std::max(kAnyRatio, packed > limit / kMaxRatio ? limit : packed * kMaxRatio);
  if (ratio < result.bytes) {
    result = {ratio,
              "unpacks to more than " + bytesText(static_cast<double>(ratio)) +
                  ", and to more than " + std::to_string(kMaxRatio) + " times its own size",
              "if the file is as it should be, unpack it with gunzip, and give the unpacked file"};
  }
  const std::uint64_t memory = availableBytes / static_cast<unsigned>(needs);
  if (memory < result.bytes) {
    result = {static_cast<std::size_t>(memory),
              "unpacks to more than " + bytesText(static_cast<double>(memory)) +
                  ", too much for the memory available, " +
                  bytesText(static_cast<double>(availableBytes)),
              "stop other programs, or split the data into smaller files"};
  }
  return result;
}

std::vector<std::uint8_t> readUnpacked(const std::string& path, std::size_t limit, Needs needs) {
  std::vector<std::uint8_t> bytes = readWhole(path, limit);
  if (bytes.empty()) {
    throw DataError("data-empty", path + " is empty", "download the file again");
  }
  if (!isGzip(bytes.data(), bytes.size())) return bytes;
  const UnpackLimit most = unpackLimit(bytes.size(), limit, needs, availableMemory());
  return unpack(path, std::move(bytes), most);
}

void throwDamaged(const std::string& path, const std::string& fault, const std::string& hint) {
  throw DataError("data-damaged", path + " " + fault, hint);
}

}  // namespace cleave
