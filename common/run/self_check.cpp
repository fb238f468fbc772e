#include "common/run/self_check.h"

#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mm.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "common/core/clock.h"
#include "common/core/log.h"
#include "common/files/environment.h"
#include "common/model/stage/stage.h"

namespace cleave {
namespace {

constexpr double kProductSeconds = 0.02;
constexpr double kCopySeconds = 0.01;
constexpr int kFewestRepetitions = 3;

std::optional<SelfCheck> result;  // written once, before other threads read it

// Returns the minimum time over as many repetitions as fit into `seconds`. The minimum is used
// because other processes can only increase the time.
template <typename Work>
double minSeconds(double seconds, const Work& work) {
  double min = 0;
  const SteadyTime start = now();
  for (int i = 0; i < kFewestRepetitions || secondsSince(start) < seconds; ++i) {
    const SteadyTime begin = now();
    work();
    const double taken = secondsSince(begin);
    if (i == 0 || taken < min) min = taken;
    if (taken > seconds) break;
  }
  return min;
}

double productSeconds(std::int64_t size, double seconds) {
  const at::NoGradGuard noGrad;
  const at::Tensor a = at::full({size, size}, 0.5f);
  const at::Tensor b = at::full({size, size}, 0.25f);
  at::Tensor product = at::mm(a, b);  // the first call loads and chooses kernels
  return minSeconds(seconds, [&] { at::mm_out(product, a, b); });
}

double gigaflops() {
  // Large enough to reach the processor's full speed. It would take 134 ms at 2 GFLOP/s, so the
  // small product is measured first.
  constexpr std::int64_t kLarge = 512;
  constexpr std::int64_t kSmall = 128;
  const auto operations = [](std::int64_t size) {
    return 2e-9 * static_cast<double>(size) * static_cast<double>(size) * static_cast<double>(size);
  };
  const double small = productSeconds(kSmall, 0.1 * kProductSeconds);
  const double slow = operations(kSmall) / small;
  if (operations(kLarge) / slow > 2 * kProductSeconds) return slow;
  return operations(kLarge) / productSeconds(kLarge, kProductSeconds);
}

// Memory that is returned to the kernel when it is freed; the heap would keep it
// (prepareProcess()).
class Pages {
 public:
  explicit Pages(std::size_t bytes)
      : bytes_(bytes),
        data_(::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    if (data() == nullptr) return;
    ::madvise(data_, bytes, MADV_HUGEPAGE);  // otherwise page faults dominate the check
    std::memset(data_, 1, bytes);
  }
  ~Pages() {
    if (data() != nullptr) ::munmap(data_, bytes_);
  }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  char* data() const { return data_ == MAP_FAILED ? nullptr : static_cast<char*>(data_); }

 private:
  std::size_t bytes_;
  void* data_;
};

double copyGigabytes() {
  constexpr std::int64_t kBytes = std::int64_t{32} << 20;  // two of these exceed most caches
  const Pages from(kBytes);
  const Pages to(kBytes);
  if (from.data() == nullptr || to.data() == nullptr) return 0;
  const double seconds = minSeconds(kCopySeconds, [&] {
    constexpr std::int64_t kGrain = std::int64_t{1} << 20;
    at::parallel_for(0, kBytes, kGrain, [&](std::int64_t begin, std::int64_t end) {
      std::memcpy(to.data() + begin, from.data() + begin, static_cast<std::size_t>(end - begin));
    });
  });
  return 1e-9 * static_cast<double>(kBytes) / seconds;
}

struct Expectation {
  const char* instructionSet;
  double minGigaflops;  // per thread
};

// The peak of a core at 2 GHz with two multiply-add units is 128 GFLOP/s with AVX-512 and 64 with
// AVX2, and 16 with SSE, which has no multiply-add. These limits are at most a tenth of the peak:
// loops without vector instructions reach 1.3 to 5.9 (measured on a Zen 4 core, where MKL reaches
// 70), and a good library should exceed the limits even on a core shared with other processes.
constexpr Expectation kExpectations[] = {{"AVX512", 8}, {"AVX2", 6}, {"DEFAULT", 1}};

std::vector<std::string> processorFlags(int threads) {
  return describeEnvironment(threads).at("cpu").at("flags");
}

}  // namespace

SelfCheck measureMachine(int threads) {
  const SteadyTime start = now();
  setComputeThreads(threads);
  SelfCheck check;
  check.cores = usableCores();
  check.threads = threads;
  check.instructionSet = at::get_cpu_capability();
  check.gigaflops = gigaflops();
  check.copyGigabytes = copyGigabytes();
  check.seconds = secondsSince(start);
  return check;
}

std::vector<std::string> slownessAdvice(const SelfCheck& check,
                                        const std::vector<std::string>& processorFlags) {
  std::vector<std::string> advice;
  const bool hasAvx2 =
      std::find(processorFlags.begin(), processorFlags.end(), "avx2") != processorFlags.end();
  if (hasAvx2 && check.instructionSet == "DEFAULT") {
    advice.emplace_back(
        "LibTorch's own kernels do not use this processor's AVX2, and are slower than they could "
        "be: unset ATEN_CPU_CAPABILITY, or install the LibTorch of scripts/setup.sh");
  }
  const double perThread = check.gigaflops / check.threads;
  for (const Expectation& expected : kExpectations) {
    if (check.instructionSet != expected.instructionSet || perThread >= expected.minGigaflops) {
      continue;
    }
    advice.push_back(fmt::format(
        "LibTorch multiplies matrices at {:.1f} GFLOP/s per thread, but {} should reach at least "
        "{}: either other programs use the cores (use fewer threads or an idle machine), or its "
        "BLAS is generic (install the LibTorch of scripts/setup.sh)",
        perThread, expected.instructionSet, expected.minGigaflops));
  }
  return advice;
}

const SelfCheck& machineSpeed(int threads) {
  if (result) return *result;
  result = measureMachine(threads);
  // Other processes may have slowed the first measurement; a slow library is slow again.
  if (!slownessAdvice(*result, processorFlags(threads)).empty()) {
    const SelfCheck again = measureMachine(threads);
    if (again.gigaflops > result->gigaflops) result = again;
  }
  return *result;
}

void checkMachine(int threads) {
  const SelfCheck& check = machineSpeed(threads);
  processLog()->info(
      "self-check: cores {}, threads {}, {}; {:.0f} GFLOP/s fp32, {:.1f} GB/s copied "
      "({:.0f} ms)",
      check.cores, check.threads, check.instructionSet, check.gigaflops, check.copyGigabytes,
      check.seconds * 1e3);
  for (const std::string& sentence : slownessAdvice(check, processorFlags(threads))) {
    processLog()->warn("self-check: {}", sentence);
  }
}

nlohmann::json selfCheckJson() {
  if (!result) return nullptr;
  return {{"cores", result->cores},
          {"threads", result->threads},
          {"instruction_set", result->instructionSet},
          {"sgemm_gigaflops_per_second", result->gigaflops},
          {"copy_gigabytes_per_second", result->copyGigabytes},
          {"seconds", result->seconds}};
}

}  // namespace cleave
