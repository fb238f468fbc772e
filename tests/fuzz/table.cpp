// Fuzz target: bytes that are read as a CSV file with a training set, and then, with that set's
// columns, as a test set and as input for predictions. Only UsageError is allowed. A file that is
// accepted as a training set must also be accepted as the other two.
#include <unistd.h>

#include <fstream>

#include "client/data/formats/formats.h"
#include "common/core/error.h"
#include "tests/fuzz/seeds.h"

using namespace cleave;
using namespace cleave::fuzz;

namespace {

void readSamples(const Dataset& data) {
  std::vector<std::vector<std::byte>> memory;
  for (const SampleArray& array : data.arrays()) memory.emplace_back(specOf(array, 1).bytes());
  std::vector<std::span<std::byte>> sample(memory.begin(), memory.end());
  for (std::uint32_t n = 0; n < std::min(data.size(), 16U); ++n) {
    data.write(n, std::nullopt, sample);
    if (data.sampleName(n).empty()) find("a sample has no name");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const std::string path = "/tmp/cleave_fuzz_table_" + std::to_string(getpid()) + ".csv";
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(size));
  DataFormatKeys keys;
  keys.trainFile = keys.testFile = path;
  keys.inputs = {path};
  keys.missing = "mean";
  const DataFormatRow& csv = findDataFormat("csv");
  std::unique_ptr<Dataset> train;
  try {
    train = csv.open(keys, DataSplit::train);
  } catch (const UsageError&) {
    ::unlink(path.c_str());
    return 0;
  }
  readSamples(*train);
  keys.learned = nlohmann::json::parse(train->learned().dump());
  try {
    for (const DataSplit split : {DataSplit::test, DataSplit::input}) {
      const auto other = csv.open(keys, split);
      if (other->arrays() != train->arrays()) find("another split has other arrays");
      readSamples(*other);
    }
  } catch (const UsageError&) {
    find("the training set is not accepted as a test set");
  }
  ::unlink(path.c_str());
  return 0;
}

std::vector<Seed> cleave::fuzz::seeds() {
  return {
      {"columns", bytesOf("a,b,label\n1,x,yes\n2,\"y\"\"z\",no\n")},
      {"missing", bytesOf("a,label\r\n,0\r\nNaN,1\r\n3,2\r\n")},
      {"numbers", bytesOf("label,a\n10,1e300\n-3,-1e300\n")},
      {"not closed", bytesOf("a,label\n\"1,2\n")},
      {"bytes", bytesOf("a\xFF,label\n\xC3,\x80\n")},
  };
}
