#include "client/run/traffic_recording.h"

#include <fcntl.h>
#include <spdlog/fmt/fmt.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <sstream>
#include <utility>

#include "common/codec/safetensors.h"
#include "common/core/bytes.h"
#include "common/core/durable.h"
#include "common/core/log.h"
#include "common/core/open_file.h"

namespace cleave {
namespace {

namespace fs = std::filesystem;

constexpr int kFormat = 1;  // of the folder
constexpr std::array<const char*, 10> kColumns = {"file",        "tensor", "phase",       "step",
                                                  "micro_batch", "flow",   "codec_level", "dtype",
                                                  "shape",       "codec"};
constexpr std::array<const char*, kCodecLevels> kLevelNames = {"own", "eight", "raw"};

std::string safetensorsName(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return "F32";
    case DType::f16:
      return "F16";
    case DType::bf16:
      return "BF16";
    case DType::i64:
      return "I64";
  }
  return {};
}

// "train-000012.safetensors"
std::string fileOf(const MicroBatch& at) {
  return fmt::format("{}-{:06}.safetensors", phaseName(at.phase), at.step);
}

std::string shapeText(const std::vector<std::int64_t>& shape) {
  return fmt::format("{}", fmt::join(shape, "x"));
}

// The tensor's bytes in the order of its shape, whatever its memory order.
std::vector<std::byte> contiguousBytes(const TensorView& view) {
  std::vector<std::byte> bytes(view.spec.bytes());
  const auto& shape = view.spec.shape;
  if (view.spec.order == MemoryOrder::contiguous || shape.size() != 4) {
    std::copy_n(view.data, bytes.size(), bytes.data());
    return bytes;
  }
  const std::size_t size = dtypeBytes(view.spec.dtype);
  const auto samples = static_cast<std::size_t>(shape[0]);
  const auto channels = static_cast<std::size_t>(shape[1]);
  const auto pixels = static_cast<std::size_t>(shape[2] * shape[3]);
  std::byte* to = bytes.data();
  for (std::size_t n = 0; n < samples; ++n) {
    for (std::size_t c = 0; c < channels; ++c) {
      for (std::size_t p = 0; p < pixels; ++p, to += size) {
        std::copy_n(view.data + ((n * pixels + p) * channels + c) * size, size, to);
      }
    }
  }
  return bytes;
}

[[noreturn]] void throwExists(const std::string& folder, const std::string& what) {
  throw UsageError("recording-exists", folder + ": " + what,
                   "give --record-traffic another folder, or remove this one");
}

std::string readText(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

void appendDurably(const std::string& path, const std::string& text) {
  const OpenFile file(::open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC));
  if (!file) throwCannotWrite(path, "cannot be opened", errno);
  const int error = writeAll(file.get(), text);
  if (error != 0) throwCannotWrite(path, "cannot be written", error);
  if (::fsync(file.get()) != 0) throwCannotWrite(path, "cannot be written", errno);
}

TrafficTensor numbersTensor(const std::string& name, std::span<const std::uint32_t> numbers) {
  const std::vector<std::int64_t> values(numbers.begin(), numbers.end());
  const auto bytes = std::as_bytes(std::span(values));
  const TensorSpec spec{DType::i64, {static_cast<std::int64_t>(values.size())}};
  return {name, spec, {bytes.begin(), bytes.end()}, {}};
}

void writeTensors(const std::string& path, const std::vector<TrafficTensor>& tensors) {
  std::vector<SafetensorsEntry> entries;
  for (const TrafficTensor& tensor : tensors) {
    entries.push_back(
        {tensor.name, safetensorsName(tensor.spec.dtype), tensor.spec.shape, tensor.bytes});
  }
  writeFileDurably(path, textOf(writeSafetensors(entries)));
}

void makeFolder(const std::string& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (!error) fs::permissions(folder, fs::perms::owner_all, error);
  if (error) throwCannotWrite(folder, "cannot be created", error.value());
}

}  // namespace

