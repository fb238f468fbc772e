#include "tests/simulation/disk.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <utility>

#include "tests/simulation/real.h"

namespace cleave::sim {
namespace {

std::string folderOf(const std::string& path) {
  return std::filesystem::path(path).parent_path().string();
}

std::uint64_t sizeOf(const std::string& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 ? static_cast<std::uint64_t>(status.st_size) : 0;
}

bool exists(const std::string& path) { return ::access(path.c_str(), F_OK) == 0; }

}  // namespace

Disk& disk() {
  static Disk* const disk = new Disk;
  return *disk;
}

void Disk::setFolder(Node node, const std::string& folder) { folders_[node] = folder + "/"; }

int Disk::ownerOf(const std::string& path) const {
  for (int node = 0; node < kNodes; ++node) {
    if (!folders_[node].empty() && path.starts_with(folders_[node])) return node;
  }
  return -1;
}

void Disk::fail(Node node, std::uint64_t first, std::uint64_t count, int error) {
  failing_[node] = {first, count, error};
}

int Disk::beforeChange(const std::string& path) {
  const int node = ownerOf(path);
  if (node != currentNode()) return 0;
  const Failing& failing = failing_[node];
  const std::uint64_t number = ++calls_[node];
  if (const Killing& killing = killing_[node]; number == killing.call) {
    for (int other = kServer; killing.all && other < kNodes; ++other) {
      const bool isOther = other != node && isAlive(static_cast<Node>(other));
      if (isOther) sim::killAt(static_cast<Node>(other), switches(), false);
    }
    killNow(static_cast<Node>(node), killing.power);
  }
  return number >= failing.first && number - failing.first < failing.count ? failing.error : 0;
}

int Disk::beforeWrite(int file) {
  const auto found = open_.find(file);
  return found == open_.end() ? 0 : beforeChange(found->second);
}

int Disk::beforeSync(int file) {
  const int error = beforeWrite(file);
  const Nanoseconds delay = maxSyncDelays_[currentNode()];
  if (error == 0 && delay > 0 && open_.contains(file)) {
    sleep(static_cast<Nanoseconds>(draw(static_cast<std::uint64_t>(delay))));
  }
  return error;
}

void Disk::opened(int file, const std::string& path, bool isNew) {
  const int node = ownerOf(path);
  if (node != currentNode()) return;
  open_[file] = path;
  if (!isNew) return;
  dirty_[path] = 0;
  changes_[node].push_back({folderOf(path), "", path, ""});
}

void Disk::wrote(int file) {
  const auto found = open_.find(file);
  // This runs before the write, so the file's current size is the number of synchronised bytes.
  if (found != open_.end()) dirty_.emplace(found->second, sizeOf(found->second));
}

void Disk::synced(int file) {
  const auto found = open_.find(file);
  if (found == open_.end()) return;
  const std::string& path = found->second;
  dirty_.erase(path);
  const int node = ownerOf(path);
  // Synchronising a folder makes its changes durable; synchronising a file makes its creation
  // durable.
  std::erase_if(changes_[node], [&](const Change& change) {
    const bool isCreation = change.from.empty() && change.backup.empty();
    if (change.folder != path && !(isCreation && change.path == path)) return false;
    if (!change.backup.empty()) real::unlink(change.backup.c_str());
    return true;
  });
}

std::string Disk::keepCopy(const std::string& path) {
  if (!exists(path)) return "";
  // Backups are stored next to the nodes' folders.
  const int node = ownerOf(path);
  const std::string copy =
      folders_[node].substr(0, folders_[node].size() - 1) + ".copy" + std::to_string(copies_++);
  return ::link(path.c_str(), copy.c_str()) == 0 ? copy : "";
}

void Disk::renames(const std::string& from, const std::string& to) {
  const int node = ownerOf(to);
  if (node != currentNode()) return;
  changes_[node].push_back({folderOf(to), from, to, keepCopy(to)});
  dirty_.erase(to);
  if (auto moved = dirty_.extract(from)) {
    moved.key() = to;
    dirty_.insert(std::move(moved));
  }
  for (auto& [file, path] : open_) {
    if (path == from) path = to;
  }
}

void Disk::removes(const std::string& path) {
  const int node = ownerOf(path);
  if (node != currentNode()) return;
  changes_[node].push_back({folderOf(path), "", path, keepCopy(path)});
  dirty_.erase(path);
}

void Disk::undo(const Change& change) {
  if (!change.from.empty()) {
    real::rename(change.path.c_str(), change.from.c_str());
  } else if (change.backup.empty()) {
    real::unlink(change.path.c_str());
  }
  if (!change.backup.empty()) real::rename(change.backup.c_str(), change.path.c_str());
}

void Disk::losePower(Node node) {
  for (auto each = dirty_.begin(); each != dirty_.end();) {
    const auto& [path, safe] = *each;
    if (ownerOf(path) != node) {
      ++each;
      continue;
    }
    const std::uint64_t size = sizeOf(path);
    if (size > safe) {
      [[maybe_unused]] const int ignored =
          ::truncate(path.c_str(), static_cast<off_t>(safe + draw(size - safe + 1)));
    }
    each = dirty_.erase(each);
  }
  auto& changes = changes_[node];
  // The disk persists changes in order, so a prefix of the changes survives.
  std::size_t kept = changes.empty() ? 0 : draw(changes.size() + 1);
  while (changes.size() > kept) {
    undo(changes.back());
    changes.pop_back();
  }
  for (const Change& change : changes) {
    if (!change.backup.empty()) real::unlink(change.backup.c_str());
  }
  changes.clear();
}

void Disk::syncFolder(Node node) {
  std::erase_if(dirty_, [&](const auto& each) { return ownerOf(each.first) == node; });
  for (const Change& change : changes_[node]) {
    if (!change.backup.empty()) real::unlink(change.backup.c_str());
  }
  changes_[node].clear();
}

// ---- world.h ----

void killAtFileCall(Node node, std::uint64_t call, bool power) { disk().killAt(node, call, power); }
void killAllAtFileCall(Node node, std::uint64_t call) { disk().killAllAt(node, call); }
void setSyncDelay(Node node, Nanoseconds delay) { disk().setSyncDelay(node, delay); }
void syncFolder(Node node) { disk().syncFolder(node); }

int beforeChange(const char* path) { return disk().beforeChange(path); }
int beforeSync(int file) { return disk().beforeSync(file); }
int beforeWrite(int file) { return disk().beforeWrite(file); }
void openedFile(int file, const char* path, bool isNew) { disk().opened(file, path, isNew); }
void wrote(int file) { disk().wrote(file); }
void synced(int file) { disk().synced(file); }
void renames(const char* from, const char* to) { disk().renames(from, to); }
void removes(const char* path) { disk().removes(path); }

}  // namespace cleave::sim
