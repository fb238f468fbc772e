#include <sys/resource.h>

#include <cstdlib>
#include <fstream>
#include <string>
#include <string_view>

#include "common/device/compute_device.h"

namespace cleave {
namespace {

class CpuDevice : public ComputeDevice {
 public:
  at::Device device() const override { return at::kCPU; }
  std::string description() const override { return "the CPU"; }
  std::size_t memoryBytes() const override { return 0; }
  std::size_t peakMemory() const override {
    // VmHWM begins with the program, whereas ru_maxrss may be that of the program that started it.
    std::ifstream status("/proc/self/status");
    for (std::string line; std::getline(status, line);) {
      constexpr std::string_view kPeak = "VmHWM:";
      if (line.starts_with(kPeak)) {
        return std::strtoull(line.c_str() + kPeak.size(), nullptr, 10) * 1024;
      }
    }
    struct rusage usage {};  // a confined process can open no file
    ::getrusage(RUSAGE_SELF, &usage);
    return static_cast<std::size_t>(usage.ru_maxrss) * 1024;
  }
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
