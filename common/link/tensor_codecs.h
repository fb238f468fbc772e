// Encodes and decodes a session's tensors, and keeps the state that codecs carry from one tensor to
// the next. One thread at a time: the session's codec queue.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <tuple>
#include <vector>

#include "common/codec/device_codec.h"
#include "common/core/buffer.h"
#include "common/core/clock.h"
#include "common/core/memory_account.h"
#include "common/engine/messages.h"

namespace cleave {

struct TensorCodecOptions {
  std::uint64_t seed = 0;
  FlowMap<std::shared_ptr<const Codec>> codecs;
  // GPU implementations of the codecs. They decode tensors into a device's memory and encode
  // tensors that are there; null if a flow's tensors are in host memory.
  FlowMap<std::shared_ptr<const DeviceCodec>> deviceCodecs;
  // If a codec cannot encode a tensor because it contains NaN or infinity: true sends it raw, false
  // fails the run.
  bool rawNonFinite = false;
  ForkJoinPair* helper = nullptr;  // must outlive its user
  // The session's queue; null: the io thread encodes and decodes.
  std::shared_ptr<CodecQueue> codecQueue;
  std::uint32_t errorEvery = 100;  // measures the SNR of one in N tensors; 0: never
  // Account that is charged for the host memory that the session holds; null: nothing is charged.
  std::shared_ptr<MemoryAccount> account;

  const Codec& codec(Flow flow) const { return *codecs.at(flow); }
  // Null if the flow's tensors are in host memory.
  const DeviceCodec* deviceCodec(Flow flow) const { return deviceCodecs.get(flow).get(); }
  // Maximum encoded size of a tensor of the flow, including when it is sent raw.
  std::size_t maxEncodedBytes(Flow flow, const TensorSpec& tensor) const;
};

class TensorCodecs {
 public:
  TensorCodecs(TensorCodecOptions options, std::shared_ptr<BufferPool> pool);

  struct EncodedTensor {
    Buffer bytes;
    SteadyTime begin, end;
    // SNR of the tensor that the peer will decode; measured only for some tensors.
    std::optional<double> snrDb;
  };
  // Throws NonFiniteError if the codec cannot encode the tensor, unless rawNonFinite is set.
  EncodedTensor encode(const Key& key, const TensorView& view);

  struct DecodedTensor {
    Payload payload;  // in host or device memory, as the stage requires
    SteadyTime begin, end;
  };
  // Throws ProtocolError if no encoder writes these bytes.
  DecodedTensor decode(const Key& key, std::span<const std::byte> encoded, const TensorSpec& spec);

  // Call when the step has been applied: the codec states that its tensors produced take effect for
  // the next step.
  void commit();

  // One state of a codec, between steps.
  struct SavedState {
    Flow flow;
    std::uint32_t i = 0;
    std::vector<std::byte> bytes;
  };
  // Returns all states. Call after commit(), before a tensor of the next step is encoded or
  // decoded.
  std::vector<SavedState> save() const;
  // Replaces all states, so that the next steps produce the same bytes as those that followed
  // save(). If it throws RunError "bad-checkpoint", nothing has changed.
  void restore(const std::vector<SavedState>& saved);

 private:
  // State of a micro-batch at a cut, from its activation until its gradient.
  struct Cut {
    CutContext context;
    MemoryCharge charge;
  };
  CodecState stateOf(const Key& key) const;
  Cut& cutFor(const Key& key, const TensorSpec& spec);
  bool needsCut(const Key& key) const;
  void forgetCutAfter(const Key& key);

  Encoded encodeOrRaw(const CodecContext& context, const CodecState& state, CutContext& cut,
                      const TensorView& view, std::span<std::byte> out) const;
  std::optional<double> measureError(const CodecContext& context, const CodecState& state,
                                     const CutContext& cut, const TensorView& view,
                                     std::span<const std::byte> encoded) const;
  struct Room {
    MutableTensorView out;
    Payload payload;  // shares the payload's memory
  };
  Room roomFor(Flow flow, const TensorSpec& spec) const;
  CodecContext contextOf(const Key& key) const {
    return {options_.seed, key, options_.helper, options_.codecQueue.get()};
  }

  // step, i, cut, tensor
  using CutKey = std::tuple<std::uint64_t, std::uint32_t, std::uint8_t, std::uint8_t>;
  using StateKey = std::pair<Flow, std::uint32_t>;  // one per flow and i

  const TensorCodecOptions options_;
  const std::shared_ptr<BufferPool> pool_;
  // Training only: in evaluation, codecs do not change state.
  std::map<CutKey, Cut> cuts_;
  std::map<StateKey, CodecState> states_, stagedStates_;
  FlowMap<std::uint64_t> encoded_;  // number of tensors so far
};

}  // namespace cleave
