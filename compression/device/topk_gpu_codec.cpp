#include <algorithm>
#include <optional>

#include "common/codec/spec.h"
#include "compression/codecs.h"
#include "compression/device/gpu_codec.h"
#include "compression/parts/topk_layout.h"

namespace cleave {
namespace {

using device::TopKState;

class TopKGpuCodec : public GpuCodec {
 public:
  TopKGpuCodec(std::shared_ptr<const Codec> codec, Gpu& gpu, double ratio)
      : GpuCodec(std::move(codec), gpu), layout_(ratio) {}

  Encoded encode(const CodecContext& context, const CodecState& state, CutContext& cut,
                 const TensorView& view, std::span<std::byte> out) const override {
    if (!isOrdinary(view.spec, view.data)) return encodeOnHost(context, state, cut, view, out);
    if (const Positions* activations =
            layout_.positionsOfActivation(context.key, cut, view.spec.elements())) {
      encodeAt(context, *activations, view, out);
      return {TopKLayout::valuesEnd(view.spec, activations->kept), nullptr};
    }
    if (layout_.isRaw(view.spec)) return encodeOnHost(context, state, cut, view, out);
    return {encodeLargest(context, cut, view, out), nullptr};
  }

  CodecState decode(const CodecContext& context, const CodecState& state, CutContext& cut,
                    std::span<const std::byte> bytes, MutableTensorView out) const override {
    const auto byCodec = [&] { return decodeOnHost(context, state, cut, bytes, out); };
    if (!isOrdinary(out.spec, out.data) || bytes.empty()) return byCodec();
    if (const Positions* activations =
            layout_.positionsOfActivation(context.key, cut, out.spec.elements())) {
      const bool due = bytes[0] == TopKLayout::kActivations &&
                       bytes.size() == TopKLayout::valuesEnd(out.spec, activations->kept);
      if (!due || !decodeAt(*activations, bytes, out)) return byCodec();
      return nullptr;
    }
    const std::size_t end = TopKLayout::valuesEnd(out.spec, layout_.kept(out.spec.elements()));
    if (layout_.isRaw(out.spec) || bytes.size() <= end ||
        bytes.size() > layout_.withBitmap(out.spec))
      return byCodec();
    std::optional<Positions> positions;
    if (bytes[0] == TopKLayout::kDistances) {
      positions = decodeDistances(context.key, bytes, out);
    } else if (bytes[0] == TopKLayout::kBitmap && bytes.size() == layout_.withBitmap(out.spec)) {
      positions = readBitmap(&bytes[end], out.spec.elements(), layout_.kept(out.spec.elements()));
      if (positions && !decodeAt(*positions, bytes, out)) positions.reset();
    }
    if (!positions) return byCodec();
    TopKLayout::sharePositions(context.key, cut, std::move(*positions));
    return nullptr;
  }

 private:
  // ---- On the GPU ----

  static std::size_t bitmapWords(std::size_t elements) {
    return std::size_t{device::tilesOf(elements)} * device::kTileWords;
  }
  // Returns the positions on the GPU: the existing copy, or a new one.
  Scratch<std::uint32_t> bitmapOf(const Positions& positions) const {
    if (positions.copy_dev) return Scratch<std::uint32_t>(positions.copy_dev);
    Scratch<std::uint32_t> bitmap(gpu_, bitmapWords(positions.elements));
    gpu_.clear(bitmap.bytes(), bitmapWords(positions.elements) * sizeof(std::uint32_t));
    gpu_.copyIn(reinterpret_cast<const std::byte*>(positions.words.data()),
                positions.words.size() * sizeof(std::uint64_t), bitmap.bytes());
    return bitmap;
  }
  void copyBitmapOut(const Scratch<std::uint32_t>& bitmap, Positions& positions) const {
    gpu_.copyOut(bitmap.bytes(), positions.words.size() * sizeof(std::uint64_t),
                 reinterpret_cast<std::byte*>(positions.words.data()));
    positions.copy_dev = bitmap.owner();
  }

