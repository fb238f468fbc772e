// Encodes and decodes a session's tensors, and keeps the state that codecs carry from one tensor to
// the next. One thread at a time: the session's codec queue.
#pragma once

#include <algorithm>
#include <cstdint>
#include <exception>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "common/codec/codec_plan.h"
#include "common/codec/sample_cache.h"
#include "common/codec/traffic_observer.h"
#include "common/core/clock.h"
#include "common/engine/messages.h"
#include "common/link/codec_levels.h"
#include "common/resources/buffer.h"
#include "common/resources/held_bytes.h"
#include "common/resources/memory_account.h"

namespace cleave {

struct TensorCodecOptions {
  std::uint64_t seed = 0;
  CodecPlan codecs;
  bool hasCodecLevels = false;  // whether batches may have a level other than CodecLevel::own
  // If a codec cannot encode a tensor because it contains NaN or infinity: true sends it raw, false
  // fails the run.
  bool rawNonFinite = false;
  ForkJoinPair* helper = nullptr;  // must outlive its user
  // The session's queue; null: the io thread encodes and decodes.
  std::shared_ptr<CodecQueue> codecQueue;
  std::uint32_t microBatches = 1;  // of a batch
  std::uint32_t replicas = 1;      // that share them; see Replica
  std::uint32_t trainSamples = 0;  // samples of the training data, for codecs that keep samples
  std::string samplesFolder;       // where they are kept in files; empty: in memory
  std::uint32_t errorEvery = 100;  // measures the SNR of one in N tensors; 0: never
  // In every N-th training step, also measures the SNR of the first micro-batch's tensors in flows
  // that have levels, and sends it with the tensor; 0: never.
  std::uint64_t watchEvery = 0;
  std::vector<TrafficObserver*> observers;  // borrowed
  // Account that is charged for the host memory that the session holds; null: nothing is charged.
  std::shared_ptr<MemoryAccount> account;

  // Whether the key is of a replica's first micro-batch in a step whose SNRs the client needs.
  bool isOfWatchedStep(const Key& key) const {
    return watchEvery > 0 && key.phase == Phase::train && key.i < replicas &&
           key.step % watchEvery == 0;
  }
  bool isObserved(const Key& key) const {
    return std::ranges::any_of(observers, [&](const auto* each) { return each->wants(key); });
  }
  // Passes the tensor to the observers that want it.
  void observe(const Key& key, CodecLevel level, const TensorView& tensor) const;
  bool isWatched(const Key& key) const { return isOfWatchedStep(key) && hasLevels(key.flow); }
  bool hasLevels(Flow flow) const {
    const FlowCodec* codec = codecs.find(flow);  // null for flows without a codec, such as weights
    return codec != nullptr && codec->hasLevels();
  }
  const Codec& codec(Flow flow, CodecLevel level = CodecLevel::own) const {
    return codecs.at(flow).at(level);
  }
  // Null if the flow's tensors are in host memory.
  const DeviceCodec* deviceCodec(Flow flow, CodecLevel level = CodecLevel::own) const {
    return codecs.at(flow).onDeviceAt(level);
  }
  // Maximum encoded size of a tensor of the flow at this level, including when it is sent raw. At
  // CodecLevel::raw, this is the maximum of all levels: no payload is longer than both a raw one
  // and the flow's codec's.
  std::size_t maxEncodedBytes(Flow flow, const TensorSpec& tensor,
                              CodecLevel level = CodecLevel::raw) const;
};

class TensorCodecs {
 public:
  TensorCodecs(TensorCodecOptions options, std::shared_ptr<BufferPool> pool);

  struct EncodedTensor {
    Buffer bytes;
    SteadyTime begin, end;
    // SNR of the tensor that the peer will decode; measured only for some tensors, and absent if
    // the tensor is exact.
    std::optional<double> snrDb;
  };
  // Throws NonFiniteError if the codec cannot encode the tensor, unless rawNonFinite is set.
  EncodedTensor encode(const Key& key, const TensorView& view, CodecLevel level = CodecLevel::own);

  struct DecodedTensor {
    Payload payload;  // in host or device memory, as the stage requires
    SteadyTime begin, end;
  };
  // Throws ProtocolError if no encoder writes these bytes.
  DecodedTensor decode(const Key& key, std::span<const std::byte> encoded, const TensorSpec& spec,
                       CodecLevel level = CodecLevel::own);

  // Adds the sample numbers of a training batch, each below trainSamples. Call it with the numbers
  // of the whole batch, in one or more calls, before its first tensor is encoded or decoded, if a
  // codec keeps samples.
  void addSamples(std::uint64_t step, std::span<const std::uint32_t> numbers);

