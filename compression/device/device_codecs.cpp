// The GPU implementations of fp16, bf16, uniform, sort and block.
#include <algorithm>
#include <cmath>
#include <vector>

#include "common/core/random.h"
#include "compression/codecs.h"
#include "compression/device/gpu_codec.h"
#include "compression/parts/convert.h"
#include "compression/parts/payload.h"

namespace cleave {
namespace {

constexpr std::byte kPacked{1};

class CastGpuCodec : public GpuCodec {
 public:
  CastGpuCodec(std::shared_ptr<const Codec> codec, Gpu& gpu, DType wireType)
      : GpuCodec(std::move(codec), gpu), wireType_(wireType) {}

  Encoded encode(const CodecContext& context, const CodecState& state, CutContext& cut,
                 const TensorView& view, std::span<std::byte> out) const override {
    if (!isOrdinary(view.spec, view.data)) return encodeOnHost(context, state, cut, view, out);
    const std::size_t bytes = maxEncodedBytes(view.spec);
    if (view.spec.dtype == wireType_) {
      copyToHost(view.data, bytes, out.data());
      return {bytes, nullptr};
    }
    const Scratch<std::byte> wire(gpu_, bytes);
    Issued issued(gpu_);
    gpu_.launch(device::CastKernel{inputOf(view), {wire.data(), view.spec.elements(), wireType_}});
    gpu_.copyOut(wire.data(), bytes, out.data());
    issued.wait();
    return {bytes, nullptr};
  }

  CodecState decode(const CodecContext& context, const CodecState& state, CutContext& cut,
                    std::span<const std::byte> bytes, MutableTensorView out) const override {
    if (!isOrdinary(out.spec, out.data) || bytes.size() != maxEncodedBytes(out.spec))
      return decodeOnHost(context, state, cut, bytes, out);
    const bool same = out.spec.dtype == wireType_;
    const Scratch<std::byte> wire(gpu_, same ? 1 : bytes.size());
    Issued issued(gpu_);
    gpu_.copyIn(bytes.data(), bytes.size(), same ? out.data : wire.data());
    if (!same)
      gpu_.launch(device::CastKernel{{wire.data(), out.spec.elements(), wireType_}, outputOf(out)});
    issued.wait();
    return nullptr;
  }

 private:
  const DType wireType_;
};

// Implements `sort` and `uniform`. `uniform` is `sort` with one piece, but finds the piece's range
// and decodes differently.
class QuantGridGpuCodec : public GpuCodec {
 public:
  QuantGridGpuCodec(std::shared_ptr<const Codec> codec, Gpu& gpu, int bits, int pieceBits,
                    bool isUniform)
      : GpuCodec(std::move(codec), gpu),
        bits_(static_cast<std::uint32_t>(bits)),
        pieceBits_(static_cast<std::uint32_t>(pieceBits)),
        top_((1 << bits) - 1),
        isUniform_(isUniform) {}

  Encoded encode(const CodecContext& context, const CodecState& state, CutContext& cut,
                 const TensorView& view, std::span<std::byte> out) const override {
    // `sort` selects exactly if there are few values.
    const bool isSmall = !isUniform_ && view.spec.elements() <= device::kSamples;
    if (!isOrdinary(view.spec, view.data) || !isPacked(view.spec) || isSmall)
      return encodeOnHost(context, state, cut, view, out);
    const device::Input in = inputOf(view);
    const Scratch<device::QuantGrids> grids(gpu_, 1);
    const Scratch<std::byte> codes(gpu_, device::codeBytes(in.elements, codeBits()));
    auto* const words = reinterpret_cast<std::uint32_t*>(codes.data());
    device::RangeState range;
    Issued issued(gpu_);
    gpu_.clear(grids.bytes() + offsetof(device::QuantGrids, range), sizeof range);
    gpu_.launch(device::RangeKernel{in, &grids.data()->range});
    if (isUniform_) {
      gpu_.launch(device::UniformGridKernel{grids.data(), top_});
    } else {
      if (pieceBits_ > 0) gpu_.launch(device::BoundsKernel{in, grids.data(), pieceBits_});
      gpu_.launch(device::PieceGridsKernel{grids.data(), pieceBits_, top_});
    }
    gpu_.launch(device::QuantizeKernel{in, grids.data(), bits_, pieceBits_, words});
    out[0] = kPacked;
    gpu_.copyOut(grids.bytes() + offsetof(device::QuantGrids, grids), gridBytes(),
                 &out[kFormatBytes]);
    gpu_.copyOut(codes.data(), packedBytes(in.elements, static_cast<int>(codeBits())),
                 &out[kFormatBytes + gridBytes()]);
    gpu_.copyOut(grids.bytes() + offsetof(device::QuantGrids, range), sizeof range,
                 reinterpret_cast<std::byte*>(&range));
    issued.wait();
    if (range.faults & device::kNotFinite) throw NonFiniteError(context.key);
    if (range.faults != 0) return encodeOnHost(context, state, cut, view, out);
    return {packedPayload(view.spec), nullptr};
  }

