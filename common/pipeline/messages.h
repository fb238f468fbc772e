// What engines say to each other: plain values. The tensor link turns them into frames; tests pass
// them on directly.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <variant>

#include "common/codec/tensor.h"
#include "common/core/key.h"
#include "common/core/step.h"

namespace cleave {

struct TensorMessage {
  Flow flow = Flow::activation0;
  MicroBatch at;
  std::uint64_t weightVersion = 0;  // steps applied to the weights that made it, and must see it
  Payload payload;

  Key key() const { return {at.phase, at.step, at.i, flow}; }
};

// The server has accumulated all gradients of a step.
struct BodyDone {
  std::uint64_t step = 0;
  GradientReport report;
  double forwardSeconds = 0;   // F2, sum over the micro-batches
  double backwardSeconds = 0;  // B2
  double codecSeconds = 0;     // at the server since the last BodyDone; the link fills it in
  double updateSeconds = 0;    // of the update before
  // Bytes a second, as the server's connection measured; 0: not known.
  double sendRate = 0;
  double receiveRate = 0;
};

struct StepOk {
  std::uint64_t step = 0;
};

struct Fetch {
  Flow flow = Flow::weightsBody;
};

// The answer to a Fetch: a safetensors file, or a trace's bytes.
struct Blob {
  Flow flow = Flow::weightsBody;
  std::span<const std::byte> bytes;
  std::shared_ptr<const void> owner;
};
// Whether the flow carries blobs, not tensors.
constexpr bool isBlob(Flow flow) { return indexOf(flow) >= kTensorFlows; }

using Message = std::variant<TensorMessage, BodyDone, StepDecision, StepOk, Fetch, Blob>;

// Where an engine's messages go. Called on the engine's thread; must not call back into the engine.
class EngineLink {
 public:
  virtual ~EngineLink() = default;
  virtual void send(Message message) = 0;
  // The step is applied: codec states staged in it become those of the next.
  virtual void commit() = 0;
};

}  // namespace cleave
