// `ef(CODEC)`: error feedback. The sender adds to each tensor the error that CODEC made in the
// previous tensor of the same flow and micro-batch number, so that the errors of many steps cancel
// instead of adding up (Seide et al., "1-Bit Stochastic Gradient Descent", Interspeech 2014;
// Karimireddy et al., arXiv 1901.09847).
//
//   payload = CODEC's payload of y        in evaluation, of x
//   y = x + e, clamped to the finite values of the tensor's type
//   e = y - decoded y                     0 before the first step
//
// The residual e is kept per flow and micro-batch number, by position in the tensor, in fp32. A
// tensor with fewer elements, such as those of an epoch's last batch, uses and replaces the
// beginning of e. Only the sender has a residual. State and cut context are otherwise CODEC's.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "common/codec/checkpoint_error.h"
#include "compression/codecs.h"
#include "compression/convert.h"
#include "compression/payload.h"
#include "compression/strips.h"

namespace cleave {
namespace {

struct FeedbackState {
  std::vector<float> residual;  // by position
  CodecState inner;
};

class ErrorFeedback : public Codec {
 public:
  explicit ErrorFeedback(std::unique_ptr<Codec> inner) : inner_(std::move(inner)) {}

  std::string spec() const override { return "ef(" + inner_->spec() + ")"; }

  std::size_t maxEncodedBytes(const TensorSpec& spec) const override {
    return inner_->maxEncodedBytes(spec);
  }

  CodecMemory memory(const TensorSpec& spec) const override {
    CodecMemory memory = inner_->memory(spec);
    const std::size_t floats = spec.elements() * sizeof(float);
    // The decoded y, and copies of both in the tensor's type.
    memory.working += floats + 2 * spec.bytes();
    memory.state += sizeof(FeedbackState) + floats;
    return memory;
  }

  Encoded encode(const CodecContext& context, const CodecState& state, CutContext& cut,
                 const TensorView& view, std::span<std::byte> out) const override {
    if (context.key.phase != Phase::train || view.spec.elements() == 0) {
      return inner_->encode(context, nullptr, cut, view, out);
    }
    if (!rangeOf(context, view).finite) throw NonFiniteError(context.key);
    const auto* const before = static_cast<const FeedbackState*>(state.get());
    auto after = std::make_shared<FeedbackState>();
    after->residual = sum(context, view, before);

    const CutContext cutBefore = cut;
    Encoded encoded = encodeSum(context, before != nullptr ? before->inner : nullptr, cut,
                                view.spec, after->residual, out);
    subtractDecoded(context, cutBefore, view.spec, out.first(encoded.bytes), after->residual);
    if (before != nullptr && before->residual.size() > after->residual.size()) {
      after->residual.insert(
          after->residual.end(),
          before->residual.begin() + static_cast<std::ptrdiff_t>(after->residual.size()),
          before->residual.end());
    }
    after->inner = std::move(encoded.state);
    if (after->inner == nullptr && before != nullptr) after->inner = before->inner;
    return {encoded.bytes, std::move(after)};
  }

  CodecState decode(const CodecContext& context, const CodecState&, CutContext& cut,
                    std::span<const std::byte> bytes, MutableTensorView out) const override {
    decodeInside(*this, *inner_, context, nullptr, cut, bytes, out);
    return nullptr;
  }

  // The number of residuals (u64), the residuals (f32), then CODEC's state.
  std::vector<std::byte> saveState(const CodecState& state) const override {
    const auto* const saved = static_cast<const FeedbackState*>(state.get());
    if (saved == nullptr) return {};
    const std::vector<std::byte> inner = inner_->saveState(saved->inner);
    const std::uint64_t count = saved->residual.size();
    std::vector<std::byte> bytes(sizeof count + count * sizeof(float) + inner.size());
    std::memcpy(bytes.data(), &count, sizeof count);
    std::byte* const residual = bytes.data() + sizeof count;
    std::memcpy(residual, saved->residual.data(), count * sizeof(float));
    std::copy(inner.begin(), inner.end(), residual + count * sizeof(float));
    return bytes;
  }

  CodecState restoreState(std::span<const std::byte> bytes) const override {
    std::uint64_t count = 0;
    const auto refuse = [&] {
      throw badCheckpoint("the bytes are not a state of codec " + spec());
    };
    if (bytes.size() < sizeof count) refuse();
    std::memcpy(&count, bytes.data(), sizeof count);
    const std::span<const std::byte> rest = bytes.subspan(sizeof count);
    if (count == 0 || count > rest.size() / sizeof(float)) refuse();
    auto state = std::make_shared<FeedbackState>();
    state->residual.resize(count);
    std::memcpy(state->residual.data(), rest.data(), count * sizeof(float));
    if (!allFinite(state->residual)) refuse();
    const std::span<const std::byte> inner = rest.subspan(count * sizeof(float));
    if (!inner.empty()) state->inner = inner_->restoreState(inner);
    return state;
  }

 private:
  // y
  static std::vector<float> sum(const CodecContext& context, const TensorView& view,
                                const FeedbackState* before) {
    const float max = largestOf(view.spec.dtype);
    std::vector<float> y(view.spec.elements());
    const std::size_t kept = before != nullptr ? before->residual.size() : 0;
    forEachStrip(context, FloatReader(view),
                 [&](std::size_t start, std::size_t count, const float* x) {
                   const std::size_t end = std::clamp(kept, start, start + count);
                   for (std::size_t j = start; j < end; ++j) {
                     y[j] = std::clamp(x[j - start] + before->residual[j], -max, max);
                   }
                   std::copy(x + (end - start), x + count, y.data() + end);
                 });
    return y;
  }

  Encoded encodeSum(const CodecContext& context, const CodecState& state, CutContext& cut,
                    const TensorSpec& spec, const std::vector<float>& y,
                    std::span<std::byte> out) const {
    if (spec.dtype == DType::f32) {
      return inner_->encode(context, state, cut,
                            {reinterpret_cast<const std::byte*>(y.data()), spec}, out);
    }
    std::vector<std::byte> converted(spec.bytes());
    fromFloat(y.data(), y.size(), spec.dtype, converted.data());
    return inner_->encode(context, state, cut, {converted.data(), spec}, out);
  }

  // Subtracts from y what the receiver will decode. An element that CODEC cannot represent, such as
  // one that fp16 turns into infinity, has no residual.
  void subtractDecoded(const CodecContext& context, CutContext cut, const TensorSpec& spec,
                       std::span<const std::byte> bytes, std::vector<float>& y) const {
    std::vector<std::byte> decoded(spec.bytes());
    inner_->decode(context, nullptr, cut, bytes, {decoded.data(), spec});
    forEachStrip(context, FloatReader({decoded.data(), spec}),
                 [&](std::size_t start, std::size_t count, const float* values) {
                   for (std::size_t j = 0; j < count; ++j) {
                     const float error = y[start + j] - values[j];
                     y[start + j] = std::isfinite(error) ? error : 0;
                   }
                 });
  }

  const std::unique_ptr<Codec> inner_;
};

}  // namespace

std::unique_ptr<Codec> makeErrorFeedback(const CodecSpec& spec) {
  CodecParameters parameters(spec);
  const auto inner = parameters.innerSpec();
  parameters.finish();
  return std::make_unique<ErrorFeedback>(makePlainInner(spec, inner, "ef(block:bits=4)"));
}

}  // namespace cleave
