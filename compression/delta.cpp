// `delta:first_bits=8,skip=0(CODEC)`: sends how much each sample has changed since the last epoch
// (Wang et al., "Fine-tuning Language Models over Slow Networks using Activation Compression with
// Guarantees", AQ-SGD, arXiv 2206.01299).
//
//   payload = nothing                          for a tensor without elements
//           | 0x00, the tensor's own bytes     if the tensor is sent raw
//           | 0x01, FIRST's payload of x       unless all rows are in the cache
//           | 0x02, CODEC's payload of x - m
//           | 0x02, sent, CODEC's payload of the sent rows of x - m        if skip > 0
//
// x has one row per sample, its first dimension; m[sample] is what the receiver last decoded of the
// sample. FIRST is block:bits=first_bits. x - m is an fp32 tensor of x's shape and memory order,
// clamped to finite values. `sent` has one bit per row, lowest first, padded with zeros. A row is
// not sent if |x - m| <= skip * |x| (Euclidean norms); if no row is sent, CODEC's payload is
// missing. The receiver's tensor is
//
//   x' = m + decoded change      clamped to the finite values of the tensor's type; rows that are
//                                not sent: m
//
// and becomes the new m on both sides when the step is complete. Tensors that are sent raw leave m
// unchanged. Evaluation has no cache, so FIRST encodes its tensors. CODEC has neither state nor cut
// context: the positions of large changes do not predict those of large gradients.
#include <algorithm>

#include "compression/codecs.h"
#include "compression/parts/convert.h"
#include "compression/parts/packing.h"
#include "compression/parts/payload.h"
#include "compression/parts/strips.h"
#include "compression/registry.h"

namespace cleave {
namespace {

constexpr std::byte kFirst{1};
constexpr std::byte kChange{2};

std::size_t rowsOf(const TensorSpec& spec) {
  return spec.shape.empty() ? 1 : static_cast<std::size_t>(spec.shape.front());
}

class Delta : public Codec {
 public:
  Delta(int firstBits, double skip, std::unique_ptr<Codec> inner)
      : name_("delta:first_bits=" + std::to_string(firstBits) + ",skip=" + shortestText(skip) +
              "(" + inner->spec() + ")"),
        skip_(skip),
        first_(makeCodec("block:bits=" + std::to_string(firstBits))),
        inner_(std::move(inner)) {}

  std::string spec() const override { return name_; }
  bool keepsSamples() const override { return true; }

  std::size_t maxEncodedBytes(const TensorSpec& spec) const override {
    if (spec.elements() == 0) return 0;
    const std::size_t changes =
        sentBytes(rowsOf(spec)) + inner_->maxEncodedBytes(changeSpec(spec, rowsOf(spec)));
    return kFormatBytes + std::max(first_->maxEncodedBytes(spec), changes);
  }

  CodecMemory memory(const TensorSpec& spec) const override {
    const TensorSpec change = changeSpec(spec, rowsOf(spec));
    CodecMemory memory;
    // The change, and its decoded form.
    memory.working = 2 * change.bytes() + rowsOf(spec) +
                     std::max(first_->memory(spec).working, inner_->memory(change).working);
    memory.state = change.bytes();  // SampleHistory::decoded, until the step is complete
    if (spec.elements() > 0) {
      memory.perSample = SampleCache::bytesPerSample(spec.elements() / rowsOf(spec));
    }
    return memory;
  }

  Encoded encode(const CodecContext& context, const CodecState&, CutContext&,
                 const TensorView& view, std::span<std::byte> out) const override {
    if (view.spec.elements() == 0) return {};
    if (!rangeOf(context, view).finite) throw NonFiniteError(context.key);
    const bool changes = isCached(context, view.spec);
    out[0] = changes ? kChange : kFirst;
    const std::span<std::byte> payload = out.subspan(kFormatBytes);
    const std::size_t bytes =
        changes ? encodeChange(context, view, payload) : encodeFirst(context, view, payload);
    return {kFormatBytes + bytes, nullptr};
  }

