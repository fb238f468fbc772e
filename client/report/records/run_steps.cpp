// Reads steps.csv of a run.
#include <algorithm>
#include <utility>

#include "client/report/records/run_side.h"

namespace cleave {
namespace {

constexpr std::size_t kLatestSteps = 200;

// The sum of these columns; empty cells are skipped.
double sumOf(const CsvRow& row, std::initializer_list<std::size_t> columns) {
  double sum = 0;
  for (const std::size_t column : columns) sum += row.number(column).value_or(0);
  return sum;
}

}  // namespace

std::string RunReader::metricName() const {
  const std::string name = client_->steps.nameOf(client_->ofClient->metric);
  return name.empty() ? evaluatedMetric() : name;
}

// Each connection has a higher generation. A process, or a client that starts again from a
// checkpoint, begins with a handshake row; a connection that only replaces a broken one does not.
void RunReader::noteInterruption(Side& side, std::string_view phase, double generation, double time,
                                 double step) {
  TrainingFigures& training = training_;
  const auto note = [&](bool isResume, double atStep) {
    ++(isResume ? training.resumes : training.reconnects);
    if (training.interruptions.size() >= TrainingFigures::kMaxInterruptions) return;
    training.interruptions.push_back({isResume, isResume ? side.pausedAt : time, time, atStep});
  };
  const bool isNew = side.generation > 0 && generation > side.generation;
  side.generation = std::max(side.generation, generation);
  if (phase == "handshake") {
    if (isNew && !side.isRestarted) side.pausedAt = side.last;
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

void RunReader::readSteps(Side& side, std::size_t server) {
  const bool isClient = server == 0;
  const StepColumns& c = side.ofSteps;
  side.steps.read([&](const CsvRow& row) {
    const double at = side.since(row, c.time);
    const std::string_view phase = row.text(c.phase);
    const bool isBatch = phase == "train" || phase == "eval";
    const bool isResume = phase == "resume";
    if (!isBatch && !isResume && phase != "handshake" && phase != "bye") {
      row.garble(c.phase);
    }
    const double controlUp = sumOf(row, {c.controlUp});
    const double controlDown = sumOf(row, {c.controlDown});
    const double up = sumOf(row, {c.wireUp}), down = sumOf(row, {c.wireDown});
    const SpentByRows::Sums bytes{
        0, sumOf(row, {c.rawUp, c.rawDown}), {up, down}, {controlUp, controlDown}};
    const double body = sumOf(row, {c.bodyForward, c.bodyBackward, c.bodyWeights});
    const double update = sumOf(row, {c.update});
    const double computed =
        update + (isClient ? sumOf(row, {c.headForward, c.tailStep, c.headBackward}) : body);
    const double coded = sumOf(row, {c.encode, c.decode});
    const auto seconds = row.number(c.seconds);
    const bool hasStep = isBatch || isResume;
    const double step = hasStep ? placeOf(row, c.step, row.number(c.step), kMaxStepNumber) : 0;
    const double generation = row.number(c.generation).value_or(0);
    const bool hasCheckpoint = row.number(c.checkpoint).has_value();
    if (row.isGarbled()) return;

    if (id_.empty()) id_ = row.text(c.run);
    if (!isClient) {
      if (phase == "train") serverSteps_.addRow(server, step, computed, coded);
      return;
    }
    const ClientStepColumns& o = *side.ofClient;
    const auto rateUp = row.number(o.rateUp), rateDown = row.number(o.rateDown);
    const auto latency = row.number(o.latency), bound = row.number(o.bound);
    const auto loss = row.number(o.loss), metric = row.number(o.metric);
    const auto samples = row.number(c.samples), epoch = row.number(c.epoch);
    const auto learningRate = row.number(o.learningRate), norm = row.number(o.gradientNorm);
    if (row.isGarbled()) return;

    TrainingFigures& training = training_;
    if (phase == "handshake") {
      side.isWarmUp = true;
      training.spent.beginProcess(at);
    }
    training.spent.add(at, bytes);
    training.ended = phase == "bye";
    noteInterruption(side, phase, generation, at, step);
    side.last = at;
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
    side.figures.split.add(step, isWarmUp, *seconds, computed, coded, wire);
    serverSteps_.add({step, isWarmUp, *seconds, body, wire});
    if (bound && *bound > 0) {
      // Earlier versions recorded estimates above the step's own duration.
      const double minimum = std::min(*bound, *seconds);
      training.boundSeconds.add(step, minimum);
      training.boundedSeconds += *seconds;
      training.bounds += minimum;
      ++training.boundedSteps;
      training.bottlenecks[std::string(row.text(o.bottleneck))] += *seconds;
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

}  // namespace cleave
