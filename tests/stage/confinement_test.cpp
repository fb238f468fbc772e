// A confined process cannot reach other processes, files and networks, and gets no more memory than
// its limit.
#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <catch2/catch.hpp>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "stage/confinement.h"
#include "stage/shared_memory.h"

namespace cleave {
namespace {

constexpr std::size_t kMebibyte = std::size_t{1} << 20;

// ---- System calls ----

// Exit codes; others are those of errno.
constexpr int kDone = 255, kNotConfined = 254;

// Ends this process, which a test has forked, with the error of `attack`.
[[noreturn]] void attackConfined(pid_t parent, const std::function<long()>& attack) {
  for (const int signal : {SIGSEGV, SIGTERM, SIGABRT}) ::signal(signal, SIG_DFL);  // Catch's
  try {
    rlimit stack{};  // a server may have none
    ::getrlimit(RLIMIT_STACK, &stack);
    stack.rlim_cur = stack.rlim_max;
    ::setrlimit(RLIMIT_STACK, &stack);
    leaveParent(parent, std::array{0, 1, 2});
    startComputeThreads(2);
    confine(16 * kMebibyte);
  } catch (...) {
    ::_exit(kNotConfined);
  }
  errno = 0;
  ::_exit(attack() == -1 ? errno : kDone);
}

std::string endOf(pid_t child) {
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  if (WIFSIGNALED(status)) return ::strsignal(WTERMSIG(status));
  const int code = WEXITSTATUS(status);
  REQUIRE(code != kNotConfined);
  return code == kDone ? "done" : ::strerror(code);
}

// How a confined process ends in which `attack` returns what a system call returns.
std::string endOf(const std::function<long()>& attack) {
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child == 0) attackConfined(parent, attack);
  return endOf(child);
}

struct CallRow {
  const char* name;
  long number;
  std::array<long, 6> arguments;
};

template <typename Value>
long address(const Value* value) {
  return reinterpret_cast<long>(value);
}

std::vector<CallRow> calls() {
  static std::array<char, 64> buffer{};
  static const iovec vector{buffer.data(), buffer.size()};
  static const char* const nothing[] = {nullptr};
  const long parent = ::getpid(), bytes = address(&buffer), part = address(&vector);
  const long program = address("/bin/true"), none = address(nothing);
  const long file = address("/etc/passwd"), shared = address("/dev/shm/cleave-hostile");
  constexpr long kAccess = PROT_READ | PROT_WRITE, kPrivate = MAP_PRIVATE | MAP_ANONYMOUS;
  return {
    // Other processes.
    {"clone", SYS_clone, {SIGCHLD}}, {"clone3", SYS_clone3, {bytes, sizeof buffer}},
        {"execve", SYS_execve, {program, none, none}},
        {"execveat", SYS_execveat, {AT_FDCWD, program, none, none}},
        {"ptrace", SYS_ptrace, {PTRACE_ATTACH, parent}},
        {"process_vm_readv", SYS_process_vm_readv, {parent, part, 1, part, 1}},
        {"process_vm_writev", SYS_process_vm_writev, {parent, part, 1, part, 1}},
        {"process_madvise", SYS_process_madvise, {0, part, 1, MADV_COLD}},
        {"kill", SYS_kill, {parent, 0}}, {"tkill", SYS_tkill, {parent, 0}},
        {"tgkill", SYS_tgkill, {parent, parent, 0}},
        {"rt_sigqueueinfo", SYS_rt_sigqueueinfo, {parent, SIGURG, bytes}},
        {"pidfd_open", SYS_pidfd_open, {parent}}, {"pidfd_getfd", SYS_pidfd_getfd, {}},
        {"setpriority", SYS_setpriority, {PRIO_PROCESS, parent, 0}},
        {"sched_setaffinity", SYS_sched_setaffinity, {parent, sizeof buffer, bytes}},
        {"prlimit64", SYS_prlimit64, {parent, RLIMIT_CPU}},
        // Networks and descriptors.
        {"socket", SYS_socket, {AF_INET, SOCK_STREAM}},
        {"socketpair", SYS_socketpair, {AF_UNIX, SOCK_STREAM, 0, bytes}},
        {"connect", SYS_connect, {0, bytes, 16}}, {"bind", SYS_bind, {0, bytes, 16}},
        {"sendmsg", SYS_sendmsg, {0, bytes}}, {"recvmsg", SYS_recvmsg, {0, bytes}},
        {"dup", SYS_dup, {}}, {"fcntl", SYS_fcntl, {0, F_GETFL}}, {"pipe2", SYS_pipe2, {bytes}},
        {"splice", SYS_splice, {0, 0, 1, 0, 1}}, {"ioctl", SYS_ioctl, {0, TIOCSTI, bytes}},
        // Files.
        {"openat", SYS_openat, {AT_FDCWD, file, O_RDONLY}},
        {"openat in /dev/shm", SYS_openat, {AT_FDCWD, shared, O_CREAT | O_RDWR, 0600}},
        {"openat2", SYS_openat2, {AT_FDCWD, file, bytes, 24}},
        {"open_by_handle_at", SYS_open_by_handle_at, {AT_FDCWD, bytes}},
        {"mkdirat", SYS_mkdirat, {AT_FDCWD, shared, 0700}},
        {"unlinkat", SYS_unlinkat, {AT_FDCWD, shared}}, {"chdir", SYS_chdir, {address("/")}},
        {"ftruncate", SYS_ftruncate, {0, 0}}, {"fallocate", SYS_fallocate, {0, 0, 0, 4096}},
        // Memory that the limit does not count.
        {"memfd_create", SYS_memfd_create, {address("x")}}, {"shmget", SYS_shmget, {0, 4096, 0600}},
        {"shared mmap", SYS_mmap, {0, 4096, kAccess, MAP_SHARED | MAP_ANONYMOUS, -1}},
        {"mmap of a file", SYS_mmap, {0, 4096, PROT_READ, MAP_PRIVATE, 0}},
        {"mmap of a stack", SYS_mmap, {0, 4096, kAccess, kPrivate | MAP_GROWSDOWN, -1}},
        {"mlockall", SYS_mlockall, {1}},
        {"madvise that poisons", SYS_madvise, {4096, 4096, MADV_HWPOISON}},
        {"userfaultfd", SYS_userfaultfd, {}},
        // The kernel's larger interfaces.
        {"io_uring_setup", SYS_io_uring_setup, {1, bytes}},
        {"bpf", SYS_bpf, {0, bytes, sizeof buffer}},
        {"perf_event_open", SYS_perf_event_open, {bytes, 0, -1, -1}},
        {"keyctl", SYS_keyctl, {0, -2}}, {"unshare", SYS_unshare, {}}, {"setns", SYS_setns, {}},
        {"mount", SYS_mount, {none, none, none}}, {"chroot", SYS_chroot, {address("/")}},
        {"setuid", SYS_setuid, {}}, {"seccomp", SYS_seccomp, {2}},
        {"prctl", SYS_prctl, {PR_SET_DUMPABLE, 1}}, {"personality", SYS_personality, {0xffffffff}},
#if defined(__x86_64__)
        {"fork", SYS_fork, {}}, {"open", SYS_open, {file, O_RDONLY}},
        {"a call of x32", 0x40000000 | SYS_getpid, {}},
#endif
  };
}

#if defined(__x86_64__)
long callOf32Bits() {
  long result = 20;  // getpid
  __asm__ volatile("int $0x80" : "+a"(result)::"memory");
  return result;
}
#endif

TEST_CASE("a confined process can make no call that reaches anything else") {
  CHECK(endOf([] { return ::syscall(SYS_gettid); }) == "done");  // an allowed one
  const std::string killed = ::strsignal(SIGSYS), refused = ::strerror(EPERM);
  for (const CallRow& row : calls()) {
    CAPTURE(row.name);
    const auto& with = row.arguments;
    const std::string end = endOf([&] {
      return ::syscall(row.number, with[0], with[1], with[2], with[3], with[4], with[5]);
    });
    CHECK((end == killed || end == refused));
  }
#if defined(__x86_64__)
  CHECK(endOf(callOf32Bits) == killed);
#endif
}

// ---- Memory ----

long mapping(std::size_t bytes, int access) {
  return ::syscall(SYS_mmap, 0, bytes, access, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
}

TEST_CASE("a confined process gets no more memory than its limit") {
  constexpr std::size_t kMuch = 256 * kMebibyte;
  CHECK(endOf([] { return mapping(kMebibyte, PROT_READ | PROT_WRITE); }) == "done");
  const std::vector<std::pair<const char*, std::function<long()>>> ways = {
      {"at once", [] { return mapping(kMuch, PROT_READ | PROT_WRITE); }},
      {"in pieces",
       [] {
         for (std::size_t n = 0; n < kMuch / kMebibyte; ++n) {
           if (mapping(kMebibyte, PROT_READ | PROT_WRITE) == -1) return -1L;
         }
         return 0L;
       }},
      {"made writable later",
       [] {
         const long address = mapping(kMuch, PROT_READ);
         return address == -1 ? 0 : ::syscall(SYS_mprotect, address, kMuch, PROT_READ | PROT_WRITE);
       }},
      {"enlarged",
       [] {
         const long address = mapping(kMebibyte, PROT_READ | PROT_WRITE);
         return ::syscall(SYS_mremap, address, kMebibyte, kMuch, MREMAP_MAYMOVE);
       }},
      {"by the C library",
       [] {
         if (std::malloc(kMuch) != nullptr) return 0L;
         errno = ENOMEM;
         return -1L;
       }},
      {"by C++",
       [] {
         try {
           return static_cast<long>(std::vector<char>(kMuch, 1).back());
         } catch (const std::bad_alloc&) {
           errno = ENOMEM;
           return -1L;
         }
       }},
  };
  for (const auto& [way, attack] : ways) {
    CAPTURE(way);
    CHECK(endOf(attack) == ::strerror(ENOMEM));
  }
  CHECK(endOf([] {
          auto* const stack = static_cast<volatile char*>(__builtin_frame_address(0));
          for (std::size_t n = 0; n < 64 * kMebibyte; n += 4096) *(stack - n) = 1;
          return 0L;
        }) == ::strsignal(SIGSEGV));
}

// Maps memory as a stage's process does, without the parent's mapping that fork() copies.
SharedMemory mappedAlone(const SharedMemory& memory, bool writes) {
  const std::size_t size = memory.bytes().size();
  SharedMemory own = SharedMemory::open(OpenFile(::dup(memory.file())), size, writes);
  ::munmap(memory.bytes().data(), size);
  own.closeFile();
  return own;
}

TEST_CASE("a confined process can only read its input, and cannot take pages from its output") {
  const SharedMemory input = SharedMemory::create(4096, false);
  const SharedMemory output = SharedMemory::create(4096, true);
  std::memset(output.bytes().data(), 1, 4096);
  const auto attackOn = [](const SharedMemory& memory, bool writes,
                           const std::function<long(std::byte*)>& attack) {
    const pid_t parent = ::getpid();
    const pid_t child = ::fork();
    if (child == 0) {
      const SharedMemory own = mappedAlone(memory, writes);
      attackConfined(parent, [&] { return attack(own.bytes().data()); });
    }
    return endOf(child);
  };
  const auto write = [](std::byte* memory) {
    *memory = std::byte{2};
    return 0L;
  };
  CHECK(attackOn(input, false, write) == ::strsignal(SIGSEGV));
  CHECK(attackOn(input, false, [](std::byte* memory) {
          return ::syscall(SYS_mprotect, memory, 4096, PROT_READ | PROT_WRITE);
        }) == ::strerror(EACCES));
  CHECK(attackOn(output, true, [](std::byte* memory) {
          return ::syscall(SYS_madvise, memory, 4096, MADV_REMOVE);
        }) == ::strerror(EPERM));
  CHECK(output.bytes()[0] == std::byte{1});
}

}  // namespace
}  // namespace cleave
