// What the configuration says about a run and both sides need. The client's settings, the run spec
// and the options of a stage are each an Experiment with fields of their own. To add a field, add
// its row to common/run/experiment_fields.cpp.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/codec/codec_plan.h"
#include "common/model/inserts.h"
#include "common/model/model.h"
#include "common/model/optimizer.h"
#include "common/topology/cohort.h"

namespace cleave {

struct Experiment {
  ModelSpec model;  // without its graph in the settings and in a run spec
  // Learned inserts, at most kMaxInsertsPerCut at each cut: in a run spec, those at the body's
  // cuts.
  std::vector<InsertSpec> inserts = {};
  ParsedCodecs codecs = {};  // AutoCodec::start for `auto`
  std::uint64_t seed = 1;
  // The maximum number of micro-batches of a batch, and in flight (0: the schedule's default): of
  // all replicas together.
  std::uint32_t microBatches = 4;
  std::uint32_t inFlight = 0;
  std::string schedule = "priority";
  std::uint32_t staleness = 0;  // D, see versionFor()
  std::uint32_t replicas = 1;   // servers that compute the same body; see Replica
  Cohort cohort = {};           // the clients that train together
  OptimizerSpec optimizer = {};
  // Patterns (matchesPattern()) of the names of parameters that are not trained. Parameters that
  // match a later pattern with a leading "!" are trained nevertheless. Adapters are always trained.
  // Parameters of inserts match only patterns that begin with "insert.".
  std::vector<std::string> freeze = {};
  double clipValue = 0;  // limit of each value of the gradients; 0: none
  // 0: none. Else evaluations and saved weights use a moving average of the weights: after step n,
  // average = d x average + (1 - d) x weights, with d = min(averageDecay, (1 + n) / (10 + n)).
  double averageDecay = 0;
  // Between forward and backward, head and body keep only the inputs, and compute forward again.
  bool recompute = false;
  Precision bodyPrecision = Precision::fp32;
  // On a GPU: "exact" computes with deterministic algorithms only, "fast" with any; see
  // DeterministicScope. Has no effect on the CPU, where all are deterministic.
  std::string deviceBits = "exact";
  std::uint32_t serverThreads = 0;  // for the body; 0: the server chooses
  bool rawNonFinite = false;        // see TensorCodecOptions::rawNonFinite

  bool operator==(const Experiment&) const = default;
};

}  // namespace cleave
