#include <algorithm>
#include <cmath>
#include <optional>

#include "common/codec/spec.h"
#include "compression/device/twin.h"
#include "compression/payload.h"
#include "compression/positions.h"

namespace cleave {
namespace {

using device::TopKState;

constexpr std::byte kBitmap{1};
constexpr std::byte kDistances{2};
constexpr std::byte kActivations{3};
constexpr double kLeastRatio = 1e-6;

bool isGradient(Flow flow) { return flow == Flow::gradient0 || flow == Flow::gradient1; }

// The distances between positions are written and read on the host: 1 byte for each element kept,
// most of the time, and one after the other.
class TopKTwin : public Twin {
 public:
  TopKTwin(std::shared_ptr<const Codec> codec, Gpu& gpu, double ratio)
      : Twin(std::move(codec), gpu), ratio_(ratio) {}

  Encoded encode(const CodecContext& context, const CodecState& state, CutContext& cut,
                 const TensorView& view, std::span<std::byte> out) const override {
    if (!isOrdinary(view.spec, view.data)) return encodeOnHost(context, state, cut, view, out);
    if (const Positions* activations = positionsOfActivation(context.key, cut, view.spec)) {
      encodeAt(context, *activations, view, out);
      return {valuesEnd(view.spec, activations->kept), nullptr};
    }
    if (isRaw(view.spec)) return encodeOnHost(context, state, cut, view, out);
    Positions positions = encodeLargest(context, view, out);
    const std::size_t end = valuesEnd(view.spec, positions.kept);
    const std::size_t bitmap = positions.bitmapBytes();
    std::size_t bytes =
        positions.kept < bitmap ? writeDistances(positions, out.subspan(end, bitmap - 1)) : 0;
    out[0] = bytes > 0 ? kDistances : kBitmap;
    if (bytes == 0) {
      writeBitmap(positions, out.data() + end);
      bytes = bitmap;
    }
    leave(context.key, cut, std::move(positions));
    return {end + bytes, nullptr};
  }

  CodecState decode(const CodecContext& context, const CodecState& state, CutContext& cut,
                    std::span<const std::byte> bytes, MutableTensorView out) const override {
    const auto byCodec = [&] { return decodeOnHost(context, state, cut, bytes, out); };
    if (!isOrdinary(out.spec, out.data) || bytes.empty()) return byCodec();
    if (const Positions* activations = positionsOfActivation(context.key, cut, out.spec)) {
      const bool due =
          bytes[0] == kActivations && bytes.size() == valuesEnd(out.spec, activations->kept);
      if (!due || !decodeAt(*activations, bytes, out)) return byCodec();
      return nullptr;
    }
    std::optional<Positions> positions = readPositions(bytes, out.spec);
    if (!positions || !decodeAt(*positions, bytes, out)) return byCodec();
    leave(context.key, cut, std::move(*positions));
    return nullptr;
  }

 private:
  // ---- What topk.cpp says of sizes and of the cut's positions ----

  std::size_t kept(const TensorSpec& spec) const {
    const std::size_t elements = spec.elements();
    const auto count = static_cast<std::size_t>(std::ceil(ratio_ * static_cast<double>(elements)));
    return std::clamp<std::size_t>(count, 1, elements);
  }
  static std::size_t valuesEnd(const TensorSpec& spec, std::size_t count) {
    return kFormatBytes + count * dtypeBytes(spec.dtype);
  }
  std::size_t withBitmap(const TensorSpec& spec) const {
    return valuesEnd(spec, kept(spec)) + (spec.elements() + 7) / 8;
  }
  bool isRaw(const TensorSpec& spec) const {
    return withBitmap(spec) >= kFormatBytes + spec.bytes();
  }
  const Positions* positionsOfActivation(const Key& key, const CutContext& cut,
                                         const TensorSpec& spec) const {
    if (!isGradient(key.flow) || !cut.value) return nullptr;
    const auto* positions = static_cast<const Positions*>(cut.value.get());
    const bool fits = positions->elements == spec.elements() && positions->kept <= kept(spec);
    return fits ? positions : nullptr;
  }
  static void leave(const Key& key, CutContext& cut, Positions positions) {
    if (isGradient(key.flow) || key.phase != Phase::train) return;
    cut.value = std::make_shared<const Positions>(std::move(positions));
  }
  // Nothing where the codec itself must look at it.
  std::optional<Positions> readPositions(std::span<const std::byte> bytes,
                                         const TensorSpec& spec) const {
    const std::size_t count = kept(spec);
    const std::size_t end = valuesEnd(spec, count);
    if (isRaw(spec) || bytes.size() <= end || bytes.size() > withBitmap(spec)) return std::nullopt;
    if (bytes[0] == kDistances) return readDistances(bytes.subspan(end), spec.elements(), count);
    if (bytes[0] != kBitmap || bytes.size() != withBitmap(spec)) return std::nullopt;
    return readBitmap(bytes.data() + end, spec.elements(), count);
  }

  // ---- On the GPU ----

  static std::size_t bitmapWords(std::size_t elements) {
    return std::size_t{device::tilesOf(elements)} * device::kTileWords;
  }
  void copyBitmapIn(const Positions& positions, const Scratch<std::uint32_t>& bitmap) const {
    const std::size_t bytes = positions.words.size() * sizeof(std::uint64_t);
    gpu_.clear(bitmap.bytes(), bitmapWords(positions.elements) * sizeof(std::uint32_t));
    gpu_.copyIn(reinterpret_cast<const std::byte*>(positions.words.data()), bytes, bitmap.bytes());
  }

