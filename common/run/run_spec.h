// Everything about a run that client and server must agree on. The client makes it from its
// configuration and sends it in its Hello; both sides derive their plan from it with planRun().
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "common/engine/trace.h"
#include "common/model/experiment.h"

namespace cleave {

namespace wire {
class RunSpec;
}

inline constexpr std::size_t kAttemptBytes = 16;  // of Hello.attempt

// Maximum number of servers that compute consecutive parts of a model.
inline constexpr std::uint32_t kMaxServers = 64;

// planRun() checks how the values fit together.
struct RunSpec : Experiment {
  RunSpec() = default;
  explicit RunSpec(const Experiment& experiment) : Experiment(experiment) {}

  std::uint32_t cut0 = 0, cut1 = 0;  // the body is the blocks from cut0 to cut1 - 1
  std::uint32_t cutNumber = 0;       // of cut0 among the cuts of a run with several bodies
  std::uint32_t bodies = 1;          // number of bodies in the run
  std::uint32_t maxBatch = 0;        // samples, of all replicas together
  std::uint32_t trainBatch = 0;      // samples of a training batch; at most maxBatch
  std::uint64_t stepsPerEpoch = 0;   // 0: unknown
  std::uint32_t trainSamples = 0;    // of the training data, if a codec keeps samples; else 0
  bool initialWeights = false;       // the client sends the body's initial weights
  bool headIsFrozen = false;         // see StageOptions::headIsFrozen
  bool codecLevels = false;          // see CodecLevel
  std::uint64_t watchEvery = 0;      // see TensorCodecOptions::watchEvery; 0 without codecLevels
  std::uint32_t replica = 0;         // the rank of this server; see Replica
  TraceWindow trace;                 // no steps: no trace
  std::string graph = {};            // the body of the model "graph": packGraph(); else empty
  // SHA-256 of the whole graph, so that a run cannot continue with another head or tail. Empty for
  // other models.
  std::string graphDigest = {};

  bool operator==(const RunSpec&) const = default;
};

void toWire(const RunSpec& spec, wire::RunSpec& proto);
// Throws UsageError "bad-run-spec" if a field is missing, unknown, of another type or out of range,
// and the errors of parseCodec().
RunSpec runSpecFromWire(const wire::RunSpec& proto);
// The same fields as JSON, with graphs in hexadecimal, for files.
nlohmann::json toJson(const RunSpec& spec);
// Throws UsageError like runSpecFromWire().
RunSpec runSpecFromJson(nlohmann::json json);
// SHA-256 of the spec without its trace, 32 bytes: equal specs have equal digests.
std::string digestOf(const RunSpec& spec);

}  // namespace cleave
