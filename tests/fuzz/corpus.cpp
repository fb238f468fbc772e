// Runs the fuzz target on its seeds and on every file in the given folders, or writes the seeds as
// files. Needs no libFuzzer, so tests can use it.
//
//   fuzz_corpus FOLDER…
//   fuzz_corpus --write FOLDER
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "tests/fuzz/seeds.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

using namespace cleave::fuzz;

namespace {

int writeSeeds(const std::filesystem::path& folder) {
  std::filesystem::create_directories(folder);
  std::size_t count = 0;
  for (const Seed& seed : seeds()) {
    std::ofstream file(folder / ("seed-" + std::to_string(count++)), std::ios::binary);
    file.write(reinterpret_cast<const char*>(seed.input.data()),
               static_cast<std::streamsize>(seed.input.size()));
    if (!file.flush()) {
      std::fprintf(stderr, "fuzz_corpus: cannot write to %s\n", folder.c_str());
      return 1;
    }
  }
  std::printf("%zu seeds written to %s\n", count, folder.c_str());
  return 0;
}

// If an input fails, the program ends, and the input's name is the last one printed.
void runOne(const std::string& name, const std::string& input) {
  std::printf("%s\n", name.c_str());
  std::fflush(stdout);
  // The input is copied to a heap block of exactly its size, as in libFuzzer.
  const std::vector<std::uint8_t> bytes(input.begin(), input.end());
  LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 3 && std::strcmp(argv[1], "--write") == 0) return writeSeeds(argv[2]);
  std::size_t count = 0;
  for (const Seed& seed : seeds()) {
    runOne(seed.name, {reinterpret_cast<const char*>(seed.input.data()), seed.input.size()});
    ++count;
  }
  for (int j = 1; j < argc; ++j) {
    std::vector<std::filesystem::path> files;
    for (const auto& entry : std::filesystem::directory_iterator(argv[j]))
      if (entry.is_regular_file()) files.push_back(entry.path());
    if (files.empty()) {
      std::fprintf(stderr, "fuzz_corpus: no files in %s\n", argv[j]);
      return 1;
    }
    std::sort(files.begin(), files.end());
    for (const auto& path : files) {
      std::ifstream file(path, std::ios::binary);
      runOne(path, {std::istreambuf_iterator<char>(file), {}});
      ++count;
    }
  }
  std::printf("%zu inputs, no findings\n", count);
  return 0;
}