  CodecState decode(const CodecContext& context, const CodecState& state, CutContext& cut,
                    std::span<const std::byte> bytes, MutableTensorView out) const override {
    if (!isOrdinary(out.spec, out.data) || !isPacked(out.spec) ||
        bytes.size() != packedPayload(out.spec) || bytes[0] != kPacked)
      return decodeOnHost(context, state, cut, bytes, out);
    device::QuantGrid grid;
    std::vector<float> table;
    const bool ordinary = isUniform_ ? readGrid(bytes, out.spec.dtype, grid)
                                     : readTable(bytes, out.spec.dtype, table);
    if (!ordinary) return decodeOnHost(context, state, cut, bytes, out);
    const Scratch<std::byte> codes(gpu_, device::codeBytes(out.spec.elements(), codeBits()));
    const Scratch<float> table_dev(gpu_, table.size() + 1);
    const auto* const words = reinterpret_cast<const std::uint32_t*>(codes.data());
    const std::span<const std::byte> packed = bytes.subspan(kFormatBytes + gridBytes());
    Issued issued(gpu_);
    gpu_.copyIn(packed.data(), packed.size(), codes.data());
    if (isUniform_) {
      gpu_.launch(device::DequantizeKernel{words, {grid}, bits_, outputOf(out)});
    } else {
      gpu_.copyIn(reinterpret_cast<const std::byte*>(table.data()), table.size() * sizeof(float),
                  table_dev.bytes());
      gpu_.launch(device::LookUpKernel{words, {table_dev.data()}, codeBits(), outputOf(out)});
    }
    issued.wait();
    return nullptr;
  }

 private:
  std::uint32_t codeBits() const { return bits_ + pieceBits_; }
  std::size_t gridBytes() const { return sizeof(device::QuantGrid) << pieceBits_; }
  std::size_t packedPayload(const TensorSpec& spec) const {
    return kFormatBytes + gridBytes() + packedBytes(spec.elements(), static_cast<int>(codeBits()));
  }
  bool isPacked(const TensorSpec& spec) const {
    return packedPayload(spec) < rawPayloadBytes(spec);
  }

  static bool isFiniteIn(DType dtype, float value) {
    if (dtype != DType::f32) value = device::widen(device::narrow(value, dtype), dtype);
    return std::isfinite(value);
  }

  // Returns false if the host codec must decode, because it refuses the grid or computes in double.
  bool readGrid(std::span<const std::byte> bytes, DType dtype, device::QuantGrid& grid) const {
    std::memcpy(&grid, &bytes[kFormatBytes], sizeof grid);
    const float span = grid.step * static_cast<float>(top_);
    return grid.step >= 0 && std::isfinite(span) && isFiniteIn(dtype, grid.min) &&
           isFiniteIn(dtype, grid.min + span);
  }

  bool readTable(std::span<const std::byte> bytes, DType dtype, std::vector<float>& table) const {
    for (std::size_t p = 0; p < std::size_t{1} << pieceBits_; ++p) {
      device::QuantGrid grid;
      std::memcpy(&grid, &bytes[kFormatBytes + p * sizeof grid], sizeof grid);
      if (!std::isfinite(grid.min) || !std::isfinite(grid.step) || !(grid.step >= 0)) return false;
      for (int code = 0; code <= top_; ++code) {
        table.push_back(device::valueAt(grid, code));
        if (!isFiniteIn(dtype, table.back())) return false;
      }
    }
    return true;
  }

  const std::uint32_t bits_, pieceBits_;
  const int top_;
  const bool isUniform_;
};

class BlockGpuCodec : public GpuCodec {
 public:
  BlockGpuCodec(std::shared_ptr<const Codec> codec, Gpu& gpu, const device::BlockParameters& format)
      : GpuCodec(std::move(codec), gpu), format_(format) {}

  Encoded encode(const CodecContext& context, const CodecState& state, CutContext& cut,
                 const TensorView& view, std::span<std::byte> out) const override {
    if (!isOrdinary(view.spec, view.data) || !isPacked(view.spec))
      return encodeOnHost(context, state, cut, view, out);
    device::BlockParameters format = format_;
    format.stochastic = format_.stochastic && context.key.phase == Phase::train;
    if (format.stochastic) {
      const Key& key = context.key;
      const RandomKey random =
          randomKey(context.seed, "block", {key.step, key.i, flowNumber(key.flow)});
      format.keyLow = random.low;
      format.keyHigh = random.high;
    }
    const device::Input in = inputOf(view);
    const Scratch<std::byte> headers(gpu_, headerBytes(view.spec));
    const Scratch<std::byte> codes(gpu_, device::codeBytes(in.elements, format.bits));
    const Scratch<std::uint32_t> fault_dev(gpu_, 1);
    std::uint32_t fault = 0;
    Issued issued(gpu_);
    gpu_.clear(fault_dev.bytes(), sizeof fault);
    gpu_.launch(device::EncodeBlocksKernel{
        in, format, reinterpret_cast<std::uint32_t*>(headers.data()),
        reinterpret_cast<std::uint32_t*>(codes.data()), fault_dev.data()});
    out[0] = kPacked;
    gpu_.copyOut(headers.data(), headerBytes(view.spec), &out[kFormatBytes]);
    gpu_.copyOut(codes.data(), codesBytes(view.spec), &out[codesStart(view.spec)]);
    gpu_.copyOut(fault_dev.bytes(), sizeof fault, reinterpret_cast<std::byte*>(&fault));
    issued.wait();
    if (fault != 0) throw NonFiniteError(context.key);
    return {packedPayload(view.spec), nullptr};
  }