  CodecState decode(const CodecContext& context, const CodecState&, CutContext&,
                    std::span<const std::byte> bytes, MutableTensorView out) const override {
    if (decodeRaw(bytes, out)) return nullptr;
    if (bytes.empty()) {
      throwBadPayload(*this, context.key, "it does not match " + toString(out.spec));
    }
    const bool changes = isCached(context, out.spec);
    if (bytes[0] != (changes ? kChange : kFirst)) {
      throwBadFormat(*this, context.key, bytes, out.spec);
    }
    if (changes) {
      decodeChange(context, bytes.subspan(kFormatBytes), out);
    } else {
      decodeFirst(context, bytes.subspan(kFormatBytes), out);
    }
    return nullptr;
  }

 private:
  // ---- Rows ----

  static TensorSpec changeSpec(TensorSpec spec, std::size_t rows) {
    spec.dtype = DType::f32;
    if (!spec.shape.empty()) spec.shape.front() = static_cast<std::int64_t>(rows);
    return spec;
  }
  std::size_t sentBytes(std::size_t rows) const { return skip_ > 0 ? packedBytes(rows, 1) : 0; }

  // Whether all rows have been decoded before.
  static bool isCached(const CodecContext& context, const TensorSpec& spec) {
    if (context.history == nullptr) return false;
    const std::size_t elements = spec.elements() / rowsOf(spec);
    const auto& numbers = context.history->numbers;
    return std::all_of(numbers.begin(), numbers.end(), [&](std::uint32_t number) {
      return context.history->cache.row(number).size() == elements;
    });
  }

  // ---- The first time ----

  std::size_t encodeFirst(const CodecContext& context, const TensorView& view,
                          std::span<std::byte> out) const {
    CutContext none;
    const std::size_t bytes = first_->encode(context, nullptr, none, view, out).bytes;
    if (context.history != nullptr) {
      std::vector<std::byte> decoded(view.spec.bytes());
      decodeFirst(context, out.first(bytes), {decoded.data(), view.spec});
    }
    return bytes;
  }

  void decodeFirst(const CodecContext& context, std::span<const std::byte> bytes,
                   const MutableTensorView& out) const {
    decodeBy(*first_, context, bytes, out);
    if (context.history == nullptr) return;
    std::vector<float>& decoded = context.history->decoded;
    decoded.resize(out.spec.elements());
    toFloat(out.data, out.spec.dtype, decoded.size(), decoded.data());
  }

  // ---- Changes ----

  std::size_t encodeChange(const CodecContext& context, const TensorView& view,
                           std::span<std::byte> out) const {
    const SampleHistory& history = *context.history;
    const std::size_t rows = history.numbers.size();
    const std::size_t elements = view.spec.elements() / rows;
    const FloatReader values(view);
    std::vector<float> scratch(values.isInPlace() ? 0 : elements);
    std::vector<float> change(rows * elements);
    std::vector<std::uint8_t> sent(rows, 1);
    std::size_t count = 0;  // of rows that are sent
    for (std::size_t row = 0; row < rows; ++row) {
      context.checkpoint();
      const float* const x = values.read(row * elements, elements, scratch.data());
      float* const to = &change[count * elements];
      sent[row] = subtract(x, history.cache.row(history.numbers[row]), to) ? 1 : 0;
      count += sent[row];
    }
    change.resize(count * elements);
    const std::size_t head = sentBytes(rows);
    if (head > 0) pack(sent.data(), rows, 1, out.data());
    const TensorSpec spec = changeSpec(view.spec, count);
    std::size_t bytes = 0;
    if (count > 0) {
      CutContext none;
      const TensorView changes{reinterpret_cast<const std::byte*>(change.data()), spec};
      bytes = inner_
                  ->encode(context, nullptr, none, changes,
                           out.subspan(head, inner_->maxEncodedBytes(spec)))
                  .bytes;
    }
    if (!addChanges(context, sent, out.subspan(head, bytes), view.spec)) {
      throw NonFiniteError(context.key);
    }
    return head + bytes;
  }

