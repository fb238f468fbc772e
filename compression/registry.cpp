#include "compression/registry.h"

#include <algorithm>
#include <array>
#include <string>

#include "common/core/names.h"
#include "compression/codecs.h"
#include "compression/kernels/kernels.h"

namespace cleave {
namespace {

constexpr auto kCodecs = std::to_array<CodecRow>({
    {"none", "", "the values, unchanged", "none", makeNone, true, false},
    {"fp16", "", "16-bit floats of IEEE 754; values above 65504 become infinity", "fp16", makeFp16,
     true, false, makeFp16OnGpu},
    {"bf16", "", "16-bit floats with the range of fp32 and 8 significant bits", "bf16", makeBf16,
     true, false, makeBf16OnGpu},
    {"fp8", "format=e4m3|e5m2", "8-bit floats of OFP8, scaled by one power of two per tensor",
     "fp8:format=e4m3", makeFp8, true},
    {"uniform", "bits=1..16",
     "2^bits evenly spaced values from the tensor's minimum to its maximum", "uniform:bits=8",
     makeUniform, true, true, makeUniformOnGpu},
    {"block",
     "bits=1..8,size=32..1024,header=bf16|fp16,rounding=nearest|stochastic,rotation=none|hadamard",
     "like uniform, separately for each block of 64 (or size) values", "block:bits=8", makeBlock,
     true, true, makeBlockOnGpu},
    {"adaptive", "bits=0.5..8,size=32..1024",
     "like block, with more bits for blocks of larger range, and `bits` on average",
     "adaptive:bits=4", makeAdaptive},
    {"sort", "q=1..16,s=0..8,select=sampled|exact",
     "the sorted values in 2^s pieces of equal count, with 2^q evenly spaced values each",
     "sort:q=6,s=2,select=sampled", makeSort, true, true, makeSortOnGpu},
    {"fast", "q=1..16,s=0..8,boundaries=first|all",
     "like sort, with pieces from the first sample of the batch", "fast:q=6,s=2,boundaries=first",
     makeFast, true},
    {"topk", "ratio=0..1", "the elements of largest magnitude; the others become 0",
     "topk:ratio=0.1", makeTopK, false, true, makeTopKOnGpu},
    {"randtopk", "ratio=0..1,alpha=0..1",
     "like topk; in training, each kept element is replaced by another one with probability alpha",
     "randtopk:ratio=0.1,alpha=0.1", makeRandTopK},
    {"kmeans", "bits=1..8,iterations=1..1000",
     "the nearest of 2^bits centroids fitted to the tensor", "kmeans:bits=4,iterations=20",
     makeKMeans, true},
    {"power", "rank=1..4096,iterations=1..100",
     "two factors of each sample's matrix, by power iteration; (CODEC) encodes them",
     "power:rank=2,iterations=2", makePower},
    {"svd", "rank=1..4096", "two factors of each sample's matrix, by singular value decomposition",
     "svd:rank=2", makeSvd},
    {"delta", "first_bits=1..8,skip=0..1(CODEC)",
     "for activations: how each sample has changed since the last epoch, encoded by CODEC",
     "delta:first_bits=8,skip=0(block:bits=4)", makeDelta},
    {"channels", "(CODEC)", "CODEC for the values in the order of channels or features",
     "channels(adaptive:bits=4)", makeChannels},
    {"rans", "(CODEC)", "the output of CODEC, with shorter codes for its more frequent bytes",
     "rans(block:bits=4)", makeRans},
    {"zstd", "level=1..19(CODEC)",
     "the output of CODEC, compressed by Zstandard if that saves an eighth",
     "zstd:level=3(block:bits=4)", makeZstd},
});

constexpr CodecRow kIntegers{
    "integers", "", "integers in as few bits as they need", "integers", makeIntegers, false, false};

const CodecRow& rowOf(const Codec& codec) {
  const std::string name = parseCodecSpec(codec.spec()).name;
  if (name == kIntegers.name) return kIntegers;
  return *std::find_if(kCodecs.begin(), kCodecs.end(),
                       [&](const CodecRow& row) { return row.name == name; });
}

}  // namespace

std::span<const CodecRow> codecTable() { return kCodecs; }

std::unique_ptr<Codec> makeIntegerCodec() { return kIntegers.make(parseCodecSpec(kIntegers.name)); }

std::unique_ptr<Codec> makeCodec(const CodecSpec& spec) {
  const CodecRow& row =
      findByName(kCodecs, spec.name, "unknown-codec", "a codec", [](const CodecRow& each) {
        const std::string name(each.name);
        const bool hasKeys = each.parameters.find('=') != std::string_view::npos;
        return name + (hasKeys ? ":" : "") + std::string(each.parameters);
      });
  return row.make(spec);
}

std::unique_ptr<Codec> makeCodec(std::string_view spec) { return makeCodec(parseCodecSpec(spec)); }

ParsedCodec parseCodec(const std::string& spec) { return {spec, makeCodec(spec)}; }

std::unique_ptr<Codec> makeInner(const CodecSpec& spec, const std::string& example) {
  if (spec.inner) return makeCodec(*spec.inner);
  throw UsageError("bad-codec-spec", "codec " + spec.name + " needs a codec to wrap",
                   "write it in parentheses, as in " + example);
}

std::unique_ptr<Codec> makePlainInner(const CodecSpec& spec, const std::string& example) {
  auto inner = makeInner(spec, example);
  if (inner->keepsSamples()) {
    throw UsageError("bad-codec-spec", "codec " + spec.name + " cannot wrap delta",
                     "only rans and zstd can wrap delta");
  }
  return inner;
}

CodecState decodeInside(const Codec& outer, const Codec& inner, const CodecContext& context,
                        const CodecState& state, CutContext& cut,
                        std::span<const std::byte> payload, const MutableTensorView& out) {
  try {
    return inner.decode(context, state, cut, payload, out);
  } catch (const ProtocolError& error) {
    throwBadPayload(outer, context.key, error.what());
  }
}

bool sizeIsFixed(const Codec& codec) { return rowOf(codec).sizeIsFixed; }

bool hasRawFormat(const Codec& codec) { return rowOf(codec).hasRawFormat; }

std::shared_ptr<const DeviceCodec> makeDeviceCodec(const std::shared_ptr<const Codec>& codec,
                                                   Gpu& gpu) {
  const auto makeOnGpu = rowOf(*codec).makeOnGpu;
  if (makeOnGpu == nullptr) return nullptr;
  return makeOnGpu({codec, parseCodecSpec(codec->spec()), gpu});
}

void throwBadPayload(const Codec& codec, const Key& key, const std::string& fault) {
  throw ProtocolError("bad-payload",
                      toString(key) + " cannot be decoded by " + codec.spec() + ": " + fault);
}

void checkPayloadSize(const Codec& codec, const Key& key, std::size_t bytes, std::size_t expected) {
  if (bytes == expected) return;
  throwBadPayload(
      codec, key,
      std::to_string(bytes) + " bytes arrived, but " + std::to_string(expected) + " are required");
}

void throwBadFormat(const Codec& codec, const Key& key, std::span<const std::byte> bytes,
                    const TensorSpec& spec) {
  throwBadPayload(codec, key,
                  "format " + std::to_string(std::to_integer<int>(bytes[0])) + " does not match " +
                      toString(spec));
}

}  // namespace cleave
