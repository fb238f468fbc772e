// The data format `tensors`: named arrays in safetensors files.
#include <catch2/catch.hpp>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "client/data/dataset.h"
#include "client/data/loader.h"
#include "client/train/temporary_folder.h"
#include "common/model/safetensors.h"
#include "tests/error_code.h"

namespace cleave::test {
namespace {

template <typename T>
SafetensorsEntry entry(const std::string& name, const std::string& dtype,
                       std::vector<std::int64_t> shape, const std::vector<T>& values) {
  return {name, dtype, std::move(shape), std::as_bytes(std::span(values))};
}

void write(const std::string& path, const std::vector<SafetensorsEntry>& entries) {
  const std::vector<std::byte> bytes = writeSafetensors(entries);
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
}

const std::vector<std::int32_t> kIds = {1, 2, 3, 4, 5, 6};
const std::vector<std::uint8_t> kMask = {1, 1, 1, 1, 1, 0};
const std::vector<double> kScores = {0.5, -1.5};
const std::vector<std::int64_t> kLabels = {7, 9};

void writeAll(const std::string& path) {
  write(path,
        {entry("labels", "I64", {2}, kLabels), entry("input_ids", "I32", {2, 3}, kIds),
         entry("attention_mask", "BOOL", {2, 3}, kMask), entry("score", "F64", {2}, kScores)});
}

template <typename T>
std::vector<T> valuesOf(const BatchArray& array) {
  std::vector<T> values(array.spec.elements());
  std::memcpy(values.data(), array.memory.data(), array.spec.bytes());
  return values;
}

std::vector<std::string> textsOf(const Dataset& data) {
  std::vector<std::string> texts;
  for (const SampleArray& array : data.arrays()) texts.push_back(toString(array));
  return texts;
}

using Texts = std::vector<std::string>;
using Integers = std::vector<std::int64_t>;

TEST_CASE("integers and booleans are read as i64, numbers as f32, and the target comes last") {
  const TemporaryFolder folder;
  writeAll(folder.path() + "/all.safetensors");
  const std::shared_ptr<const Dataset> data = openTensors({folder.path() + "/all.safetensors"});
  CHECK(data->size() == 2);
  CHECK(data->classes() == 0);
  CHECK(textsOf(*data) ==
        Texts{"attention_mask i64[3]", "input_ids i64[3]", "score f32[]", "labels i64[]"});
  Loader loader(data, std::make_shared<BufferPool>(), {.batch = 2});
  const auto batch = loader.next();
  REQUIRE(batch);
  CHECK(valuesOf<std::int64_t>(batch->arrays[0]) == Integers{1, 1, 1, 1, 1, 0});
  CHECK(valuesOf<std::int64_t>(batch->arrays[1]) == Integers{1, 2, 3, 4, 5, 6});
  CHECK(valuesOf<float>(batch->arrays[2]) == std::vector<float>{0.5F, -1.5F});
  CHECK(valuesOf<std::int64_t>(batch->arrays[3]) == Integers{7, 9});
}

TEST_CASE("inputs are selected by name, and the target may be one of them") {
  const TemporaryFolder folder;
  writeAll(folder.path() + "/all.safetensors");
  const std::shared_ptr<const Dataset> data =
      openTensors({folder.path() + "/all.safetensors", "input_ids"});
  const auto selected = selectInputs(data, {"input_ids"});
  CHECK(textsOf(*selected) == Texts{"input_ids i64[3]", "input_ids i64[3]"});
  Loader loader(selected, std::make_shared<BufferPool>(), {.batch = 1, .firstBatch = 1});
  const auto batch = loader.next();
  REQUIRE(batch);
  CHECK(valuesOf<std::int64_t>(batch->arrays[0]) == Integers{4, 5, 6});
  CHECK(valuesOf<std::int64_t>(batch->arrays[1]) == Integers{4, 5, 6});
  CHECK(errorCode([&] { selectInputs(data, {"token_type_ids"}); }) == "no-input");
  CHECK(errorText([&] { selectInputs(data, {"token_type_ids"}); }).find("attention_mask") !=
        std::string::npos);
}

TEST_CASE("the files of a folder are joined in the order of their names") {
  const TemporaryFolder folder;
  for (const std::int64_t shard : {2, 0, 1}) {
    const Integers labels = {10 * shard, 10 * shard + 1};
    const std::vector<float> x = {static_cast<float>(shard), static_cast<float>(shard)};
    write(folder.path() + "/shard" + std::to_string(shard) + ".safetensors",
          {entry("x", "F32", {2}, x), entry("labels", "I64", {2}, labels)});
  }
  std::ofstream(folder.path() + "/notes.txt") << "not data";
  const std::shared_ptr<const Dataset> data = openTensors({folder.path() + "/"});
  CHECK(data->size() == 6);
  Loader loader(data, std::make_shared<BufferPool>(), {.batch = 6});
  CHECK(valuesOf<std::int64_t>(loader.next()->arrays[1]) == Integers{0, 1, 10, 11, 20, 21});
}

TEST_CASE("files that do not fit are refused, with the file and the fault") {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/data.safetensors";
  const auto fault = [&](const std::vector<SafetensorsEntry>& entries) {
    write(path, entries);
    return errorText([&] { openTensors({path}); });
  };
  const std::vector<float> two = {1, 2};
  const auto has = [](const std::string& text) { return Catch::Matchers::Contains(text); };
  CHECK_THAT(fault({entry("x", "F32", {2}, two), entry("labels", "I64", {1}, Integers{1})}),
             has("1 and 2 samples") || has("2 and 1 samples"));
  CHECK_THAT(fault({entry("x", "F32", {2}, two)}), has("no array labels") && has("only x"));
  CHECK_THAT(fault({entry("labels", "U64", {2}, Integers{1, 2})}), has("U64"));
  CHECK_THAT(fault({entry("labels", "F32", {}, std::vector<float>{1})}), has("a single number"));
  CHECK_THAT(fault({entry("labels", "F32", {0}, std::vector<float>{})}), has("no samples"));
  CHECK_THAT(fault({entry("labels", "F32", {2, 0}, std::vector<float>{})}), has("is empty"));
  CHECK_THAT(fault({}), has("no samples"));
  CHECK(errorCode([&] { openTensors({folder.path() + "/none"}); }) == "data-missing");
  std::filesystem::create_directory(folder.path() + "/empty");
  CHECK(errorCode([&] { openTensors({folder.path() + "/empty"}); }) == "data-missing");
  std::ofstream(path) << "no safetensors file";
  CHECK(errorCode([&] { openTensors({path}); }) == "data-damaged");
  write(folder.path() + "/empty/a.safetensors", {entry("labels", "I64", {2}, kLabels)});
  write(folder.path() + "/empty/b.safetensors", {entry("labels", "F32", {2}, two)});
  CHECK_THAT(errorText([&] { openTensors({folder.path() + "/empty"}); }),
             has("arrays are not those"));
}

}  // namespace
}  // namespace cleave::test
