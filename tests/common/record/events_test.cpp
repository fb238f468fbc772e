// Event files for TensorBoard. python/tests/test_tracking.py reads them with TensorBoard itself.

#include <algorithm>
#include <catch2/catch.hpp>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "common/record/event_file.h"
#include "common/record/run_events.h"
#include "proto/tensorboard.pb.h"
#include "tests/support/error_code.h"
#include "tests/support/files/file_size_limit.h"
#include "tests/support/files/folder.h"

namespace cleave {
namespace {

namespace fs = std::filesystem;
using test::Folder;

std::string readFile(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<fs::path> filesIn(const fs::path& folder) {
  std::vector<fs::path> files(fs::directory_iterator(folder), {});
  std::sort(files.begin(), files.end());
  return files;
}

// Requires complete records with correct checksums.
std::vector<tensorboard::Event> eventsOf(const fs::path& path) {
  constexpr std::size_t kHead = 12, kTail = 4;
  const std::string text = readFile(path);
  std::vector<tensorboard::Event> events;
  for (std::size_t at = 0; at < text.size();) {
    REQUIRE(at + kHead <= text.size());
    std::size_t length = 0;
    for (std::size_t j = 8; j-- > 0;)
      length = length << 8 | static_cast<unsigned char>(text[at + j]);
    REQUIRE(at + kHead + length + kTail <= text.size());
    const std::string data = text.substr(at + kHead, length);
    REQUIRE(text.substr(at, kHead + length + kTail) == framedRecord(data));
    REQUIRE(events.emplace_back().ParseFromString(data));
    at += kHead + length + kTail;
  }
  return events;
}

// The values of a tag by step. Reads the files of the folder in the same order as TensorBoard.
std::map<std::int64_t, float> valuesOf(const std::string& tag, const fs::path& folder) {
  std::map<std::int64_t, float> values;
  for (const fs::path& path : filesIn(folder)) {
    for (const tensorboard::Event& event : eventsOf(path)) {
      if (event.session().status() == tensorboard::Session::START) {
        values.erase(values.lower_bound(event.step()), values.end());
      }
      for (const tensorboard::Value& value : event.summary().values()) {
        if (value.tag() == tag) values[event.step()] = value.scalar();
      }
    }
  }
  return values;
}

StepRow stepRow(std::uint64_t step, double loss) {
  StepRow row;
  row.phase = "train";
  row.step = step;
  row.at = MicroBatch{Phase::train, step, 0, {1, 32}};
  row.seconds = 0.5;
  row.actions[indexOf(ActionKind::headForward)] = 0.125;
  row.actions[indexOf(ActionKind::bodyForward)] = 0.25;
  row.learningRate = 0.1;
  row.metrics = {loss, std::nullopt};
  return row;
}

StepRow resumeRow(std::uint64_t step) {
  StepRow row;
  row.phase = "resume";
  row.step = step;
  return row;
}

struct Written {
  explicit Written(const Folder& folder)
      : events(std::make_shared<RunEvents>(recorder, folder.path / "tensorboard",
                                           std::vector<std::string>{"loss", "top1"})),
        files(recorder, csvFolder(folder), {"run"}, {"loss", "top1"}) {
    files.writeEvents(events);
  }
  static std::string csvFolder(const Folder& folder) {
    static int count = 0;
    const fs::path path = folder.path / std::to_string(count++);
    fs::create_directories(path);
    return path;
  }
  void train(std::uint64_t from, std::uint64_t to, double loss) {
    for (std::uint64_t step = from; step <= to; ++step) {
      totals.wireUp += 1000;
      totals.controlUp += 24;
      files.step(stepRow(step, loss), totals);
    }
  }

  Recorder recorder;
  std::shared_ptr<RunEvents> events;
  RunFiles files;
  LinkTotals totals;
};

}  // namespace

TEST_CASE("CRC-32C has the check values of its definition, RFC 3720") {
  CHECK(crc32c("123456789") == 0xe3069283);
  CHECK(crc32c(std::string(32, '\0')) == 0x8a9136aa);
  CHECK(crc32c(std::string(32, '\xff')) == 0x62a8ab43);
  CHECK(crc32c("") == 0);
}

TEST_CASE("a record has the same frame as one written by TensorBoard") {
  CHECK(framedRecord("Cleave") == std::string("\x06\0\0\0\0\0\0\0\x73\x69\xd5\x37"
                                              "Cleave\xb1\x69\xfc\x1c",
                                              22));
}

TEST_CASE("the first event is the file's version; scalars follow with their step and time") {
  const Folder folder;
  Recorder recorder;
  EventFile file(recorder, folder.path);
  file.replaceFrom(1);  // there are no earlier files
  file.scalars(7, {{"a/b", 0.25}, {"c", -1e30}});
  file.scalars(8, {});
  file.text("note", "**bold**");
  recorder.flush();
  CHECK(fs::path(file.path()).filename().string().starts_with("events.out.tfevents."));
  const auto events = eventsOf(file.path());
  REQUIRE(events.size() == 3);
  CHECK(events[0].file_version() == "brain.Event:2");
  CHECK(events[1].step() == 7);
  CHECK(events[1].wall_time() > 1.6e9);
  REQUIRE(events[1].summary().values_size() == 2);
  CHECK(events[1].summary().values(0).tag() == "a/b");
  CHECK(events[1].summary().values(0).scalar() == 0.25F);
  CHECK(events[1].summary().values(1).scalar() == -1e30F);
  CHECK(events[2].summary().values(0).metadata().plugin().name() == "text");
  CHECK(events[2].summary().values(0).tensor().strings(0) == "**bold**");
}

TEST_CASE("event files of one run sort in order, even if the clock was set back") {
  const Folder folder;
  std::ofstream(folder.path / "events.out.tfevents.4000000000.cleave");
  Recorder recorder;
  const EventFile file(recorder, folder.path);
  CHECK(fs::path(file.path()).filename() == "events.out.tfevents.4000000001.cleave");
  const EventFile next(recorder, folder.path);
  CHECK(fs::path(next.path()).filename() == "events.out.tfevents.4000000002.cleave");
}

TEST_CASE("a folder that cannot be created is an error") {
  const Folder folder;
  std::ofstream(folder.path / "tensorboard");
  Recorder recorder;
  CHECK(errorCode([&] { EventFile(recorder, folder.path / "tensorboard"); }) == "cannot-write");
}

TEST_CASE("a step that overlaps others has no bound, but the rates of its link") {
  const Folder folder;
  Recorder recorder;
  RunFiles files(recorder, folder.path, {"run"}, {});
  StepRow row = stepRow(1, 0);
  row.costs.emplace();
  row.costs->bodies.front().rateUp = 1000;
  row.costs->bodies.front().rateDown = 2000;
  row.costs->bodies.front().latency = 0.25;
  files.step(row, {});
  recorder.flush();
  CHECK(readFile(folder.path / "steps.csv").ends_with(",1000,2000,0.25,,,,,\n"));
}

TEST_CASE("a run writes the figures of its steps and epochs") {
  const Folder folder;
  Written run(folder);
  StepRow handshake;
  handshake.phase = "handshake";
  run.totals.controlUp = 500;
  run.files.step(handshake, run.totals);
  run.train(1, 3, 0.75);
  StepRow evaluation = stepRow(1, 9);
  evaluation.phase = "eval";
  run.files.step(evaluation, run.totals);
  EpochRow epoch;
  epoch.epoch = 1;
  epoch.trainSeconds = 2;
  epoch.evalSeconds = 1;
  epoch.trainMetrics = {0.5, 0.625};
  epoch.evalMetrics = {0.25, std::nullopt};
  run.files.epoch(epoch, run.totals);
  run.recorder.flush();
  using Values = std::map<std::int64_t, float>;
  const fs::path path = folder.path / "tensorboard";
  CHECK(valuesOf("train/loss", path) == Values{{1, 0.75F}, {2, 0.75F}, {3, 0.75F}});
  CHECK(valuesOf("train/top1", path).empty());
  CHECK(valuesOf("train/gradient_norm", path).empty());
  CHECK(valuesOf("train/learning_rate", path).size() == 3);
  CHECK(valuesOf("speed/samples_per_second", path)[2] == 64);
  CHECK(valuesOf("speed/wait_seconds", path)[2] == 0.375F);
  CHECK(valuesOf("link/up_bytes", path) == Values{{1, 1024}, {2, 1024}, {3, 1024}});
  CHECK(valuesOf("eval/loss", path) == Values{{3, 0.25F}});
  CHECK(valuesOf("eval/top1", path).empty());
  CHECK(valuesOf("epoch/train_top1", path) == Values{{3, 0.625F}});
  CHECK(valuesOf("epoch/number", path) == Values{{3, 1}});
  CHECK_FALSE(run.files.writeFailure());
}

TEST_CASE("a full disk is reported in the same way as for CSV files") {
  const Folder folder;
  Written run(folder);
  CHECK_FALSE(run.files.writeFailure());
  {
    const test::FileSizeLimit full(50'000);
    run.events->configuration(std::string(100'000, 'x'));
    CHECK(errorCode([&] { run.recorder.flush(); }) == "cannot-write");
  }
  const auto failure = run.files.writeFailure();
  REQUIRE(failure);
  CHECK(failure->path == run.events->file().path());
  CHECK(failure->error == EFBIG);
  CHECK(eventsOf(failure->path).size() == 1);  // the file has no part of the failed record
}

TEST_CASE("repeated steps replace those of the killed process") {
  const Folder folder;
  const fs::path path = folder.path / "tensorboard";
  Written(folder).train(1, 8, 1);
  {
    Written resumed(folder);
    resumed.files.step(resumeRow(5), resumed.totals);
    EpochRow epoch;  // the checkpoint was made before the evaluation
    epoch.trainMetrics = {0.5, 0.5};
    resumed.files.epoch(epoch, resumed.totals);
    resumed.train(6, 7, 2);
  }
  using Values = std::map<std::int64_t, float>;
  CHECK(filesIn(path).size() == 2);
  CHECK(valuesOf("train/loss", path) ==
        Values{{1, 1}, {2, 1}, {3, 1}, {4, 1}, {5, 1}, {6, 2}, {7, 2}});
  CHECK(valuesOf("epoch/train_loss", path) == Values{{5, 0.5F}});
  // Without a checkpoint, the run starts over.
  Written(folder).train(1, 2, 3);
  CHECK(valuesOf("train/loss", path) == Values{{1, 3}, {2, 3}});
}

}  // namespace cleave
