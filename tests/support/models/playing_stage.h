// Stages' processes for tests: real ones, and processes that do what the test wants.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/core/random.h"
#include "common/run/plan.h"
#include "stage/messages.h"
#include "stage/remote_body.h"
#include "tests/support/error_code.h"
#include "tests/support/models/playing_process.h"

namespace cleave::test {

inline RunSpec specWith(const std::string& schedule = "priority") {
  RunSpec spec;
  spec.model = {"mlp", {{"dropout", "0.2"}}, {16}, 4};
  spec.cut0 = 1;
  spec.cut1 = 2;
  spec.maxBatch = spec.trainBatch = 8;
  spec.microBatches = 2;
  spec.schedule = schedule;
  spec.optimizer.name = "adam";
  return spec;
}

inline std::shared_ptr<BufferPool> pool() { return std::make_shared<BufferPool>(); }

inline Payload randomTensor(const TensorSpec& spec, std::uint64_t seed) {
  const auto buffer = std::make_shared<Buffer>(pool()->acquire(spec.bytes()));
  auto* const values = reinterpret_cast<float*>(buffer->data());
  const RandomKey key = randomKey(seed, "values");
  for (std::size_t j = 0; j < spec.elements(); ++j) {
    values[j] = static_cast<float>(static_cast<std::int32_t>(randomBits(key, j))) * 0x1p-31F;
  }
  return {{buffer->data(), spec}, buffer};
}

// ---- Real processes ----

inline StageProcesses& processes() {
  static StageProcesses all;
  return all;
}

inline RemoteBody remote(const RunPlan& plan, double maxSeconds = 60, int threads = 2) {
  const StageMemory memory(plan);
  return {startStage(processes(), plan, threads, memory),
          plan,
          threads,
          maxSeconds,
          memory,
          nullptr,
          [](const std::string&) {}};
}

// ---- Processes that do what they want ----

// A process that answers with `play` instead of computing.
inline std::unique_ptr<StageProcess> playing(const StageMemory& memory, const Play& play) {
  return playing(memory.output->memory().bytes(), play, [memory] { memory.returnFree(); });
}

inline wire::StageReply replyWith(const std::function<void(wire::StageReply&)>& change = {}) {
  wire::StageReply reply;
  reply.set_done(true);
  if (change) change(reply);
  return reply;
}

// Accepts the spec and the build, then answers everything with `reply`.
inline Play answering(const wire::StageReply& reply) {
  return [reply](int socket, std::span<std::byte>) {
    wire::StageRequest request;
    while (readStageMessage(socket, request) == StageRead::message) {
      const bool isEarly =
          request.kind() == wire::StageRequest::PUT || request.kind() == wire::StageRequest::BUILD;
      sendStageMessage(socket, isEarly ? replyWith() : reply);
    }
  };
}

// Calls `act` when the first forward is requested, and answers all requests with success.
inline Play whenForward(const std::function<void(int socket)>& act) {
  return [act](int socket, std::span<std::byte>) {
    wire::StageRequest request;
    while (readStageMessage(socket, request) == StageRead::message) {
      if (request.kind() == wire::StageRequest::FORWARD) act(socket);
      sendStageMessage(socket, replyWith());
    }
  };
}

inline RemoteBody bodyOf(const RunPlan& plan, const Play& play, double maxSeconds = 60) {
  const StageMemory memory(plan);
  return {playing(memory, play), plan, 1, maxSeconds, memory, nullptr, [](const std::string&) {}};
}

inline TensorBundle forward(Body& body, const RunPlan& plan) {
  const TensorSpec in = flowSpec(plan.blocks, plan.stage.cuts, activationAt(0), 4);
  return body.forward({Phase::train, 1, 0, {2, 8}}, bundleOf(randomTensor(in, 1)));
}

// The code with which the first forward ends; empty: it succeeds.
inline std::string codeOfForward(const RunPlan& plan, const Play& play, double maxSeconds = 60) {
  return errorCode([&] {
    RemoteBody body = bodyOf(plan, play, maxSeconds);
    forward(body, plan);
  });
}

}  // namespace cleave::test
