// The disks of a simulation. Files are real, in a folder per node; this class
// tracks what a loss of power destroys: a random part of what was written to a file since its last
// fsync, and the changes of a folder since its last fsync, from a random one on. The director's
// changes are not simulated: they are durable immediately.
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
  // -1 if the path belongs to no node.
  int ownerOf(const std::string& path) const;
  std::uint64_t calls(Node node) const { return calls_[node]; }
  void fail(Node node, std::uint64_t first, std::uint64_t count, int error);
  void killAt(Node node, std::uint64_t call, bool power) { killing_[node] = {call, power}; }
  void losePower(Node node);

  // See world.h.
  int beforeChange(const std::string& path);
  int beforeWrite(int file);
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
    std::uint64_t call = 0;  // 0: none
    bool power = false;
  };
  // A change in a folder, not synchronised yet.
  struct Change {
    std::string folder;
    std::string from;    // of a rename; else empty
    std::string path;    // created, removed, or the new name
    std::string backup;  // of what was at `path`; empty if there was nothing
  };
  std::string keepCopy(const std::string& path);
  void undo(const Change& change);

  std::array<std::string, kNodes> folders_;
  std::array<std::uint64_t, kNodes> calls_{};
  std::array<Failing, kNodes> failing_;
  std::array<Killing, kNodes> killing_;
  std::map<int, std::string> open_;  // by descriptor
  std::map<std::string, std::uint64_t>
      dirty_;  // per file with unsynchronised data: the leading bytes that survive
  std::array<std::vector<Change>, kNodes> changes_;
  std::uint64_t copies_ = 0;
};

Disk& disk();

}  // namespace cleave::sim