TrafficRecording::TrafficRecording(TrafficOptions options, const RecordedRun& run)
    : options_(std::move(options)), arrays_(run.arrays) {
  about_ = {{"format", kFormat},           {"run", run.id},           {"run_folder", run.folder},
            {"max_steps", options_.steps}, {"max_mib", options_.mib}, {"inputs", options_.inputs}};
  std::error_code ignored;
  bool hasFiles = false;
  for (const auto& entry : fs::directory_iterator(options_.folder, ignored)) {
    hasFiles = hasFiles || !isTemporaryName(entry.path().filename().string());
  }
  if (hasFiles) {
    checkSameRun(run.id);
  } else {
    makeFolder(options_.folder);
  }
  removeTemporaries();
  writeRecord();  // first, because it says that the folder is a recording of this run
  makeFolder(options_.folder + "/traffic");
  if (options_.inputs) makeFolder(options_.folder + "/inputs");
  continueIndex();
}

// ---- An earlier recording of the run ----

void TrafficRecording::checkSameRun(const std::string& run) const {
  const std::string path = options_.folder + "/recording.json";
  const auto record = nlohmann::json::parse(readText(path), nullptr, false);
  if (!record.is_object() || !record.contains("run") || !record["run"].is_string()) {
    throwExists(options_.folder, "the folder exists, and is not a recording of this run");
  }
  if (record["run"] != run)
    throwExists(options_.folder, "the folder has a recording of another run");
  if (record.value("inputs", false) != options_.inputs) {
    throwExists(options_.folder, options_.inputs ? "the recording was begun without --record-inputs"
                                                 : "the recording was begun with --record-inputs");
  }
}

// Temporary files of a process that was killed while it wrote.
void TrafficRecording::removeTemporaries() const {
  std::error_code ignored;
  for (const auto& entry : fs::recursive_directory_iterator(options_.folder, ignored)) {
    if (isTemporaryName(entry.path().filename().string())) fs::remove(entry.path(), ignored);
  }
}

// Keeps the whole rows whose files exist: the process may have been killed while it wrote.
void TrafficRecording::continueIndex() {
  std::istringstream rows(readText(indexPath()));
  std::string index = formatLine({kColumns.begin(), kColumns.end()});
  std::string row;
  std::getline(rows, row);  // the header
  while (std::getline(rows, row) && !rows.eof()) {
    const std::string file = row.substr(0, row.find(','));
    std::error_code error;
    const std::uint64_t bytes = fs::file_size(options_.folder + "/traffic/" + file, error);
    if (error) continue;
    if (!files_.contains(file)) bytes_ += bytes;
    addFile(file);
    index += row + "\n";
  }
  writeFileDurably(indexPath(), index);
}

void TrafficRecording::addFile(const std::string& file) {
  if (files_.insert(file).second && file.starts_with(phaseName(Phase::train))) ++steps_;
}

// ---- Batches ----

void TrafficRecording::begin(const MicroBatch& at, const Share& own, const Batch& batch) {
  const std::lock_guard lock(mutex_);
  if (!ended_.empty()) return;
  if (at.phase == Phase::train && at.step > options_.steps) return end("steps");
  OpenBatch& open = open_.emplace_back(OpenBatch{at, {}, {}});
  if (own.count == 0) return;  // a member without samples in this batch
  const std::uint32_t first = at.batch.offset(own.first);
  for (std::uint32_t n = 0; n < own.count; ++n) {
    const std::uint32_t i = own.at(n);
    const auto numbers =
        std::span(batch.numbers).subspan(at.batch.offset(i) - first, at.batch.size(i));
    open.traffic.push_back(numbersTensor(fmt::format("samples:{}", i), numbers));
  }
  if (!options_.inputs) return;
  open.inputs.push_back(numbersTensor("samples", batch.numbers));
  for (std::size_t a = 0; a < batch.arrays.size(); ++a) {
    const TensorView view = batch.arrays[a].view();
    if (!reserve(view.spec.bytes())) return;
    const bool isTarget = a + 1 == batch.arrays.size();
    open.inputs.push_back(
        {isTarget ? "target" : "input:" + arrays_.at(a), view.spec, contiguousBytes(view), {}});
  }
}

