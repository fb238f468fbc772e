#include "client/report/run_reader.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "client/report/run_settings.h"

namespace cleave {
namespace {

// The columns, in the order in which they are requested from CsvReader.
namespace step_column {
enum {
  time,
  run,
  generation,
  phase,
  step,
  epoch,
  samples,
  seconds,
  headForward,
  tailStep,
  headBackward,
  bodyForward,
  bodyBackward,
  bodyWeights,
  update,
  checkpoint,
  encode,
  decode,
  rawUp,
  rawDown,
  wireUp,
  wireDown,
  controlUp,
  controlDown,
  common,  // the columns before this one exist on both sides
  rateUp = common,
  rateDown,
  latency,
  bound,
  bottleneck,
  learningRate,
  gradientNorm,
  loss,
  metric
};
}
const std::vector<std::string> kStepColumns = {"time",
                                               "run",
                                               "generation",
                                               "phase",
                                               "step",
                                               "epoch",
                                               "samples",
                                               "seconds",
                                               "head_forward_seconds",
                                               "tail_step_seconds",
                                               "head_backward_seconds",
                                               "body_forward_seconds",
                                               "body_backward_seconds",
                                               "body_weights_seconds",
                                               "update_seconds",
                                               "checkpoint_seconds",
                                               "encode_seconds",
                                               "decode_seconds",
                                               "raw_up_bytes",
                                               "raw_down_bytes",
                                               "wire_up_bytes",
                                               "wire_down_bytes",
                                               "control_up_bytes",
                                               "control_down_bytes",
                                               "rate_up",
                                               "rate_down",
                                               "latency_seconds",
                                               "bound_seconds",
                                               "bottleneck",
                                               "learning_rate",
                                               "gradient_norm",
                                               "loss",
                                               "loss+1"};

namespace transfer_column {
enum {
  time,
  run,
  role,
  phase,
  step,
  flow,
  codec,
  raw,
  wire,
  encode,
  queue,
  wireSeconds,
  decode,
  snr,
  deliveryRate,
  roundTrip,
  retransmits
};
}
const std::vector<std::string> kTransferColumns = {"time",           "run",
                                                   "role",           "phase",
                                                   "step",           "flow",
                                                   "codec",          "raw_bytes",
                                                   "wire_bytes",     "encode_seconds",
                                                   "queue_seconds",  "wire_seconds",
                                                   "decode_seconds", "snr_db",
                                                   "delivery_rate",  "round_trip_seconds",
                                                   "retransmits"};

namespace epoch_column {
enum { time, epoch, steps, samples, trainSeconds, evalLoss, evalMetric };
}
const std::vector<std::string> kEpochColumns = {
    "time", "epoch", "steps", "samples", "train_seconds", "eval_loss", "eval_loss+1"};

constexpr double kMaxSteps = 1e9;
constexpr std::size_t kLatestSteps = 200;
// Maximum number of steps whose wire seconds and codec seconds are kept.
constexpr std::size_t kMaxWires = std::size_t{1} << 22;

std::vector<std::string> stepColumns(bool isClient) {
  auto columns = kStepColumns;
  if (!isClient) columns.resize(step_column::common);
  return columns;
}

// The sum of these columns; empty cells are skipped.
double sumOf(const CsvRow& row, std::initializer_list<int> columns) {
  double sum = 0;
  for (const int column : columns) {
    sum += row.number(static_cast<std::size_t>(column)).value_or(0);
  }
  return sum;
}

// Returns x if it is in [0, max), a valid position on a grid. Otherwise marks the row as garbled.
double place(const CsvRow& row, std::size_t column, std::optional<double> x, double max) {
  if (x && *x >= 0 && *x < max) return *x;
  row.garble(column);
  return 0;
}

}  // namespace

// The files of one side.
struct RunReader::Side {
  Side(const std::string& folder, bool isClient, BucketAxes& grids)
      : steps(folder, "steps", stepColumns(isClient)),
        transfers(folder, "transfers", kTransferColumns),
        figures(grids) {}

  // The seconds since this side's first row. Times are relative because the clocks of two machines
  // may differ.
  double since(const CsvRow& row, std::size_t column) {
    const double time = row.time(column);
    if (!row.isGarbled() && begin == 0) begin = time;
    return place(row, column, std::max(0.0, time - begin), BytesBySecond::kMaxSeconds);
  }