  // Writes the values behind the format. Throws NonFiniteError.
  Positions encodeLargest(const CodecContext& context, const TensorView& view,
                          std::span<std::byte> out) const {
    const device::Input in = inputOf(view);
    Positions positions(in.elements);
    positions.kept = kept(view.spec);
    const auto count = static_cast<std::uint32_t>(positions.kept);
    const std::size_t valueBytes = positions.kept * dtypeBytes(in.dtype);
    const std::uint32_t tileCount = device::tilesOf(in.elements);
    const Scratch<TopKState> state(gpu_, 1);
    const Scratch<std::uint32_t> above(gpu_, bitmapWords(in.elements));
    const Scratch<std::uint32_t> equal(gpu_, bitmapWords(in.elements));
    const Scratch<device::TileCount> tiles(gpu_, tileCount);
    const Scratch<std::byte> values(gpu_, valueBytes);
    const std::uint32_t* const ties_dev = &state.data()->missing;
    std::uint32_t faults = 0;
    Issued issued(gpu_);
    gpu_.clear(state.bytes(), sizeof(TopKState));
    gpu_.copyIn(reinterpret_cast<const std::byte*>(&count), sizeof count,
                state.bytes() + offsetof(TopKState, missing));
    for (const std::uint32_t level : {0, 1, 2}) {
      gpu_.launch(device::HistogramKernel{in, state.data(), level});
      gpu_.launch(device::ChooseKernel{state.data(), level});
    }
    gpu_.launch(device::MarkKernel{in, state.data(), above.data(), equal.data(), tiles.data()});
    gpu_.launch(device::OffsetsKernel{tiles.data(), tileCount, ties_dev});
    gpu_.launch(device::GatherKernel{in, above.data(), equal.data(), ties_dev, tiles.data(),
                                     values.data(), count});
    gpu_.copyOut(values.data(), valueBytes, &out[kFormatBytes]);
    gpu_.copyOut(above.bytes(), positions.words.size() * sizeof(std::uint64_t),
                 reinterpret_cast<std::byte*>(positions.words.data()));
    gpu_.copyOut(state.bytes() + offsetof(TopKState, faults), sizeof faults,
                 reinterpret_cast<std::byte*>(&faults));
    issued.wait();
    if (faults != 0) throw NonFiniteError(context.key);
    return positions;
  }

  // Writes form 3. Throws NonFiniteError.
  void encodeAt(const CodecContext& context, const Positions& positions, const TensorView& view,
                std::span<std::byte> out) const {
    const device::Input in = inputOf(view);
    const auto count = static_cast<std::uint32_t>(positions.kept);
    const std::size_t valueBytes = positions.kept * dtypeBytes(in.dtype);
    const std::uint32_t tileCount = device::tilesOf(in.elements);
    const Scratch<device::RangeState> range_dev(gpu_, 1);
    const Scratch<std::uint32_t> bitmap(gpu_, bitmapWords(in.elements));
    const Scratch<device::TileCount> tiles(gpu_, tileCount);
    const Scratch<std::byte> values(gpu_, valueBytes);
    device::RangeState range;
    Issued issued(gpu_);
    gpu_.clear(range_dev.bytes(), sizeof range);
    gpu_.launch(device::RangeKernel{in, range_dev.data()});
    copyBitmapIn(positions, bitmap);
    gpu_.launch(device::CountKernel{bitmap.data(), in.elements, tiles.data()});
    gpu_.launch(device::OffsetsKernel{tiles.data(), tileCount, nullptr});
    gpu_.launch(device::GatherKernel{in, bitmap.data(), nullptr, nullptr, tiles.data(),
                                     values.data(), count});
    out[0] = kActivations;
    gpu_.copyOut(values.data(), valueBytes, &out[kFormatBytes]);
    gpu_.copyOut(range_dev.bytes(), sizeof range, reinterpret_cast<std::byte*>(&range));
    issued.wait();
    if (range.faults != 0) throw NonFiniteError(context.key);
  }

  // Whether all values are finite. The positions are as many as the values that came.
  bool decodeAt(const Positions& positions, std::span<const std::byte> bytes,
                const MutableTensorView& out) const {
    const std::size_t valueBytes = positions.kept * dtypeBytes(out.spec.dtype);
    const std::uint32_t tileCount = device::tilesOf(positions.elements);
    const Scratch<std::uint32_t> bitmap(gpu_, bitmapWords(positions.elements));
    const Scratch<device::TileCount> tiles(gpu_, tileCount);
    const Scratch<std::byte> values(gpu_, valueBytes);
    const Scratch<std::uint32_t> fault_dev(gpu_, 1);
    std::uint32_t fault = 0;
    Issued issued(gpu_);
    gpu_.clear(fault_dev.bytes(), sizeof fault);
    copyBitmapIn(positions, bitmap);
    gpu_.copyIn(&bytes[kFormatBytes], valueBytes, values.data());
    gpu_.launch(device::CountKernel{bitmap.data(), positions.elements, tiles.data()});
    gpu_.launch(device::OffsetsKernel{tiles.data(), tileCount, nullptr});
    gpu_.launch(device::ScatterKernel{bitmap.data(), tiles.data(), values.data(), fault_dev.data(),
                                      outputOf(out)});
    gpu_.copyOut(fault_dev.bytes(), sizeof fault, reinterpret_cast<std::byte*>(&fault));
    issued.wait();
    return fault == 0;
  }

  const double ratio_;
};

}  // namespace

std::shared_ptr<const DeviceCodec> makeTopKTwin(const std::shared_ptr<const Codec>& codec,
                                                Gpu& gpu) {
  const CodecSpec spec = parseCodecSpec(codec->spec());
  const double ratio = CodecParameters(spec).number("ratio", kLeastRatio, 1);
  return std::make_shared<TopKTwin>(codec, gpu, ratio);
}

}  // namespace cleave
