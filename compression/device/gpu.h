// What codecs need of a GPU: memory, copies, and kernels. All that is issued runs in the order of
// the calls, apart from what stages compute. Any thread; what is issued by several is in some
// order. Errors of the GPU are thrown by whichever call meets them, RunError "out-of-memory" by
// those that allocate.
#pragma once

#include <cstddef>
#include <memory>
#include <variant>

#include "compression/device/block_kernels.h"
#include "compression/device/distance_kernels.h"

namespace cleave {

using DeviceKernel = std::variant<
    device::RangeKernel, device::UniformGridKernel, device::BoundsKernel, device::PieceGridsKernel,
    device::QuantizeKernel, device::DequantizeKernel, device::LookUpKernel, device::CastKernel,
    device::EncodeBlocksKernel, device::DecodeBlocksKernel, device::HistogramKernel,
    device::ChooseKernel, device::MarkKernel, device::CountKernel, device::OffsetsKernel,
    device::GatherKernel, device::ScatterKernel, device::LengthsKernel, device::DistancesKernel,
    device::EndsKernel, device::StepsKernel, device::SumsKernel, device::PlacesKernel>;

class Gpu {
 public:
  virtual ~Gpu() = default;

  // Memory of the GPU, for codecs' own use, on a boundary of 64 bytes. Given back in the order of
  // the calls too: without waiting.
  virtual std::shared_ptr<std::byte> scratch(std::size_t bytes) = 0;
  // For tensors that a stage computes on: given back once the stage's work is through with it.
  virtual std::shared_ptr<std::byte> tensorMemory(std::size_t bytes) = 0;

  // Host memory must stay until wait().
  virtual void copyIn(const std::byte* from, std::size_t bytes, std::byte* to_dev) = 0;
  virtual void copyOut(const std::byte* from_dev, std::size_t bytes, std::byte* to) = 0;
  virtual void clear(std::byte* at_dev, std::size_t bytes) = 0;  // zeros
  virtual void launch(const DeviceKernel& kernel) = 0;           // of at least one block
  // Returns when all of it is done.
  virtual void wait() = 0;
};

}  // namespace cleave