  // Writes x - m. Returns whether the row must be sent.
  bool subtract(const float* x, std::span<const float> m, float* out) const {
    const float max = largestOf(DType::f32);
    double changed = 0;
    double norm = 0;
    for (std::size_t j = 0; j < m.size(); ++j) {
      out[j] = std::clamp(x[j] - m[j], -max, max);
      changed += double{out[j]} * double{out[j]};
      norm += double{x[j]} * double{x[j]};
    }
    return skip_ == 0 || changed > skip_ * skip_ * norm;
  }

  void decodeChange(const CodecContext& context, std::span<const std::byte> bytes,
                    const MutableTensorView& out) const {
    const std::size_t rows = context.history->numbers.size();
    const std::size_t head = sentBytes(rows);
    if (bytes.size() < head) throwBadPayload(*this, context.key, "it ends within its rows' bits");
    std::vector<std::uint8_t> sent(rows, 1);
    if (head > 0) {
      unpack(bytes.data(), rows, 1, sent.data());
      if (rows % 8 != 0 && (bytes[head - 1] >> (rows % 8)) != std::byte{0}) {
        throwBadPayload(*this, context.key, "the padding of its rows' bits is not zero");
      }
    }
    if (!addChanges(context, sent, bytes.subspan(head), out.spec)) {
      throwBadPayload(*this, context.key, "a change is not finite");
    }
    const std::vector<float>& decoded = context.history->decoded;
    fromFloat(decoded.data(), decoded.size(), out.spec.dtype, out.data);
  }

  // Sets SampleHistory::decoded to m + the decoded changes, rounded to the tensor's type. Returns
  // whether all changes are finite; if not, `decoded` is empty.
  bool addChanges(const CodecContext& context, const std::vector<std::uint8_t>& sent,
                  std::span<const std::byte> payload, const TensorSpec& spec) const {
    SampleHistory& history = *context.history;
    history.decoded.clear();
    const std::size_t rows = sent.size();
    const std::size_t elements = spec.elements() / rows;
    const auto count = static_cast<std::size_t>(std::count(sent.begin(), sent.end(), 1));
    std::vector<float> changes(count * elements);
    if (count > 0) {
      decodeBy(*inner_, context, payload,
               {reinterpret_cast<std::byte*>(changes.data()), changeSpec(spec, count)});
    } else if (!payload.empty()) {
      throwBadPayload(*this, context.key, "it has changes, but no row is sent");
    }
    if (!allFinite(changes)) return false;

    const float max = largestOf(spec.dtype);
    history.decoded.resize(rows * elements);
    const float* change = changes.data();
    for (std::size_t row = 0; row < rows; ++row) {
      const std::span<const float> m = history.cache.row(history.numbers[row]);
      float* const to = &history.decoded[row * elements];
      if (sent[row] == 0) {
        std::copy(m.begin(), m.end(), to);
        continue;
      }
      for (std::size_t j = 0; j < elements; ++j) to[j] = std::clamp(m[j] + change[j], -max, max);
      change += elements;
    }
    roundTo(spec.dtype, history.decoded);
    return true;
  }

  void decodeBy(const Codec& codec, const CodecContext& context, std::span<const std::byte> bytes,
                const MutableTensorView& out) const {
    CutContext none;
    decodeInside(*this, codec, context, nullptr, none, bytes, out);
  }

  const std::string name_;
  const double skip_;
  const std::unique_ptr<Codec> first_;
  const std::unique_ptr<Codec> inner_;
};

}  // namespace

std::unique_ptr<Codec> makeDelta(const CodecSpec& spec) {
  CodecParameters parameters(spec);
  const int firstBits = parameters.integer("first_bits", 1, 8, 8);
  const double skip = parameters.number("skip", 0, 1, 0);
  parameters.mayWrap();
  parameters.finish();
  return std::make_unique<Delta>(firstBits, skip, makePlainInner(spec, "delta(block:bits=4)"));
}

}  // namespace cleave
