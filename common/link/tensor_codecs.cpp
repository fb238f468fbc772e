#include "common/link/tensor_codecs.h"

#include <algorithm>
#include <cassert>
#include <stdexcept>
#include <utility>

#include "common/codec/device_codec.h"
#include "common/codec/raw.h"
#include "common/codec/snr.h"

namespace cleave {

std::size_t TensorCodecOptions::maxEncodedBytes(Flow flow, const TensorSpec& tensor,
                                                CodecLevel level) const {
  const Codec& used = codec(flow, level);
  const std::size_t max = used.maxEncodedBytes(tensor);
  // The codec `none` can encode every value.
  const bool maySendRaw =
      (rawNonFinite && !used.isIdentity()) || (level == CodecLevel::raw && hasLevels(flow));
  return maySendRaw ? std::max(max, rawPayloadBytes(tensor)) : max;
}

TensorCodecs::TensorCodecs(TensorCodecOptions options, std::shared_ptr<BufferPool> pool)
    : options_(std::move(options)), pool_(std::move(pool)) {}

// ---- Codec state ----

CodecState TensorCodecs::stateOf(const How& how) const {
  if (!how.mayHaveState()) return nullptr;
  const auto found = states_.find({how.key.flow, how.key.i});
  return found == states_.end() ? nullptr : found->second;
}

std::vector<TensorCodecs::SavedState> TensorCodecs::save(std::uint64_t since) const {
  std::vector<SavedState> saved;
  for (const auto& [key, state] : states_) {
    saved.push_back({key.first, key.second, options_.codec(key.first).saveState(state)});
  }
  for (const auto& [flow, cache] : caches_) {
    HeldBytes rows = cache.save(since);
    if (!rows.empty()) saved.push_back({flow, 0, std::move(rows), true});
  }
  return saved;
}

void TensorCodecs::restore(const std::vector<SavedState>& saved) {
  std::map<StateKey, CodecState> states;
  std::map<Flow, SampleCache> caches;
  for (const SavedState& each : saved) {
    const Codec& codec = options_.codec(each.flow);
    if (codec.keepsSamples()) {
      caches.try_emplace(each.flow, options_.trainSamples, options_.samplesFolder)
          .first->second.restore(each.bytes.span());
    } else {
      states[{each.flow, each.i}] = codec.restoreState(each.bytes.span());
    }
  }
  states_ = std::move(states);
  caches_ = std::move(caches);
  stagedStates_.clear();
  stagedRows_.clear();
}

// ---- Samples ----

void TensorCodecs::addSamples(std::uint64_t step, std::span<const std::uint32_t> numbers) {
  std::vector<std::uint32_t>& all = samples_[step];
  all.insert(all.end(), numbers.begin(), numbers.end());
}

// The history of a tensor's samples; nullopt if its codec does not use it.
std::optional<SampleHistory> TensorCodecs::historyOf(const How& how, const TensorSpec& spec) {
  const Key& key = how.key;
  if (!how.mayHaveState() || !options_.codec(key.flow).keepsSamples()) return std::nullopt;
  replaceRows(key.step);
  const std::span<const std::uint32_t> batch = samples_[key.step];
  const Division division =
      Division::of(static_cast<std::uint32_t>(batch.size()), options_.microBatches);
  const std::uint32_t size = key.i < division.count ? division.size(key.i) : 0;
  if (size == 0 || spec.shape.empty() || spec.shape.front() != std::int64_t{size}) {
    throw ProtocolError("bad-key", toString(key) + " is " + toString(spec) +
                                       ", but the batch has the numbers of " +
                                       std::to_string(division.samples) + " samples");
  }
  const auto cache =
      caches_.try_emplace(key.flow, options_.trainSamples, options_.samplesFolder).first;
  return SampleHistory{batch.subspan(division.offset(key.i), size), cache->second};
}

void TensorCodecs::stageRows(const Key& key, std::optional<SampleHistory>&& history) {
  if (!history || history->decoded.empty()) return;
  stagedRows_[{key.step, key.flow, key.i}] = {{history->numbers.begin(), history->numbers.end()},
                                              std::move(history->decoded)};
}

// Moves the rows of all steps before this one to the caches. All tensors of a step are encoded and
// decoded with the caches as they were before it, in any order of micro-batches.
void TensorCodecs::replaceRows(std::uint64_t before) {
  while (!stagedRows_.empty() && std::get<0>(stagedRows_.begin()->first) < before) {
    const auto& [key, rows] = *stagedRows_.begin();
    const auto& [step, flow, i] = key;
    assert(!rows.numbers.empty() && rows.values.size() % rows.numbers.size() == 0);
    SampleCache& cache = caches_.at(flow);
    const std::size_t elements = rows.values.size() / rows.numbers.size();
    for (std::size_t row = 0; row < rows.numbers.size(); ++row) {
      cache.replace(rows.numbers[row], std::span(rows.values).subspan(row * elements, elements),
                    step);
    }
    stagedRows_.erase(stagedRows_.begin());
  }
}

TensorCodecs::Cut& TensorCodecs::cutFor(const Key& key, const TensorSpec& spec) {
  const CutKey cut{key.step, key.i, key.flow.cut, key.flow.tensor};
  const auto found = cuts_.find(cut);
  if (found != cuts_.end()) return found->second;
  MemoryCharge charge(options_.account, options_.codec(key.flow).memory(spec).cut);
  return cuts_.emplace(cut, Cut{{}, std::move(charge)}).first->second;
}

// Whether the gradient will use the CutContext of its activation.
bool TensorCodecs::needsCut(const How& how) const {
  if (!how.mayHaveState()) return false;
  const Flow flow = how.key.flow;
  const auto* codec = options_.codecs.find(gradientAt(flow.cut, flow.tensor));
  return codec != nullptr && !codec->own->isIdentity();
}

void TensorCodecs::forgetCutAfter(const Key& key) {
  if (!isGradient(key.flow) || key.phase != Phase::train) return;
  cuts_.erase({key.step, key.i, key.flow.cut, key.flow.tensor});
}

// ---- Encoding ----

TensorCodecs::EncodedTensor TensorCodecs::encode(const Key& key, const TensorView& view,
                                                 CodecLevel level) {
  const How how{key, level};
  CutContext unused;
  CutContext& cut = needsCut(how) ? cutFor(key, view.spec).context : unused;
  const CutContext cutBefore = cut;
  const CodecState state = stateOf(how);
  std::optional<SampleHistory> history = historyOf(how, view.spec);
  const CodecContext context = contextOf(key, history);

  EncodedTensor result;
  result.bytes = pool_->acquire(options_.maxEncodedBytes(key.flow, view.spec, level));
  result.begin = now();
  const Encoded encoded = encodeOrRaw(level, context, state, cut, view, result.bytes.span());
  result.end = now();
  context.checkpoint();
  assert(encoded.bytes <= result.bytes.size());
  result.bytes.shrink(encoded.bytes);
  if (how.mayHaveState() && encoded.state) stagedStates_[{key.flow, key.i}] = encoded.state;

  const bool hasSnr = isMeasured(how) || options_.isWatched(key);
  if ((hasSnr && view.spec.dtype == DType::f32) || options_.isObserved(key)) {
    std::optional<SampleHistory> historyBefore = history;
    const Buffer decoded = decodeSent(how, contextOf(key, historyBefore), state, cutBefore,
                                      view.spec, result.bytes.span());
    if (hasSnr && view.spec.dtype == DType::f32) {
      Buffer copy;
      result.snrDb = snrDb(inHostMemory(how, view, copy), decoded.data());
    }
    observe(how, {decoded.data(), view.spec});
  }
  stageRows(key, std::move(history));
  forgetCutAfter(key);
  return result;
}

// Whether this tensor is one of those of metrics.error_every.
bool TensorCodecs::isMeasured(const How& how) {
  return options_.errorEvery > 0 && encoded_[how.key.flow]++ % options_.errorEvery == 0;
}

Encoded TensorCodecs::encodeOrRaw(CodecLevel level, const CodecContext& context,
                                  const CodecState& state, CutContext& cut, const TensorView& view,
                                  std::span<std::byte> out) const {
  const Flow flow = context.key.flow;
  const bool isThere = view.place == MemoryPlace::device;
  const DeviceCodec* const device = isThere ? options_.deviceCodec(flow, level) : nullptr;
  if (isThere && device == nullptr) {
    throw std::logic_error(toString(context.key) + " is on a device that its codec is not on");
  }
  if (level == CodecLevel::raw && options_.hasLevels(flow)) return encodeRawFrom(device, view, out);
  try {
    return (device != nullptr ? *device : options_.codec(flow, level))
        .encode(context, state, cut, view, out);
  } catch (const NonFiniteError&) {
    if (!options_.rawNonFinite) throw;
    return encodeRawFrom(device, view, out);
  }
}

// `device`: null if the tensor is in host memory.
Encoded TensorCodecs::encodeRawFrom(const DeviceCodec* device, const TensorView& view,
                                    std::span<std::byte> out) const {
  if (device == nullptr || view.spec.elements() == 0) return encodeRaw(view, out);
  out[0] = kRawFormat;
  device->copyToHost(view.data, view.spec.bytes(), &out[1]);
  return {rawPayloadBytes(view.spec), nullptr};
}

// The tensor that the peer will decode, in host memory.
Buffer TensorCodecs::decodeSent(const How& how, const CodecContext& context,
                                const CodecState& state, const CutContext& cut,
                                const TensorSpec& spec, std::span<const std::byte> encoded) const {
  Buffer decoded = pool_->acquire(spec.bytes());
  CutContext cutCopy = cut;
  options_.codec(how.key.flow, how.level)
      .decode(context, state, cutCopy, encoded, {decoded.data(), spec});
  return decoded;
}

// `copy`: receives the tensor if it is on the device.
TensorView TensorCodecs::inHostMemory(const How& how, const TensorView& view, Buffer& copy) const {
  if (view.place != MemoryPlace::device) return view;
  copy = pool_->acquire(view.spec.bytes());
  options_.deviceCodec(how.key.flow, how.level)
      ->copyToHost(view.data, view.spec.bytes(), copy.data());
  return {copy.data(), view.spec};
}

void TensorCodecOptions::observe(const Key& key, CodecLevel level, const TensorView& tensor) const {
  for (TrafficObserver* const each : observers) {
    if (each->wants(key)) each->crossed(key, codec(key.flow, level).spec(), level, tensor);
  }
}

void TensorCodecs::observe(const How& how, const TensorView& view) const {
  if (!options_.isObserved(how.key)) return;
  Buffer copy;
  options_.observe(how.key, how.level, inHostMemory(how, view, copy));
}

// ---- Decoding ----

TensorCodecs::DecodedTensor TensorCodecs::decode(const Key& key, std::span<const std::byte> encoded,
                                                 const TensorSpec& spec, CodecLevel level) {
  const How how{key, level};
  CutContext unused;
  CutContext& cut = needsCut(how) ? cutFor(key, spec).context : unused;
  const CodecState state = stateOf(how);
  std::optional<SampleHistory> history = historyOf(how, spec);
  const CodecContext context = contextOf(key, history);
  auto [out, payload] = roomFor(key.flow, spec);
  const DeviceCodec* const device = options_.deviceCodec(key.flow, level);
  const SteadyTime begin = now();
  CodecState after = (device != nullptr ? *device : options_.codec(key.flow, level))
                         .decode(context, state, cut, encoded, out);
  const SteadyTime end = now();
  context.checkpoint();
  if (how.mayHaveState() && after) stagedStates_[{key.flow, key.i}] = std::move(after);
  stageRows(key, std::move(history));
  forgetCutAfter(key);
  observe(how, payload.view());
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

void TensorCodecs::commit(std::uint64_t step) {
  for (auto& [key, state] : stagedStates_) states_[key] = std::move(state);
  stagedStates_.clear();
  replaceRows(step + 1);
  samples_.erase(samples_.begin(), samples_.upper_bound(step));
}

}  // namespace cleave
