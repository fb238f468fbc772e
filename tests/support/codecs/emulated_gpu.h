// Emulates a GPU on the host, one thread after the other. It runs the real kernel code phase by
// phase, as separated by the barriers; only the threading of cuda/kernels.cu is
// missing. Device memory is a heap block of exactly the requested size, so that AddressSanitizer
// detects any access beyond it. It is not zeroed.
#pragma once

#include <memory>
#include <stdexcept>
#include <vector>

#include "compression/device/gpu.h"

namespace cleave::test {

// The reduction that cuda/kernels.cu performs between the phases of a kernel that
// requests it.
template <typename Kernel>
void reduceLanes(const Kernel& kernel, std::vector<typename Kernel::Thread>& threads) {
  const std::uint32_t lanes = kernel.reduceLanes();
  for (std::uint32_t first = 0; first < device::kThreads; first += lanes) {
    for (std::uint32_t k = 0; k < device::kQuads; ++k) {
      device::Range range = threads[first].ranges[k];
      for (std::uint32_t lane = 1; lane < lanes; ++lane)
        range = Kernel::join(range, threads[first + lane].ranges[k]);
      for (std::uint32_t lane = 0; lane < lanes; ++lane) threads[first + lane].ranges[k] = range;
    }
  }
}

template <int kPhase, typename Kernel>
void runPhases(const Kernel& kernel, device::Place at, typename Kernel::Shared& shared,
               std::vector<typename Kernel::Thread>& threads) {
  if constexpr (kPhase < Kernel::kPhases) {
    // The order alternates: within a phase, threads must not depend on each other.
    for (std::uint32_t t = 0; t < device::kThreads; ++t) {
      at.thread = (at.block + kPhase) % 2 == 0 ? t : device::kThreads - 1 - t;
      kernel.template run<kPhase>(at, shared, threads[at.thread]);
    }
    if constexpr (requires { Kernel::kReduceAfter; }) {
      if constexpr (Kernel::kReduceAfter == kPhase) reduceLanes(kernel, threads);
    }
    runPhases<kPhase + 1>(kernel, at, shared, threads);
  }
}

class EmulatedGpu : public Gpu {
 public:
  std::shared_ptr<std::byte> scratch(std::size_t bytes) override {
    constexpr std::size_t kBoundary = 64;
    auto* const data = static_cast<std::byte*>(::operator new(bytes, std::align_val_t(kBoundary)));
    std::memset(data, 0xa5, bytes);
    return {data, [](std::byte* p) { ::operator delete(p, std::align_val_t(kBoundary)); }};
  }
  std::shared_ptr<std::byte> tensorMemory(std::size_t bytes) override { return scratch(bytes); }

  void copyIn(const std::byte* from, std::size_t bytes, std::byte* to_dev) override {
    std::memcpy(to_dev, from, bytes);
  }
  void copyOut(const std::byte* from_dev, std::size_t bytes, std::byte* to) override {
    std::memcpy(to, from_dev, bytes);
  }
  void clear(std::byte* at_dev, std::size_t bytes) override { std::memset(at_dev, 0, bytes); }

  void launch(const DeviceKernel& kernel) override {
    std::visit([this](const auto& one) { runAll(one); }, kernel);
    ++launches;
  }
  void wait() override {}

  std::size_t launches = 0;  // lets tests check which side computed

 private:
  // The last block runs first: blocks must not depend on earlier ones.
  template <typename Kernel>
  void runAll(const Kernel& kernel) {
    const std::uint32_t blocks = kernel.blocks();
    if (blocks == 0) throw std::logic_error("a kernel without blocks");
    auto shared = std::make_unique<typename Kernel::Shared>();
    for (std::uint32_t block = blocks; block-- > 0;) {
      std::memset(static_cast<void*>(shared.get()), 0xa5, sizeof *shared);
      std::vector<typename Kernel::Thread> threads(device::kThreads);
      runPhases<0>(kernel, {block, blocks, 0}, *shared, threads);
    }
  }
};

}  // namespace cleave::test
