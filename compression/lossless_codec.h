// Base of codecs that compress another codec's payload without loss, written NAME:…(CODEC):
//
//   payload = nothing                        for a tensor without elements
//           | 0x00, the tensor's own bytes   if the tensor is sent raw
//           | 0x01, CODEC's payload          if compressing it would not gain enough
//           | 0x02, CODEC's payload, compressed
//
// State and cut context are CODEC's.
#pragma once

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "common/codec/codec.h"

namespace cleave {

class LosslessCodec : public Codec {
 public:
  explicit LosslessCodec(std::unique_ptr<Codec> inner) : inner_(std::move(inner)) {}

  bool keepsSamples() const final { return inner_->keepsSamples(); }
  std::size_t maxEncodedBytes(const TensorSpec& spec) const final;
  CodecMemory memory(const TensorSpec& spec) const final;
  Encoded encode(const CodecContext& context, const CodecState& state, CutContext& cut,
                 const TensorView& view, std::span<std::byte> out) const final;
  CodecState decode(const CodecContext& context, const CodecState& state, CutContext& cut,
                    std::span<const std::byte> bytes, MutableTensorView out) const final;
  std::vector<std::byte> saveState(const CodecState& state) const final;
  CodecState restoreState(std::span<const std::byte> bytes) const final;

 protected:
  const Codec& inner() const { return *inner_; }

  // The compressed payload, shorter than `payload`; empty if compressing does not gain enough.
  virtual std::vector<std::byte> compress(const CodecContext& context,
                                          std::span<const std::byte> payload) const = 0;
  // The inverse of compress(). `bytes` is untrusted. Throws ProtocolError if it is invalid, or if
  // the result would have more than `maxBytes` bytes; in that case, allocates no memory for the
  // result.
  virtual std::vector<std::byte> decompress(const CodecContext& context,
                                            std::span<const std::byte> bytes,
                                            std::size_t maxBytes) const = 0;
  // Maximum memory of compress() and decompress(), in addition to the payload and its compressed
  // form.
  virtual std::size_t compressorBytes() const { return 0; }

 private:
  CodecState decodeInner(const CodecContext& context, const CodecState& state, CutContext& cut,
                         std::span<const std::byte> payload, const MutableTensorView& out) const;

  const std::unique_ptr<Codec> inner_;
};

}  // namespace cleave
