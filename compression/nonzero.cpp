// `nonzero(CODEC)`: leaves out the features that are zero in the whole tensor, and encodes the
// others with CODEC. The features are the channels of [B, C, H, W], and the last dimension of other
// tensors.
//
//   payload = nothing                               for a tensor without elements
//           | 0x00, the tensor's own bytes          if the tensor is sent raw
//           | 0x01, CODEC's payload of the tensor   if leaving out features would not be shorter
//           | 0x02, kept, CODEC's payload of the kept features
//
// `kept` has one bit per feature, lowest first, padded with zeros. The kept features form a tensor
// of the same type and memory order, with fewer features. If none is kept, CODEC's payload is
// missing. -0 counts as zero. 0x02 is used if the bits and the maximum size of CODEC's payload are
// smaller than the maximum size without them.
//
// CODEC has neither state nor cut context, because the kept features differ from tensor to tensor.
#include <algorithm>
#include <cstdint>
#include <cstring>

#include "common/codec/raw.h"
#include "compression/codecs.h"
#include "compression/feature_layout.h"
#include "compression/packing.h"
#include "compression/payload.h"

namespace cleave {
namespace {

constexpr std::byte kWhole{1};
constexpr std::byte kKept{2};

// One byte per feature: 1 if it is kept, else 0.
using KeptFeatures = std::vector<std::uint8_t>;

// Without the sign, all bits of a zero are 0 in every type.
template <typename Word>
bool isZero(const std::byte* values, std::size_t count) {
  for (std::size_t j = 0; j < count; ++j) {
    Word bits;
    std::memcpy(&bits, values + j * sizeof bits, sizeof bits);
    if (static_cast<Word>(bits << 1) != 0) return false;
  }
  return true;
}

// Reads only those features that have been zero so far.
template <typename Word>
KeptFeatures keptIn(const std::byte* data, const FeatureLayout& layout) {
  std::vector<std::size_t> zeros(layout.features);
  for (std::size_t f = 0; f < zeros.size(); ++f) zeros[f] = f;
  for (std::size_t row = 0; row < layout.outer && !zeros.empty(); ++row) {
    std::erase_if(zeros, [&](std::size_t f) {
      const std::size_t first = (row * layout.features + f) * layout.inner;
      return !isZero<Word>(data + first * sizeof(Word), layout.inner);
    });
  }
  KeptFeatures kept(layout.features, 1);
  for (const std::size_t f : zeros) kept[f] = 0;
  return kept;
}

KeptFeatures keptIn(const std::byte* data, const FeatureLayout& layout) {
  return layout.elementBytes == sizeof(float) ? keptIn<std::uint32_t>(data, layout)
                                              : keptIn<std::uint16_t>(data, layout);
}

std::size_t countOf(const KeptFeatures& kept) {
  return static_cast<std::size_t>(std::count(kept.begin(), kept.end(), 1));
}

// Calls use(offset in the tensor, offset in the tensor of kept features, bytes) for each piece of
// memory that belongs to kept features only.
template <typename Use>
void forEachPiece(const KeptFeatures& kept, const FeatureLayout& layout, const Use& use) {
  const std::size_t featureBytes = layout.inner * layout.elementBytes;
  struct Piece {
    std::size_t first, bytes;
  };
  std::vector<Piece> pieces;  // of one row
  pieces.reserve(kept.size() / 2 + 1);
  for (std::size_t f = 0; f < kept.size(); ++f) {
    if (kept[f] == 0) continue;
    const bool isNew = f == 0 || kept[f - 1] == 0;
    if (isNew) pieces.push_back({f * featureBytes, 0});
    pieces.back().bytes += featureBytes;
  }
  std::size_t offset = 0;
  for (std::size_t row = 0; row < layout.outer; ++row) {
    for (const Piece& piece : pieces) {
      use(row * kept.size() * featureBytes + piece.first, offset, piece.bytes);
      offset += piece.bytes;
    }
  }
}

class Nonzero : public Codec {
 public:
  explicit Nonzero(std::unique_ptr<Codec> inner) : inner_(std::move(inner)) {}

  std::string spec() const override { return "nonzero(" + inner_->spec() + ")"; }

  std::size_t maxEncodedBytes(const TensorSpec& spec) const override {
    return spec.elements() == 0 ? 0 : kFormatBytes + inner_->maxEncodedBytes(spec);
  }

  CodecMemory memory(const TensorSpec& spec) const override {
    if (spec.elements() == 0) return {};
    const CodecMemory inner = inner_->memory(spec);
    // The kept features, one number per feature, and the tensor that is made from them.
    const std::size_t own =
        FeatureLayout(spec).features * (sizeof(std::uint8_t) + sizeof(std::size_t)) + spec.bytes();
    return {.working = inner.working + inner.cut + inner.state + own};
  }

