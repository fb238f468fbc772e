// What client and server have agreed about the tensors on a link.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "common/core/clock.h"
#include "common/engine/schedule.h"
#include "common/engine/trace.h"
#include "common/link/tensor_codecs.h"
#include "common/topology/key.h"

namespace cleave {

struct TensorLinkOptions : TensorCodecOptions {
  Role role = Role::client;
  Place place;  // of the body at the server's end
  std::uint32_t microBatches = 1;
  std::uint32_t inFlight = 1;
  std::uint32_t maxBatch = 1;
  // The negotiated spec of a flow's tensor with `samples` samples.
  std::function<TensorSpec(Flow flow, std::uint32_t samples)> spec;
  int (*priority)(Flow flow, const Place& body) = nullptr;
  std::uint64_t maxBlobBytes = 0;  // maximum size of weights/body or grads/body
  bool initialWeights = false;     // the client may send weights/body, once
  std::string weightsSha256;       // which must have this digest, 32 bytes; empty: any
  // Null: no trace. On the server, the link answers a Fetch of trace/body from it.
  std::shared_ptr<TraceRecorder> trace;

  // Any thread. Records an activity if there is a trace.
  void recordActivity(TraceActivity activity, const Key& key, SteadyTime begin,
                      SteadyTime end) const {
    if (trace) trace->moved(activity, key, begin, end);
  }
};

}  // namespace cleave
