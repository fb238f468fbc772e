// Data of tests that scripts/package.sh --gpu ships: they are in the folder of the test program, in
// the archive as in the build, so that no path of the build's machine is compiled in.
#pragma once

#include <filesystem>
#include <string>

namespace cleave::test {

inline std::string besideProgram(const std::string& name) {
  return std::filesystem::read_symlink("/proc/self/exe").replace_filename(name).string();
}

}  // namespace cleave::test