bool TrafficRecording::wants(const Key& key) const {
  const std::lock_guard lock(mutex_);
  return std::ranges::any_of(open_, [&](const OpenBatch& each) { return each.has(key); });
}

void TrafficRecording::crossed(const Key& key, const std::string& codec, CodecLevel level,
                               const TensorView& view) {
  const std::lock_guard lock(mutex_);
  const auto open =
      std::ranges::find_if(open_, [&](const OpenBatch& each) { return each.has(key); });
  if (open == open_.end() || !reserve(view.spec.bytes())) return;
  const std::string name = fmt::format("{}:{}", flowName(key.flow), key.i);
  open->traffic.push_back(
      {name,
       view.spec,
       contiguousBytes(view),
       {name, std::string(phaseName(key.phase)), key.step, std::uint64_t{key.i}, flowName(key.flow),
        std::string(kLevelNames.at(static_cast<std::size_t>(level))),
        safetensorsName(view.spec.dtype), shapeText(view.spec.shape), codec}});
}

// Whether there is room for `bytes` more; if not, the recording ends.
bool TrafficRecording::reserve(std::size_t bytes) {
  bytes_ += bytes;
  if (bytes_ <= options_.mib << 20) return true;
  end("bytes");
  open_.clear();
  return false;
}

void TrafficRecording::finish() {
  OpenBatch batch;
  {
    const std::lock_guard lock(mutex_);
    if (open_.empty()) return;
    batch = std::move(open_.front());
    open_.pop_front();
  }
  // Tensors arrive in an order that depends on the threads.
  std::ranges::sort(batch.traffic, {}, &TrafficTensor::name);
  try {
    write(batch);
  } catch (const Error& error) {
    const std::lock_guard lock(mutex_);
    open_.clear();
    end("disk");
    processLog()->warn("the traffic is no longer recorded: {} (hint: {})", error.what(),
                       error.hint());
  }
}

void TrafficRecording::dropOpen() {
  const std::lock_guard lock(mutex_);
  open_.clear();
}

void TrafficRecording::write(const OpenBatch& batch) {
  if (batch.traffic.empty()) return;
  const std::string file = fileOf(batch.at);
  if (options_.inputs) writeTensors(options_.folder + "/inputs/" + file, batch.inputs);
  writeTensors(options_.folder + "/traffic/" + file, batch.traffic);
  if (files_.contains(file)) return;  // the run has repeated the batch after a resume
  std::string rows;
  for (const TrafficTensor& tensor : batch.traffic) {
    if (tensor.cells.empty()) continue;
    std::vector<Cell> cells = {file};
    cells.insert(cells.end(), tensor.cells.begin(), tensor.cells.end());
    rows += formatLine(cells);
  }
  appendDurably(indexPath(), rows);
  addFile(file);
}

// ---- The recording ----

// Requires the lock.
void TrafficRecording::end(const char* reason) {
  if (!ended_.empty()) return;
  ended_ = reason;
  try {
    writeRecord();
  } catch (const Error&) {  // a full disk; the summary has the reason too
  }
}

void TrafficRecording::writeRecord() const {
  nlohmann::ordered_json record = about_;
  record["ended"] = ended_.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(ended_);
  writeFileDurably(options_.folder + "/recording.json", record.dump(2) + "\n");
}

nlohmann::json TrafficRecording::summary() const {
  const std::lock_guard lock(mutex_);
  return {{"folder", options_.folder},
          {"steps", steps_},
          {"batches", files_.size()},
          {"ended", ended_.empty() ? nlohmann::json() : nlohmann::json(ended_)}};
}

}  // namespace cleave