  // Returns the payload's size. Throws NonFiniteError.
  std::size_t encodeLargest(const CodecContext& context, CutContext& cut, const TensorView& view,
                            std::span<std::byte> out) const {
    const device::Input in = inputOf(view);
    const auto count = static_cast<std::uint32_t>(layout_.kept(view.spec.elements()));
    const std::size_t end = TopKLayout::valuesEnd(view.spec, count);
    const std::size_t bitmapBytes = (in.elements + 7) / 8;
    // Each distance takes at least a byte. Distances that are longer than the bitmap are not used.
    const auto room = static_cast<std::uint32_t>(count < bitmapBytes ? bitmapBytes - 1 : 0);
    const std::uint32_t tileCount = device::tilesOf(in.elements);
    const Scratch<TopKState> state(gpu_, 1);
    const Scratch<std::uint32_t> above(gpu_, bitmapWords(in.elements));
    const Scratch<std::uint32_t> equal(gpu_, bitmapWords(in.elements));
    const Scratch<device::TileCount> tiles(gpu_, tileCount);
    const Scratch<std::byte> values(gpu_, end - kFormatBytes);
    const Scratch<std::uint32_t> places(gpu_, room > 0 ? count : 1);
    const Scratch<std::byte> distances(gpu_, room + 1);
    const std::uint32_t* const ties_dev = &state.data()->missing;
    TopKState::Found found;
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
                                     values.data(), count, room > 0 ? places.data() : nullptr});
    if (room > 0) {
      // The kept elements need at most as many tiles as all elements.
      const device::LengthsKernel lengths{places.data(), count, tiles.data()};
      gpu_.launch(lengths);
      gpu_.launch(device::OffsetsKernel{tiles.data(), lengths.blocks(), nullptr,
                                        &state.data()->found.distanceBytes});
      gpu_.launch(device::DistancesKernel{lengths, distances.data(), room});
    }
    gpu_.copyOut(values.data(), end - kFormatBytes, &out[kFormatBytes]);
    gpu_.copyOut(state.bytes() + offsetof(TopKState, found), sizeof found,
                 reinterpret_cast<std::byte*>(&found));
    issued.wait();
    if (found.faults != 0) throw NonFiniteError(context.key);

    const bool asDistances = room > 0 && found.distanceBytes <= room;
    const std::size_t bytes = asDistances ? found.distanceBytes : bitmapBytes;
    Positions positions(TopKLayout::sharesPositions(context.key) ? in.elements : 0);
    positions.kept = count;
    Issued rest(gpu_);
    out[0] = asDistances ? TopKLayout::kDistances : TopKLayout::kBitmap;
    gpu_.copyOut(asDistances ? distances.bytes() : above.bytes(), bytes, &out[end]);
    if (TopKLayout::sharesPositions(context.key)) copyBitmapOut(above, positions);
    rest.wait();
    TopKLayout::sharePositions(context.key, cut, std::move(positions));
    return end + bytes;
  }

  // Writes form 3. Throws NonFiniteError.
  void encodeAt(const CodecContext& context, const Positions& positions, const TensorView& view,
                std::span<std::byte> out) const {
    const device::Input in = inputOf(view);
    const auto count = static_cast<std::uint32_t>(positions.kept);
    const std::size_t valueBytes = positions.kept * dtypeBytes(in.dtype);
    const std::uint32_t tileCount = device::tilesOf(in.elements);
    const Scratch<device::RangeState> range_dev(gpu_, 1);
    const Scratch<device::TileCount> tiles(gpu_, tileCount);
    const Scratch<std::byte> values(gpu_, valueBytes);
    device::RangeState range;
    Issued issued(gpu_);
    gpu_.clear(range_dev.bytes(), sizeof range);
    gpu_.launch(device::RangeKernel{in, range_dev.data()});
    const Scratch<std::uint32_t> bitmap = bitmapOf(positions);
    gpu_.launch(device::CountKernel{bitmap.data(), in.elements, tiles.data()});
    gpu_.launch(device::OffsetsKernel{tiles.data(), tileCount, nullptr});
    gpu_.launch(device::GatherKernel{in, bitmap.data(), nullptr, nullptr, tiles.data(),
                                     values.data(), count, nullptr});
    out[0] = TopKLayout::kActivations;
    gpu_.copyOut(values.data(), valueBytes, &out[kFormatBytes]);
    gpu_.copyOut(range_dev.bytes(), sizeof range, reinterpret_cast<std::byte*>(&range));
    issued.wait();
    if (range.faults != 0) throw NonFiniteError(context.key);
  }

  // Returns whether all values are finite. Requires as many values as positions.
  bool decodeAt(const Positions& positions, std::span<const std::byte> bytes,
                const MutableTensorView& out) const {
    const std::size_t valueBytes = positions.kept * dtypeBytes(out.spec.dtype);
    const std::uint32_t tileCount = device::tilesOf(positions.elements);
    const Scratch<device::TileCount> tiles(gpu_, tileCount);
    const Scratch<std::byte> values(gpu_, valueBytes);
    const Scratch<std::uint32_t> fault_dev(gpu_, 1);
    std::uint32_t fault = 0;
    Issued issued(gpu_);
    gpu_.clear(fault_dev.bytes(), sizeof fault);
    const Scratch<std::uint32_t> bitmap = bitmapOf(positions);
    gpu_.copyIn(&bytes[kFormatBytes], valueBytes, values.data());
    scatter(bitmap, tiles, values, fault_dev.data(), out);
    gpu_.copyOut(fault_dev.bytes(), sizeof fault, reinterpret_cast<std::byte*>(&fault));
    issued.wait();
    return fault == 0;
  }

