// Initial weights from a file whose names differ, that is incomplete, or that is from another
// model.
#include <ATen/ops/full.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

#include "client/config/weights_file.h"
#include "tests/support/error_code.h"

namespace cleave::test {
namespace {

struct File {
  explicit File(const std::vector<NamedTensor>& tensors) {
    const auto bytes = toSafetensors(tensors);
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
  }
  ~File() { std::filesystem::remove(path); }
  const std::string path =
      std::filesystem::temp_directory_path() / ("cleave-weights-" + std::to_string(::getpid()));
};

std::vector<BlockSpec> mlpBlocks() {
  ModelSpec model{"mlp", {{"depth", "1"}, {"width", "4"}}, {3}, 2};
  return findModel("mlp").blocks(model);
}

// Returns a tensor for each of the model's tensors, with `prefix` before the name.
std::vector<NamedTensor> tensorsFor(const std::vector<BlockSpec>& blocks,
                                    const std::string& prefix) {
  std::vector<NamedTensor> tensors;
  for (const BlockSpec& block : blocks) {
    for (const ParameterSpec& each : block.tensors) {
      tensors.push_back({prefix + each.name, at::full(each.shape, 2)});
    }
  }
  return tensors;
}

TEST_CASE("names are changed by the first rule that matches") {
  const auto blocks = mlpBlocks();
  const File file(tensorsFor(blocks, "module."));
  WeightsSettings settings;
  settings.file = file.path;
  CHECK(errorCode([&] { readWeightsFile(settings, blocks, {}); }) == "bad-weights");
  settings.rename = {{"module.", ""}, {"", "never."}};
  WeightsReport report;
  const auto weights = readWeightsFile(settings, blocks, {}, &report);
  CHECK(weights.size() == tensorsFor(blocks, "").size());
  CHECK(report.loaded == weights.size());
  CHECK(report.fresh.empty());
  CHECK(toString(report) == std::to_string(weights.size()) + " tensors loaded");
}

TEST_CASE("a rule that makes two names equal is refused") {
  const auto blocks = mlpBlocks();
  auto tensors = tensorsFor(blocks, "");
  tensors.push_back({"module." + tensors[0].name, tensors[0].tensor});
  const File file(tensors);
  WeightsSettings settings;
  settings.file = file.path;
  settings.rename = {{"module.", ""}};
  CHECK(errorCode([&] { readWeightsFile(settings, blocks, {}); }) == "bad-weights");
}

TEST_CASE(
    "with partial weights, tensors with matching name and shape are loaded, others reported") {
  const auto blocks = mlpBlocks();
  auto tensors = tensorsFor(blocks, "");
  const std::size_t all = tensors.size();
  tensors.erase(tensors.begin());                         // a missing tensor
  tensors[0].tensor = at::full({7}, 1);                   // a tensor of a different shape
  tensors.push_back({"other.weight", at::full({1}, 1)});  // an unexpected tensor
  const File file(tensors);
  WeightsSettings settings;
  settings.file = file.path;
  CHECK(errorCode([&] { readWeightsFile(settings, blocks, {}); }) == "bad-weights");
  settings.partial = true;
  WeightsReport report;
  CHECK(readWeightsFile(settings, blocks, {}, &report).size() == all - 2);
  CHECK(report.loaded == all - 2);
  CHECK(report.fresh.size() == 2);
  CHECK(report.unexpected == std::vector<std::string>{"other.weight"});
  settings.except = {"no.such.block"};
  CHECK(errorCode([&] { readWeightsFile(settings, blocks, {}); }) == "bad-weights");
}

TEST_CASE("partial weights are refused if no name matches") {
  const auto blocks = mlpBlocks();
  const File file(tensorsFor(blocks, "module."));
  WeightsSettings settings;
  settings.file = file.path;
  settings.partial = true;
  CHECK(errorCode([&] { readWeightsFile(settings, blocks, {}); }) == "bad-weights");
}

TEST_CASE("an excepted block is initialised from the seed, even if the file has weights for it") {
  const auto blocks = mlpBlocks();
  const File file(tensorsFor(blocks, ""));
  WeightsSettings settings;
  settings.file = file.path;
  const auto withTensors = std::find_if(
      blocks.begin(), blocks.end(), [](const BlockSpec& each) { return !each.tensors.empty(); });
  settings.except = {withTensors->name};
  WeightsReport report;
  const auto weights = readWeightsFile(settings, blocks, {}, &report);
  CHECK(report.fresh.size() == withTensors->tensors.size());
  for (const NamedTensor& each : weights) CHECK(each.name != withTensors->tensors[0].name);
}

}  // namespace
}  // namespace cleave::test
