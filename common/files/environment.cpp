#include "common/files/environment.h"

#include <malloc.h>
#include <sched.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <limits>
#include <optional>
#include <sstream>
#include <string_view>
#include <thread>
#include <vector>

#include "common/files/record.h"

namespace cleave {
namespace {

namespace fs = std::filesystem;

// Instruction sets by which our kernels or Torch's are selected.
constexpr std::array<std::string_view, 8> kFlagsOfInterest = {
    "avx2", "avx512f", "avx512bw", "avx512vnni", "avx512_bf16", "f16c", "fma", "asimd"};

struct Processor {
  std::string model = "unknown";
  std::vector<std::string> flags;
};

// Reads the "key : value" lines of the first processor.
Processor readProcessor() {
  Processor processor;
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line) && !line.empty();) {
    const std::size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    const std::string key = line.substr(0, line.find_last_not_of(" \t", colon - 1) + 1);
    std::istringstream value(line.substr(colon + 1));
    if (key == "model name") std::getline(value >> std::ws, processor.model);
    if (key != "flags" && key != "Features") continue;  // x86, Arm
    for (std::string flag; value >> flag;) {
      if (std::find(kFlagsOfInterest.begin(), kFlagsOfInterest.end(), flag) !=
          kFlagsOfInterest.end()) {
        processor.flags.push_back(flag);
      }
    }
  }
  return processor;
}

// The number of cores that one control group's quota allows; empty if it sets no quota. The quota
// is a number of microseconds per period. cgroup v2 has both in one file ("max": no quota), v1 has
// two files (-1: no quota).
std::optional<double> quotaOf(const fs::path& group) {
  double quota = 0;
  double period = 0;
  std::ifstream both(group / "cpu.max");
  if (!(both >> quota >> period)) {
    std::ifstream(group / "cpu.cfs_quota_us") >> quota;
    std::ifstream(group / "cpu.cfs_period_us") >> period;
  }
  if (quota <= 0 || period <= 0) return std::nullopt;
  return quota / period;
}

// The smallest quota of the process's group and its ancestors. Inside a container the path may
// exist only on the host. Then only its ancestors are found; the last of them is the container's
// own group.
double minQuota() {
  double min = std::numeric_limits<double>::infinity();
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // "4:cpu,cpuacct:/path", "0::/path"
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first, second - first) + ",";  // such as ":cpu,"
    fs::path root = "/sys/fs/cgroup";
    if (controllers.find(":cpu,") != std::string::npos ||
        controllers.find(",cpu,") != std::string::npos) {
      root /= "cpu";
    } else if (controllers != ":,") {
      continue;
    }
    fs::path group = fs::path(line.substr(second + 1)).relative_path();
    while (true) {
      min = std::min(min, quotaOf(root / group).value_or(min));
      if (group.empty()) break;
      group = group.parent_path();
    }
  }
  return min;
}

// Re-executes the program with the current environment. Returns only if that fails.
void executeAgain(char** argv) {
  // Executes the program's real path if possible, because ps and top would otherwise show "exe".
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  if (!error) ::execv(program.c_str(), argv);
  ::execv("/proc/self/exe", argv);
}

}  // namespace

std::string softwareVersion() { return "cleave " CLEAVE_VERSION; }
std::string softwareRevision() { return CLEAVE_REVISION; }

std::uint64_t machineMemory() {
  return static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES)) *
         static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

nlohmann::json describeEnvironment(int threads) {
  utsname kernel{};
  ::uname(&kernel);
#ifdef __clang__
  const std::string compiler = __VERSION__;
#else
  const std::string compiler = "g++ " __VERSION__;
#endif
  const Processor processor = readProcessor();
  return {
      {"software", softwareVersion()},
      {"revision", softwareRevision()},
      {"compiler", compiler},
      {"kernel", std::string(kernel.sysname) + " " + kernel.release + " " + kernel.machine},
      {"cpu", {{"model", processor.model}, {"cores", usableCores()}, {"flags", processor.flags}}},
      {"memory_bytes", machineMemory()},
      {"threads", threads},
      {"pid", ::getpid()},
      {"started", utcNow()},
  };
}

int usableCores() {
  cpu_set_t set;
  const int cores = ::sched_getaffinity(0, sizeof set, &set) == 0
                        ? CPU_COUNT(&set)
                        : static_cast<int>(std::thread::hardware_concurrency());  // > 1024 cores
  // Rounded down: the kernel stalls the whole process, including the io thread, when it reaches its
  // quota.
  return std::max(1, static_cast<int>(std::min<double>(cores, minQuota())));
}

ThreadCount chooseThreads(int cores, int asked, int max, bool sharesMachine) {
  const int wanted = asked > 0 ? asked : sharesMachine ? std::max(1, cores / 2) : cores;
  const int limit = max > 0 ? std::min(max, cores) : cores;
  ThreadCount count;
  count.threads = std::min(wanted, limit);
  std::string why = "all of them";
  if (count.threads < wanted) {
    why = limit < cores ? "the maximum allowed here" : "all of them; more were requested";
  } else if (asked > 0) {
    why = "as configured";
  } else if (sharesMachine) {
    why = "half, because client and server share this machine";
  }
  count.text = std::to_string(count.threads) + " of " + std::to_string(cores) +
               (cores == 1 ? " core: " : " cores: ") + why;
  return count;
}

void prepareProcess(char** argv) {
  // Once set, the variable also prevents an endless loop of re-executions.
  if (std::getenv("OMP_WAIT_POLICY") == nullptr && ::setenv("OMP_WAIT_POLICY", "passive", 1) == 0) {
    executeAgain(argv);
  }
  keepFreedMemory();
}

void endProcess(int code) {
  std::cout.flush();
  std::cerr.flush();
  std::fflush(nullptr);
  std::_Exit(code);
}

void keepFreedMemory() {
  // By default malloc maps every block above 32 MiB separately, and the kernel zeroes its pages one
  // fault at a time: 256 faults per MiB, every step. Below the threshold, blocks come from the
  // heap, which keeps them because trimming is off.
  constexpr int kThreshold = 1 << 30;
  if (::mallopt(M_MMAP_THRESHOLD, kThreshold) == 0) {
    ::mallopt(M_MMAP_MAX, 0);  // if the C library refuses the threshold, never map
  }
  ::mallopt(M_TRIM_THRESHOLD, -1);  // never
  // Uses one arena, so that every thread can reuse the blocks that other threads free. Must precede
  // the first thread.
  ::mallopt(M_ARENA_MAX, 1);
}

void releaseMemory() { ::malloc_trim(0); }

}  // namespace cleave
