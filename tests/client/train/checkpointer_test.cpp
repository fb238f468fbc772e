// The client's checkpoints: which are kept, and what happens if one cannot be made.
#include "client/train/checkpointer.h"

#include <spdlog/sinks/ostream_sink.h>
#include <catch2/catch.hpp>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "client/run/run_history.h"
#include "common/codec/safetensors.h"
#include "common/core/log.h"
#include "common/files/sha256.h"
#include "tests/support/error_code.h"
#include "tests/support/files/memory_files.h"

namespace cleave::test {
namespace {

CheckpointSettings settings(bool mustSucceed) {
  CheckpointSettings settings;
  settings.everySeconds = 0;
  settings.everySteps = 1;
  settings.mustSucceed = mustSucceed;
  return settings;
}

// The checkpoints of a run with one server and without weights, on a disk in memory.
class Checkpoints {
 public:
  explicit Checkpoints(bool mustSucceed = false)
      : checkpointer_(files, "run", settings(mustSucceed), "here", {}, std::vector<Replica>(1),
                      [] {}) {}

  // `code`: the server's answer; empty: it saves its part.
  void make(std::uint64_t step, const std::string& code = "") {
    REQUIRE(checkpointer_.isDue(step));
    checkpointer_.begin(step);
    auto part = std::make_shared<PartSnapshot>();
    part->state.engine.applied = step;
    part->stage = writeSafetensors({});
    checkpointer_.add(std::move(part));
    Saved saved;
    saved.step = step;
    saved.code = code;
    if (code.empty()) saved.sha256 = sha256Of("the server's part");
    checkpointer_.saved(0, saved);
    checkpointer_.settle(60, [] { return false; });
  }
  // The code of the error with which the run ends in the next step; empty: it continues.
  std::string endOf(std::uint64_t step) {
    return errorCode([&] { checkpointer_.isDue(step); });
  }
  std::uint64_t last() const { return checkpointer_.lastCommit(); }
  // The steps from which the run can continue, newest first.
  std::vector<std::uint64_t> intact() {
    std::vector<std::uint64_t> steps;
    for (const RunCommit& commit : intactCommits(files, "run")) steps.push_back(commit.step);
    return steps;
  }
  std::vector<std::uint64_t> stored() {
    std::vector<std::uint64_t> steps;
    for (const auto& info : CheckpointStore(files, "run").list()) steps.push_back(info.step);
    return steps;
  }

  MemoryFiles files;

 private:
  Checkpointer checkpointer_;
};

// What the process logs from `level` on while this object exists.
class Logged {
 public:
  explicit Logged(spdlog::level::level_enum level)
      : sink_(std::make_shared<spdlog::sinks::ostream_sink_mt>(text_)) {
    sink_->set_level(level);
    sink_->set_pattern("%l %v");
    flushLog();  // the log's own thread reads the list
    processLog()->sinks().push_back(sink_);
  }
  ~Logged() {
    flushLog();
    processLog()->sinks().pop_back();
  }
  std::string text() {
    flushLog();
    return text_.str();
  }

