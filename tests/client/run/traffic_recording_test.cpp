// Recordings of what the servers see: their files, their limits, and what they refuse.
#include "client/run/traffic_recording.h"

#include <catch2/catch.hpp>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>

#include "client/run/temporary_folder.h"
#include "common/codec/safetensors.h"
#include "common/resources/buffer.h"
#include "tests/support/error_code.h"
#include "tests/support/files/file_size_limit.h"

namespace cleave::test {
namespace {

namespace fs = std::filesystem;

constexpr std::uint32_t kSamples = 3;  // of a batch, in 2 micro-batches: 2 and 1

std::string textOfFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

template <typename T>
std::vector<T> valuesOf(std::span<const std::byte> bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

// The tensors of a file, as "SHAPE: VALUES" by name.
struct Tensors {
  explicit Tensors(const std::string& path) : text(textOfFile(path)) {
    for (const SafetensorsEntry& entry : readSafetensors(std::as_bytes(std::span(text)), path)) {
      entries[entry.name] = entry;
    }
  }
  std::string text;
  std::map<std::string, SafetensorsEntry> entries;
};

class Recorded {
 public:
  std::string path(const std::string& name) const { return folder_.path() + "/" + name; }
  TrafficRecording open(TrafficOptions options = {}, const std::string& run = "run-1") const {
    options.folder = path("recording");
    return TrafficRecording(options, {run, path("run"), {"image", ""}});
  }
  std::string file(const std::string& name) const { return path("recording/" + name); }

 private:
  TemporaryFolder folder_;
};

MicroBatch batchAt(Phase phase, std::uint64_t step) {
  return {phase, step, 0, Division::of(kSamples, 2)};
}

Batch makeBatch(std::uint64_t step) {
  Batch batch;
  const auto first = static_cast<std::uint32_t>(10 * step);
  batch.numbers = {first, first + 1, first + 2};
  BufferPool pool;
  for (const auto& [dtype, shape] : {std::pair{DType::f32, std::vector<std::int64_t>{kSamples, 2}},
                                     std::pair{DType::i64, std::vector<std::int64_t>{kSamples}}}) {
    BatchArray array{{}, {dtype, shape}};
    array.memory = pool.acquire(array.spec.bytes());
    std::memset(array.memory.data(), static_cast<int>(step), array.spec.bytes());
    batch.arrays.push_back(std::move(array));
  }
  return batch;
}

void begin(TrafficRecording& recording, Phase phase, std::uint64_t step) {
  const MicroBatch at = batchAt(phase, step);
  recording.begin(at, at.batch.all(), makeBatch(step));
}

void add(TrafficRecording& recording, Phase phase, std::uint64_t step, std::uint32_t i,
         const std::vector<float>& values) {
  const TensorSpec spec{DType::f32, {static_cast<std::int64_t>(values.size())}};
  recording.crossed({phase, step, i, activationAt(0)}, "block:bits=4,size=16", CodecLevel::own,
                    {reinterpret_cast<const std::byte*>(values.data()), spec});
}

void recordStep(TrafficRecording& recording, std::uint64_t step, Phase phase = Phase::train) {
  begin(recording, phase, step);
  const auto first = static_cast<float>(step);
  add(recording, phase, step, 0, {first, first + 1});
  add(recording, phase, step, 1, {first + 2});
  recording.finish();
}

TEST_CASE("a recording has a file per batch, and a row per tensor in its index") {
  const Recorded recorded;
  TrafficRecording recording = recorded.open();
  recordStep(recording, 1);
  recordStep(recording, 1, Phase::eval);
  const Tensors step(recorded.file("traffic/train-000001.safetensors"));
  REQUIRE(step.entries.size() == 4);
  CHECK((valuesOf<float>(step.entries.at("activation/0:0").bytes) == std::vector<float>{1, 2}));
  CHECK((valuesOf<float>(step.entries.at("activation/0:1").bytes) == std::vector<float>{3}));
  CHECK((valuesOf<std::int64_t>(step.entries.at("samples:0").bytes) ==
         std::vector<std::int64_t>{10, 11}));
  CHECK((valuesOf<std::int64_t>(step.entries.at("samples:1").bytes) ==
         std::vector<std::int64_t>{12}));
  CHECK(textOfFile(recorded.file("index.csv")) ==
        "file,tensor,phase,step,micro_batch,flow,codec_level,dtype,shape,codec\n"
        "train-000001.safetensors,activation/0:0,train,1,0,activation/0,own,F32,2,"
        "\"block:bits=4,size=16\"\n"
        "train-000001.safetensors,activation/0:1,train,1,1,activation/0,own,F32,1,"
        "\"block:bits=4,size=16\"\n"
        "eval-000001.safetensors,activation/0:0,eval,1,0,activation/0,own,F32,2,"
        "\"block:bits=4,size=16\"\n"
        "eval-000001.safetensors,activation/0:1,eval,1,1,activation/0,own,F32,1,"
        "\"block:bits=4,size=16\"\n");
  const auto about = nlohmann::json::parse(textOfFile(recorded.file("recording.json")));
  CHECK(about.at("run") == "run-1");
  CHECK(about.at("run_folder") == recorded.path("run"));
  CHECK(about.at("ended").is_null());
  CHECK(recording.summary().at("batches") == 2);
  // What the data are is not recorded unless asked, and only the owner may read the rest.
  CHECK_FALSE(fs::exists(recorded.file("inputs")));
  CHECK(fs::status(recorded.file("")).permissions() == fs::perms::owner_all);
}

TEST_CASE("inputs and targets are recorded if asked, in files of their own") {
  const Recorded recorded;
  TrafficRecording recording = recorded.open({.inputs = true});
  recordStep(recording, 3);
  const Tensors inputs(recorded.file("inputs/train-000003.safetensors"));
  REQUIRE(inputs.entries.size() == 3);
  CHECK((inputs.entries.at("input:image").shape == std::vector<std::int64_t>{3, 2}));
  CHECK(inputs.entries.at("target").dtype == "I64");
  CHECK((valuesOf<std::int64_t>(inputs.entries.at("samples").bytes) ==
         std::vector<std::int64_t>{30, 31, 32}));
  const Tensors traffic(recorded.file("traffic/train-000003.safetensors"));
  CHECK(traffic.entries.size() == 4);  // nothing of the inputs
}

TEST_CASE("a tensor in channels_last order is recorded in the order of its shape") {
  const Recorded recorded;
  TrafficRecording recording = recorded.open();
  begin(recording, Phase::train, 1);
  const std::vector<float> values = {0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11};  // [2, 2, 3, 1]
  const TensorSpec spec{DType::f32, {2, 2, 3, 1}, MemoryOrder::channelsLast};
  recording.crossed({Phase::train, 1, 0, gradientAt(1)}, "none", CodecLevel::own,
                    {reinterpret_cast<const std::byte*>(values.data()), spec});
  recording.finish();
  const Tensors step(recorded.file("traffic/train-000001.safetensors"));
  CHECK((valuesOf<float>(step.entries.at("gradient/1:0").bytes) ==
         std::vector<float>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}));
}

TEST_CASE("a member of a cohort records its own micro-batches, and none of a batch without any") {
  const Recorded recorded;
  TrafficRecording recording = recorded.open({.inputs = true});
  const MicroBatch first{Phase::train, 1, 0, Division::ofMembers({4, kSamples, 0}, 2)};
  recording.begin(first, first.batch.shareOfMember(1), makeBatch(1));
  add(recording, Phase::train, 1, 2, {1, 2});
  add(recording, Phase::train, 1, 3, {3});
  recording.finish();
  const MicroBatch second{Phase::train, 2, 0, Division::ofMembers({4, 0, 1}, 2)};
  recording.begin(second, second.batch.shareOfMember(1), {});
  recording.finish();
  const Tensors step(recorded.file("traffic/train-000001.safetensors"));
  REQUIRE(step.entries.size() == 4);
  CHECK((valuesOf<std::int64_t>(step.entries.at("samples:2").bytes) ==
         std::vector<std::int64_t>{10, 11}));
  CHECK((valuesOf<std::int64_t>(step.entries.at("samples:3").bytes) ==
         std::vector<std::int64_t>{12}));
  CHECK(Tensors(recorded.file("inputs/train-000001.safetensors")).entries.size() == 3);
  CHECK_FALSE(fs::exists(recorded.file("traffic/train-000002.safetensors")));
  CHECK(recording.summary().at("steps") == 1);
}

TEST_CASE("a recording ends after its steps, or before the batch that exceeds its bytes") {
  const Recorded recorded;
  {
    TrafficRecording recording = recorded.open({.steps = 2});
    for (std::uint64_t step = 1; step <= 4; ++step) recordStep(recording, step);
    recordStep(recording, 1, Phase::eval);
    CHECK(recording.summary().at("steps") == 2);
    CHECK(recording.summary().at("ended") == "steps");
    CHECK_FALSE(fs::exists(recorded.file("traffic/train-000003.safetensors")));
    CHECK_FALSE(fs::exists(recorded.file("traffic/eval-000001.safetensors")));
  }
  fs::remove_all(recorded.file(""));
  TrafficRecording recording = recorded.open({.mib = 1});
  recordStep(recording, 1);
  begin(recording, Phase::train, 2);
  add(recording, Phase::train, 2, 0, std::vector<float>(1 << 18));
  recording.finish();
  recordStep(recording, 3);
  CHECK(recording.summary().at("steps") == 1);
  CHECK(recording.summary().at("ended") == "bytes");
  const auto about = nlohmann::json::parse(textOfFile(recorded.file("recording.json")));
  CHECK(about.at("ended") == "bytes");
}

TEST_CASE("a resumed run continues its recording, and repeats no row") {
  const Recorded recorded;
  const std::string index = recorded.file("index.csv");
  {
    TrafficRecording recording = recorded.open();
    for (std::uint64_t step = 1; step <= 3; ++step) recordStep(recording, step);
  }
  const std::string whole = textOfFile(index);
  // Killed while it wrote the row of a file that was never complete.
  std::ofstream(index, std::ios::app) << "train-000004.safetensors,activation/0:0,train,4\ntrain-0";
  TrafficRecording recording = recorded.open();
  CHECK(recording.summary().at("steps") == 3);
  recordStep(recording, 3);
  CHECK(textOfFile(index) == whole);
  recordStep(recording, 4);
  CHECK(recording.summary().at("steps") == 4);
  CHECK(textOfFile(index).starts_with(whole));
  // An attempt that has ended leaves a batch behind.
  begin(recording, Phase::train, 5);
  recording.dropOpen();
  recordStep(recording, 5);
  CHECK(Tensors(recorded.file("traffic/train-000005.safetensors")).entries.size() == 4);
}

TEST_CASE("a folder with anything else is refused") {
  const Recorded recorded;
  recorded.open();
  CHECK(errorCode([&] { recorded.open({}, "run-2"); }) == "recording-exists");
  CHECK(errorCode([&] { recorded.open({.inputs = true}); }) == "recording-exists");
  std::ofstream(recorded.file("recording.json")) << "[";
  CHECK(errorCode([&] { recorded.open(); }) == "recording-exists");
  fs::remove(recorded.file("recording.json"));
  CHECK(errorCode([&] { recorded.open(); }) == "recording-exists");
}

TEST_CASE("a full disk ends the recording, and not the run") {
  const Recorded recorded;
  TrafficRecording recording = recorded.open();
  recordStep(recording, 1);
  {
    const FileSizeLimit limit(100);
    recordStep(recording, 2);
  }
  recordStep(recording, 3);
  CHECK(recording.summary().at("steps") == 1);
  CHECK(recording.summary().at("ended") == "disk");
  CHECK_FALSE(fs::exists(recorded.file("traffic/train-000002.safetensors")));
}

}  // namespace
}  // namespace cleave::test
