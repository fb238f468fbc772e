// The files of one side of a run, for the implementation of RunReader.
#pragma once

#include <algorithm>
#include <string>

#include "client/report/records/run_reader.h"

namespace cleave {

inline constexpr double kMaxStepNumber = 1e9;

// Returns x if it is in [0, max), a valid position on a grid. Otherwise marks the row as garbled.
inline double placeOf(const CsvRow& row, std::size_t column, std::optional<double> x, double max) {
  if (x && *x >= 0 && *x < max) return *x;
  row.garble(column);
  return 0;
}

// The columns that are read of steps.csv on both sides, and those on the client.
struct StepColumns {
  CsvReader& file;
  std::size_t time = file.column("time");
  std::size_t run = file.column("run");
  std::size_t generation = file.column("generation");
  std::size_t phase = file.column("phase");
  std::size_t step = file.column("step");
  std::size_t epoch = file.column("epoch");
  std::size_t samples = file.column("samples");
  std::size_t seconds = file.column("seconds");
  std::size_t headForward = file.column("head_forward_seconds");
  std::size_t tailStep = file.column("tail_step_seconds");
  std::size_t headBackward = file.column("head_backward_seconds");
  std::size_t bodyForward = file.column("body_forward_seconds");
  std::size_t bodyBackward = file.column("body_backward_seconds");
  std::size_t bodyWeights = file.column("body_weights_seconds");
  std::size_t update = file.column("update_seconds");
  std::size_t checkpoint = file.column("checkpoint_seconds");
  std::size_t encode = file.column("encode_seconds");
  std::size_t decode = file.column("decode_seconds");
  std::size_t rawUp = file.column("raw_up_bytes");
  std::size_t rawDown = file.column("raw_down_bytes");
  std::size_t wireUp = file.column("wire_up_bytes");
  std::size_t wireDown = file.column("wire_down_bytes");
  std::size_t controlUp = file.column("control_up_bytes");
  std::size_t controlDown = file.column("control_down_bytes");
};
struct ClientStepColumns {
  CsvReader& file;
  std::size_t rateUp = file.column("rate_up");
  std::size_t rateDown = file.column("rate_down");
  std::size_t latency = file.column("latency_seconds");
  std::size_t bound = file.column("bound_seconds");
  std::size_t bottleneck = file.column("bottleneck");
  std::size_t learningRate = file.column("learning_rate");
  std::size_t gradientNorm = file.column("gradient_norm");
  std::size_t loss = file.column("loss");
  std::size_t metric = file.column("loss+1");
};
struct TransferColumns {
  CsvReader& file;
  std::size_t time = file.column("time");
  std::size_t run = file.column("run");
  std::size_t role = file.column("role");
  std::size_t phase = file.column("phase");
  std::size_t step = file.column("step");
  std::size_t flow = file.column("flow");
  std::size_t codec = file.column("codec");
  std::size_t raw = file.column("raw_bytes");
  std::size_t wire = file.column("wire_bytes");
  std::size_t encode = file.column("encode_seconds");
  std::size_t queue = file.column("queue_seconds");
  std::size_t wireSeconds = file.column("wire_seconds");
  std::size_t decode = file.column("decode_seconds");
  std::size_t snr = file.column("snr_db");
  std::size_t deliveryRate = file.column("delivery_rate");
  std::size_t roundTrip = file.column("round_trip_seconds");
  std::size_t retransmits = file.column("retransmits");
};

struct RunReader::Side {
  Side(const std::string& folder, bool isClient, BucketAxes& grids)
      : steps(folder, "steps"), transfers(folder, "transfers"), figures(grids) {
    if (isClient) ofClient.emplace(ClientStepColumns{steps});
  }

  // The seconds since this side's first row. Times are relative because the clocks of two machines
  // may differ.
  double since(const CsvRow& row, std::size_t column) {
    const double time = row.time(column);
    if (!row.isGarbled() && begin == 0) begin = time;
    return placeOf(row, column, std::max(0.0, time - begin), BytesBySecond::kMaxSeconds);
  }

  CsvReader steps, transfers;
  StepColumns ofSteps{steps};
  std::optional<ClientStepColumns> ofClient;  // null on servers
  TransferColumns ofTransfers{transfers};
  SideFigures figures;
  Settings environment;  // of a server
  double begin = 0;
  // Of the client: the rows of steps.csv that have been read.
  double generation = 0;     // of the last one; 0: none has been read
  double last = 0;           // time of the last one
  double pausedAt = 0;       // time of the last one before the newest process
  bool isRestarted = false;  // a later handshake was read, but not yet the step to continue from
  bool isWarmUp = true;      // this process has not recorded a training step
};

}  // namespace cleave
