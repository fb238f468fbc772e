// `channels(CODEC)`: encodes the tensor with the values of each feature next to each other, so that
// a block of CODEC has values of one feature only. The features are the channels of [B, C, H, W],
// and the last dimension of other tensors.
//
//   payload = nothing                               for a tensor without elements
//           | 0x00, the tensor's own bytes          if the tensor is sent raw
//           | 0x01, CODEC's payload of the tensor [features, values of a feature]
//
// The values of a feature are in the order of the tensor's memory. CODEC has neither state nor cut
// context.
#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>
#include <vector>

#include "common/codec/raw.h"
#include "compression/codecs.h"
#include "compression/parts/payload.h"

namespace cleave {
namespace {

constexpr std::byte kReordered{1};

// A tensor's memory as [outer, features, inner].
struct FeatureLayout {
  explicit FeatureLayout(const TensorSpec& spec) : elementBytes(dtypeBytes(spec.dtype)) {
    if (spec.shape.empty()) return;
    const bool areChannels = spec.shape.size() == 4;
    features = static_cast<std::size_t>(areChannels ? spec.shape[1] : spec.shape.back());
    if (areChannels && spec.order == MemoryOrder::contiguous) {
      inner = static_cast<std::size_t>(spec.shape[2] * spec.shape[3]);
    }
    outer = spec.elements() / features / inner;
  }

  std::size_t outer = 1, features = 1, inner = 1;
  std::size_t elementBytes;
};

// [rows, columns] -> [columns, rows], in tiles that fit into the cache.
template <std::size_t kBytes>
void transpose(const std::byte* in, std::size_t rows, std::size_t columns, std::byte* out) {
  constexpr std::size_t kTile = 32;
  for (std::size_t top = 0; top < rows; top += kTile) {
    const std::size_t bottom = std::min(top + kTile, rows);
    for (std::size_t left = 0; left < columns; left += kTile) {
      const std::size_t right = std::min(left + kTile, columns);
      for (std::size_t column = left; column < right; ++column) {
        for (std::size_t row = top; row < bottom; ++row) {
          std::memcpy(out + (column * rows + row) * kBytes, in + (row * columns + column) * kBytes,
                      kBytes);
        }
      }
    }
  }
}

// [rows, columns, inner] -> [columns, rows, inner], of elements of this size.
void swapDimensions(const std::byte* in, std::size_t rows, std::size_t columns, std::size_t inner,
                    std::size_t elementBytes, std::byte* out) {
  const std::size_t bytes = inner * elementBytes;
  if (bytes == 4) return transpose<4>(in, rows, columns, out);
  if (bytes == 2) return transpose<2>(in, rows, columns, out);
  for (std::size_t row = 0; row < rows; ++row) {
    for (std::size_t column = 0; column < columns; ++column) {
      std::memcpy(out + (column * rows + row) * bytes, in + (row * columns + column) * bytes,
                  bytes);
    }
  }
}

class Channels : public Codec {
 public:
  explicit Channels(std::unique_ptr<Codec> inner) : inner_(std::move(inner)) {}

  std::string spec() const override { return "channels(" + inner_->spec() + ")"; }

  std::size_t maxEncodedBytes(const TensorSpec& spec) const override {
    return spec.elements() == 0 ? 0 : kFormatBytes + inner_->maxEncodedBytes(reordered(spec));
  }

  CodecMemory memory(const TensorSpec& spec) const override {
    if (spec.elements() == 0) return {};
    const CodecMemory inner = inner_->memory(reordered(spec));
    return {.working = inner.working + inner.cut + inner.state + spec.bytes()};
  }

  Encoded encode(const CodecContext& context, const CodecState&, CutContext&,
                 const TensorView& view, std::span<std::byte> out) const override {
    if (view.spec.elements() == 0) return {};
    const FeatureLayout layout(view.spec);
    const TensorSpec spec = reordered(view.spec);
    std::vector<std::byte> values(spec.bytes());
    swapDimensions(view.data, layout.outer, layout.features, layout.inner, layout.elementBytes,
                   values.data());
    context.checkpoint();
    out[0] = kReordered;
    CutContext none;
    const Encoded encoded =
        inner_->encode(context, nullptr, none, {values.data(), spec}, out.subspan(kFormatBytes));
    return {kFormatBytes + encoded.bytes, nullptr};
  }

  CodecState decode(const CodecContext& context, const CodecState&, CutContext&,
                    std::span<const std::byte> bytes, MutableTensorView out) const override {
    if (decodeRaw(bytes, out)) return nullptr;
    if (bytes.empty() || bytes.size() > maxEncodedBytes(out.spec)) {
      throwBadPayload(*this, context.key, "it does not match " + toString(out.spec));
    }
    if (bytes[0] != kReordered) throwBadFormat(*this, context.key, bytes, out.spec);
    const FeatureLayout layout(out.spec);
    const TensorSpec spec = reordered(out.spec);
    std::vector<std::byte> values(spec.bytes());
    CutContext none;
    decodeInside(*this, *inner_, context, nullptr, none, bytes.subspan(kFormatBytes),
                 {values.data(), spec});
    swapDimensions(values.data(), layout.features, layout.outer, layout.inner, layout.elementBytes,
                   out.data);
    return nullptr;
  }

 private:
  static TensorSpec reordered(const TensorSpec& spec) {
    const FeatureLayout layout(spec);
    return {.dtype = spec.dtype,
            .shape = {static_cast<std::int64_t>(layout.features),
                      static_cast<std::int64_t>(layout.outer * layout.inner)}};
  }

  const std::unique_ptr<Codec> inner_;
};

}  // namespace

std::unique_ptr<Codec> makeChannels(const CodecSpec& spec) {
  CodecParameters parameters(spec);
  parameters.mayWrap();
  parameters.finish();
  // These encode each sample, and the reordered tensor has no samples.
  static constexpr std::array<std::string_view, 3> kOfSamples{"power", "svd", "fast"};
  for (const CodecSpec* each = spec.inner.get(); each != nullptr; each = each->inner.get()) {
    if (std::ranges::count(kOfSamples, each->name) == 0) continue;
    throw UsageError("bad-codec-spec", "codec channels cannot wrap " + each->name,
                     "wrap another codec, such as adaptive or block");
  }
  return std::make_unique<Channels>(makePlainInner(spec, "channels(adaptive:bits=4)"));
}

}  // namespace cleave
