// The figures of one run in a report, in bounded memory: sums, series and distributions.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/report/records/downsample.h"
#include "client/report/records/run_totals.h"
#include "client/report/records/step_mean.h"
#include "common/topology/key.h"

namespace cleave {

// The maximum number of steps that a reader keeps one by one.
inline constexpr std::size_t kMaxKeptSteps = std::size_t{1} << 22;

// The axes are shared by all runs of a report, so that the runs can be compared point by point.
struct BucketAxes {
  explicit BucketAxes(std::size_t points) : time(1e-3, points), step(1, points) {}

  BucketAxis time;  // seconds since the start of the run
  BucketAxis step;  // training steps
};

struct FlowFigures {
  std::uint64_t transfers = 0, up = 0;  // `up`: the number of transfers on the uplink
  double rawBytes = 0, wireBytes = 0;
  double encodeSeconds = 0, decodeSeconds = 0;
  std::string codec;  // codec of the latest transfer
  std::uint64_t snrs = 0;
  double snrSum = 0, snrMin = 0;  // dB
};

// The seconds of a training step on one side, split into four parts. `codec` counts the time in
// codecs only while this side was not computing. `wire` counts the time on the wire only while this
// side neither computed nor ran a codec.
struct StepSplit {
  explicit StepSplit(BucketAxis& axis) : compute(axis), codec(axis), wire(axis), waiting(axis) {}

  void add(double step, bool isWarmUp, double seconds, double computed, double coded, double wired);

  Series compute, codec, wire, waiting;
  std::array<StepMean, 4> means;  // of the four parts, in this order
};

// Figures from steps.csv and transfers.csv of one side.
struct SideFigures {
  explicit SideFigures(BucketAxes& axes);

  StepSplit split;
  FlowMap<FlowFigures> flows{Place{}.flows()};
  std::map<Flow, Series> snr;  // in dB, by step, for the flows that this side sends
  std::array<Series, kDirections> transferRate;  // bytes per second of individual transfers
  std::array<BytesBySecond, kDirections> bytes;
  // Weights and gradients of the body, which none of the other figures of transfers include.
  std::array<double, kDirections> blobBytes{};
  std::array<Histogram, kDirections> transferRates;    // bytes per second
  std::array<Histogram, kDirections> transferSeconds;  // encode, queue, wire, decode
  Histogram roundTrips;                                // seconds, measured by the kernel
  // Measured by this side's kernel for the data that this side sends.
  Series deliveryRate, roundTrip, retransmits;
};

// Figures from the client's steps.csv and epochs.csv.
struct TrainingFigures {
  explicit TrainingFigures(BucketAxes& axes);

  struct Evaluation {
    std::uint64_t epoch = 0;
    double time = 0, step = 0;
    std::optional<double> loss, metric;
    std::optional<double> ownMetric;  // of this member's samples in a cohort
  };
  struct Interruption {
    bool isResume = false;  // from a checkpoint, or from step 0; otherwise a reconnect
    double since = 0;       // time of the last row before it; of a reconnect: `time`
    double time = 0, step = 0;
  };
  // The reader keeps at most this many interruptions, but counts all of them.
  static constexpr std::size_t kMaxInterruptions = 1000;

  Series seconds, boundSeconds, latency, loss, metric, learningRate,
      gradientNorm;     // by step
  Series clock;         // seconds since the start of the run, by step
  Histogram latencies;  // seconds
  std::vector<Evaluation> evaluations;
  std::vector<Interruption> interruptions;    // at most kMaxInterruptions
  std::map<std::string, double> bottlenecks;  // by name: total seconds of the steps that it limited
  std::optional<double> lastTrainLoss, lastTrainMetric;
  std::uint64_t steps = 0, epochs = 0, lastEpoch = 0;
  // Sums over the training steps that were not redone.
  double samples = 0, stepSeconds = 0;
  // Seconds and tensors' bytes. `client` computes head, tail and Update, `server` the body; `codec`
  // is that of the client.
  struct {
    StepMean seconds, client, server, codec, up, down;
  } means;
  double epochSamples = 0, epochSeconds = 0, epochSteps = 0;  // sums over the rows of epochs.csv
  double boundedSeconds = 0, bounds = 0;  // sums over the steps that have a bound
  SpentByRows spent;
  std::uint64_t boundedSteps = 0;
  // Time and number of the latest steps, for the current speed.
  std::deque<std::pair<double, std::uint64_t>> latest;
  // As in summary.json, but counted from rows: several reconnects between two rows count as one.
  std::uint64_t resumes = 0, reconnects = 0;
  std::uint64_t stepsRedone = 0;  // not counted in `steps`
  std::uint64_t lastStep = 0;     // the highest step number
  bool ended = false;             // whether the last row of steps.csv has the phase `bye`
};

}  // namespace cleave