  Encoded encode(const CodecContext& context, const CodecState&, CutContext&,
                 const TensorView& view, std::span<std::byte> out) const override {
    if (view.spec.elements() == 0) return {};
    const FeatureLayout layout(view.spec);
    const KeptFeatures kept = keptIn(view.data, layout);
    const TensorSpec narrow = narrowed(view.spec, layout, countOf(kept));
    if (maxKeptBytes(layout, narrow) < inner_->maxEncodedBytes(view.spec)) {
      out[0] = kKept;
      return {kFormatBytes + encodeKept(context, view, layout, kept, narrow, out.subspan(1)),
              nullptr};
    }
    out[0] = kWhole;
    return {kFormatBytes + encodeInner(context, view, out.subspan(kFormatBytes)), nullptr};
  }

  CodecState decode(const CodecContext& context, const CodecState&, CutContext&,
                    std::span<const std::byte> bytes, MutableTensorView out) const override {
    if (decodeRaw(bytes, out)) return nullptr;
    if (bytes.empty() || bytes.size() > maxEncodedBytes(out.spec)) {
      throwBadPayload(*this, context.key, "it does not match " + toString(out.spec));
    }
    const std::span<const std::byte> payload = bytes.subspan(kFormatBytes);
    if (bytes[0] == kWhole) {
      decodeInner(context, payload, out);
    } else if (bytes[0] == kKept) {
      decodeKept(context, payload, out);
    } else {
      throwBadFormat(*this, context.key, bytes, out.spec);
    }
    return nullptr;
  }

 private:
  static TensorSpec narrowed(TensorSpec spec, const FeatureLayout& layout, std::size_t features) {
    if (!spec.shape.empty()) spec.shape[layout.dimension] = static_cast<std::int64_t>(features);
    return spec;
  }

  // Maximum size of `kept` and CODEC's payload. `narrow`: the tensor of kept features.
  std::size_t maxKeptBytes(const FeatureLayout& layout, const TensorSpec& narrow) const {
    return packedBytes(layout.features, 1) + inner_->maxEncodedBytes(narrow);
  }

  std::size_t encodeInner(const CodecContext& context, const TensorView& view,
                          std::span<std::byte> out) const {
    CutContext none;
    return inner_->encode(context, nullptr, none, view, out).bytes;
  }

  std::size_t encodeKept(const CodecContext& context, const TensorView& view,
                         const FeatureLayout& layout, const KeptFeatures& kept,
                         const TensorSpec& narrow, std::span<std::byte> out) const {
    const std::size_t head = packedBytes(kept.size(), 1);
    pack(kept.data(), kept.size(), 1, out.data());
    if (narrow.elements() == 0) return head;
    std::vector<std::byte> values(narrow.bytes());
    forEachPiece(kept, layout, [&](std::size_t from, std::size_t to, std::size_t bytes) {
      std::memcpy(values.data() + to, view.data + from, bytes);
    });
    return head + encodeInner(context, {values.data(), narrow},
                              out.subspan(head, inner_->maxEncodedBytes(narrow)));
  }

  void decodeInner(const CodecContext& context, std::span<const std::byte> payload,
                   const MutableTensorView& out) const {
    CutContext none;
    decodeInside(*this, *inner_, context, nullptr, none, payload, out);
  }

  void decodeKept(const CodecContext& context, std::span<const std::byte> bytes,
                  const MutableTensorView& out) const {
    const FeatureLayout layout(out.spec);
    const std::size_t head = packedBytes(layout.features, 1);
    if (bytes.size() < head) {
      throwBadPayload(*this, context.key, "it ends within its features' bits");
    }
    KeptFeatures kept(layout.features);
    unpack(bytes.data(), kept.size(), 1, kept.data());
    if (kept.size() % 8 != 0 && (bytes[head - 1] >> (kept.size() % 8)) != std::byte{0}) {
      throwBadPayload(*this, context.key, "the padding of its features' bits is not zero");
    }
    const TensorSpec narrow = narrowed(out.spec, layout, countOf(kept));
    if (countOf(kept) == 0 && bytes.size() > head) {
      throwBadPayload(*this, context.key, "it has values, but no feature is kept");
    }
    std::vector<std::byte> values(countOf(kept) == 0 ? 0 : narrow.bytes());
    if (!values.empty()) decodeInner(context, bytes.subspan(head), {values.data(), narrow});
    std::memset(out.data, 0, out.spec.bytes());
    forEachPiece(kept, layout, [&](std::size_t to, std::size_t from, std::size_t count) {
      std::memcpy(out.data + to, values.data() + from, count);
    });
  }

  const std::unique_ptr<Codec> inner_;
};

}  // namespace

std::unique_ptr<Codec> makeNonzero(const CodecSpec& spec) {
  CodecParameters parameters(spec);
  const auto inner = parameters.innerSpec();
  parameters.finish();
  // svd sends matrices of more than a certain size raw. A tensor with fewer features could
  // therefore need more memory than the whole one, which memory() would not include.
  return std::make_unique<Nonzero>(makePlainInner(spec, inner, "nonzero(block:bits=4)", {"svd"},
                                                  "wrap another codec, such as power or block"));
}

}  // namespace cleave
