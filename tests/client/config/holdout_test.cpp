// Which samples data.holdout takes, also for runs and models from before data.holdout_from.
#include <catch2/catch.hpp>
#include <fstream>
#include <set>

#include "client/run/prepare.h"
#include "client/run/temporary_folder.h"
#include "tests/support/error_code.h"

namespace cleave::test {
namespace {

// A table of 60 rows that is sorted by its three classes.
class SortedTable {
 public:
  SortedTable() { write(""); }
  // `last`: the value of the last row.
  void write(const std::string& last) const {
    std::ofstream file(folder_.path() + "/t.csv");
    file << "x,label\n";
    for (int n = 0; n < 60; ++n)
      file << (n == 59 && !last.empty() ? last : std::to_string(n)) << ","
           << "abc"[n / 20] << "\n";
  }
  DataSettings settings(const std::string& keys) const {
    Config config =
        Config::parse("model: {name: mlp}\ndata: {format: csv, train: {file: " + folder_.path() +
                          "/t.csv}" + keys + "}\n",
                      "c.yaml", {});
    return readClientSettings(config).data;
  }

 private:
  TemporaryFolder folder_;
};

std::set<std::string> samplesOf(const Dataset& data) {
  std::set<std::string> names;
  for (std::uint32_t index = 0; index < data.size(); ++index) names.insert(data.sampleName(index));
  return names;
}

std::set<std::int64_t> classesOf(const Dataset& data) {
  std::set<std::int64_t> classes;
  for (std::uint32_t index = 0; index < data.size(); ++index) classes.insert(*data.label(index));
  return classes;
}

TEST_CASE("held-out samples are random, the same for every seed, and never trained on") {
  const SortedTable table;
  const Datasets data = openDatasets(table.settings(", holdout: 20"));
  CHECK(data.test->size() == 20);
  CHECK(classesOf(*data.train).size() == 3);
  CHECK(classesOf(*data.test).size() == 3);
  std::set<std::string> all = samplesOf(*data.train);
  all.merge(samplesOf(*data.test));
  CHECK(all.size() == 60);
  const Datasets again = openDatasets(table.settings(", holdout: 20, seed: 7"));
  CHECK(samplesOf(*again.test) == samplesOf(*data.test));
}

TEST_CASE("with data.holdout_from: end, the last samples are held out in their order") {
  const SortedTable table;
  const Datasets data = openDatasets(table.settings(", holdout: 20, holdout_from: end"));
  CHECK(data.train->sampleName(0).ends_with("t.csv:2"));
  CHECK(data.test->sampleName(0).ends_with("t.csv:42"));
  CHECK(classesOf(*data.test) == std::set<std::int64_t>{2});
}

TEST_CASE("only plain text is held out from the end by default") {
  const auto from = [](const std::string& data) {
    Config config =
        Config::parse("model: {name: mlp}\ndata: {holdout: 5, " + data + "}\n", "c.yaml", {});
    return readClientSettings(config).data.holdoutFrom;
  };
  const std::string text = "format: text, tokenizer: t.json, length: 8, train: {file: ";
  CHECK(from(text + "t.txt}") == "end");
  CHECK(from(text + "t.txt}, holdout_from: random") == "random");
  CHECK(from(text + "t.csv}") == "random");
  CHECK(from("format: synthetic, classes: 2, shape: [4]") == "random");
}

TEST_CASE("a stored configuration without the key keeps the selection of its time") {
  using Overrides = std::vector<std::string>;
  const auto implied = [](const std::string& data) {
    return impliedOverrides("data: {holdout: 5, " + data + "}\n");
  };
  CHECK(implied("format: csv") == Overrides{"data.holdout_from=end"});
  CHECK(implied("format: idx") == Overrides{"data.holdout_from=end"});
  for (const std::string format : {"folder", "list", "tar"})
    CHECK(implied("format: " + format).empty());  // always random
  CHECK(implied("format: csv, holdout_from: random").empty());
  CHECK(impliedOverrides("data: {format: csv, holdout: 0}\n").empty());
  CHECK(impliedOverrides("data: {format: csv}\n").empty());
  CHECK(impliedOverrides("").empty());
  const SortedTable table;
  Config config = Config::parse(
      "model: {name: mlp}\ndata: {format: synthetic, classes: 2, shape: [4]}\n", "c.yaml", {});
  CHECK(impliedOverrides(readClientSettings(config).resolved).empty());  // new ones have the key
}

TEST_CASE("a model is not evaluated on a training set with other statistics") {
  const SortedTable table;
  const DataSettings settings = table.settings(", holdout: 20");
  const nlohmann::json learned = openDatasets(settings).train->learned();
  CHECK(openForInference(settings, learned, {}).test->size() == 20);
  table.write("1000");
  CHECK(errorCode([&] { openForInference(settings, learned, {}); }) == "other-data");
}

TEST_CASE("a model is not evaluated on samples that another training set holds out") {
  const SortedTable table;
  const DataSettings settings = table.settings(", holdout: 20");
  const Datasets data = openDatasets(settings);
  const nlohmann::json learned = data.train->learned();
  const DataDigest trained = digestOf(*data.train);
  CHECK(openForInference(settings, learned, {}, trained).test->size() == 20);
  const DataDigest other = digestOf(*data.test);
  CHECK(errorCode([&] { openForInference(settings, learned, {}, other); }) == "other-data");
  CHECK_THAT(errorText([&] { openForInference(settings, learned, {}, other); }),
             Catch::Contains("has 40 samples, but had 20 when the model was trained"));
}

}  // namespace
}  // namespace cleave::test
