// A temporary folder that is removed with the object.
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <string>
#include <system_error>

#include "common/core/error.h"

namespace cleave {

class TemporaryFolder {
 public:
  // Throws RunError.
  TemporaryFolder() {
    std::string name = std::filesystem::temp_directory_path() / "cleave-XXXXXX";
    if (::mkdtemp(name.data()) == nullptr) {
      throw RunError("cannot-write", "cannot create the folder " + name,
                     "set TMPDIR to a writable folder");
    }
    path_ = name;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace cleave
