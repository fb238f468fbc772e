// The data format `tensors`: named arrays in safetensors files.
#include <catch2/catch.hpp>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>

#include "client/data/samples/dataset.h"
#include "client/data/samples/loader.h"
#include "client/run/temporary_folder.h"
#include "common/codec/safetensors.h"
#include "tests/support/error_code.h"

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

TEST_CASE("the files of a folder are concatenated in the order of their names") {
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

TEST_CASE("files that do not fit are refused, and the error names the file and the fault") {
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
             has("arrays differ from those"));
}

// ---- .npy ----

template <typename T>
std::string npy(const std::string& descr, const std::string& shape, const std::vector<T>& values,
                const std::string& order = "False", char version = 1) {
  std::string header =
      "{'descr': '" + descr + "', 'fortran_order': " + order + ", 'shape': " + shape + ", }\n";
  std::string file = "\x93NUMPY";
  file += version;
  file += '\0';
  for (int n = 0; n < (version == 1 ? 2 : 4); ++n)
    file += static_cast<char>(header.size() >> 8 * n & 0xFF);
  file += header;
  file.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
  return file;
}

TEST_CASE("a folder of .npy files has one array per file") {
  const TemporaryFolder folder;
  const auto put = [&](const std::string& name, const std::string& content) {
    std::ofstream(folder.path() + "/" + name + ".npy", std::ios::binary) << content;
  };
  put("labels", npy<std::int16_t>("<i2", "(2,)", {7, -9}));
  put("x", npy<double>("<f8", "(2, 2)", {0.5, 1, 1.5, -2}, "False", 2));
  put("mask", npy<std::uint8_t>("|b1", "(2, 1)", {1, 0}, "False", 3));
  put("half",
      npy<std::uint16_t>("<f2", "(2, 3)", {0x3C00, 0xC100, 0x0001, 0x7C00, 0x8000, 0x7BFF}));
  const std::shared_ptr<const Dataset> data = openTensors({folder.path()});
  CHECK(textsOf(*data) == Texts{"half f32[3]", "mask i64[1]", "x f32[2]", "labels i64[]"});
  Loader loader(data, std::make_shared<BufferPool>(), {.batch = 2});
  const auto batch = loader.next();
  const float infinity = std::numeric_limits<float>::infinity();
  CHECK(valuesOf<float>(batch->arrays[0]) ==
        std::vector<float>{1, -2.5F, 0x1p-24F, infinity, 0, 65504});
  CHECK(valuesOf<std::int64_t>(batch->arrays[1]) == Integers{1, 0});
  CHECK(valuesOf<float>(batch->arrays[2]) == std::vector<float>{0.5F, 1, 1.5F, -2});
  CHECK(valuesOf<std::int64_t>(batch->arrays[3]) == Integers{7, -9});

  put("other", npy<double>("<f8", "(3,)", {1, 2, 3}));
  CHECK_THAT(errorText([&] { openTensors({folder.path()}); }),
             Catch::Contains("other.npy") && Catch::Contains("2 and 3 samples"));
  std::filesystem::remove(folder.path() + "/other.npy");
  writeAll(folder.path() + "/all.safetensors");
  CHECK_THAT(errorText([&] { openTensors({folder.path()}); }), Catch::Contains("both"));
}

TEST_CASE("labels that are no classes are refused when the data is opened, or all are reported") {
  const TemporaryFolder folder;
  const auto put = [&](const std::string& name, const std::string& content) {
    std::ofstream(folder.path() + "/" + name + ".npy", std::ios::binary) << content;
  };
  put("x", npy<float>("<f4", "(4, 1)", {1, 2, 3, 4}));
  TensorsOptions options;
  options.file = folder.path();
  options.ignoredLabel = -100;
  const auto error = [&](const std::vector<std::int8_t>& labels) {
    put("labels", npy<std::int8_t>("|i1", "(4,)", labels));
    CHECK(errorCode([&] { openTensors(options); }) == "bad-label");
    return errorText([&] { openTensors(options); });
  };
  CHECK_THAT(error({0, -1, 1, -1}),
             Catch::Contains(": sample 1 has the label -1") && Catch::Contains("numbered from 0"));
  CHECK_THAT(errorHint([&] { openTensors(options); }), Catch::Contains("ignore_index: -1"));
  std::vector<std::string> reported;
  options.report = [&](const std::string& name, const DataError&) { reported.push_back(name); };
  CHECK(openTensors(options)->size() == 4);
  CHECK(reported == Texts{folder.path() + ": sample 1", folder.path() + ": sample 3"});
  options.report = nullptr;
  options.ignoredLabel = -1;
  CHECK(openTensors(options)->arrays().back().maxValue == 1);
  options.classes = 3;
  CHECK_THAT(error({0, 1, 3, 2}),
             Catch::Contains("sample 2 has the label 3") && Catch::Contains("data.classes is 3"));
  options.ignoredLabel.reset();  // the loss does not compare with classes
  CHECK(openTensors(options)->size() == 4);
  // A class for each position, as for segmentation.
  options.ignoredLabel = -100;
  put("labels", npy<std::int8_t>("|i1", "(4, 2)", {0, 1, 2, -100, 4, 5, 0, -7}));
  CHECK_THAT(errorText([&] { openTensors(options); }),
             Catch::Contains("sample 3 has the label -7"));
}

