// The trained model survives Ctrl-C, a lost server and a full disk. Saving the model after each
// epoch does not change the result.
#include <catch2/catch.hpp>
#include <csignal>
#include <cstring>
#include <regex>
#include <set>
#include <thread>

#include "tests/daemon/mistakes.h"

namespace cleave::test {
namespace {

namespace fs = std::filesystem;
using std::chrono::steady_clock;

// Options of a run that computes instead of waiting, so that its steps are bit-identical for the
// same seed. An epoch has 64 steps.
const Arguments kWideRun = {"--set", "model.width=256",
                            "--set", "data.train.size=2048",
                            "--set", "train.learning_rate={schedule: constant, peak: 0.05}",
                            "--set", "threads={client: 1, server: 1}",
                            "--set", "eval.every=0"};
constexpr std::uint64_t kStepsPerEpoch = 64;

Arguments runWith(const TestServer& server, const Arguments& more) {
  Arguments all = kWideRun;
  all.insert(all.end(), {"--server", server.address()});
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

Process startLong(const TestServer& server, const std::string& run, Arguments more = {}) {
  more.insert(more.end(), {"--set", "train.epochs=100000"});
  return startClient("train", run, runWith(server, more));
}

void waitForFile(const std::string& path) {
  const auto start = steady_clock::now();
  while (!fs::exists(path)) {
    REQUIRE(steady_clock::now() - start < kPatience);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

std::string whole(const std::string& run) { return run + "/model.safetensors"; }
std::string partial(const std::string& run) { return run + "/model.partial.safetensors"; }

// Returns the number in the text that the group in `pattern` matches.
std::uint64_t numberIn(const std::string& text, const std::string& pattern) {
  std::smatch found;
  INFO(text);
  REQUIRE(std::regex_search(text, found, std::regex(pattern)));
  return std::stoull(found[1]);
}

// Maps each tensor's name to its description and bytes.
std::map<std::string, std::string> tensorsOf(const std::string& path) {
  const std::string file = readFile(path);
  std::uint64_t headerBytes = 0;
  REQUIRE(file.size() > sizeof headerBytes);
  std::memcpy(&headerBytes, file.data(), sizeof headerBytes);
  const std::size_t data = sizeof headerBytes + headerBytes;
  std::map<std::string, std::string> tensors;
  auto header = nlohmann::json::parse(file.substr(sizeof headerBytes, headerBytes));
  header.erase("__metadata__");
  for (const auto& [name, tensor] : header.items()) {
    const std::size_t begin = tensor.at("data_offsets").at(0);
    const std::size_t end = tensor.at("data_offsets").at(1);
    tensors[name] = tensor.at("shape").dump() + file.substr(data + begin, end - begin);
  }
  return tensors;
}

// Returns the model after an undisturbed run of `steps` steps.
std::string undisturbed(const TestServer& server, const std::string& run, std::uint64_t steps,
                        const Arguments& more = {}) {
  const Ended ended = runClient("train", run,
                                with(runWith(server, {"--set", "train.epochs=100000", "--set",
                                                      "train.max_steps=" + std::to_string(steps)}),
                                     more));
  INFO(ended.errors);
  REQUIRE(ended.code == 0);
  CHECK_FALSE(fs::exists(partial(run)));
  return readTensors(whole(run));
}

TEST_CASE("Ctrl-C saves the whole model as of the last step") {
  const TemporaryFolder folder;
  TestServer server(folder);
  const std::string run = folder.path("run");
  Arguments more;
  SECTION("one step at a time") {}
  // A lower learning rate, because the run would diverge with 0.05.
  const Arguments overlapping = {"--set", "train.staleness=3", "--set",
                                 "train.learning_rate.peak=0.002"};
  SECTION("steps that overlap are completed") { more = overlapping; }
  SECTION("the same, without checkpoints") {
    more = with(overlapping, {"--set", "checkpoint.every_seconds=0"});
  }
  Process client = startLong(server, run, more);
  waitForSteps(run);
  client.signal(SIGINT);
  const Ended ended = finish(client);
  CHECK(ended.code == kFailedRun);
  CHECK_FALSE(fs::exists(partial(run)));
  const std::uint64_t steps = numberIn(ended.errors, "interrupted after ([0-9]+) of");
  CHECK((readTensors(whole(run)) == undisturbed(server, folder.path("alone"), steps, more)));
  checkFilesComplete(run);

  // The saved model can be the initial weights of another run.
  const Ended next = runClient("train", folder.path("next"),
                               runWith(server, {"--set", "weights.file=" + whole(run)}));
  INFO(next.errors);
  CHECK(next.code == 0);
}

TEST_CASE("if the server is killed, the last epoch's model and the current head and tail remain") {
  const TemporaryFolder folder;
  const std::string run = folder.path("run");
  std::uint64_t steps = 0;
  {
    TestServer server(folder);
    const Process client = startLong(server, run, {"--set", "connect.reconnect_seconds=0"});
    waitForFile(whole(run));
    server.process().signal(SIGKILL);
    CHECK(finish(client).code == kFailedRun);
    const std::string log = readFile(run + "/log.txt");
    for (const CsvRow& row : readCsv(run + "/steps.csv")) steps += row.at("phase") == "train";
    // If the server was killed exactly at the end of an epoch, there is only the model of that
    // epoch.
    CHECK(fs::exists(partial(run)) == (steps % kStepsPerEpoch != 0));
    if (fs::exists(partial(run))) {
      CHECK(numberIn(log, "head and tail after ([0-9]+) steps?") == steps);
      steps = numberIn(log, "whole model after ([0-9]+) steps?");
    }
    CHECK(steps % kStepsPerEpoch == 0);
  }
  const TestServer server(folder, {}, "second");
  CHECK((readTensors(whole(run)) == undisturbed(server, folder.path("alone"), steps)));
}

TEST_CASE("Ctrl-C while the server is stopped saves head and tail") {
  const TemporaryFolder folder;
  TestServer server(folder);
  const std::string run = folder.path("run");
  Process client = startLong(server, run);
  waitForSteps(run);
  server.process().signal(SIGSTOP);
  client.signal(SIGINT);
  CHECK(finish(client).code == kFailedRun);
  CHECK(fs::exists(partial(run)));
}

TEST_CASE("fetching weights after each epoch does not change the weights") {
  const TemporaryFolder folder;
  const Arguments epochs = {"--set", "train.epochs=3", "--set", "eval.every=1"};
  const TestServer open(folder);
  REQUIRE(runClient("train", folder.path("saved"), runWith(open, epochs)).code == 0);
  const TestServer closed(folder, {"--set", "weights.fetch=false"}, "closed");
  REQUIRE(runClient("train", folder.path("kept"), runWith(closed, epochs)).code == 0);
  CHECK_FALSE(fs::exists(whole(folder.path("kept"))));

  std::size_t fetches = 0;
  for (const CsvRow& row : readCsv(folder.path("saved") + "/transfers.csv")) {
    fetches += row.at("flow") == "weights/body";
  }
  CHECK(fetches >= 2);  // at least after the first and the last epoch, however slow the disk is
  for (const CsvRow& row : readCsv(folder.path("kept") + "/transfers.csv")) {
    CHECK(row.at("flow") != "weights/body");
  }
  // With any other body, head and tail would have got different gradients.
  const auto saved = tensorsOf(whole(folder.path("saved")));
  const auto parts = tensorsOf(partial(folder.path("kept")));
  CHECK(parts.size() > 2);
  CHECK(parts.size() < saved.size());
  for (const auto& [name, tensor] : parts) {
    INFO(name);
    CHECK((saved.contains(name) && saved.at(name) == tensor));
  }
}

TEST_CASE(
    "if a model cannot be written, this is a warning after an epoch and an error after the run") {
  const TemporaryFolder folder;
  const TestServer server(folder);
  const std::string run = folder.path("run");
  const Process client = startClient("train", run, runWith(server, {"--set", "train.epochs=3"}));
  waitForFile(run + "/log.txt");
  REQUIRE(fs::create_directory(
      whole(run)));  // a folder with the file's name, so that no file can be renamed to it
  const Ended ended = finish(client);
  checkError(ended, kFailedRun, {"model.safetensors"});
  CHECK_THAT(ended.errors, Catch::Contains("was not saved"));
  std::uint64_t steps = 0;
  for (const CsvRow& row : readCsv(run + "/steps.csv")) steps += row.at("phase") == "train";
  CHECK(steps == 3 * kStepsPerEpoch);
  CHECK(fs::exists(partial(run)));
}

// A run that keeps the last model and the one with the highest or lowest loss. An epoch has 8 steps
// and an evaluation of one batch. The loss falls in almost every epoch.
constexpr int kEpochs = 20;
Arguments keeping(const std::string& address, const std::string& mode) {
  return {"--server", address, "--json", "--set", "train.epochs=" + std::to_string(kEpochs),
          // In addition, there is a checkpoint before the first evaluation.
          "--set", "checkpoint.every_steps=12", "--set",
          "keep={last: true, best: {metric: loss, mode: " + mode + "}}"};
}

nlohmann::json summaryOf(const Ended& ended) {
  INFO(ended.errors);
  REQUIRE(ended.code == 0);
  return nlohmann::json::parse(ended.output);
}

std::string best(const std::string& run) { return run + "/model.best.safetensors"; }

TEST_CASE("keep: {last: true, best: …} keeps both models, also through a kill and a resume") {
  const TemporaryFolder folder;
  const TestServer server(folder);
  std::map<std::string, int> epochs;
  for (const std::string mode : {"max", "min"}) {
    const std::string run = folder.path(mode);
    const nlohmann::json summary =
        summaryOf(runClient("train", run, keeping(server.address(), mode)));
    epochs[mode] = summary.at("kept").at("epoch");
    CHECK(summary.at("model") == whole(run));
    CHECK((readTensors(best(run)) == readTensors(whole(run))) == (epochs[mode] == kEpochs));
  }
  CHECK(epochs["max"] < epochs["min"]);
  CHECK(epochs["max"] < kEpochs);
  CHECK(readTensors(whole(folder.path("max"))) == readTensors(whole(folder.path("min"))));

  // The client is killed after its second checkpoint, which follows the best epoch.
  CHECK(epochs["max"] == 1);
  const std::string run = folder.path("killed");
  const Process client =
      startClient("train", run, keeping(server.address(), "max"), failingAt("committed:4:kill"));
  REQUIRE(client.wait(kPatience));
  REQUIRE_FALSE(fs::exists(run + "/summary.json"));
  CHECK(fs::exists(whole(run)));
  CHECK(readTensors(best(run)) == readTensors(best(folder.path("max"))));
  const nlohmann::json summary = summaryOf(ask({"train", "--resume", run, "--json"}));
  CHECK(summary.at("kept").at("epoch") == epochs["max"]);
  CHECK(readTensors(best(run)) == readTensors(best(folder.path("max"))));
  CHECK(readTensors(whole(run)) == readTensors(whole(folder.path("max"))));
}

TEST_CASE("last and best model exist after every epoch") {
  const TemporaryFolder folder;
  const TestServer server(folder);
  for (const std::string mode : {"max", "min"}) {
    for (int epoch = 1; epoch <= 3; ++epoch) {
      const std::string run = folder.path(mode + std::to_string(epoch));
      // The client is killed in the first batch of the next epoch.
      const Process client =
          startClient("train", run, keeping(server.address(), mode),
                      failingAt("batch:" + std::to_string(9 * epoch + 1) + ":kill"));
      REQUIRE(client.wait(kPatience));
      CAPTURE(mode, epoch);
      CHECK_FALSE(fs::exists(run + "/summary.json"));
      CHECK(fs::exists(whole(run)));
      CHECK(fs::exists(best(run)));
    }
  }
}

TEST_CASE("keep.last: false keeps only the best model") {
  const TemporaryFolder folder;
  const TestServer server(folder);
  const std::string run = folder.path("run");
  const Arguments onlyBest = {"--set", "keep={last: false, best: loss}"};
  const nlohmann::json summary =
      summaryOf(runClient("train", run, with(keeping(server.address(), "max"), onlyBest)));
  CHECK(summary.at("model").is_null());
  CHECK_FALSE(fs::exists(whole(run)));
  CHECK(summary.at("kept").at("model") == best(run));
  CHECK(fs::exists(best(run)));
  CHECK(ask({"export", run, "--best", "--output", folder.path("model.safetensors")}).code == 0);
  checkError(runClient("train", folder.path("none"), {"--set", "keep.last=false"}), kWrongUse,
             {"keep.last", "set keep.best"});
}

}  // namespace
}  // namespace cleave::test
