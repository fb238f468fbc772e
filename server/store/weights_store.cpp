#include "server/store/weights_store.h"

#include <algorithm>
#include <exception>
#include <utility>
#include <vector>

#include "common/checkpoint/checkpoint_store.h"
#include "common/core/durable.h"
#include "common/core/failpoint.h"
#include "common/core/units.h"
#include "common/files/sha256.h"

namespace cleave {
namespace {

constexpr std::string_view kExtension = ".safetensors";

RunError damaged(const std::string& reason) {
  return RunError("weights-damaged",
                  "the body's initial weights, which this server has stored, " + reason,
                  "rerun the command: the weights will be sent again");
}

}  // namespace

std::string WeightsStore::folderOf(const std::string& identity) const {
  return store_ + "/" + identity + "/" + kWeightsFolder;
}

// ---- Using stored weights ----

std::shared_ptr<const StoredWeights> WeightsStore::find(const std::string& identity,
                                                        const std::string& sha256,
                                                        std::size_t maxBytes) {
  if (!isEnabled()) return nullptr;
  const std::string path = folderOf(identity) + "/" + hexOf(sha256) + std::string(kExtension);
  const std::lock_guard lock(mutex_);
  const std::uint64_t bytes = files_.size(path);
  if (bytes == 0 || bytes > maxBytes) return nullptr;
  files_.touch(path);
  std::erase_if(used_, [](const auto& each) { return each.second.expired(); });
  auto found = std::make_shared<const StoredWeights>(StoredWeights{path, sha256, bytes});
  // Another run may already use the same file. Both share one object, so that the file is not
  // removed while either uses it.
  if (const auto before = used_[path].lock(); before && before->bytes == bytes) return before;
  used_[path] = found;
  return found;
}

bool WeightsStore::read(const StoredWeights& weights, std::span<std::byte> into,
                        const std::atomic<bool>& cancelled, DiskShare& disk) {
  constexpr std::size_t kPieceBytes = std::size_t{4} << 20;  // small enough for a processor's cache
  std::string fault;
  try {
    Sha256 digest;
    for (std::size_t at = 0; at < into.size() && fault.empty();) {
      if (cancelled) return false;
      const auto piece = into.subspan(at, std::min(kPieceBytes, into.size() - at));
      if (!files_.readAt(weights.path, at, piece)) fault = "are missing or truncated";
      digest.add(piece);
      at += piece.size();
    }
    if (fault.empty() && digest.finish() != weights.sha256) fault = "do not match their SHA-256";
  } catch (const RunError&) {
    fault = "cannot be read";
  }
  if (fault.empty()) return true;
  try {
    const std::lock_guard lock(mutex_);
    remove(weights.path, disk);
  } catch (const RunError&) {
    fault += ", and the file cannot be removed";
  }
  throw damaged(fault);
}

// ---- Storing weights ----

void WeightsStore::keep(const std::string& identity, const std::string& sha256,
                        std::string_view weights, DiskShare& disk) {
  const std::size_t limit = std::min(maxBytes_, disk.maxBytes() / 2);
  if (weights.size() > limit) {
    throw RunError("weights-too-large",
                   "they take " + mebibytesText(weights.size()) + ", but at most " +
                       mebibytesText(limit) +
                       " are stored for this identity (weights.keep_mib in the configuration, or "
                       "half of the identity's share of the disk)");
  }
  const std::string folder = folderOf(identity);
  const std::string path = folder + "/" + hexOf(sha256) + std::string(kExtension);
  removeInterrupted(folder, disk);
  if (files_.size(path) == weights.size()) return files_.touch(path);
  {
    const std::lock_guard lock(mutex_);
    remove(path, disk);
  }
  makeRoom(folder, weights.size(), limit, disk);
  if (!disk.take(weights.size())) throw disk.error("the file of initial weights", weights.size());
  try {
    failpoint("weights");
    files_.makeFolder(folder);
    files_.write(path, weights);
  } catch (...) {
    disk.giveBack(weights.size());
    throw;
  }
}

// Only keep() writes to the folder, so none of these writes is in progress.
void WeightsStore::removeInterrupted(const std::string& folder, DiskShare& disk) {
  for (const std::string& name : files_.list(folder)) {
    if (isTemporaryName(name)) remove(folder + "/" + name, disk);
  }
}

void WeightsStore::makeRoom(const std::string& folder, std::size_t bytes, std::size_t limit,
                            DiskShare& disk) {
  struct File {
    std::int64_t time;
    std::string path;
    std::uint64_t bytes;
  };
  std::vector<File> files;
  std::uint64_t total = bytes;
  for (const std::string& name : files_.list(folder)) {
    if (!name.ends_with(kExtension)) continue;
    const std::string path = folder + "/" + name;
    files.push_back({files_.changeTime(path), path, files_.size(path)});
    total += files.back().bytes;
  }
  std::sort(files.begin(), files.end(),
            [](const File& a, const File& b) { return a.time < b.time; });
  for (const File& oldest : files) {
    if (total <= limit) return;
    if (removeUnlessUsed(oldest.path, disk)) total -= oldest.bytes;
  }
  if (total <= limit) return;
  throw RunError("weights-too-large",
                 "there is no room for them (weights.keep_mib in the configuration), because "
                 "starting runs use the stored weights");
}

bool WeightsStore::removeUnlessUsed(const std::string& path, DiskShare& disk) {
  const std::lock_guard lock(mutex_);
  const auto found = used_.find(path);
  if (found != used_.end() && !found->second.expired()) return false;
  remove(path, disk);
  return true;
}

// Gives back the bytes only once, although two runs may find the same damaged file.
void WeightsStore::remove(const std::string& path, DiskShare& disk) {
  const std::uint64_t bytes = files_.size(path);
  files_.remove(path);
  disk.giveBack(bytes);
}

}  // namespace cleave
