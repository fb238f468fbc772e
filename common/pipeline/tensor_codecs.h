// A link's codecs at work: encodes and decodes the tensors of a session, and keeps what codecs
// carry from one tensor to the next. One thread at a time: the session's codec queue.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <tuple>

#include "common/codec/device_codec.h"
#include "common/core/buffer.h"
#include "common/core/clock.h"
#include "common/core/memory_account.h"
#include "common/pipeline/messages.h"

namespace cleave {

struct TensorCodecOptions {
  std::uint64_t seed = 0;
  std::array<std::shared_ptr<const Codec>, kTensorFlows> codecs;
  // Twins of codecs, by which tensors are decoded into a device's memory, and encoded that come
  // from there; null where a flow's tensors are in host memory.
  std::array<std::shared_ptr<const DeviceCodec>, kTensorFlows> deviceCodecs;
  // A tensor that its codec cannot carry, for NaN or infinities in it, is sent as it is; else the
  // run fails.
  bool rawNonFinite = false;
  Helper* helper = nullptr;  // must outlive its user
  std::shared_ptr<CodecQueue>
      codecQueue;                  // of the session; null: the io thread encodes and decodes
  std::uint32_t errorEvery = 100;  // one tensor in so many has its SNR measured; 0: none
  // Charged with what the session holds of the host's memory; null: nothing is.
  std::shared_ptr<MemoryAccount> account;

  const Codec& codec(Flow flow) const { return *codecs[indexOf(flow)]; }
  // Null where the flow's tensors are in host memory.
  const DeviceCodec* deviceCodec(Flow flow) const { return deviceCodecs[indexOf(flow)].get(); }
  // The most that a tensor of the flow has encoded, also where it goes raw.
  std::size_t maxEncodedBytes(Flow flow, const TensorSpec& tensor) const;
};

class TensorCodecs {
 public:
  TensorCodecs(TensorCodecOptions options, std::shared_ptr<BufferPool> pool);

  struct EncodedTensor {
    Buffer bytes;
    SteadyTime begin, end;
    std::optional<double> snrDb;  // of what the peer will decode; now and then
  };
  // Throws NonFiniteError, unless such tensors go raw.
  EncodedTensor encode(const Key& key, const TensorView& view);

  struct DecodedTensor {
    Payload payload;  // where the stage wants it
    SteadyTime begin, end;
  };
  // Throws ProtocolError for what no encoder writes.
  DecodedTensor decode(const Key& key, std::span<const std::byte> encoded, const TensorSpec& spec);

  // The step is applied: the codec states that its tensors left are those of the next step.
  void commit();

 private:
  // What a micro-batch leaves at a cut, from its activation to its gradient.
  struct Cut {
    CutContext context;
    MemoryCharge charge;
  };
  CodecState stateOf(const Key& key) const;
  Cut& cutFor(const Key& key, const TensorSpec& spec);
  void forgetCutAfter(const Key& key);

  Encoded encodeOrRaw(const CodecContext& context, const CodecState& state, CutContext& cut,
                      const TensorView& view, std::span<std::byte> out) const;
  std::optional<double> measureError(const CodecContext& context, const CodecState& state,
                                     const CutContext& cut, const TensorView& view,
                                     std::span<const std::byte> encoded) const;
  struct Room {
    MutableTensorView out;
    Payload payload;  // of the same memory
  };
  Room roomFor(Flow flow, const TensorSpec& spec) const;
  CodecContext contextOf(const Key& key) const {
    return {options_.seed, key, options_.helper, options_.codecQueue.get()};
  }

  using CutKey = std::tuple<std::uint64_t, std::uint32_t, int>;  // step, i, cut
  using StateKey = std::pair<Flow, std::uint32_t>;               // of each i

  const TensorCodecOptions options_;
  const std::shared_ptr<BufferPool> pool_;
  // Of training alone: in evaluation codecs change no state.
  std::map<CutKey, Cut> cuts_;
  std::map<StateKey, CodecState> states_, stagedStates_;
  std::array<std::uint64_t, kTensorFlows> encoded_{};  // tensors so far
};

}  // namespace cleave