TEST_CASE("the range of integers is known, and NaN is refused when the data is opened") {
  const TemporaryFolder folder;
  const auto put = [&](const std::string& name, const std::string& content) {
    std::ofstream(folder.path() + "/" + name + ".npy", std::ios::binary) << content;
  };
  put("labels", npy<std::int16_t>("<i2", "(2,)", {7, 9}));
  put("ids", npy<std::int32_t>("<i4", "(2, 2)", {5, -3, 999, 0}));
  const float infinity = std::numeric_limits<float>::infinity();
  put("x", npy<float>("<f4", "(2, 1)", {1, -infinity}));  // such as a mask
  const std::shared_ptr<const Dataset> data = openTensors({folder.path()});
  CHECK(data->arrays()[0].minValue == -3);
  CHECK(data->arrays()[0].maxValue == 999);
  CHECK(selectInputs(data, {"ids"})->arrays()[0].maxValue == 999);
  put("x", npy<double>("<f8", "(2, 1)", {1, std::numeric_limits<double>::quiet_NaN()}));
  CHECK_THAT(errorText([&] { openTensors({folder.path()}); }),
             Catch::Contains("sample 1 has a value that is NaN, in the array x"));
  TensorsOptions reporting;
  reporting.file = folder.path();
  reporting.report = [](const std::string&, const DataError&) {};
  CHECK(openTensors(reporting)->size() == 2);  // `data check` finds it as it reads the sample
}

TEST_CASE("damaged .npy files are refused, and the error names the file and the fault") {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/labels.npy";
  const auto fault = [&](const std::string& content) {
    std::ofstream(path, std::ios::binary) << content;
    CHECK(errorCode([&] { openTensors({folder.path()}); }) == "data-damaged");
    const std::string text = errorText([&] { openTensors({folder.path()}); });
    CHECK_THAT(text, Catch::StartsWith(folder.path()));
    return text;
  };
  const auto has = [](const char* text) { return Catch::Contains(text); };
  const std::vector<float> four = {1, 2, 3, 4};
  const std::string whole = npy("<f4", "(2, 2)", four);
  for (std::size_t size = 0; size < whole.size(); size += 3) fault(whole.substr(0, size));
  CHECK_THAT(fault(whole.substr(0, whole.size() - 1)), has("truncated"));
  CHECK_THAT(fault(whole + "x"), has("trailing"));
  CHECK_THAT(fault("PK"), has("not a .npy file"));
  CHECK_THAT(fault(npy("<f4", "(2, 2)", four, "True")), has("Fortran"));
  CHECK_THAT(fault(npy(">f4", "(2, 2)", four)), has("big-endian"));
  CHECK_THAT(fault(npy("|O", "(2, 2)", four)), has("'|O'"));
  CHECK_THAT(fault(npy("<U4", "(1,)", four)), has("'<U4'"));
  CHECK_THAT(fault(npy("<c8", "(2,)", four)), has("'<c8'"));
  CHECK_THAT(fault(npy("<u4", "(4,)", four)), has("u4"));
  CHECK_THAT(fault(npy("<f4", "()", std::vector<float>{1})), has("single number"));
  CHECK_THAT(fault(npy("<f4", "(0,)", std::vector<float>{})), has("no elements"));
  CHECK_THAT(fault(npy("<f4", "(4294967296, 4294967296, 2)", four)), has("too large"));
  CHECK_THAT(fault(npy("<f4", "(-1,)", four)), has("invalid"));
  CHECK_THAT(fault(npy("<f4", "(2, 2", four)), has("invalid"));
  CHECK_THAT(fault(npy("<f4', 'descr': '<f4", "(4,)", four)), has("invalid"));
  CHECK_THAT(fault(npy("<f4", "(4,)", four, "__import__('os')")), has("invalid"));
  CHECK_THAT(fault(npy("<f4", "(4,)", four, "False", 4)), has("version 4"));
}

}  // namespace
}  // namespace cleave::test
