#include "common/link/tensor_codecs.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "common/codec/raw.h"

namespace cleave {

std::size_t TensorCodecOptions::maxEncodedBytes(Flow flow, const TensorSpec& tensor) const {
  const std::size_t max = codec(flow).maxEncodedBytes(tensor);
  // The codec `none` can encode every value.
  const bool maySendRaw = rawNonFinite && !codec(flow).isIdentity();
  return maySendRaw ? std::max(max, rawPayloadBytes(tensor)) : max;
}

TensorCodecs::TensorCodecs(TensorCodecOptions options, std::shared_ptr<BufferPool> pool)
    : options_(std::move(options)), pool_(std::move(pool)) {}

// ---- Codec state ----

CodecState TensorCodecs::stateOf(const Key& key) const {
  const auto found = states_.find({key.flow, key.i});
  return found == states_.end() ? nullptr : found->second;
}

std::vector<TensorCodecs::SavedState> TensorCodecs::save() const {
  std::vector<SavedState> saved;
  for (const auto& [key, state] : states_) {
    saved.push_back({key.first, key.second, options_.codec(key.first).saveState(state)});
  }
  return saved;
}

void TensorCodecs::restore(const std::vector<SavedState>& saved) {
  std::map<StateKey, CodecState> states;
  for (const SavedState& each : saved) {
    states[{each.flow, each.i}] = options_.codec(each.flow).restoreState(each.bytes);
  }
  states_ = std::move(states);
  stagedStates_.clear();
}

TensorCodecs::Cut& TensorCodecs::cutFor(const Key& key, const TensorSpec& spec) {
  const CutKey cut{key.step, key.i, key.flow.cut, key.flow.tensor};
  const auto found = cuts_.find(cut);
  if (found != cuts_.end()) return found->second;
  MemoryCharge charge(options_.account, options_.codec(key.flow).memory(spec).cut);
  return cuts_.emplace(cut, Cut{{}, std::move(charge)}).first->second;
}

// Whether the gradient will use the CutContext of its activation.
bool TensorCodecs::needsCut(const Key& key) const {
  if (key.phase != Phase::train) return false;
  const auto* codec = options_.codecs.find(gradientAt(key.flow.cut, key.flow.tensor));
  return codec != nullptr && !(*codec)->isIdentity();
}

void TensorCodecs::forgetCutAfter(const Key& key) {
  if (!isGradient(key.flow) || key.phase != Phase::train) return;
  cuts_.erase({key.step, key.i, key.flow.cut, key.flow.tensor});
}

// ---- Encoding ----

TensorCodecs::EncodedTensor TensorCodecs::encode(const Key& key, const TensorView& view) {
  const bool train = key.phase == Phase::train;
  CutContext unused;
  CutContext& cut = needsCut(key) ? cutFor(key, view.spec).context : unused;
  const CutContext cutBefore = cut;
  const CodecState state = train ? stateOf(key) : nullptr;

  EncodedTensor result;
  result.bytes = pool_->acquire(options_.maxEncodedBytes(key.flow, view.spec));
  result.begin = now();
  const Encoded encoded = encodeOrRaw(contextOf(key), state, cut, view, result.bytes.span());
  result.end = now();
  contextOf(key).checkpoint();
  result.bytes.shrink(encoded.bytes);
  if (train && encoded.state) stagedStates_[{key.flow, key.i}] = encoded.state;

  std::uint64_t& count = encoded_[key.flow];
  if (options_.errorEvery > 0 && count++ % options_.errorEvery == 0) {
    result.snrDb = measureError(contextOf(key), state, cutBefore, view, result.bytes.span());
  }
  forgetCutAfter(key);
  return result;
}

Encoded TensorCodecs::encodeOrRaw(const CodecContext& context, const CodecState& state,
                                  CutContext& cut, const TensorView& view,
                                  std::span<std::byte> out) const {
  const Flow flow = context.key.flow;
  const bool isThere = view.place == MemoryPlace::device;
  const DeviceCodec* const device = isThere ? options_.deviceCodec(flow) : nullptr;
  if (isThere && device == nullptr) {
    throw std::logic_error(toString(context.key) + " is on a device that its codec is not on");
  }
  try {
    return (device != nullptr ? *device : options_.codec(flow))
        .encode(context, state, cut, view, out);
  } catch (const NonFiniteError&) {
    if (!options_.rawNonFinite) throw;
    if (device == nullptr) return encodeRaw(view, out);
    out[0] = kRawFormat;
    device->copyToHost(view.data, view.spec.bytes(), &out[1]);
    return {rawPayloadBytes(view.spec), nullptr};
  }
}

// The signal-to-noise ratio of the tensor that the peer will decode; nullopt if there is no noise
// or the dtype is not f32.
std::optional<double> TensorCodecs::measureError(const CodecContext& context,
                                                 const CodecState& state, const CutContext& cut,
                                                 const TensorView& view,
                                                 std::span<const std::byte> encoded) const {
  if (view.spec.dtype != DType::f32) return std::nullopt;
  Buffer copy;
  TensorView original = view;
  if (view.place == MemoryPlace::device) {
    copy = pool_->acquire(view.spec.bytes());
    options_.deviceCodec(context.key.flow)->copyToHost(view.data, view.spec.bytes(), copy.data());
    original = {copy.data(), view.spec};
  }
  Buffer decoded = pool_->acquire(original.spec.bytes());
  CutContext cutCopy = cut;
  options_.codec(context.key.flow)
      .decode(context, state, cutCopy, encoded, {decoded.data(), original.spec});
  double signal = 0;
  double noise = 0;
  for (std::size_t j = 0; j < original.spec.elements(); ++j) {
    float x = 0;
    float y = 0;
    std::memcpy(&x, original.data + j * sizeof x, sizeof x);
    std::memcpy(&y, decoded.data() + j * sizeof y, sizeof y);
    const double difference = static_cast<double>(x) - static_cast<double>(y);
    signal += static_cast<double>(x) * static_cast<double>(x);
    noise += difference * difference;
  }
  if (!(noise > 0) || !(signal > 0)) return std::nullopt;
  return 10 * std::log10(signal / noise);
}

// ---- Decoding ----

TensorCodecs::DecodedTensor TensorCodecs::decode(const Key& key, std::span<const std::byte> encoded,
                                                 const TensorSpec& spec) {
  const bool train = key.phase == Phase::train;
  CutContext unused;
  CutContext& cut = needsCut(key) ? cutFor(key, spec).context : unused;
  const CodecState state = train ? stateOf(key) : nullptr;
  auto [out, payload] = roomFor(key.flow, spec);
  const DeviceCodec* const device = options_.deviceCodec(key.flow);
  const SteadyTime begin = now();
  CodecState after = (device != nullptr ? *device : options_.codec(key.flow))
                         .decode(contextOf(key), state, cut, encoded, out);
  const SteadyTime end = now();
  contextOf(key).checkpoint();
  if (train && after) stagedStates_[{key.flow, key.i}] = std::move(after);
  forgetCutAfter(key);
  return {std::move(payload), begin, end};
}

TensorCodecs::Room TensorCodecs::roomFor(Flow flow, const TensorSpec& spec) const {
  if (const DeviceCodec* const device = options_.deviceCodec(flow)) {
    std::shared_ptr<std::byte> memory = device->allocate(spec.bytes());
    std::byte* const data = memory.get();
    return {{data, spec}, Payload({data, spec, MemoryPlace::device}, std::move(memory))};
  }
  auto buffer = std::make_shared<Buffer>(pool_->acquire(spec.bytes()));
  std::byte* const data = buffer->data();
  return {{data, spec}, Payload({data, spec}, std::move(buffer))};
}

// ---- Steps ----

void TensorCodecs::commit() {
  for (auto& [key, state] : stagedStates_) states_[key] = std::move(state);
  stagedStates_.clear();
}

}  // namespace cleave
