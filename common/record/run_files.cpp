#include "common/record/run_files.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <iterator>
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

// The columns of a file and their cells in one row, in order: docs/metrics.md describes them. All
// rows of a file have the same names.
using Columns = std::vector<std::pair<const char*, Cell>>;

// The first columns of every file.
struct RowOrigin {
  std::string run;
  std::uint64_t session = 0, generation = 0;

  Columns with(Columns others) const {
    others.insert(
        others.begin(),
        {{"time", utcNow()}, {"run", run}, {"session", session}, {"generation", generation}});
    return others;
  }
};

// The columns of bytes and codec seconds that steps.csv and epochs.csv share: between two totals.
struct Totals {
  LinkTotals before, after;

  Columns columns() const {
    return {{"encode_seconds", after.encodeSeconds - before.encodeSeconds},
            {"decode_seconds", after.decodeSeconds - before.decodeSeconds},
            {"raw_up_bytes", after.rawUp - before.rawUp},
            {"raw_down_bytes", after.rawDown - before.rawDown},
            {"wire_up_bytes", after.wireUp - before.wireUp},
            {"wire_down_bytes", after.wireDown - before.wireDown},
            {"control_up_bytes", after.controlUp - before.controlUp},
            {"control_down_bytes", after.controlDown - before.controlDown}};
  }
};

Columns columnsOf(const TransferRecord& row) {
  const auto link = row.link;
  return {{"role", row.sent ? "send" : "recv"},
          {"phase", std::string(phaseName(row.key.phase))},
          {"step", row.key.step},
          {"micro_batch", std::uint64_t{row.key.i}},
          {"flow", std::string(flowName(row.key.flow))},
          {"codec", row.codec},
          {"shape", shapeText(row.spec)},
          {"raw_bytes", row.rawBytes},
          {"wire_bytes", row.wireBytes},
          {"encode_seconds", cell(row.encodeSeconds)},
          {"queue_seconds", cell(row.queueSeconds)},
          {"wire_seconds", cell(row.wireSeconds)},
          {"decode_seconds", cell(row.decodeSeconds)},
          {"snr_db", cell(row.snrDb)},
          {"delivery_rate", link ? Cell(link->deliveryRate) : Cell()},
          {"round_trip_seconds", link ? Cell(link->roundTripSeconds) : Cell()},
          {"retransmits", link ? Cell(link->retransmits) : Cell()}};
}

Columns columnsOf(const StepRow& row, const Totals& totals) {
  const auto seconds = [&](ActionKind kind) {
    const double action = row.actions[indexOf(kind)];
    return action > 0 ? Cell(action) : Cell();
  };
  Columns all = {{"phase", row.phase},
                 {"step", cell(row.step)},
                 {"epoch", cell(row.epoch)},
                 {"samples", row.at ? Cell(std::uint64_t{row.at->batch.samples}) : Cell()},
                 {"micro_batches", row.at ? Cell(std::uint64_t{row.at->batch.count}) : Cell()},
                 {"seconds", cell(row.seconds)},
                 {"between_seconds", cell(row.between)},
                 {"learning_rate", cell(row.learningRate)},
                 {"gradient_norm", cell(row.gradientNorm)},
                 {"head_forward_seconds", seconds(ActionKind::headForward)},
                 {"tail_step_seconds", seconds(ActionKind::tailStep)},
                 {"head_backward_seconds", seconds(ActionKind::headBackward)},
                 {"body_forward_seconds", seconds(ActionKind::bodyForward)},
                 {"body_backward_seconds", seconds(ActionKind::bodyBackward)},
                 {"body_weights_seconds", seconds(ActionKind::bodyWeights)},
                 {"reduce_seconds", seconds(ActionKind::reduce)},
                 {"update_seconds", seconds(ActionKind::update)},
                 {"checkpoint_seconds", seconds(ActionKind::snapshot)}};
  std::ranges::move(totals.columns(), std::back_inserter(all));
  // Steps that overlap have costs, but no bound.
  const auto link = row.costs ? std::optional(row.costs->slowestLink()) : std::nullopt;
  const auto& bound = row.bound;
  std::ranges::move(
      Columns{
          {"rate_up", link ? Cell(link->rateUp) : Cell()},
          {"rate_down", link ? Cell(link->rateDown) : Cell()},
          {"latency_seconds", link ? Cell(link->latency) : Cell()},
          {"client_memory_bytes", cell(row.clientMemory)},
          {"body_memory_bytes", cell(row.bodyMemory)},
          {"bound_seconds", bound ? Cell(bound->seconds) : Cell()},
          {"over_bound", bound ? Cell(row.seconds.value_or(0) / bound->seconds) : Cell()},
          {"bottleneck", bound ? Cell(std::string(bottleneckName(bound->bottleneck))) : Cell()}},
      std::back_inserter(all));
  return all;
}

