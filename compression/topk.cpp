// `topk:ratio=R`: the k = ceil(R * n) elements of the largest magnitude, unchanged; the others
// become 0. Among equal magnitudes, the first elements in memory are kept.
// `randtopk:ratio=R,alpha=A`: in training, each of the k elements is replaced, with probability A,
// by an element that is not one of the k (Zheng et al., "Reducing communication for split learning
// by randomized top-k sparsification", arXiv 2305.18469).
//
//   payload = nothing                            for a tensor without elements
//           | 0x00, the tensor's own bytes       if values and a bitmap would not be shorter
//           | 0x01, values, bitmap               k values in the tensor's type, in memory order;
//                                                bit j % 8 of byte j / 8: element j is kept
//           | 0x02, values, distances            if they are shorter than the bitmap
//           | 0x03, values                       at the positions that the cut's activation kept
//
// A distance is the number of elements left out since the previous kept one, as LEB128: 7 bits per
// byte, lowest first, the highest bit set if more bytes follow.
//
// A gradient is sent as 0x03 if and only if its cut's activation was encoded by topk or randtopk,
// has as many elements as the gradient, and kept at most k of them. Only such a gradient is masked
// like the activation.
#include <algorithm>
#include <cassert>

#include "common/core/random.h"
#include "compression/codecs.h"
#include "compression/parts/topk_layout.h"

namespace cleave {
namespace {

template <typename Word>
void gather(const std::byte* values, const Positions& positions, std::byte* out) {
  positions.forEach([&](std::size_t j) {
    std::memcpy(out, values + j * sizeof(Word), sizeof(Word));
    out += sizeof(Word);
  });
}

// Writes the tensor. Returns whether all values are finite, that is, no value has all exponent bits
// set.
template <typename Word>
bool scatter(const std::byte* values, const Positions& positions, Word exponent, std::byte* out) {
  if (positions.elements > 0) std::memset(out, 0, positions.elements * sizeof(Word));
  unsigned faults = 0;
  positions.forEach([&](std::size_t j) {
    Word value;
    std::memcpy(&value, values, sizeof value);
    faults |= static_cast<unsigned>((value & exponent) == exponent);
    std::memcpy(out + j * sizeof value, &value, sizeof value);
    values += sizeof value;
  });
  return faults == 0;
}

bool scatterAs(DType dtype, const std::byte* values, const Positions& positions, std::byte* out) {
  switch (dtype) {
    case DType::f32:
      return scatter<std::uint32_t>(values, positions, 0x7f800000, out);
    case DType::f16:
      return scatter<std::uint16_t>(values, positions, 0x7c00, out);
    case DType::bf16:
      return scatter<std::uint16_t>(values, positions, 0x7f80, out);
    case DType::i64:
      break;
  }
  return false;
}

// Removes each element with probability `alpha`, at most `maxDropped` of them. Returns how many
// were removed.
std::size_t dropSome(Positions& positions, RandomKey key, double alpha, std::size_t maxDropped) {
  const auto limit = static_cast<std::uint64_t>(alpha * 0x1p53);
  std::uint64_t draw = 0;
  std::size_t dropped = 0;
  for (std::uint64_t& word : positions.words) {
    for (std::uint64_t rest = word; rest != 0; rest &= rest - 1) {
      if (dropped == maxDropped) return dropped;
      if (randomBits(key, draw++) >> 11 >= limit) continue;
      word &= ~(rest & -rest);
      ++dropped;
    }
  }
  return dropped;
}

// Adds `count` random elements that are not in `top`, all equally likely. Requires that many such
// elements.
void addOthers(Positions& positions, const Positions& top, RandomKey key, std::size_t count) {
  const std::size_t others = top.elements - top.kept;
  assert(count <= others);
  const auto add = [&](std::size_t j) { positions.words[j / 64] |= std::uint64_t{1} << (j % 64); };
  std::uint64_t draw = 0;
  if (others >= top.elements / 8) {
    while (count > 0) {
      const std::size_t j = randomBits(key, draw++) % top.elements;
      if (top.has(j) || positions.has(j)) continue;
      add(j);
      --count;
    }
    return;
  }
  // If few elements are left, drawing until one is found would take too long.
  std::vector<std::size_t> list;
  for (std::size_t j = 0; j < top.elements; ++j) {
    if (!top.has(j)) list.push_back(j);
  }
  for (std::size_t k = 0; k < count; ++k) {
    std::swap(list[k], list[k + randomBits(key, draw++) % (list.size() - k)]);
    add(list[k]);
  }
}

class TopK : public Codec {
 public:
  TopK(std::string name, double ratio, double alpha)
      : name_(std::move(name)), layout_(ratio), alpha_(alpha) {}

  std::string spec() const override { return name_; }

  std::size_t maxEncodedBytes(const TensorSpec& spec) const override {
    return layout_.isRaw(spec) ? rawPayloadBytes(spec) : layout_.withBitmap(spec);
  }

  CodecMemory memory(const TensorSpec& spec) const override {
    if (layout_.isRaw(spec)) return {};
    CodecMemory memory;
    memory.cut = sizeof(Positions) + spec.elements() / 8 + sizeof(std::uint64_t);
    // The magnitudes of one bin, a few position sets, and for randtopk a list that is reserved for
    // an eighth of the elements, and may grow.
    memory.working = 8 * spec.elements() + 4 * memory.cut;
    return memory;
  }