  CsvReader steps, transfers;
  SideFigures figures;
  Settings environment;  // of a server
  double begin = 0;
  double generation = 0;     // of the last row of steps.csv; 0: no row has been read
  bool isRestarted = false;  // a later handshake was read, but not yet the step to continue from
  bool isWarmUp = true;      // this process has not recorded a training step
};

RunReader::RunReader(RunPlace place, BucketAxes& grids)
    : grids_(grids),
      place_(std::move(place)),
      areServersGiven_(!place_.servers.empty()),
      client_(std::make_unique<Side>(place_.folder, true, grids)),
      epochs_(std::make_unique<CsvReader>(place_.folder, "epochs", kEpochColumns)),
      training_(grids),
      evaluation_(place_.folder) {}

RunReader::~RunReader() = default;

SideFigures& RunReader::client() { return client_->figures; }

std::vector<RunReader::Server> RunReader::servers() {
  std::vector<Server> all;
  for (const auto& [number, side] : servers_) {
    all.push_back({number, side->figures, side->environment});
  }
  return all;
}

bool RunReader::read() {
  const auto rows = [this] {
    std::uint64_t sum = epochs_->rows();
    const auto add = [&](const Side& side) { sum += side.steps.rows() + side.transfers.rows(); };
    add(*client_);
    for (const auto& [number, side] : servers_) add(*side);
    return sum;
  };
  const std::uint64_t before = rows();
  readSteps(*client_, true);
  readEpochs();
  readTransfers(*client_, true);
  findServers();
  for (const auto& [number, side] : servers_) {
    readSteps(*side, false);
    readTransfers(*side, false);
  }
  const bool any = rows() != before;
  if (any || config_.empty()) {
    readSettings();
    readLog();
  }
  splitServerSteps();
  // The summary is written after the last row.
  const bool hadSummary = !summary_.isEmpty();
  if (any || !hadSummary) summary_ = readSummary(place_.folder + "/summary.json");
  const bool isNew = evaluation_.read();  // it may be written at any time after the run
  return any || isNew || (!hadSummary && !summary_.isEmpty());
}

void RunReader::findServers() {
  const bool areAll = !servers_.empty() && servers_.size() >= planned_.servers;
  if (place_.servers.empty() || (!areAll && !areServersGiven_)) {
    if (!id_.empty()) place_.servers = findServerRuns(place_.folder, id_);
  }
  for (const auto& [number, folder] : place_.servers) {
    std::unique_ptr<Side>& side = servers_[number];
    if (!side) side = std::make_unique<Side>(folder, false, grids_);
  }
}

// Of a problem with the records of this server.
std::string RunReader::prefixOf(std::size_t server) const {
  return planned_.servers == 1 && servers_.size() == 1 ? "server: "
                                                       : "server " + std::to_string(server) + ": ";
}

// Each connection has a higher generation. A process, or a client that starts again from a
// checkpoint, begins with a handshake row; a connection that only replaces a broken one does not.
void RunReader::noteInterruption(Side& side, std::string_view phase, double generation, double time,
                                 double step) {
  TrainingFigures& training = training_;
  const auto note = [&](bool isResume, double atStep) {
    ++(isResume ? training.resumes : training.reconnects);
    if (training.interruptions.size() >= TrainingFigures::kMaxInterruptions) return;
    training.interruptions.push_back({isResume, time, atStep});
  };
  const bool isNew = side.generation > 0 && generation > side.generation;
  side.generation = std::max(side.generation, generation);
  if (phase == "handshake") {
    side.isRestarted = isNew;
  } else if (phase == "resume") {
    note(true, step);
    training.spent.resume(static_cast<std::uint64_t>(step));
    side.isRestarted = false;
  } else if (std::exchange(side.isRestarted, false)) {
    if (phase != "train" && phase != "eval") return;
    note(true, 0);  // without a checkpoint
    training.spent.resume(0);
  } else if (isNew) {
    note(false, phase == "train" ? step : static_cast<double>(training.lastStep));
  }
}

void RunReader::readSteps(Side& side, bool isClient) {
  namespace c = step_column;
  side.steps.read([&](const CsvRow& row) {
    const double at = side.since(row, c::time);
    const std::string_view phase = row.text(c::phase);
    const bool isBatch = phase == "train" || phase == "eval";
    const bool isResume = phase == "resume";
    if (!isBatch && !isResume && phase != "handshake" && phase != "bye") {
      row.garble(c::phase);
    }
    const double controlUp = sumOf(row, {c::controlUp});
    const double controlDown = sumOf(row, {c::controlDown});
    const double up = sumOf(row, {c::wireUp}), down = sumOf(row, {c::wireDown});
    const SpentByRows::Sums bytes{
        0, sumOf(row, {c::rawUp, c::rawDown}), up + down, {up + controlUp, down + controlDown}};
    const double body = sumOf(row, {c::bodyForward, c::bodyBackward, c::bodyWeights});
    const double update = sumOf(row, {c::update});
    const double computed =
        update + (isClient ? sumOf(row, {c::headForward, c::tailStep, c::headBackward}) : body);
    const double coded = sumOf(row, {c::encode, c::decode});
    const auto seconds = row.number(c::seconds);
    const bool hasStep = isBatch || isResume;
    const double step = hasStep ? place(row, c::step, row.number(c::step), kMaxSteps) : 0;
    const double generation = row.number(c::generation).value_or(0);
    const bool hasCheckpoint = row.number(c::checkpoint).has_value();
    if (row.isGarbled()) return;

    if (id_.empty()) id_ = row.text(c::run);
    if (phase == "handshake") side.isWarmUp = true;
    if (!isClient) {
      if (phase != "train" || !seconds) return;
      const bool isWarmUp = std::exchange(side.isWarmUp, false);
      const auto index = static_cast<std::size_t>(step);
      const auto& wires = training_.wireSeconds;
      const double wire = index < wires.size() ? static_cast<double>(wires[index]) : 0;
      side.figures.split.add(step, isWarmUp, *seconds, computed, coded, wire);
      return;
    }
    const auto rateUp = row.number(c::rateUp), rateDown = row.number(c::rateDown);
    const auto latency = row.number(c::latency), bound = row.number(c::bound);
    const auto loss = row.number(c::loss), metric = row.number(c::metric);
    const auto samples = row.number(c::samples), epoch = row.number(c::epoch);
    const auto learningRate = row.number(c::learningRate), norm = row.number(c::gradientNorm);
    if (row.isGarbled()) return;

    TrainingFigures& training = training_;
    if (phase == "handshake") training.spent.beginProcess(at);
    training.spent.add(at, bytes);
    training.ended = phase == "bye";
    noteInterruption(side, phase, generation, at, step);
    if (phase != "train" || !seconds) return;
    if (hasCheckpoint) training.spent.checkpoint(static_cast<std::uint64_t>(step));
    const bool isWarmUp = std::exchange(side.isWarmUp, false);
    auto& means = training.means;
    means.seconds.add(*seconds, isWarmUp);
    means.client.add(computed, isWarmUp);
    means.server.add(body, isWarmUp);
    means.codec.add(coded, isWarmUp);
    means.up.add(up, isWarmUp);
    means.down.add(down, isWarmUp);
    if (const auto number = static_cast<std::uint64_t>(step); number > training.lastStep) {
      training.lastStep = number;
      training.clock.add(step, at);
      ++training.steps;
      training.samples += samples.value_or(0);
      training.stepSeconds += *seconds;
    } else {
      ++training.stepsRedone;
    }
    training.lastEpoch = static_cast<std::uint64_t>(epoch.value_or(0));
    training.latest.emplace_back(at, static_cast<std::uint64_t>(step));
    if (training.latest.size() > kLatestSteps) training.latest.pop_front();
    training.seconds.add(step, *seconds);
    double wire = 0;
    if (rateUp && rateDown && *rateUp > 0 && *rateDown > 0) {
      wire = std::max(up / *rateUp, down / *rateDown);
    }
    if (const auto index = static_cast<std::size_t>(step); index < kMaxWires) {
      if (index >= training.wireSeconds.size()) training.wireSeconds.resize(index + 1);
      training.wireSeconds[index] = static_cast<float>(wire);
    }
    side.figures.split.add(step, isWarmUp, *seconds, computed, coded, wire);
    if (seenSteps_.size() < kMaxWires) {
      seenSteps_.push_back({step, isWarmUp, *seconds, body, wire});
    }
    if (bound && *bound > 0) {
      // Earlier versions recorded estimates above the step's own duration.
      const double minimum = std::min(*bound, *seconds);
      training.boundSeconds.add(step, minimum);
      training.boundedSeconds += *seconds;
      training.bounds += minimum;
      ++training.boundedSteps;
      training.bottlenecks[std::string(row.text(c::bottleneck))] += *seconds;
    }
    if (latency) {
      training.latency.add(step, *latency);
      training.latencies.add(*latency);
    }
    if (loss) training.loss.add(step, *loss);
    if (metric) training.metric.add(step, *metric);
    if (learningRate) training.learningRate.add(step, *learningRate);
    if (norm) training.gradientNorm.add(step, *norm);
    training.lastTrainLoss = loss;
    training.lastTrainMetric = metric;
  });
}

// Runs after the client's transfers have been read, because these have the server's codec times.
void RunReader::splitServerSteps() {
  const auto servers = static_cast<double>(planned_.servers);
  for (const SeenStep& one : seenSteps_) {
    const auto index = static_cast<std::size_t>(one.step);
    const bool hasCodec = index < serverCodecSeconds_.size();
    const double coded =
        hasCodec ? static_cast<double>(std::exchange(serverCodecSeconds_[index], 0.0F)) : 0;
    training_.serverSplit.add(one.step, one.isWarmUp, one.seconds, one.computed / servers,
                              coded / servers, one.wire);
  }
  seenSteps_.clear();
}

bool RunReader::areServersSeenByClient() const {
  const bool haveRows = std::any_of(servers_.begin(), servers_.end(), [](const auto& server) {
    return server.second->figures.split.compute.values() > 0;
  });
  return !haveRows && training_.serverSplit.compute.values() > 0;
}

std::vector<StepSplit*> RunReader::serverSplits() {
  if (servers_.empty() || areServersSeenByClient()) return {&training_.serverSplit};
  std::vector<StepSplit*> splits;
  for (const auto& [number, side] : servers_) splits.push_back(&side->figures.split);
  return splits;
}

void RunReader::readTransfers(Side& side, bool isClient) {
  namespace c = transfer_column;
  side.transfers.read([&](const CsvRow& row) {
    const double at = side.since(row, c::time);
    const auto flow = flowFromName(row.text(c::flow));
    const std::string_view role = row.text(c::role), phase = row.text(c::phase);
    if (!flow) row.garble(c::flow);
    if (role != "send" && role != "recv") row.garble(c::role);
    const auto raw = row.number(c::raw), wire = row.number(c::wire);
    if (!raw) row.garble(c::raw);
    if (!wire) row.garble(c::wire);
    const auto encode = row.number(c::encode), queue = row.number(c::queue);
    const auto seconds = row.number(c::wireSeconds), decode = row.number(c::decode);
    const auto snr = row.number(c::snr), delivery = row.number(c::deliveryRate);
    const auto roundTrip = row.number(c::roundTrip), retransmits = row.number(c::retransmits);
    const double step = place(row, c::step, row.number(c::step), kMaxSteps);
    if (row.isGarbled()) return;

    if (id_.empty()) id_ = row.text(c::run);
    SideFigures& figures = side.figures;
    FlowFigures& sums = figures.flows[*flow];
    ++sums.transfers;
    sums.rawBytes += *raw;
    sums.wireBytes += *wire;
    sums.encodeSeconds += encode.value_or(0);
    sums.decodeSeconds += decode.value_or(0);
    if (sums.codec != row.text(c::codec)) sums.codec = row.text(c::codec);
    if (snr) {
      sums.snrMin = sums.snrs == 0 ? *snr : std::min(sums.snrMin, *snr);
      ++sums.snrs;
      sums.snrSum += *snr;
      if (phase == "train" && !isBlob(*flow)) {
        figures.snr.try_emplace(*flow, grids_.step).first->second.add(step, *snr);
      }
    }
    if (isClient && phase == "train" && !isBlob(*flow)) {
      const double coded = (role == "send" ? decode : encode).value_or(0);
      const auto index = static_cast<std::size_t>(step);
      if (coded > 0 && index < kMaxWires) {
        if (index >= serverCodecSeconds_.size()) serverCodecSeconds_.resize(index + 1);
        serverCodecSeconds_[index] += static_cast<float>(coded);
      }
    }
    const bool up = (role == "send") == isClient;
    sums.up += up ? 1 : 0;
    const std::size_t direction = up ? 0 : 1;
    if (isBlob(*flow)) figures.blobBytes[direction] += *wire;
    figures.bytes[direction].add(at, seconds.value_or(0), *wire);
    if (seconds && *seconds > 0) {
      figures.transferRate[direction].add(at, *wire / *seconds);
      figures.transferRates[direction].add(*wire / *seconds);
      figures.transferSeconds[direction].add(encode.value_or(0) + queue.value_or(0) + *seconds +
                                             decode.value_or(0));
    }
    if (delivery) figures.deliveryRate.add(at, *delivery);
    if (roundTrip) {
      figures.roundTrip.add(at, *roundTrip);
      figures.roundTrips.add(*roundTrip);
    }
    if (retransmits) figures.retransmits.add(at, *retransmits);
  });
}

std::string RunReader::metricName() const {
  const std::string name = client_->steps.nameOf(step_column::metric);
  if (!name.empty() || epochs_->nameOf(epoch_column::evalMetric).empty()) return name;
  return epochs_->nameOf(epoch_column::evalMetric).substr(std::string_view("eval_").size());
}

void RunReader::readEpochs() {
  namespace c = epoch_column;
  epochs_->read([&](const CsvRow& row) {
    const double at = client_->since(row, c::time);
    const auto epoch = row.number(c::epoch);
    const auto steps = row.number(c::steps), samples = row.number(c::samples);
    const auto seconds = row.number(c::trainSeconds);
    const auto loss = row.number(c::evalLoss), metric = row.number(c::evalMetric);
    if (!epoch) row.garble(c::epoch);
    if (!steps) row.garble(c::steps);
    if (!samples) row.garble(c::samples);
    if (!seconds) row.garble(c::trainSeconds);
    if (row.isGarbled()) return;
    // If the run continued from a checkpoint, it may record an epoch twice, with the same result.
    if (*epoch <= static_cast<double>(training_.epochs)) return;
    ++training_.epochs;
    training_.epochSamples += *samples;
    training_.epochSeconds += *seconds;
    training_.epochSteps += *steps;
    if (loss || metric) {
      training_.evaluations.push_back(
          {static_cast<std::uint64_t>(*epoch), at, training_.epochSteps, loss, metric});
    }
  });
}

void RunReader::readSettings() {
  settingsProblems_.clear();
  changes_ = readChanges(place_.folder + "/changes.json");
  config_ = readConfig(place_.folder + "/config.yaml", changes_, settingsProblems_);
  environment_ = readEnvironment(place_.folder + "/environment.json", settingsProblems_);
  planned_ = readPlannedRun(place_.folder + "/run.json");
  for (const auto& [number, side] : servers_) {
    std::vector<std::string> problems;
    side->environment = readEnvironment(place_.servers.at(number) + "/environment.json", problems);
    for (const std::string& problem : problems) {
      settingsProblems_.push_back(prefixOf(number) + problem);
    }
  }
}

void RunReader::readLog() { logged_ = readWarnings(place_.folder + "/log.txt"); }

std::vector<std::string> RunReader::problems(bool following) const {
  std::vector<std::string> all;
  const auto add = [&](const std::vector<std::string>& some, const std::string& prefix) {
    for (const std::string& problem : some) all.push_back(prefix + problem);
  };
  add(client_->steps.problems(following), "");
  add(epochs_->problems(following), "");
  add(client_->transfers.problems(following), "");
  for (const auto& [number, side] : servers_) {
    add(side->steps.problems(following), prefixOf(number));
    add(side->transfers.problems(following), prefixOf(number));
  }
  add(settingsProblems_, "");
  add(evaluation_.problems(), "");
  return all;
}

}  // namespace cleave