Columns columnsOf(const EpochRow& row, const Totals& totals) {
  Columns all = {{"epoch", row.epoch},
                 {"steps", row.steps},
                 {"samples", row.samples},
                 {"train_seconds", row.trainSeconds},
                 {"eval_seconds", cell(row.evalSeconds)}};
  std::ranges::move(totals.columns(), std::back_inserter(all));
  return all;
}

std::vector<std::string> namesOf(const Columns& columns) {
  std::vector<std::string> names;
  for (const auto& [name, value] : RowOrigin().with(columns)) names.emplace_back(name);
  return names;
}

void append(std::vector<std::string>& names, const std::string& prefix,
            const std::vector<std::string>& metrics) {
  for (const std::string& metric : metrics) names.push_back(prefix + metric);
}

std::vector<Cell> cellsOf(Columns columns) {
  std::vector<Cell> cells;
  for (auto& [name, value] : columns) cells.push_back(std::move(value));
  return cells;
}

void append(std::vector<Cell>& cells, const std::vector<std::optional<double>>& values,
            std::size_t columns) {
  for (std::size_t index = 0; index < columns; ++index) {
    cells.push_back(index < values.size() ? cell(values[index]) : Cell());
  }
}

}  // namespace

std::vector<std::string> RunFiles::transferColumns() {
  return namesOf(columnsOf(TransferRecord()));
}

std::vector<std::string> RunFiles::stepColumns(const std::vector<std::string>& metrics) {
  std::vector<std::string> names = namesOf(columnsOf(StepRow(), {}));
  append(names, "", metrics);
  return names;
}

std::vector<std::string> RunFiles::epochColumns(const std::vector<std::string>& metrics,
                                                bool hasOwn) {
  std::vector<std::string> names = namesOf(columnsOf(EpochRow(), {}));
  append(names, "train_", metrics);
  append(names, "eval_", metrics);
  if (hasOwn) append(names, "own_eval_", metrics);
  return names;
}

RunFiles::RunFiles(Recorder& recorder, const std::string& folder, RunIdentity identity,
                   std::vector<std::string> metrics, std::size_t rotateBytes,
                   const std::shared_ptr<RowBudget>& budget, bool append, bool hasOwn)
    : folder_(folder),
      run_(std::move(identity.run)),
      session_(identity.session),
      generation_(identity.generation),
      metrics_(std::move(metrics)),
      hasOwn_(hasOwn),
      transfers_(recorder.table(folder + "/transfers.csv", transferColumns(), rotateBytes, budget,
                                append)),
      steps_(recorder.table(folder + "/steps.csv", stepColumns(metrics_), rotateBytes, budget,
                            append)),
      epochs_(recorder.table(folder + "/epochs.csv", epochColumns(metrics_, hasOwn), rotateBytes,
                             budget, append)) {}

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
  transfers_->row(cellsOf(RowOrigin{run_, session_, generation_}.with(columnsOf(record))));
}

void RunFiles::step(const StepRow& row, const LinkTotals& totals) {
  const std::lock_guard lock(mutex_);
  const LinkTotals before = std::exchange(lastStep_, totals);
  if (observer_) observer_->step(row, before, totals);
  if (events_) events_->step(row, before, totals);
  if (!steps_) return;
  auto cells =
      cellsOf(RowOrigin{run_, session_, generation_}.with(columnsOf(row, {before, totals})));
  append(cells, row.metrics, metrics_.size());
  steps_->row(std::move(cells));
}

void RunFiles::epoch(const EpochRow& row, const LinkTotals& totals) {
  const std::lock_guard lock(mutex_);
  const LinkTotals before = std::exchange(lastEpoch_, totals);
  if (events_) events_->epoch(row);
  if (!epochs_) return;
  auto cells =
      cellsOf(RowOrigin{run_, session_, generation_}.with(columnsOf(row, {before, totals})));
  append(cells, row.trainMetrics, metrics_.size());
  append(cells, row.evalMetrics, metrics_.size());
  if (hasOwn_) append(cells, row.ownEvalMetrics, metrics_.size());
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
