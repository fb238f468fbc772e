// The device on which a stage computes: the CPU or a GPU. Device thread only, except hostMemory()
// and gpu().
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <string>

#include "common/resources/buffer.h"
#include "common/resources/executor.h"

namespace cleave {

class Gpu;

class ComputeDevice {
 public:
  virtual ~ComputeDevice() = default;
  virtual at::Device device() const = 0;
  // Examples: "the CPU", "NVIDIA H100 80GB HBM3 with 81079 MiB"
  virtual std::string description() const = 0;
  // Size of the device's own memory; 0 if it uses the machine's memory.
  virtual std::size_t memoryBytes() const = 0;
  // The most memory that was in use so far, in bytes: the process's resident set, or on a GPU what
  // this process has allocated there.
  virtual std::size_t peakMemory() const = 0;

  // Returns a dense host tensor as a tensor on the device, with the same strides: a copy on a GPU,
  // the tensor itself on the CPU. The host memory may be read until the current action completes;
  // the device holds a reference to it until then.
  virtual at::Tensor toDevice(const at::Tensor& host) = 0;
  // Returns a dense tensor on the device as a tensor in host memory, aligned to 64 bytes. The
  // contents of the result are valid once the current action completes.
  virtual at::Tensor toHost(const at::Tensor& tensor) = 0;

  // Null if an action is complete when its function returns.
  virtual DeviceQueue* queue() = 0;
  // Releases cached memory. Call only while nothing is being computed.
  virtual void releaseMemory() = 0;
  // Memory for buffers that are copied to or from the device; null: ordinary memory.
  virtual std::shared_ptr<BufferMemory> hostMemory() = 0;
  // The interface for codecs that work on tensors in the device's memory
  // (compression/device/gpu.h); null: codecs work in host memory.
  virtual Gpu* gpu() = 0;
};

ComputeDevice& cpuDevice();

}  // namespace cleave
