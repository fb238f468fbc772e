#include "common/resources/available_memory.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

namespace cleave {
namespace {

constexpr std::uint64_t kUnknown = std::numeric_limits<std::uint64_t>::max();

// The number that follows `key` in a file such as /proc/meminfo or memory.stat.
std::uint64_t numberAfter(const std::string& path, const std::string& key,
                          std::uint64_t otherwise) {
  std::ifstream file(path);
  for (std::string word; file >> word;) {
    std::uint64_t number = 0;
    if (word == key && file >> number) return number;
  }
  return otherwise;
}

std::uint64_t numberIn(const std::string& path) {
  std::ifstream file(path);
  std::uint64_t number = 0;
  return file >> number ? number : kUnknown;  // "max" is no number
}

std::uint64_t leftOf(std::uint64_t limit, std::uint64_t used) {
  if (limit == kUnknown) return kUnknown;
  return limit - std::min(limit, used);
}

std::uint64_t leftInMachine() {
  const std::uint64_t kib = numberAfter("/proc/meminfo", "MemAvailable:", kUnknown);
  return kib == kUnknown ? kUnknown : kib << 10;
}

// cgroup v2. The file cache counts as used there, but its inactive part can be dropped.
std::uint64_t leftInCgroup() {
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("0::/")) continue;
    const std::string folder = "/sys/fs/cgroup" + line.substr(3);
    const std::uint64_t used = numberIn(folder + "/memory.current");
    if (used == kUnknown) return kUnknown;
    const std::uint64_t cache = numberAfter(folder + "/memory.stat", "inactive_file", 0);
    return leftOf(numberIn(folder + "/memory.max"), used - std::min(used, cache));
  }
  return kUnknown;
}

std::uint64_t leftOfAddresses() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return kUnknown;
  const std::uint64_t pages = numberIn("/proc/self/statm");
  const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  return leftOf(limit.rlim_cur, pages == kUnknown ? 0 : pages * page);
}

}  // namespace

std::uint64_t availableMemory() {
  return std::min({leftInMachine(), leftInCgroup(), leftOfAddresses()});
}

}  // namespace cleave
