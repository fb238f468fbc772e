// The GPU interface for codecs: memory, copies, and kernels. Operations run in the order of the
// calls, on a stream separate from the stages' computation. Any thread may call it; the order
// between threads is unspecified. GPU errors are thrown by the call that detects them, failed
// allocations as RunError "out-of-memory".
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

  // GPU memory for the codecs' own use, aligned to 64 bytes. Memory is also freed in the order of
  // the calls, so freeing does not wait.
  virtual std::shared_ptr<std::byte> scratch(std::size_t bytes) = 0;
  // Memory for tensors on which a stage computes. It is freed once the stage's work no longer uses
  // it.
  virtual std::shared_ptr<std::byte> tensorMemory(std::size_t bytes) = 0;

  // Host memory must stay valid until wait().
  virtual void copyIn(const std::byte* from, std::size_t bytes, std::byte* to_dev) = 0;
  virtual void copyOut(const std::byte* from_dev, std::size_t bytes, std::byte* to) = 0;
  virtual void clear(std::byte* at_dev, std::size_t bytes) = 0;  // zeros
  virtual void launch(const DeviceKernel& kernel) = 0;           // at least one block
  // Returns when all operations are complete.
  virtual void wait() = 0;
};

}  // namespace cleave
