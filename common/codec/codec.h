// How one flow's tensors become bytes. A codec is immutable and may be used from several threads at
// once; whatever it must remember is a value that the link keeps for it (CodecState, CutContext).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "common/codec/tensor.h"
#include "common/core/codec_executor.h"
#include "common/core/error.h"
#include "common/core/helper.h"
#include "common/core/key.h"

namespace cleave {

struct CodecContext {
  std::uint64_t seed = 0;
  Key key;  // phase, step, micro-batch, flow: the key of every random draw
  // Does a part of the work where it finds a processor; null: there is none. No bit depends on it.
  Helper* helper = nullptr;
  CodecQueue* queue = nullptr;  // that this runs in; null: none

  // To be called between pieces of work that take long together, on the thread that called the
  // codec. May wait for other sessions' turns; throws if the session has ended or this takes too
  // long.
  void checkpoint() const {
    if (queue != nullptr) queue->checkpoint();
  }
};

// Lives per (phase, step, i, cut) on both sides from the activation to its gradient; what the
// activation's codec leaves for the gradient's, such as a mask.
struct CutContext {
  std::shared_ptr<const void> value;
};

// What a codec carries from one step to the next, per (flow, i), such as an error residual. Staged
// by encode and decode, and committed by Step; nullptr for codecs without state. In eval it is
// neither read nor written.
using CodecState = std::shared_ptr<const void>;

struct Encoded {
  std::size_t bytes = 0;  // written to `out`
  CodecState state;
};

// The host memory that a codec takes beside a tensor and its encoding: maximum, in bytes.
struct CodecMemory {
  std::size_t working = 0;  // during encode or decode; without tables that do not grow with tensors
  std::size_t cut = 0;      // of a CutContext
  std::size_t state = 0;    // of a CodecState
};

// The input holds NaN or infinity, and the codec cannot carry it. Whoever wants to send it all the
// same sends it raw (raw.h), which the decoders of such codecs take.
class NonFiniteError : public RunError {
 public:
  explicit NonFiniteError(const Key& key);
};

class Codec {
 public:
  virtual ~Codec() = default;

  // The resolved spec, such as "uniform:bits=8": parsing it gives an equal codec.
  virtual std::string spec() const = 0;
  // Whether the encoded bytes are the tensor's own, so that nothing needs to be copied.
  virtual bool isIdentity() const { return false; }
  // The most bytes that encode writes for a tensor of this spec. Decoders accept no more.
  virtual std::size_t maxEncodedBytes(const TensorSpec& spec) const = 0;
  // For tensors of this spec. What servers admit runs by.
  virtual CodecMemory memory(const TensorSpec&) const { return {}; }
  // Writes at most maxEncodedBytes(view.spec) bytes to `out`, which has room for them.
  // Throws NonFiniteError.
  virtual Encoded encode(const CodecContext& context, const CodecState& state, CutContext& cut,
                         const TensorView& view, std::span<std::byte> out) const = 0;
  // Writes all of `out`, whose spec was agreed beforehand. Bytes are hostile: whatever does not fit
  // throws ProtocolError; nothing outside `bytes` is read, nothing outside `out` written.
  virtual CodecState decode(const CodecContext& context, const CodecState& state, CutContext& cut,
                            std::span<const std::byte> bytes, MutableTensorView out) const = 0;
};

}  // namespace cleave
