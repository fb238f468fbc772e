#include "stage/confinement.h"

#include <ATen/Parallel.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <fstream>
#include <initializer_list>
#include <stdexcept>
#include <system_error>
#include <vector>

#include "common/core/process.h"

namespace cleave {
namespace {

#if defined(__x86_64__)
constexpr std::uint32_t kArchitecture = AUDIT_ARCH_X86_64;
#elif defined(__aarch64__)
constexpr std::uint32_t kArchitecture = AUDIT_ARCH_AARCH64;
#else
#error "add this processor's AUDIT_ARCH"
#endif

// What LibTorch needs for computing, and read and write for the messages.
constexpr std::array kAllowed = {
    SYS_read,       SYS_write,           SYS_munmap,          SYS_mprotect,      SYS_brk,
    SYS_futex,      SYS_rt_sigprocmask,  SYS_rt_sigreturn,    SYS_clock_gettime, SYS_exit,
    SYS_exit_group, SYS_mremap,          SYS_sched_yield,     SYS_getpid,        SYS_getrusage,
    SYS_gettid,     SYS_clock_nanosleep, SYS_restart_syscall, SYS_gettimeofday,
};
constexpr rlim_t kStackBytes = rlim_t{8} << 20;  // of the main thread

// Libraries look for files and settings that they can do without.
constexpr std::array kFailing = {SYS_openat, SYS_newfstatat, SYS_fstat,     SYS_readlinkat,
                                 SYS_prctl,  SYS_ioctl,      SYS_getrandom, SYS_sched_getaffinity};

void check(bool isDone, const char* what) {
  if (!isDone) throw std::system_error(errno, std::generic_category(), what);
}

// Keeps a limit that is lower.
void limit(int resource, rlim_t value) {
  const auto which = static_cast<__rlimit_resource>(resource);
  rlimit both{};
  check(::getrlimit(which, &both) == 0, "getrlimit");
  both.rlim_max = std::min(both.rlim_max, value);
  both.rlim_cur = std::min(both.rlim_cur, both.rlim_max);
  check(::setrlimit(which, &both) == 0, "setrlimit");
}

sock_filter statement(unsigned code, std::uint32_t value) {
  return {static_cast<std::uint16_t>(code), 0, 0, value};
}
// Skips the next statement unless the loaded value is `value`.
sock_filter skipUnless(std::uint32_t value) { return {BPF_JMP | BPF_JEQ | BPF_K, 0, 1, value}; }
sock_filter answer(std::uint32_t action) { return statement(BPF_RET | BPF_K, action); }
sock_filter load(std::size_t offset) {
  return statement(BPF_LD | BPF_W | BPF_ABS, static_cast<std::uint32_t>(offset));
}

constexpr std::uint32_t kFail = SECCOMP_RET_ERRNO | EPERM;

// The call fails unless the bits of `mask` in its argument have one of these values.
void allowWith(std::vector<sock_filter>& filter, long call, std::size_t argument,
               std::uint32_t mask, std::initializer_list<std::uint32_t> values) {
  // The low half of an argument: both processors are little-endian.
  std::vector<sock_filter> block = {load(offsetof(seccomp_data, args) + 8 * argument),
                                    statement(BPF_ALU | BPF_AND | BPF_K, mask)};
  for (const std::uint32_t value : values) {
    block.push_back(skipUnless(value));
    block.push_back(answer(SECCOMP_RET_ALLOW));
  }
  block.push_back(answer(kFail));
  filter.push_back({BPF_JMP | BPF_JEQ | BPF_K, 0, static_cast<std::uint8_t>(block.size()),
                    static_cast<std::uint32_t>(call)});
  filter.insert(filter.end(), block.begin(), block.end());
}

std::vector<sock_filter> makeFilter() {
  std::vector<sock_filter> filter = {
      load(offsetof(seccomp_data, arch)),
      {BPF_JMP | BPF_JEQ | BPF_K, 1, 0, kArchitecture},
      answer(SECCOMP_RET_KILL_PROCESS),
      load(offsetof(seccomp_data, nr)),
  };
  for (const long call : kAllowed) {
    filter.push_back(skipUnless(static_cast<std::uint32_t>(call)));
    filter.push_back(answer(SECCOMP_RET_ALLOW));
  }
  for (const long call : kFailing) {
    filter.push_back(skipUnless(static_cast<std::uint32_t>(call)));
    filter.push_back(answer(kFail));
  }
  // RLIMIT_DATA counts neither shared memory nor stacks.
  constexpr std::uint32_t kPrivate = MAP_ANONYMOUS | MAP_PRIVATE;
  allowWith(filter, SYS_mmap, 3, kPrivate | MAP_SHARED | MAP_GROWSDOWN, {kPrivate});
  // What malloc() uses. Others take pages from the memory that the server reads, or poison them.
  allowWith(filter, SYS_madvise, 2, ~0U,
            {MADV_DONTNEED, MADV_FREE, MADV_HUGEPAGE, MADV_NOHUGEPAGE});
  filter.push_back(answer(SECCOMP_RET_KILL_PROCESS));  // also x32's numbers
  return filter;
}

// For the calling thread only.
bool applyFilter() {
  static std::vector<sock_filter> filter = makeFilter();
  const sock_fprog program{static_cast<unsigned short>(filter.size()), filter.data()};
  return ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

// Calls `task` once on each of LibTorch's threads, which belong to its OpenMP library.
// at::parallel_for() uses only one of them in code that is compiled without OpenMP, as this is.
template <typename Task>
void onAllThreads(const Task& task) {
  using Parallel = void (*)(void (*)(void*), void*, unsigned threads, unsigned flags);
  const auto parallel = reinterpret_cast<Parallel>(::dlsym(RTLD_DEFAULT, "GOMP_parallel"));
  if (parallel == nullptr) throw std::logic_error("LibTorch does not use GNU OpenMP");
  struct Call {
    const Task& task;
    std::atomic<int> count = 0;
  } call{task};
  const int threads = at::get_num_threads();
  parallel(
      [](void* data) {
        Call& each = *static_cast<Call*>(data);
        each.task();
        ++each.count;
      },
      &call, static_cast<unsigned>(threads), 0);
  if (call.count != threads) throw std::logic_error("a compute thread did not start");
}

}  // namespace

void leaveParent(pid_t parent, std::span<const int> kept) {
  check(::prctl(PR_SET_PDEATHSIG, SIGKILL) == 0, "PR_SET_PDEATHSIG");
  if (::getppid() != parent) ::_exit(1);  // it has ended before the call above
  // If the machine runs out of memory, this process ends, not the server. Not essential.
  std::ofstream("/proc/self/oom_score_adj") << 1000;
  std::vector<int> open(kept.begin(), kept.end());
  std::sort(open.begin(), open.end());
  unsigned first = 0;
  for (const int descriptor : open) {
    const auto number = static_cast<unsigned>(descriptor);
    if (number > first) check(::close_range(first, number - 1, 0) == 0, "close_range");
    first = number + 1;
  }
  check(::close_range(first, ~0U, 0) == 0, "close_range");
  limit(RLIMIT_CORE, 0);  // a core dump would hold the client's data
  limit(RLIMIT_FSIZE, 0);
  check(::prctl(PR_SET_DUMPABLE, 0) == 0, "PR_SET_DUMPABLE");
  check(::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0, "PR_SET_NO_NEW_PRIVS");
}

void startComputeThreads(int threads) {
  at::set_num_threads(threads);
  onAllThreads([] {});
}

void confine(std::size_t bytes) {
#ifdef CLEAVE_SANITIZED  // a sanitizer maps memory and makes system calls of its own
  static_cast<void>(bytes);
  return;
#endif
  limit(RLIMIT_DATA, dataBytes() + bytes);
  limit(RLIMIT_STACK, kStackBytes);  // not counted as data
  limit(RLIMIT_NPROC, 0);            // without effect for root
  limit(RLIMIT_NOFILE, 0);
  std::atomic<int> failed = 0;
  onAllThreads([&] {
    if (!applyFilter()) failed = errno;
  });
  errno = failed;
  check(failed == 0, "PR_SET_SECCOMP");
}

}  // namespace cleave
