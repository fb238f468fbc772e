// A temporary folder with files. The destructor removes it.
#pragma once

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <system_error>

#include "client/run/temporary_folder.h"

namespace cleave::test {

class Folder {
 public:
  std::string file(const std::string& name) const { return (path / name).string(); }
  void write(const std::string& name, const std::string& text) const {
    put(name, text, std::ios::trunc);
  }
  void append(const std::string& name, const std::string& text) const {
    put(name, text, std::ios::app);
  }
  std::string read(const std::string& name) const {
    std::ifstream stream(path / name, std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), {}};
  }

 private:
  void put(const std::string& name, const std::string& text, std::ios::openmode mode) const {
    std::filesystem::create_directories((path / name).parent_path());
    std::ofstream(path / name, std::ios::binary | mode) << text;
  }

  TemporaryFolder folder_;

 public:
  const std::filesystem::path path = folder_.path();
};

}  // namespace cleave::test
