// A disk in memory.
#pragma once

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/checkpoint/files.h"
#include "common/core/durable.h"

namespace cleave {

class MemoryFiles : public Files {
 public:
  // From now on, the change with this number fails, counted from 1; 0: no change fails.
  void failAt(int change) { left_ = change; }

  // From now on, this file cannot be read; empty: all can.
  void failReads(const std::string& path) { unreadable_ = path; }

  std::optional<std::string> read(const std::string& path) override {
    if (path == unreadable_) throw RunError("run-unreadable", path + " cannot be read");
    const auto found = files_.find(path);
    return found == files_.end() ? std::nullopt : std::optional(found->second);
  }
  std::optional<HeldBytes> view(const std::string& path) override {
    const std::optional<std::string> file = read(path);
    if (!file) return std::nullopt;
    const auto bytes = std::as_bytes(std::span(file->data(), file->size()));
    return std::vector(bytes.begin(), bytes.end());
  }
  void writePieces(const std::string& path, std::span<const std::string_view> pieces) override {
    change(path);
    std::string& file = files_[path];
    file.clear();
    for (const std::string_view piece : pieces) file += piece;
  }
  void remove(const std::string& path) override {
    change(path);
    files_.erase(path);
  }
  bool readAt(const std::string& path, std::uint64_t offset, std::span<std::byte> into) override {
    const std::string whole = read(path).value_or("");
    if (offset > whole.size() || into.size() > whole.size() - offset) return false;
    std::memcpy(into.data(), whole.data() + offset, into.size());
    return true;
  }
  void touch(const std::string&) override {}
  std::int64_t changeTime(const std::string&) override { return 0; }
  std::uint64_t size(const std::string& path) override { return read(path).value_or("").size(); }
  std::vector<std::string> list(const std::string& folder) override {
    std::vector<std::string> names;
    for (const auto& [path, content] : files_) {
      if (path.starts_with(folder + "/")) names.push_back(path.substr(folder.size() + 1));
    }
    return names;
  }
  void makeFolder(const std::string& folder) override { change(folder); }

 private:
  void change(const std::string& path) {
    if (left_ > 0 && --left_ == 0) throwCannotWrite(path, "cannot be written", ENOSPC);
  }
  std::map<std::string, std::string> files_;
  int left_ = 0;
  std::string unreadable_;
};

}  // namespace cleave
