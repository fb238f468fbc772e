// Encodes one flow's tensors as bytes. A codec is immutable and may be used from several threads at
// once; anything it must remember is a value that the link keeps for it (CodecState, CutContext).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/codec/sample_cache.h"
#include "common/codec/tensor.h"
#include "common/core/error.h"
#include "common/resources/codec_executor.h"
#include "common/resources/fork_join_pair.h"
#include "common/topology/key.h"

namespace cleave {

struct CodecContext {
  std::uint64_t seed = 0;
  Key key;  // phase, step, micro-batch, flow: the key of every random draw
  // Shares the work if a processor is free; null: none. Results are bit-identical either way.
  ForkJoinPair* helper = nullptr;
  CodecQueue* queue = nullptr;  // the queue that runs this task; null: no queue
  // For codecs that keep samples (Codec::keepsSamples()), in training; null: none.
  SampleHistory* history = nullptr;

  // Called regularly during long work, on the thread that called the codec. May pause while other
  // sessions have their turns; throws if the session has ended or the task takes too long.
  void checkpoint() const {
    if (queue != nullptr) queue->checkpoint();
  }
};

// Data that an activation's codec saves for its gradient's codec, such as a mask. Both sides keep
// it per (phase, step, i, cut), from the activation until its gradient.
struct CutContext {
  std::shared_ptr<const void> value;
};

// State that a codec carries from one step to the next, per (flow, i), such as the factors of
// `power`. encode() and decode() stage a new state, which takes effect when the step is applied.
// Null for codecs without state. Evaluation neither reads nor writes it.
using CodecState = std::shared_ptr<const void>;

struct Encoded {
  std::size_t bytes = 0;  // written to `out`
  CodecState state;
};

// Maximum host memory, in bytes, that a codec uses in addition to the tensor and its encoding.
struct CodecMemory {
  std::size_t working = 0;    // during encode or decode; excludes tables of fixed size
  std::size_t cut = 0;        // of a CutContext
  std::size_t state = 0;      // of a CodecState, or of SampleHistory::decoded
  std::size_t perSample = 0;  // of a SampleCache, per sample of the training data
};

// The input contains NaN or infinity, which the codec cannot encode. Such a tensor can be sent raw
// (raw.h): the codec's decoder accepts raw payloads.
class NonFiniteError : public RunError {
 public:
  explicit NonFiniteError(const Key& key);
};

class Codec {
 public:
  virtual ~Codec() = default;

  // The spec with all parameters, such as "uniform:bits=8". Parsing it gives an equal codec.
  virtual std::string spec() const = 0;
  // Whether the encoded bytes are the tensor's own, so that no copy is needed.
  virtual bool isIdentity() const { return false; }
  // Whether the codec encodes tensors of integers; the others encode floats.
  virtual bool acceptsIntegers() const { return isIdentity(); }
  // Whether the codec uses CodecContext::history. The first dimension of its tensors must then be
  // the samples of the micro-batch.
  virtual bool keepsSamples() const { return false; }
  // Maximum bytes that encode() writes for a tensor of this spec. Decoders reject longer payloads.
  virtual std::size_t maxEncodedBytes(const TensorSpec& spec) const = 0;
  // The bytes to predict for a tensor of this spec, if its values are not known.
  virtual std::size_t expectedBytes(const TensorSpec& spec) const { return maxEncodedBytes(spec); }
  // The memory needed for tensors of this spec. Servers use it to decide on admission.
  virtual CodecMemory memory(const TensorSpec&) const { return {}; }
  // Writes at most maxEncodedBytes(view.spec) bytes to `out`, which must have room for them. Throws
  // NonFiniteError.
  virtual Encoded encode(const CodecContext& context, const CodecState& state, CutContext& cut,
                         const TensorView& view, std::span<std::byte> out) const = 0;
  // Writes all of `out`, whose spec was agreed beforehand. `bytes` is untrusted input: invalid
  // input throws ProtocolError, and decode() never reads outside of `bytes` or writes outside of
  // `out`.
  virtual CodecState decode(const CodecContext& context, const CodecState& state, CutContext& cut,
                            std::span<const std::byte> bytes, MutableTensorView out) const = 0;

  // Serializes a state that encode() or decode() returned. restoreState() of an equal codec reads
  // it.
  virtual std::vector<std::byte> saveState(const CodecState&) const { return {}; }
  // Throws RunError "bad-checkpoint" if `bytes` is not a serialized state.
  virtual CodecState restoreState(std::span<const std::byte> bytes) const;
};

// Throws UsageError "bad-codec-spec" if the tensors of this spec have integers, and the codec
// encodes floats. `name`: the tensor's name in the error.
void checkAccepts(const Codec& codec, const TensorSpec& spec, const std::string& name);

}  // namespace cleave
