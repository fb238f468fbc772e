// The parameters of a tensor link, which client and server have negotiated.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "common/core/clock.h"
#include "common/core/progress_clock.h"
#include "common/engine/schedule.h"
#include "common/engine/trace.h"
#include "common/link/step_snrs.h"
#include "common/link/tensor_codecs.h"
#include "common/topology/key.h"

namespace cleave {

class TransferOrder;

struct TensorLinkOptions : TensorCodecOptions {
  Role role = Role::client;
  Place place;  // the place of the server's body
  std::uint32_t inFlight = 1;
  std::uint32_t maxBatch = 1;
  // How a batch of this many samples is divided; empty: into M micro-batches. Any thread.
  std::function<Division(Phase phase, std::uint64_t step, std::uint32_t samples)> divide;
  // Returns the negotiated spec of a flow's tensor for `samples` samples.
  std::function<TensorSpec(Flow flow, std::uint32_t samples)> spec;
  int (*priority)(Flow flow, const Place& body) = nullptr;
  // Flows whose tensors the client receives from one server and sends to another. They stay encoded
  // (TensorMessage::encodedBytes).
  FlowMap<bool> passedOn;
  // The levels of the batches, which all links of the place share; null: the link has its own.
  std::shared_ptr<CodecLevels> levels;
  // Called with the SNR of each watched tensor (TensorCodecOptions::isWatched) that the link sends,
  // and with each SNR that it receives, in the codec queue or on the io thread; null: not called.
  std::function<void(const Key& key, double snrDb)> watched;
  // A server with edges: the SNRs that have arrived over them; null: none.
  std::shared_ptr<StepSnrs> edgeSnrs;
  // ---- For a run with edges ----
  // Flows of `place` that cross another link; empty: none.
  FlowMap<bool> elsewhere;
  // The order that all links of the place share; null: the link has its own.
  std::shared_ptr<TransferOrder> order;
  // The link is an edge between two servers, at both of which its role is `server`. It carries
  // only tensors of steps.
  bool isEdge = false;
  // ----
  std::uint64_t maxBlobBytes = 0;  // maximum size of weights/body or grads/body
  std::uint64_t partBytes = 0;  // in a cohort: maximum size of parts/client and sums/client; else 0
  bool initialWeights = false;  // the client may send weights/body, once
  // Maximum size of state/client, which this side expects once; 0: it does not expect any.
  std::uint64_t stateBytes = 0;
  std::string weightsSha256;  // required digest of weights/body, 32 bytes; empty: any
  // Counts the bytes and steps of all links that share it; null: not counted.
  std::shared_ptr<ProgressCount> progress;
  // Null: no trace. On the server, the link answers a Fetch of trace/body from it.
  std::shared_ptr<TraceRecorder> trace;

  Division divisionOf(Phase phase, std::uint64_t step, std::uint32_t samples) const {
    return divide ? divide(phase, step, samples) : Division::of(samples, microBatches);
  }
  // The SNR that the metadata of a tensor contains: the lower one of `own` and those that have
  // arrived over edges in the step; nullopt: none.
  std::optional<double> reportedSnr(const Key& key, std::optional<double> own) const {
    if (!isOfWatchedStep(key)) return std::nullopt;
    if (!isWatched(key)) own.reset();
    return edgeSnrs ? edgeSnrs->lowestWith(key.step, own) : own;
  }
  // Any thread. Records an activity if there is a trace.
  void recordActivity(TraceActivity activity, const Key& key, SteadyTime begin,
                      SteadyTime end) const {
    if (trace) trace->moved(activity, key, begin, end);
  }
};

}  // namespace cleave