  Encoded encode(const CodecContext& context, const CodecState&, CutContext& cut,
                 const TensorView& view, std::span<std::byte> out) const override {
    const std::size_t elements = view.spec.elements();
    if (elements == 0) return {};
    if (const Positions* activations = layout_.positionsOfActivation(context.key, cut, elements)) {
      if (!rangeOf(context, view).finite) throw NonFiniteError(context.key);
      return {writeValues(TopKLayout::kActivations, *activations, view, out.data()), nullptr};
    }
    if (layout_.isRaw(view.spec)) return encodeFiniteRaw(context, view, out);
    std::optional<Positions> positions =
        largest(context, FloatReader(view), layout_.kept(elements));
    if (!positions) throw NonFiniteError(context.key);
    if (alpha_ > 0 && context.key.phase == Phase::train) replaceSome(context, *positions);
    const std::size_t valuesEnd = writeValues(TopKLayout::kBitmap, *positions, view, out.data());
    const std::size_t bitmap = positions->bitmapBytes();
    std::size_t bytes = positions->kept < bitmap
                            ? writeDistances(*positions, out.subspan(valuesEnd, bitmap - 1))
                            : 0;
    if (bytes > 0) {
      out[0] = TopKLayout::kDistances;
    } else {
      writeBitmap(*positions, out.data() + valuesEnd);
      bytes = bitmap;
    }
    assert(positions->kept == layout_.kept(elements) && valuesEnd + bytes <= out.size());
    TopKLayout::sharePositions(context.key, cut, std::move(*positions));
    return {valuesEnd + bytes, nullptr};
  }

  CodecState decode(const CodecContext& context, const CodecState&, CutContext& cut,
                    std::span<const std::byte> bytes, MutableTensorView out) const override {
    const std::size_t elements = out.spec.elements();
    if (decodeRaw(bytes, out)) return nullptr;
    const Positions* const activations = layout_.positionsOfActivation(context.key, cut, elements);
    if (bytes.empty() || elements == 0 || (activations == nullptr && layout_.isRaw(out.spec))) {
      throwBadPayload(*this, context.key, "it does not match " + toString(out.spec));
    }
    if (activations != nullptr) {
      checkPayloadSize(*this, context.key, bytes.size(),
                       TopKLayout::valuesEnd(out.spec, activations->kept));
      if (bytes[0] != TopKLayout::kActivations) throwBadFormat(*this, context.key, bytes, out.spec);
      readValues(context, *activations, bytes, out);
      return nullptr;
    }
    Positions positions = readPositions(context, bytes, out.spec);
    readValues(context, positions, bytes, out);
    TopKLayout::sharePositions(context.key, cut, std::move(positions));
    return nullptr;
  }

 private:
  void replaceSome(const CodecContext& context, Positions& positions) const {
    const Key& key = context.key;
    const auto stream = [&](std::string_view name) {
      return randomKey(context.seed, name, {key.step, key.i, flowNumber(key.flow)});
    };
    const Positions top = positions;
    const std::size_t dropped =
        dropSome(positions, stream("randtopk.drop"), alpha_, top.elements - top.kept);
    addOthers(positions, top, stream("randtopk.add"), dropped);
  }

  // Returns the number of bytes written.
  static std::size_t writeValues(std::byte format, const Positions& positions,
                                 const TensorView& view, std::byte* out) {
    out[0] = format;
    const bool wide = dtypeBytes(view.spec.dtype) == 4;
    (wide ? gather<std::uint32_t> : gather<std::uint16_t>)(view.data, positions,
                                                           out + kFormatBytes);
    return TopKLayout::valuesEnd(view.spec, positions.kept);
  }

  void readValues(const CodecContext& context, const Positions& positions,
                  std::span<const std::byte> bytes, MutableTensorView out) const {
    if (scatterAs(out.spec.dtype, bytes.data() + kFormatBytes, positions, out.data)) return;
    throwBadPayload(*this, context.key, "a value is not finite");
  }

  Positions readPositions(const CodecContext& context, std::span<const std::byte> bytes,
                          const TensorSpec& spec) const {
    const std::size_t elements = spec.elements();
    const std::size_t count = layout_.kept(elements);
    const std::size_t end = TopKLayout::valuesEnd(spec, count);
    if (bytes.size() <= end || bytes.size() > layout_.withBitmap(spec)) {
      checkPayloadSize(*this, context.key, bytes.size(), layout_.withBitmap(spec));
    }
    std::optional<Positions> positions;
    if (bytes[0] == TopKLayout::kDistances) {
      positions = readDistances(bytes.subspan(end), elements, count);
    } else {
      if (bytes[0] != TopKLayout::kBitmap) throwBadFormat(*this, context.key, bytes, spec);
      checkPayloadSize(*this, context.key, bytes.size(), layout_.withBitmap(spec));
      positions = readBitmap(bytes.data() + end, elements, count);
    }
    if (positions) return std::move(*positions);
    throwBadPayload(*this, context.key,
                    "its positions do not select " + std::to_string(count) + " of " +
                        std::to_string(elements) + " elements");
  }

  const std::string name_;
  const TopKLayout layout_;
  const double alpha_;  // 0: topk
};

}  // namespace

double topKRatio(const CodecSpec& spec) {
  CodecParameters parameters(spec);
  const double ratio = parameters.number("ratio", TopKLayout::kMinRatio, 1);
  parameters.finish();
  return ratio;
}

std::unique_ptr<Codec> makeTopK(const CodecSpec& spec) {
  const double ratio = topKRatio(spec);
  return std::make_unique<TopK>("topk:ratio=" + shortestText(ratio), ratio, 0);
}

std::unique_ptr<Codec> makeRandTopK(const CodecSpec& spec) {
  CodecParameters parameters(spec);
  const double ratio = parameters.number("ratio", TopKLayout::kMinRatio, 1);
  const double alpha = parameters.number("alpha", 0, 1);
  parameters.finish();
  return std::make_unique<TopK>(
      "randtopk:ratio=" + shortestText(ratio) + ",alpha=" + shortestText(alpha), ratio, alpha);
}

}  // namespace cleave