  // Call when the step has been applied: the codec states that its tensors produced take effect for
  // the next step.
  void commit(std::uint64_t step);

  // One state of a codec, between steps.
  struct SavedState {
    Flow flow;
    std::uint32_t i = 0;  // 0 for a cache of samples
    HeldBytes bytes;
    bool isSamples = false;  // rows of a cache of samples
    // On a server of a cohort, the member whose link has the codec; save() and restore() ignore it.
    std::uint32_t member = 0;
  };
  // Returns all states; of the caches of samples, the rows that have changed after step `since` (0:
  // all rows). Call after commit(), before a tensor of the next step is encoded or decoded. Throws
  // RunError "cannot-write" or "not-enough-memory" if there is no room for a copy of rows.
  std::vector<SavedState> save(std::uint64_t since = 0) const;
  // Replaces all states, so that the next steps produce the same bytes as those that followed
  // save(). Rows replace those of the same cache before them in `saved`. If it throws RunError
  // "bad-checkpoint", nothing has changed.
  void restore(const std::vector<SavedState>& saved);

 private:
  // State of a micro-batch at a cut, from its activation until its gradient.
  struct Cut {
    CutContext context;
    MemoryCharge charge;
  };
  // How a tensor is encoded: its key, and the level of its batch.
  struct How {
    Key key;
    CodecLevel level;
    // Whether the flow's own codec encodes it, in training: only then does it have states.
    bool mayHaveState() const { return key.phase == Phase::train && level == CodecLevel::own; }
  };
  CodecState stateOf(const How& how) const;
  Cut& cutFor(const Key& key, const TensorSpec& spec);
  bool needsCut(const How& how) const;
  void forgetCutAfter(const Key& key);

  std::optional<SampleHistory> historyOf(const How& how, const TensorSpec& spec);
  void stageRows(const Key& key, std::optional<SampleHistory>&& history);
  void replaceRows(std::uint64_t before);

  bool isMeasured(const How& how);
  Encoded encodeOrRaw(CodecLevel level, const CodecContext& context, const CodecState& state,
                      CutContext& cut, const TensorView& view, std::span<std::byte> out) const;
  Encoded encodeRawFrom(const DeviceCodec* device, const TensorView& view,
                        std::span<std::byte> out) const;
  Buffer decodeSent(const How& how, const CodecContext& context, const CodecState& state,
                    const CutContext& cut, const TensorSpec& spec,
                    std::span<const std::byte> encoded) const;
  TensorView inHostMemory(const How& how, const TensorView& view, Buffer& copy) const;
  void observe(const How& how, const TensorView& view) const;
  struct Room {
    MutableTensorView out;
    Payload payload;  // shares the payload's memory
  };
  Room roomFor(Flow flow, const TensorSpec& spec) const;
  // Random numbers depend on the position of the micro-batch in the replica's share.
  CodecContext contextOf(Key key, std::optional<SampleHistory>& history) const {
    key.i /= options_.replicas;
    return {options_.seed, key, options_.helper, options_.codecQueue.get(),
            history ? &*history : nullptr};
  }

  // step, i, cut, tensor
  using CutKey = std::tuple<std::uint64_t, std::uint32_t, std::uint8_t, std::uint8_t>;
  using StateKey = std::pair<Flow, std::uint32_t>;  // one per flow and i

  const TensorCodecOptions options_;
  const std::shared_ptr<BufferPool> pool_;
  // Training only: in evaluation, codecs do not change state.
  std::map<CutKey, Cut> cuts_;
  std::map<StateKey, CodecState> states_, stagedStates_;
  // For codecs that keep samples: the decoded rows of one tensor.
  struct Rows {
    std::vector<std::uint32_t> numbers;
    std::vector<float> values;
  };
  std::map<std::uint64_t, std::vector<std::uint32_t>> samples_;  // numbers by step
  std::map<Flow, SampleCache> caches_;
  std::map<std::tuple<std::uint64_t, Flow, std::uint32_t>, Rows> stagedRows_;  // by step, flow, i
  FlowMap<std::uint64_t> encoded_;  // number of tensors so far
};

// The states of the codecs of one link or several.
struct SavedCodecs {
  std::vector<TensorCodecs::SavedState> states;
  std::exception_ptr error;  // why they are incomplete: there is no room for a copy; null: none

  void add(SavedCodecs&& more) {
    std::move(more.states.begin(), more.states.end(), std::back_inserter(states));
    if (!error) error = more.error;
  }
};

}  // namespace cleave
