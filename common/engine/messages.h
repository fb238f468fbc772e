// The messages that engines exchange, as plain values. The tensor link converts them to frames;
// tests pass them on directly.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "common/codec/tensor.h"
#include "common/topology/flow.h"
#include "common/topology/key.h"
#include "common/topology/step.h"

namespace cleave {

struct TensorMessage {
  Flow flow;
  MicroBatch at;
  // The number of updates applied to the weights that produced this tensor. The receiver must
  // process it with weights of the same version.
  std::uint64_t weightVersion = 0;
  Payload payload;
  // Set if the client passes the tensor on from one server to another: the payload is then the
  // encoded tensor and has this many bytes; payload.view().spec still describes the decoded one.
  std::optional<std::size_t> encodedBytes = std::nullopt;

  Key key() const { return {at.phase, at.step, at.i, flow}; }
};

// Measurements of a direct link between two bodies.
struct EdgeReport {
  double rate = 0;              // bytes per second; 0: unknown
  double roundTripSeconds = 0;  // 0: unknown
  // Means per micro-batch since the last report; all 0: none has crossed.
  struct OfFlow {
    double bytes = 0;
    double encodeSeconds = 0, decodeSeconds = 0;
  };
  OfFlow activation, gradient;
};

// The server has accumulated all gradients of a step.
struct BodyDone {
  std::uint64_t step = 0;
  GradientReport report;
  double forwardSeconds = 0;   // F2, sum over the micro-batches
  double backwardSeconds = 0;  // B2
  double weightsSeconds = 0;   // BodyWeights, if the backward is split
  double reduceSeconds = 0;    // Reduce, if the body has replicas; includes waiting for the others
  // At the client: the lowest reduceSeconds of the body's replicas. The last replica to finish
  // waits for no other, so this is the time of the sum alone.
  double sumSeconds = 0;
  double codecSeconds = 0;   // codec time on the server since the last BodyDone; links add theirs
  double updateSeconds = 0;  // duration of the previous update
  // Throughput in bytes per second, measured by the server's connection; 0: unknown.
  double sendRate = 0;
  double receiveRate = 0;
  std::optional<EdgeReport> edge = std::nullopt;  // of the direct link before the body, if any
};

inline std::vector<GradientReport> reportsOf(const std::vector<BodyDone>& bodies) {
  std::vector<GradientReport> reports;
  for (const BodyDone& body : bodies) reports.push_back(body.report);
  return reports;
}

struct StepOk {
  std::uint64_t step = 0;
  std::uint64_t weights = 0;  // digest after an update, if the body has replicas
};

struct Fetch {
  Flow flow = kWeightsBody;
};

// The client's first message, if the run continues from a checkpoint of this step.
struct Resume {
  std::uint64_t step = 0;
};

// A server's checkpoint is durable; or, if `code` is set, it could not be made.
struct Saved {
  std::uint64_t step = 0;
  std::string sha256;  // identifies the saved state, 32 bytes
  std::uint64_t bytes = 0;
  double seconds = 0;  // time by which the snapshot delayed the next step
  // Digest of the body's weights and optimizer state, 32 bytes, if the body has replicas.
  std::string body;
  std::string code, sentence;
};

// The server is about to shut down, or a member of the cohort leaves or joins: the client should
// make a checkpoint, so that nothing is lost.
struct Drain {
  double seconds = 0;       // until the server exits
  std::string member = {};  // that leaves or joins; empty: none
  bool joins = false;
};

// The members of a cohort whose connections have broken, so that the others wait for them; none:
// all are connected again. Before a client takes part: those that are not connected yet.
struct Missing {
  std::vector<std::string> members;
  bool inProgress = false;  // the client waits until it can join
  std::string turn = {};    // in a relay, the member whose turn it is; `inProgress`: it trains
};

// The answer to a Fetch (a safetensors file or a trace's bytes), or the initial weights.
struct Blob {
  Flow flow = kWeightsBody;
  std::span<const std::byte> bytes;
  std::shared_ptr<const void> owner;
  // Whether no step can end, or begin, before it has arrived. If not, it must not delay steps.
  bool isAwaited = false;
};

using Message = std::variant<TensorMessage, BodyDone, StepDecision, StepOk, Fetch, Blob, Resume,
                             Saved, Drain, Missing>;

// Receives an engine's outgoing messages. Called on the engine's thread; must not call back into
// the engine.
class EngineLink {
 public:
  virtual ~EngineLink() = default;
  virtual void send(Message message) = 0;
  // The step has been applied: codec states staged during it take effect for the next step.
  virtual void commit(std::uint64_t step) = 0;
};

}  // namespace cleave
