#include "common/record/run_files.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <sstream>
#include <utility>

#include "common/record/run_events.h"

namespace cleave {
namespace {

template <typename Value>
Cell cell(const std::optional<Value>& value) {
  return value ? Cell(*value) : Cell();
}

std::string shapeText(const TensorSpec& spec) {
  std::string text;
  for (const std::int64_t dim : spec.shape) text += (text.empty() ? "" : "x") + std::to_string(dim);
  return text;
}

void append(std::vector<Cell>& cells, const std::vector<std::optional<double>>& values,
            std::size_t columns) {
  for (std::size_t index = 0; index < columns; ++index) {
    cells.push_back(index < values.size() ? cell(values[index]) : Cell());
  }
}

// The columns of bytes and codec seconds that steps.csv and epochs.csv share. append() computes
// their values between two totals.
const std::vector<std::string> kTotalsColumns = {
    "encode_seconds", "decode_seconds",  "raw_up_bytes",     "raw_down_bytes",
    "wire_up_bytes",  "wire_down_bytes", "control_up_bytes", "control_down_bytes"};

void append(std::vector<Cell>& cells, const LinkTotals& before, const LinkTotals& after) {
  cells.emplace_back(after.encodeSeconds - before.encodeSeconds);
  cells.emplace_back(after.decodeSeconds - before.decodeSeconds);
  cells.emplace_back(after.rawUp - before.rawUp);
  cells.emplace_back(after.rawDown - before.rawDown);
  cells.emplace_back(after.wireUp - before.wireUp);
  cells.emplace_back(after.wireDown - before.wireDown);
  cells.emplace_back(after.controlUp - before.controlUp);
  cells.emplace_back(after.controlDown - before.controlDown);
}

const std::vector<std::string> kBoundColumns = {"rate_up",       "rate_down",  "latency_seconds",
                                                "bound_seconds", "over_bound", "bottleneck"};

void appendBound(std::vector<Cell>& cells, const StepRow& row) {
  const std::size_t end = cells.size() + kBoundColumns.size();
  if (row.costs) {  // also of steps that overlap, which have no bound
    const BodyCosts link = row.costs->slowestLink();
    cells.emplace_back(link.rateUp);
    cells.emplace_back(link.rateDown);
    cells.emplace_back(link.latency);
  }
  if (!row.costs || !row.bound) return cells.resize(end);
  cells.emplace_back(row.bound->seconds);
  cells.emplace_back(row.seconds.value_or(0) / row.bound->seconds);
  cells.emplace_back(std::string(bottleneckName(row.bound->bottleneck)));
}

std::vector<std::string> join(std::vector<std::string> first,
                              const std::vector<std::string>& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

std::vector<std::string> prefixed(const std::string& prefix,
                                  const std::vector<std::string>& names) {
  std::vector<std::string> result;
  for (const std::string& name : names) result.push_back(prefix + name);
  return result;
}

// Kinds that have their own column, in column order.
constexpr std::pair<ActionKind, const char*> kActionColumns[] = {
    {ActionKind::headForward, "head_forward_seconds"},
    {ActionKind::tailStep, "tail_step_seconds"},
    {ActionKind::headBackward, "head_backward_seconds"},
    {ActionKind::bodyForward, "body_forward_seconds"},
    {ActionKind::bodyBackward, "body_backward_seconds"},
    {ActionKind::bodyWeights, "body_weights_seconds"},
    {ActionKind::reduce, "reduce_seconds"},
    {ActionKind::update, "update_seconds"},
    {ActionKind::snapshot, "checkpoint_seconds"},
};

}  // namespace

std::vector<std::string> RunFiles::transferColumns() {
  return {"time",           "run",
          "session",        "generation",
          "role",           "phase",
          "step",           "micro_batch",
          "flow",           "codec",
          "shape",          "raw_bytes",
          "wire_bytes",     "encode_seconds",
          "queue_seconds",  "wire_seconds",
          "decode_seconds", "snr_db",
          "delivery_rate",  "round_trip_seconds",
          "retransmits"};
}

std::vector<std::string> RunFiles::stepColumns(const std::vector<std::string>& metrics) {
  std::vector<std::string> columns = {
      "time",         "run",     "session",       "generation", "phase",           "step",
      "epoch",        "samples", "micro_batches", "seconds",    "between_seconds", "learning_rate",
      "gradient_norm"};
  for (const auto& [kind, name] : kActionColumns) columns.emplace_back(name);
  columns = join(std::move(columns), kTotalsColumns);
  return join(join(std::move(columns), kBoundColumns), metrics);
}

std::vector<std::string> RunFiles::epochColumns(const std::vector<std::string>& metrics) {
  std::vector<std::string> columns = {"time",  "run",     "session",       "generation",  "epoch",
                                      "steps", "samples", "train_seconds", "eval_seconds"};
  columns = join(std::move(columns), kTotalsColumns);
  columns = join(std::move(columns), prefixed("train_", metrics));
  return join(std::move(columns), prefixed("eval_", metrics));
}

RunFiles::RunFiles(Recorder& recorder, const std::string& folder, RunIdentity identity,
                   std::vector<std::string> metrics, std::size_t rotateBytes,
                   const std::shared_ptr<RowBudget>& budget, bool append)
    : folder_(folder),
      run_(std::move(identity.run)),
      session_(identity.session),
      generation_(identity.generation),
      metrics_(std::move(metrics)),
      transfers_(recorder.table(folder + "/transfers.csv", transferColumns(), rotateBytes, budget,
                                append)),
      steps_(recorder.table(folder + "/steps.csv", stepColumns(metrics_), rotateBytes, budget,
                            append)),
      epochs_(recorder.table(folder + "/epochs.csv", epochColumns(metrics_), rotateBytes, budget,
                             append)) {}

void RunFiles::reconnected(std::uint64_t session, std::uint64_t generation, bool isFirst) {
  if (isFirst) session_ = session;
  // Several links may reconnect at the same time.
  std::uint64_t known = generation_;
  while (known < generation && !generation_.compare_exchange_weak(known, generation)) {
  }
}

void RunFiles::transfer(const TransferRecord& record) {
  if (observer_) observer_->transfer(record);
  if (!transfers_) return;
  transfers_->row({utcNow(),
                   run_,
                   session_.load(),
                   generation_.load(),
                   std::string(record.sent ? "send" : "recv"),
                   std::string(phaseName(record.key.phase)),
                   record.key.step,
                   std::uint64_t{record.key.i},
                   std::string(flowName(record.key.flow)),
                   record.codec,
                   shapeText(record.spec),
                   record.rawBytes,
                   record.wireBytes,
                   cell(record.encodeSeconds),
                   cell(record.queueSeconds),
                   cell(record.wireSeconds),
                   cell(record.decodeSeconds),
                   cell(record.snrDb),
                   record.link ? Cell(record.link->deliveryRate) : Cell(),
                   record.link ? Cell(record.link->roundTripSeconds) : Cell(),
                   record.link ? Cell(record.link->retransmits) : Cell()});
}

void RunFiles::step(const StepRow& row, const LinkTotals& totals) {
  std::vector<Cell> cells = {utcNow(),  run_,           session_.load(), generation_.load(),
                             row.phase, cell(row.step), cell(row.epoch)};
  cells.push_back(row.at ? Cell(std::uint64_t{row.at->batch.samples}) : Cell());
  cells.push_back(row.at ? Cell(std::uint64_t{row.at->batch.count}) : Cell());
  cells.push_back(cell(row.seconds));
  cells.push_back(cell(row.between));
  cells.push_back(cell(row.learningRate));
  cells.push_back(cell(row.gradientNorm));
  for (const auto& [kind, name] : kActionColumns) {
    const double seconds = row.actions[indexOf(kind)];
    cells.push_back(seconds > 0 ? Cell(seconds) : Cell());
  }
  const std::lock_guard lock(mutex_);
  append(cells, lastStep_, totals);
  if (observer_) observer_->step(row, lastStep_, totals);
  if (events_) events_->step(row, lastStep_, totals);
  lastStep_ = totals;
  if (!steps_) return;
  appendBound(cells, row);
  append(cells, row.metrics, metrics_.size());
  steps_->row(std::move(cells));
}

void RunFiles::epoch(const EpochRow& row, const LinkTotals& totals) {
  std::vector<Cell> cells = {
      utcNow(),  run_,        session_.load(),  generation_.load(),   row.epoch,
      row.steps, row.samples, row.trainSeconds, cell(row.evalSeconds)};
  const std::lock_guard lock(mutex_);
  append(cells, lastEpoch_, totals);
  lastEpoch_ = totals;
  if (events_) events_->epoch(row);
  if (!epochs_) return;
  append(cells, row.trainMetrics, metrics_.size());
  append(cells, row.evalMetrics, metrics_.size());
  epochs_->row(std::move(cells));
}

std::optional<RunFiles::WriteFailure> RunFiles::writeFailure() const {
  for (const auto& table : {transfers_, steps_, epochs_}) {
    if (!table) continue;
    if (const int error = table->error()) return WriteFailure{table->path(), error};
  }
  if (events_ && events_->file().error() != 0) {
    return WriteFailure{events_->file().path(), events_->file().error()};
  }
  return std::nullopt;
}

std::uint64_t RunFiles::droppedRows() const {
  if (!transfers_) return 0;
  return transfers_->dropped() + steps_->dropped() + epochs_->dropped();
}

bool RunFiles::isOverBudget() const {
  if (!transfers_) return false;
  return transfers_->isOverBudget() || steps_->isOverBudget() || epochs_->isOverBudget();
}

RecordedStep lastRecordedStep(const std::string& folder) {
  constexpr std::streamoff kTail = 1 << 22;  // bytes; about ten thousand rows
  const std::vector<std::string> columns = RunFiles::stepColumns({});
  const auto indexOfColumn = [&](const char* name) {
    return static_cast<std::size_t>(std::find(columns.begin(), columns.end(), name) -
                                    columns.begin());
  };
  const std::size_t phase = indexOfColumn("phase");
  const std::size_t step = indexOfColumn("step");
  const std::size_t generation = indexOfColumn("generation");
  std::ifstream file(folder + "/steps.csv", std::ios::binary | std::ios::ate);
  const std::streamoff size = file.tellg();
  file.seekg(std::max<std::streamoff>(size - kTail, 0));
  RecordedStep last;
  const auto read = [](const std::string& text, std::uint64_t& number) {
    std::from_chars(text.data(), text.data() + text.size(), number);
  };
  for (std::string line; std::getline(file, line);) {
    std::vector<std::string> fields;
    std::istringstream text(line);
    for (std::string field; fields.size() <= step && std::getline(text, field, ',');) {
      fields.push_back(field);
    }
    // The first line may be incomplete.
    if (fields.size() <= step || fields[phase] != phaseName(Phase::train)) continue;
    read(fields[step], last.step);
    read(fields[generation], last.generation);
  }
  return last;
}

}  // namespace cleave