 private:
  std::ostringstream text_;
  std::shared_ptr<spdlog::sinks::ostream_sink_mt> sink_;
};

using Steps = std::vector<std::uint64_t>;

TEST_CASE("the client does not wait for a checkpoint whose server is lost") {
  MemoryFiles files;
  Checkpointer checkpointer(files, "run", settings(false), "here", {}, std::vector<Replica>(1),
                            [] {});
  checkpointer.begin(1);
  int looks = 0;
  checkpointer.settle(1e9, [&] { return ++looks == 3; });
  CHECK(looks == 3);
}

TEST_CASE("replicas that have saved other weights end the run") {
  for (const std::string second : {"same", "other", ""}) {
    CAPTURE(second);
    MemoryFiles files;
    Checkpointer checkpointer(files, "run", settings(false), "here", {},
                              std::vector<Replica>{{}, {0, 2}, {1, 2}}, [] {});
    checkpointer.begin(1);
    Saved saved;
    saved.step = 1;
    saved.sha256 = sha256Of("a file");
    checkpointer.saved(0, saved);  // of another body
    saved.body = sha256Of("same");
    checkpointer.saved(1, saved);
    saved.body = second.empty() ? "" : sha256Of(second);
    CHECK(errorCode([&] { checkpointer.saved(2, saved); }) == (second == "same" ? ""
                                                               : second.empty()
                                                                   ? "bad-metadata"
                                                                   : "replicas-differ"));
  }
}

TEST_CASE("the newest two checkpoints are kept") {
  Checkpoints checkpoints;
  for (std::uint64_t step = 1; step <= 5; ++step) {
    checkpoints.make(step);
    CHECK(checkpoints.last() == step);
    CHECK(checkpoints.stored() == (step == 1 ? Steps{1} : Steps{step, step - 1}));
    CHECK(checkpoints.intact() == checkpoints.stored());
  }
  CHECK(checkpoints.files.list("run/checkpoints").size() == 6);  // with two lists of commits
}

TEST_CASE("if a full disk or a server prevents a checkpoint, the run continues without it") {
  // One checkpoint makes 5 changes: its folder, its two files, and two lists of commits.
  for (int change = 0; change <= 5; ++change) {
    INFO("change " << change);
    Checkpoints checkpoints;
    for (const std::uint64_t step : {1, 2, 3}) checkpoints.make(step);
    checkpoints.files.failAt(change);
    checkpoints.make(4, change == 0 ? "disk-share-full" : "");
    CHECK(checkpoints.endOf(5).empty());
    CHECK(checkpoints.last() == 3);
    CHECK(checkpoints.stored() == Steps{3, 2});
    CHECK(checkpoints.intact().front() == 3);
    checkpoints.make(5);
    CHECK(checkpoints.stored() == Steps{5, 3});
    CHECK(checkpoints.intact() == Steps{5, 3});
  }
}

TEST_CASE("a fault that lasts is reported once per cause, and so is its end") {
  const auto said = [](const std::string& step, const std::string& code, const std::string& last) {
    return "warning no checkpoint of step " + step + " [" + code + "]: server: ; after a crash, " +
           "the run would continue from step " + last + ". The same fault is not reported again\n";
  };
  Logged logged(spdlog::level::info);
  Checkpoints checkpoints;
  checkpoints.make(1);
  CHECK(logged.text().empty());
  for (const std::uint64_t step : {2, 3, 4}) checkpoints.make(step, "disk-share-full");
  const std::string first = said("2", "disk-share-full", "1");
  CHECK(logged.text() == first);
  checkpoints.make(5, "cannot-write");
  checkpoints.make(6, "disk-share-full");
  const std::string second = first + said("5", "cannot-write", "1");
  CHECK(logged.text() == second);
  checkpoints.make(7);
  checkpoints.make(8);
  const std::string third = second + "info checkpoints are made again: the last one is of step 7\n";
  CHECK(logged.text() == third);
  checkpoints.make(9, "disk-share-full");
  CHECK(logged.text() == third + said("9", "disk-share-full", "8"));
}

TEST_CASE("a checkpoint that cannot be removed is removed later") {
  Checkpoints checkpoints;
  for (const std::uint64_t step : {1, 2}) checkpoints.make(step);
  checkpoints.files.failAt(6);
  checkpoints.make(3);
  CHECK(checkpoints.last() == 3);
  CHECK(checkpoints.stored() == Steps{3, 2, 1});
  checkpoints.make(4);
  CHECK(checkpoints.stored() == Steps{4, 3});
}

TEST_CASE("with on_failure=stop, a checkpoint that cannot be made ends the run") {
  Checkpoints ofClient(true), ofServer(true);
  ofClient.make(1);
  ofClient.files.failAt(2);
  ofClient.make(2);
  CHECK(ofClient.endOf(3) == "cannot-write");
  CHECK(ofClient.stored() == Steps{1});
  ofServer.make(1);
  ofServer.make(2, "disk-share-full");
  CHECK(ofServer.endOf(3) == "disk-share-full");
  CHECK(ofServer.stored() == Steps{1});
}

TEST_CASE("a resume counts the steps done since the previous one, each time they are repeated") {
  MemoryFiles files;
  const auto redone = [&](std::uint64_t from, std::uint64_t generation, const RecordedStep& own,
                          const std::vector<std::uint64_t>& servers) {
    return countResume(files, "run", {from, generation, own, servers}).stepsRedone;
  };
  CHECK(redone(10, 2, {19, 1}, {19}) == 9);
  // The process ended before its first step.
  CHECK(redone(10, 3, {19, 1}, {19}) == 9);
  CHECK(redone(10, 4, {12, 3}, {12}) == 11);
  // The client's rows were lost.
  CHECK(redone(10, 5, {12, 3}, {15}) == 16);
  // Both sides stopped at the same step again.
  CHECK(redone(10, 6, {15, 5}, {15}) == 21);
  CHECK(countResume(files, "run", {20, 7, {20, 6}, {20}}).stepsRedone == 21);
  CHECK(countResume(files, "run", {20, 8, {20, 6}, {20}}).resumes == 7);
}

TEST_CASE("with several servers, only those that have recorded steps since the last resume count") {
  MemoryFiles files;
  CHECK(countResume(files, "run", {10, 2, {20, 1}, {20, 18}}).stepsRedone == 10);
  CHECK(countResume(files, "run", {10, 3, {20, 1}, {20, 15}}).stepsRedone == 15);
  CHECK(countResume(files, "run", {10, 4, {20, 1}, {20, 15}}).stepsRedone == 15);
}

TEST_CASE(
    "damaged counts of resumes start again at 0, and a disk that fails does not end the run") {
  MemoryFiles files;
  CHECK(countResume(files, "run", {0, 1, {5, 1}, {5}}).resumes == 1);
  files.write("run/resumes.json", "{\"resumes\": ");
  CHECK(countResume(files, "run", {0, 2, {5, 1}, {5}}).resumes == 1);
}

}  // namespace
}  // namespace cleave::test
