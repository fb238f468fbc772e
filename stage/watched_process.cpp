#include "stage/watched_process.h"

#include <poll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <ctime>
#include <utility>

#include "common/core/process.h"

namespace cleave {
namespace {

constexpr int kEndMilliseconds = 200;
// Processor time between two actions: for ending the last one, and for returning free memory.
constexpr double kMaxUnaskedSeconds = 1;

}  // namespace

std::string endText(int status) {
  if (WIFSIGNALED(status)) {
    return "signal " + std::to_string(WTERMSIG(status)) + " (" + ::strsignal(WTERMSIG(status)) +
           ")";
  }
  return "exit code " + std::to_string(WEXITSTATUS(status));
}

WatchedProcess::WatchedProcess(pid_t process, OpenFile handle, std::function<int()> waitFor,
                               std::function<void()> returnMemory)
    : process_(process),
      handle_(std::move(handle)),
      waitFor_(std::move(waitFor)),
      returnMemory_(std::move(returnMemory)) {}

void WatchedProcess::asked() {
  const std::lock_guard lock(mutex_);
  if (requests_ == 0) killIfComputing();
  ++requests_;
  idleSince_.reset();
}

void WatchedProcess::answered() {
  const std::lock_guard lock(mutex_);
  if (--requests_ > 0) return;
  usedSeconds_ = processorSeconds();
  idleSince_ = now();
}

bool WatchedProcess::hasComputedUnasked() const {
  const std::lock_guard lock(mutex_);
  return hasComputedUnasked_;
}

void WatchedProcess::kill() {
  const std::lock_guard lock(mutex_);
  killNow();
}

std::string WatchedProcess::end() {
  const std::lock_guard lock(mutex_);
  // A process that has crashed keeps the signal of the crash as its status.
  killNow();
  return read(kEndMilliseconds) ? ended_ : endText(SIGKILL);
}

bool WatchedProcess::look() {
  std::unique_lock lock(mutex_);
  if (requests_ == 0) killIfComputing();
  if (read(0)) return false;
  if (!idleSince_ || secondsSince(*idleSince_) < kStageIdleSeconds) return true;
  idleSince_.reset();
  lock.unlock();
  if (returnMemory_) returnMemory_();
  return true;
}

bool WatchedProcess::isEnding() const {
  const std::lock_guard lock(mutex_);
  return isKilled_ && handle_;
}

std::size_t WatchedProcess::residentBytes() const {
  const std::lock_guard lock(mutex_);
  if (!handle_) return 0;  // its number may be that of another process
  return privateResidentBytes(process_);
}

double WatchedProcess::processorSeconds() const {
  clockid_t clock{};
  timespec time{};
  if (!handle_ || ::clock_getcpuclockid(process_, &clock) != 0) return 0;
  // Not the library's function, which tests replace to make the clock jump.
  if (::syscall(SYS_clock_gettime, clock, &time) != 0) return 0;
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

void WatchedProcess::killIfComputing() {
  if (isKilled_ || processorSeconds() - usedSeconds_ <= kMaxUnaskedSeconds) return;
  hasComputedUnasked_ = true;
  killNow();
}

void WatchedProcess::killNow() {
  if (!handle_) return;
  ::syscall(SYS_pidfd_send_signal, handle_.get(), SIGKILL, nullptr, 0);
  isKilled_ = true;
}

// Reads its status if it has ended, or ends within this time.
bool WatchedProcess::read(int milliseconds) {
  if (!handle_) return true;
  pollfd ends{handle_.get(), POLLIN, 0};
  int ready = 0;
  do {
    ready = ::poll(&ends, 1, milliseconds);
  } while (ready < 0 && errno == EINTR);
  if (ready == 0) return false;
  ended_ = endText(waitFor_());
  handle_ = OpenFile();
  return true;
}

}  // namespace cleave
