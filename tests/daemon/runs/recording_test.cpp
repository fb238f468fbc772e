// `train --record-traffic` records what crosses, also over a resume, without changing the run.
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <map>

#include "tests/daemon/daemons.h"
#include "tests/daemon/mistakes.h"

namespace cleave::test {
namespace {

namespace fs = std::filesystem;

const Arguments kRun = {
    "--set",
    "codec={activation/0: \"delta(block:bits=4)\", activation/1: \"delta(block:bits=4)\", "
    "gradient/0: \"power:rank=2\", gradient/1: block:bits=8}",
    "--set",
    "train.epochs=2",
    "--set",
    "train.max_steps=20",
    "--set",
    "checkpoint.every_steps=3"};

// The files of a recording, with their content.
std::map<std::string, std::string> filesOf(const std::string& recording) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(recording)) {
    if (entry.is_regular_file() && entry.path().filename() != "recording.json")
      files[fs::relative(entry.path(), recording)] = readFile(entry.path());
  }
  return files;
}

TEST_CASE("a recording has the tensors of each step, and is the same after a resume") {
  const TemporaryFolder folder;
  TestServer server(folder);
  const Arguments record = {"--record-inputs", "--record-steps", "15", "--server",
                            server.address()};
  const auto recordTo = [&](const std::string& name) {
    return with(with(kRun, record), {"--record-traffic", folder.path(name)});
  };
  const Ended plain =
      runClient("train", folder.path("plain"), with(kRun, {"--server", server.address()}));
  INFO(plain.errors);
  REQUIRE(plain.code == 0);

  const Ended whole = runClient("train", folder.path("whole"), with(recordTo("one"), {"--json"}));
  INFO(whole.errors);
  REQUIRE(whole.code == 0);
  const auto summary = nlohmann::json::parse(whole.output).at("recording");
  CHECK(summary.at("steps") == 15);
  CHECK(summary.at("ended") == "steps");
  checkSameModel(folder.path("plain"), folder.path("whole"));
  // As many rows as transfers of the recorded steps.
  std::size_t transfers = 0;
  for (const CsvRow& row : readCsv(folder.path("whole/transfers.csv"))) {
    transfers += row.at("phase") == "train" && std::stoi(row.at("step")) <= 15 &&
                 !row.at("flow").ends_with("/body");
  }
  std::size_t rows = 0;
  for (const CsvRow& row : readCsv(folder.path("one/index.csv"))) {
    rows += row.at("phase") == "train";
  }
  CHECK(transfers > 0);
  CHECK(rows == transfers);

  const Process killed =
      startClient("train", folder.path("killed"), recordTo("two"), failingAt("committed:4:kill"));
  REQUIRE(killed.wait(kPatience));
  REQUIRE_FALSE(fs::exists(folder.path("killed/summary.json")));
  // What a process leaves that is killed while it writes a file.
  std::ofstream(folder.path("two/traffic/train-000099.safetensors.tmp-1-0")) << "part of a file";
  const Ended resumed = resume(folder.path("killed"), {"--record-traffic", folder.path("two"),
                                                       "--record-inputs", "--record-steps", "15"});
  INFO(resumed.errors);
  REQUIRE(resumed.code == 0);
  CHECK((filesOf(folder.path("two")) == filesOf(folder.path("one"))));

  const Ended other = runClient("train", folder.path("other"), recordTo("one"));
  checkError(other, 2, {"[recording-exists]", "a recording of another run", "another folder"});
}

}  // namespace
}  // namespace cleave::test
