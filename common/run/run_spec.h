// Everything about a run that client and server must agree on. The client makes it from its
// configuration and sends it in its Hello; both sides derive their plan from it with planRun().
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/engine/trace.h"
#include "common/model/inserts.h"
#include "common/model/model.h"
#include "common/model/optimizer.h"

namespace cleave {

namespace wire {
class RunSpec;
}

inline constexpr std::size_t kAttemptBytes = 16;  // of Hello.attempt

// Maximum number of servers that compute consecutive parts of a model.
inline constexpr std::uint32_t kMaxServers = 64;

// The values are not checked; planRun() does that.
struct RunSpec {
  std::string model;
  std::map<std::string, std::string> modelParameters;
  std::uint32_t cut0 = 0, cut1 = 0;  // the body is the blocks from cut0 to cut1 - 1
  std::uint32_t cutNumber = 0;       // of cut0 among the cuts of a run with several servers
  std::vector<std::uint64_t> sampleShape;
  std::uint32_t classes = 0;
  std::uint32_t maxBatch = 0;  // samples
  std::uint32_t microBatches = 0;
  std::uint32_t inFlight = 0;  // micro-batches; 0: the schedule's default
  std::string schedule;
  std::map<std::string, std::string> codecs;  // flow -> spec
  OptimizerSpec optimizer;
  std::uint64_t seed = 0;
  std::string precision = "fp32";
  std::uint32_t threads = 0;        // for the body; 0: the server chooses
  std::uint64_t stepsPerEpoch = 0;  // 0: unknown
  bool initialWeights = false;      // the client sends the body's initial weights
  bool rawNonFinite = false;        // see TensorCodecOptions::rawNonFinite
  TraceWindow trace;                // no steps: no trace
  std::string graph;                // the body of the model "graph": packGraph(); else empty
  // SHA-256 of the whole graph, so that a run cannot continue with another head or tail. Empty for
  // other models.
  std::string graphDigest;
  std::vector<std::string> freeze;  // see StageOptions::freeze
  bool headIsFrozen = false;        // see StageOptions::headIsFrozen
  bool recompute = false;           // see StageOptions::recompute
  std::uint32_t trainSamples = 0;   // of the training data, if a codec keeps samples; else 0
  double averageDecay = 0;          // see StageOptions::averageDecay
  std::vector<InsertSpec> inserts;  // at the cuts before and after the body
  std::uint32_t staleness = 0;      // D, see versionFor()
  bool codecLevels = false;         // see CodecLevel
  std::uint64_t watchEvery = 0;     // see TensorCodecOptions::watchEvery; 0 without codecLevels
  // Servers that compute this body, and the rank of this one; see Replica. Batches, micro-batches
  // and micro-batches in flight are those of all replicas together.
  std::uint32_t replicas = 1;
  std::uint32_t replica = 0;

  bool operator==(const RunSpec&) const = default;
};

void toWire(const RunSpec& spec, wire::RunSpec& proto);
RunSpec runSpecFromWire(const wire::RunSpec& proto);
// SHA-256 of the spec without its trace, 32 bytes: equal specs have equal digests.
std::string digestOf(const RunSpec& spec);

}  // namespace cleave
