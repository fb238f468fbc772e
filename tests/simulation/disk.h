// The disks of a simulation. Files are real files in a folder per node. This class tracks what a
// loss of power destroys: in a file, a random part of the data written since its last fsync; in a
// folder, the changes since its last fsync, starting at a random change. Changes made by the
// director are durable immediately.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tests/simulation/world.h"

namespace cleave::sim {

class Disk {
 public:
  void setFolder(Node node, const std::string& folder);
  // Returns the node of a path; -1 if it belongs to no node.
  int ownerOf(const std::string& path) const;
  std::uint64_t calls(Node node) const { return calls_[node]; }
  void fail(Node node, std::uint64_t first, std::uint64_t count, int error);
  void killAt(Node node, std::uint64_t call, bool power) { killing_[node] = {call, power, false}; }
  void killAllAt(Node node, std::uint64_t call) { killing_[node] = {call, false, true}; }
  void losePower(Node node);
  void setSyncDelay(Node node, Nanoseconds delay) { maxSyncDelays_[node] = delay; }
  void syncFolder(Node node);

  // These functions are documented in world.h.
  int beforeChange(const std::string& path);
  int beforeWrite(int file);
  int beforeSync(int file);
  void opened(int file, const std::string& path, bool isNew);
  void wrote(int file);
  void synced(int file);
  void renames(const std::string& from, const std::string& to);
  void removes(const std::string& path);
  void forget(int file) { open_.erase(file); }

 private:
  struct Failing {
    std::uint64_t first = 0, count = 0;
    int error = 0;
  };
  struct Killing {
    std::uint64_t call = 0;  // number of the change; 0: none
    bool power = false;
    bool all = false;  // kills the other nodes too
  };
  // A change in a folder that is not synchronised yet.
  struct Change {
    std::string folder;
    std::string from;    // the old name, if the change is a rename; otherwise empty
    std::string path;    // the created or removed path, or the new name
    std::string backup;  // copy of the file that was at `path`; empty if there was none
  };
  std::string keepCopy(const std::string& path);
  void undo(const Change& change);

  std::array<std::string, kNodes> folders_;
  std::array<std::uint64_t, kNodes> calls_{};
  std::array<Failing, kNodes> failing_;
  std::array<Killing, kNodes> killing_;
  std::map<int, std::string> open_;  // paths of open files, by descriptor
  std::map<std::string, std::uint64_t>
      dirty_;  // files with unsynchronised data, and the number of leading bytes that survive
  std::array<std::vector<Change>, kNodes> changes_;
  std::uint64_t copies_ = 0;
  std::array<Nanoseconds, kNodes> maxSyncDelays_{};
};

Disk& disk();

}  // namespace cleave::sim
