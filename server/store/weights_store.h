// Initial weights of bodies that clients have sent, so that they need not be sent for every run:
//
//   STORE/IDENTITY/.weights/DIGEST.safetensors     DIGEST: SHA-256 of the file, hexadecimal
//
// No run id can equal this folder's name. A client that sends a digest may use the weights with
// that digest, so each identity has its own files. The files count towards the identity's share of
// the disk.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>

#include "common/checkpoint/files.h"
#include "server/store/disk_share.h"

namespace cleave {

// The folder of an identity's stored weights, in the identity's folder.
inline constexpr const char* kWeightsFolder = ".weights";

// A file of the store. While this object exists, the file is not removed to make room for others.
struct StoredWeights {
  std::string path;
  std::string sha256;  // 32 bytes
  std::size_t bytes = 0;
};

// Any thread, except keep().
class WeightsStore {
 public:
  // `files` is borrowed. `maxBytes`: maximum size per identity; 0: weights are not stored, and
  // stored ones are not used.
  WeightsStore(Files& files, std::string store, std::size_t maxBytes)
      : files_(files), store_(std::move(store)), maxBytes_(maxBytes) {}

  bool isEnabled() const { return maxBytes_ > 0; }
  // Returns the weights with this digest, and marks them as the most recently used; null if they
  // are not stored, or have more than `maxBytes`. Does not read their contents.
  std::shared_ptr<const StoredWeights> find(const std::string& identity, const std::string& sha256,
                                            std::size_t maxBytes);
  // Reads the file into `into`, whose size is weights.bytes, and verifies its digest. Returns false
  // if `cancelled` was set in the meantime. If the file is damaged, removes it and throws RunError
  // "weights-damaged".
  bool read(const StoredWeights& weights, std::span<std::byte> into,
            const std::atomic<bool>& cancelled, DiskShare& disk);
  // Stores weights that have this digest. Removes the least recently used weights to make room, and
  // the remains of interrupted writes. The weights are durable when this returns. Throws RunError
  // "weights-too-large", "disk-share-full", "disk-reserve" or "cannot-write". Call it on one thread
  // only.
  void keep(const std::string& identity, const std::string& sha256, std::string_view weights,
            DiskShare& disk);

 private:
  std::string folderOf(const std::string& identity) const;
  void removeInterrupted(const std::string& folder, DiskShare& disk);
  void makeRoom(const std::string& folder, std::size_t bytes, std::size_t limit, DiskShare& disk);
  bool removeUnlessUsed(const std::string& path, DiskShare& disk);
  void remove(const std::string& path, DiskShare& disk);

  Files& files_;
  const std::string store_;
  const std::size_t maxBytes_;
  std::mutex mutex_;  // guards used_, and removals of its files
  std::map<std::string, std::weak_ptr<const StoredWeights>> used_;  // by path
};

}  // namespace cleave
