#include "common/core/process.h"

#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <string_view>

namespace cleave {
namespace {

double secondsOf(const timeval& time) {
  return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
}

// Seconds from boot to the start of this process.
double startedAfterBoot() {
  constexpr int kStartField = 22;  // of /proc/self/stat; field 2 is a name in parentheses
  std::ifstream file("/proc/self/stat");
  const std::string text(std::istreambuf_iterator<char>(file), {});
  const std::size_t nameEnd = text.rfind(')');
  if (nameEnd == std::string::npos) return 0;
  std::istringstream fields(text.substr(nameEnd + 1));
  std::string field;
  for (int number = 3; number <= kStartField; ++number) fields >> field;
  return std::strtod(field.c_str(), nullptr) / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

// A number of pages in statm, from 1. `process`: its folder in /proc; 0 if it does not exist.
std::size_t memoryFrom(int position, const std::string& process = "self") {
  std::ifstream file("/proc/" + process + "/statm");
  std::size_t pages = 0;
  for (int number = 1; number <= position; ++number) file >> pages;
  return pages * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

}  // namespace

std::size_t residentBytes() { return memoryFrom(2); }

std::size_t peakResidentBytes() {
  // VmHWM begins with the program, whereas ru_maxrss may be that of the program that started it.
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    constexpr std::string_view kPeak = "VmHWM:";
    if (line.starts_with(kPeak)) {
      return std::strtoull(line.c_str() + kPeak.size(), nullptr, 10) * 1024;
    }
  }
  rusage usage{};  // a confined process can open no file
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::size_t>(usage.ru_maxrss) * 1024;
}

std::size_t dataBytes() { return memoryFrom(6); }

std::size_t privateResidentBytes(pid_t process) {
  const std::string name = std::to_string(process);
  const std::size_t resident = memoryFrom(2, name), shared = memoryFrom(3, name);
  return resident < shared ? 0 : resident - shared;
}

double cpuSeconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return secondsOf(usage.ru_utime) + secondsOf(usage.ru_stime);
}

double startedAt() {
  timespec boot{};
  ::clock_gettime(CLOCK_BOOTTIME, &boot);
  const double up = static_cast<double>(boot.tv_sec) + 1e-9 * static_cast<double>(boot.tv_nsec);
  const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
  return now.count() - up + startedAfterBoot();
}

std::size_t openDescriptors() {
  std::error_code error;
  const std::filesystem::directory_iterator entries("/proc/self/fd", error);
  if (error) return 0;
  // Excludes the directory iterator's own descriptor.
  return static_cast<std::size_t>(std::distance(begin(entries), end(entries))) - 1;
}

}  // namespace cleave
