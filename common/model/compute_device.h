// Where a stage computes: the CPU, or a GPU. Device thread only, but for hostMemory() and gpu().
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <string>

#include "common/core/buffer.h"
#include "common/core/executor.h"

namespace cleave {

class Gpu;

class ComputeDevice {
 public:
  virtual ~ComputeDevice() = default;
  virtual at::Device device() const = 0;
  // "the CPU", "NVIDIA H100 80GB HBM3 with 81079 MiB"
  virtual std::string description() const = 0;
  // Of the device's own memory; 0: it has none but the machine's.
  virtual std::size_t memoryBytes() const = 0;

  // A dense tensor in host memory as the same on the device, with the same strides. The host memory
  // may be read until the action under way is done; the device keeps its owner until then.
  virtual at::Tensor toDevice(const at::Tensor& host) = 0;
  // A dense tensor on the device as the same in host memory on a 64-byte boundary, whose content is
  // there when the action under way is done.
  virtual at::Tensor toHost(const at::Tensor& tensor) = 0;

  // Null: actions are done when their functions return.
  virtual DeviceQueue* queue() = 0;
  // Gives memory back that is kept for later use. When nobody computes.
  virtual void releaseMemory() = 0;
  // For buffers that are copied from and to the device; null: any memory does.
  virtual std::shared_ptr<BufferMemory> hostMemory() = 0;
  // What codecs need to work where the stage's tensors are (compression/device/gpu.h); null: they
  // work in host memory.
  virtual Gpu* gpu() = 0;
};

ComputeDevice& cpuDevice();

}  // namespace cleave