  CodecState decode(const CodecContext& context, const CodecState& state, CutContext& cut,
                    std::span<const std::byte> bytes, MutableTensorView out) const override {
    if (!isOrdinary(out.spec, out.data) || !isPacked(out.spec) ||
        bytes.size() != packedPayload(out.spec) || bytes[0] != kPacked)
      return decodeOnHost(context, state, cut, bytes, out);
    const Scratch<std::byte> headers(gpu_, headerBytes(out.spec));
    const Scratch<std::byte> codes(gpu_, device::codeBytes(out.spec.elements(), format_.bits));
    const Scratch<std::uint32_t> fault_dev(gpu_, 1);
    std::uint32_t fault = 0;
    {
      Issued issued(gpu_);
      gpu_.clear(fault_dev.bytes(), sizeof fault);
      gpu_.copyIn(&bytes[kFormatBytes], headerBytes(out.spec), headers.data());
      gpu_.copyIn(&bytes[codesStart(out.spec)], codesBytes(out.spec), codes.data());
      gpu_.launch(device::DecodeBlocksKernel{reinterpret_cast<const std::uint32_t*>(headers.data()),
                                             reinterpret_cast<const std::uint32_t*>(codes.data()),
                                             format_, largestOf(out.spec.dtype), fault_dev.data(),
                                             outputOf(out)});
      gpu_.copyOut(fault_dev.bytes(), sizeof fault, reinterpret_cast<std::byte*>(&fault));
      issued.wait();
    }
    if (fault != 0)
      return decodeOnHost(context, state, cut, bytes, out);  // the host codec throws the error
    return nullptr;
  }

 private:
  std::size_t headerBytes(const TensorSpec& spec) const {
    return (spec.elements() + format_.size - 1) / format_.size * kernels::kBlockHeaderBytes;
  }
  std::size_t codesStart(const TensorSpec& spec) const { return kFormatBytes + headerBytes(spec); }
  std::size_t codesBytes(const TensorSpec& spec) const {
    return packedBytes(spec.elements(), static_cast<int>(format_.bits));
  }
  std::size_t packedPayload(const TensorSpec& spec) const {
    return codesStart(spec) + codesBytes(spec);
  }
  bool isPacked(const TensorSpec& spec) const {
    return packedPayload(spec) < rawPayloadBytes(spec);
  }

  const device::BlockParameters format_;
};

}  // namespace

std::shared_ptr<const DeviceCodec> makeFp16OnGpu(const GpuCodecRequest& request) {
  return std::make_shared<CastGpuCodec>(request.codec, request.gpu, DType::f16);
}

std::shared_ptr<const DeviceCodec> makeBf16OnGpu(const GpuCodecRequest& request) {
  return std::make_shared<CastGpuCodec>(request.codec, request.gpu, DType::bf16);
}

std::shared_ptr<const DeviceCodec> makeUniformOnGpu(const GpuCodecRequest& request) {
  return std::make_shared<QuantGridGpuCodec>(request.codec, request.gpu, uniformBits(request.spec),
                                             0, true);
}

// Only for select=sampled.
std::shared_ptr<const DeviceCodec> makeSortOnGpu(const GpuCodecRequest& request) {
  const auto [q, s, boundaries] = sortParameters(request.spec);
  if (boundaries != 0) return nullptr;
  return std::make_shared<QuantGridGpuCodec>(request.codec, request.gpu, q, s, false);
}

// Only without rotation.
std::shared_ptr<const DeviceCodec> makeBlockOnGpu(const GpuCodecRequest& request) {
  const auto [format, isRotated] = blockParameters(request.spec);
  if (isRotated) return nullptr;
  device::BlockParameters onGpu;
  onGpu.bits = static_cast<std::uint32_t>(format.bits);
  onGpu.size = static_cast<std::uint32_t>(format.size);
  onGpu.halfHeader = format.halfHeader;
  onGpu.stochastic = format.stochastic;
  return std::make_shared<BlockGpuCodec>(request.codec, request.gpu, onGpu);
}

}  // namespace cleave
