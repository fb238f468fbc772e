#include "common/device/compute_device.h"

#include "common/core/process.h"

namespace cleave {
namespace {

class CpuDevice : public ComputeDevice {
 public:
  at::Device device() const override { return at::kCPU; }
  std::string description() const override { return "the CPU"; }
  std::size_t memoryBytes() const override { return 0; }
  std::size_t peakMemory() const override { return peakResidentBytes(); }
  at::Tensor toDevice(const at::Tensor& host) override { return host; }
  at::Tensor toHost(const at::Tensor& tensor) override { return tensor; }
  DeviceQueue* queue() override { return nullptr; }
  void releaseMemory() override {}
  std::shared_ptr<BufferMemory> hostMemory() override { return nullptr; }
  Gpu* gpu() override { return nullptr; }
};

}  // namespace

ComputeDevice& cpuDevice() {
  static CpuDevice device;
  return device;
}

}  // namespace cleave