  // Returns the positions, empty unless the gradient will reuse them; nullopt if the host codec
  // must decode the payload. Requires a payload length within bounds.
  std::optional<Positions> decodeDistances(const Key& key, std::span<const std::byte> bytes,
                                           const MutableTensorView& out) const {
    constexpr std::byte kMore{0x80};
    if ((bytes.back() & kMore) == kMore) return std::nullopt;
    const auto elements = static_cast<std::uint32_t>(out.spec.elements());
    const auto count = static_cast<std::uint32_t>(layout_.kept(out.spec.elements()));
    const std::size_t valueBytes = count * dtypeBytes(out.spec.dtype);
    const std::span<const std::byte> coded = bytes.subspan(kFormatBytes + valueBytes);
    const auto codedBytes = static_cast<std::uint32_t>(coded.size());
    if (codedBytes < count) return std::nullopt;
    const std::uint32_t tileCount = device::tilesOf(elements);
    const Scratch<std::byte> coded_dev(gpu_, codedBytes);
    const Scratch<std::uint32_t> steps(gpu_, count);
    const Scratch<std::uint32_t> bitmap(gpu_, bitmapWords(elements));
    const Scratch<device::TileCount> tiles(gpu_, tileCount);
    const Scratch<std::byte> values(gpu_, valueBytes);
    struct Seen {
      std::uint32_t fault, ends;
    };
    const Scratch<Seen> seen_dev(gpu_, 1);
    std::uint32_t* const fault_dev = &seen_dev.data()->fault;
    std::uint32_t* const ends_dev = &seen_dev.data()->ends;
    Seen seen{};
    Positions positions(TopKLayout::sharesPositions(key) ? elements : 0);
    positions.kept = count;
    Issued issued(gpu_);
    gpu_.clear(seen_dev.bytes(), sizeof seen);
    gpu_.clear(bitmap.bytes(), bitmapWords(elements) * sizeof(std::uint32_t));
    gpu_.copyIn(coded.data(), codedBytes, coded_dev.bytes());
    gpu_.copyIn(&bytes[kFormatBytes], valueBytes, values.data());
    // Bytes and steps need at most as many tiles as the elements.
    const device::EndsKernel ends{reinterpret_cast<const std::uint8_t*>(coded_dev.data()),
                                  codedBytes, tiles.data()};
    gpu_.launch(ends);
    gpu_.launch(device::OffsetsKernel{tiles.data(), ends.blocks(), nullptr, ends_dev});
    gpu_.launch(device::StepsKernel{ends, steps.data(), count, elements, fault_dev});
    const device::SumsKernel sums{steps.data(), ends_dev, count, tiles.data()};
    gpu_.launch(sums);
    gpu_.launch(device::OffsetsKernel{tiles.data(), sums.blocks(), nullptr});
    gpu_.launch(device::PlacesKernel{sums, bitmap.data(), elements, fault_dev});
    scatter(bitmap, tiles, values, fault_dev, out);
    if (TopKLayout::sharesPositions(key)) copyBitmapOut(bitmap, positions);
    gpu_.copyOut(seen_dev.bytes(), sizeof seen, reinterpret_cast<std::byte*>(&seen));
    issued.wait();
    if (seen.fault != 0 || seen.ends != count) return std::nullopt;
    return positions;
  }

  // Requires a bitmap with at most as many bits set as there are values.
  void scatter(const Scratch<std::uint32_t>& bitmap, const Scratch<device::TileCount>& tiles,
               const Scratch<std::byte>& values, std::uint32_t* fault_dev,
               const MutableTensorView& out) const {
    const std::size_t elements = out.spec.elements();
    gpu_.launch(device::CountKernel{bitmap.data(), elements, tiles.data()});
    gpu_.launch(device::OffsetsKernel{tiles.data(), device::tilesOf(elements), nullptr});
    gpu_.launch(device::ScatterKernel{bitmap.data(), tiles.data(), values.data(), fault_dev,
                                      outputOf(out)});
  }

  const TopKLayout layout_;
};

}  // namespace

std::shared_ptr<const DeviceCodec> makeTopKOnGpu(const GpuCodecRequest& request) {
  return std::make_shared<TopKGpuCodec>(request.codec, request.gpu, topKRatio(request.spec));
}

}  // namespace cleave
