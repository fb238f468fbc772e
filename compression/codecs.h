// Shared by the codec files: the codecs' make functions, which registry.cpp lists in its table, the
// parameters of codecs with a GPU implementation, and the errors of decoders.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "common/codec/codec.h"
#include "common/codec/device_codec.h"
#include "common/codec/spec.h"
#include "compression/kernels/kernels.h"

namespace cleave {

std::unique_ptr<Codec> makeNone(const CodecSpec& spec);
std::unique_ptr<Codec> makeFp16(const CodecSpec& spec);
std::unique_ptr<Codec> makeBf16(const CodecSpec& spec);
std::unique_ptr<Codec> makeFp8(const CodecSpec& spec);
std::unique_ptr<Codec> makeUniform(const CodecSpec& spec);
std::unique_ptr<Codec> makeBlock(const CodecSpec& spec);
std::unique_ptr<Codec> makeAdaptive(const CodecSpec& spec);
std::unique_ptr<Codec> makeSort(const CodecSpec& spec);
std::unique_ptr<Codec> makeFast(const CodecSpec& spec);
std::unique_ptr<Codec> makeTopK(const CodecSpec& spec);
std::unique_ptr<Codec> makeRandTopK(const CodecSpec& spec);
std::unique_ptr<Codec> makeKMeans(const CodecSpec& spec);
std::unique_ptr<Codec> makePower(const CodecSpec& spec);
std::unique_ptr<Codec> makeSvd(const CodecSpec& spec);
std::unique_ptr<Codec> makeDelta(const CodecSpec& spec);
std::unique_ptr<Codec> makeChannels(const CodecSpec& spec);
std::unique_ptr<Codec> makeRans(const CodecSpec& spec);
std::unique_ptr<Codec> makeZstd(const CodecSpec& spec);
std::unique_ptr<Codec> makeIntegers(const CodecSpec& spec);

// The GPU implementations, in the folder device/.
std::shared_ptr<const DeviceCodec> makeFp16OnGpu(const GpuCodecRequest& request);
std::shared_ptr<const DeviceCodec> makeBf16OnGpu(const GpuCodecRequest& request);
std::shared_ptr<const DeviceCodec> makeUniformOnGpu(const GpuCodecRequest& request);
std::shared_ptr<const DeviceCodec> makeBlockOnGpu(const GpuCodecRequest& request);
std::shared_ptr<const DeviceCodec> makeSortOnGpu(const GpuCodecRequest& request);
std::shared_ptr<const DeviceCodec> makeTopKOnGpu(const GpuCodecRequest& request);

// What the parameters of a spec mean. All throw UsageError.
int uniformBits(const CodecSpec& spec);
struct BlockParameters {
  kernels::BlockFormat format;
  bool isRotated = false;
};
BlockParameters blockParameters(const CodecSpec& spec);
struct SortParameters {
  int q = 0, s = 0;
  std::size_t boundaries = 0;  // index of the name of how the pieces' boundaries are found
};
SortParameters sortParameters(const CodecSpec& spec);  // boundaries: 0 is select=sampled
double topKRatio(const CodecSpec& spec);

// Creates the codec in parentheses. Throws UsageError "bad-codec-spec" if there is none; `example`
// is a spec with parentheses.
std::unique_ptr<Codec> makeInner(const CodecSpec& spec, const std::string& example);
// Like makeInner(), for codecs that use the codec in parentheses for tensors other than the flow's.
// Refuses codecs that keep samples of the flow.
std::unique_ptr<Codec> makePlainInner(const CodecSpec& spec, const std::string& example);

// Decodes with the codec that `outer` wraps. Its faults are reported as those of `outer`.
CodecState decodeInside(const Codec& outer, const Codec& inner, const CodecContext& context,
                        const CodecState& state, CutContext& cut,
                        std::span<const std::byte> payload, const MutableTensorView& out);

// Throws ProtocolError "bad-payload"; `fault` says what is wrong.
[[noreturn]] void throwBadPayload(const Codec& codec, const Key& key, const std::string& fault);
// Throws ProtocolError "bad-payload" if a payload does not have the length that the tensor's spec
// determines.
void checkPayloadSize(const Codec& codec, const Key& key, std::size_t bytes, std::size_t expected);
// Throws ProtocolError "bad-payload" for a payload whose first byte is not a valid format for this
// tensor.
[[noreturn]] void throwBadFormat(const Codec& codec, const Key& key,
                                 std::span<const std::byte> bytes, const TensorSpec& spec);

}  // namespace cleave
