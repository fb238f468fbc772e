#include "tests/daemon/process.h"

#include <fcntl.h>
#include <linux/close_range.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>
#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <mutex>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "common/core/open_file.h"
#include "tests/daemon/program_forks.h"

namespace cleave::test {
namespace {

[[noreturn]] void throwSystem(int error, const std::string& what) {
  throw std::system_error(error, std::generic_category(), what);
}

struct Pipe {
  OpenFile read;
  OpenFile write;
};

Pipe makePipe() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) throwSystem(errno, "a pipe cannot be created");
  return {OpenFile(ends[0]), OpenFile(ends[1])};
}

// Reads at most `size` bytes; returns 0 at the end.
std::size_t readSome(int descriptor, char* bytes, std::size_t size) {
  ssize_t got = 0;
  do {
    got = ::read(descriptor, bytes, size);
  } while (got < 0 && errno == EINTR);
  return got > 0 ? static_cast<std::size_t>(got) : 0;
}

std::vector<std::string> mergedEnvironment(const std::map<std::string, std::string>& overrides) {
  std::vector<std::string> merged;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    if (!overrides.contains(std::string(text.substr(0, text.find('='))))) merged.emplace_back(text);
  }
  for (const auto& [name, value] : overrides) merged.push_back(name + "=" + value);
  return merged;
}

// `env CLEAVE_FAIL=place program…` is `program…` in an environment with this variable.
void takeFailpoints(std::vector<std::string>& argv,
                    std::map<std::string, std::string>& environment) {
  const std::string prefix = "CLEAVE_FAIL=";
  if (argv.size() < 3 || argv[0] != "/usr/bin/env" || !argv[1].starts_with(prefix)) return;
  environment["CLEAVE_FAIL"] = argv[1].substr(prefix.size());
  argv.erase(argv.begin(), argv.begin() + 2);
}

// Runs in the child between fork() and execve(). It may only make system calls, because another
// thread of the parent may have held any lock during fork(). Returns with errno set if a call
// failed.
void becomeProgram(char* const* argv, char* const* environment, pid_t parent, int output,
                   int errors) {
  if (::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) return;
  if (::getppid() != parent) ::_exit(127);  // the parent exited before PR_SET_PDEATHSIG took effect
  if (::setpgid(0, 0) != 0) return;
  const int input = ::open("/dev/null", O_RDONLY);
  if (input < 0 || ::dup2(input, 0) < 0 || ::dup2(output, 1) < 0 || ::dup2(errors, 2) < 0) return;
  // Otherwise this process's sockets would stay open in the child, and their peers would not be
  // notified of a close.
  if (::close_range(3, UINT_MAX, CLOSE_RANGE_CLOEXEC) != 0) return;
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::signal(SIGPIPE, SIG_DFL);
  ::execve(argv[0], argv, environment);
}

}  // namespace

struct Process::State {
  State(pid_t child, OpenFile outputPipe, OpenFile errorsPipe)
      : pid(child),
        readers{std::thread([this, pipe = std::move(outputPipe)] { collect(pipe, output); }),
                std::thread([this, pipe = std::move(errorsPipe)] { collect(pipe, errors); })},
        waiter([this] { awaitExit(); }) {}
  ~State();

  void collect(const OpenFile& pipe, std::string& text);
  void awaitExit();

  const pid_t pid;
  mutable std::mutex mutex;  // guards the members below, except the threads
  mutable std::condition_variable changed;
  std::string output;
  std::string errors;
  int streamsOpen = 2;
  std::optional<int> exitCode;
  std::array<std::thread, 2> readers;
  std::thread waiter;
};

void Process::State::collect(const OpenFile& pipe, std::string& text) {
  std::array<char, 65536> bytes;
  while (const std::size_t got = readSome(pipe.get(), bytes.data(), bytes.size())) {
    const std::lock_guard lock(mutex);
    text.append(bytes.data(), got);
    changed.notify_all();
  }
  const std::lock_guard lock(mutex);
  --streamsOpen;
  changed.notify_all();
}

// Waits without reaping: the pid stays reserved until the destructor, so that no signal can reach
// another process.
void Process::State::awaitExit() {
  siginfo_t info{};
  while (::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOWAIT) != 0 && errno == EINTR) {
  }
  const std::lock_guard lock(mutex);
  exitCode = info.si_code == CLD_EXITED ? info.si_status : 128 + info.si_status;
  changed.notify_all();
}

Process::State::~State() {
  ::kill(-pid, SIGKILL);
  waiter.join();
  for (std::thread& reader : readers) reader.join();
  while (::waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
  }
}

Process Process::start(const std::vector<std::string>& argv,
                       const std::map<std::string, std::string>& environment) {
  if (argv.empty()) throwSystem(EINVAL, "a process needs a program");
  std::vector<std::string> arguments = argv;
  std::map<std::string, std::string> overrides = environment;
  takeFailpoints(arguments, overrides);
  std::vector<std::string> variables = mergedEnvironment(overrides);
  Pipe output = makePipe();
  Pipe errors = makePipe();
  if (const auto pid = forkProgram(arguments, variables, output.write.get(), errors.write.get())) {
    return Process(std::make_unique<State>(*pid, std::move(output.read), std::move(errors.read)));
  }
  const std::vector<char*> argumentPointers = pointersTo(arguments);
  const std::vector<char*> variablePointers = pointersTo(variables);
  Pipe fault =
      makePipe();  // a successful execve() closes the pipe; otherwise errno is written to it

  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) throwSystem(errno, argv[0] + " cannot be started");
  if (pid == 0) {
    becomeProgram(argumentPointers.data(), variablePointers.data(), parent, output.write.get(),
                  errors.write.get());
    const int error = errno;
    [[maybe_unused]] const ssize_t told = ::write(fault.write.get(), &error, sizeof error);
    ::_exit(127);
  }

  for (Pipe* pipe : {&output, &errors, &fault}) pipe->write.close();
  int error = 0;
  if (readSome(fault.read.get(), reinterpret_cast<char*>(&error), sizeof error) != 0) {
    while (::waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
    }
    throwSystem(error, argv[0] + " cannot be started");
  }
  return Process(std::make_unique<State>(pid, std::move(output.read), std::move(errors.read)));
}

Process::Process(std::unique_ptr<State> state) : state_(std::move(state)) {}
Process::Process(Process&&) noexcept = default;
Process::~Process() = default;

pid_t Process::pid() const { return state_->pid; }

std::string Process::output() const {
  const std::lock_guard lock(state_->mutex);
  return state_->output;
}

std::string Process::errors() const {
  const std::lock_guard lock(state_->mutex);
  return state_->errors;
}

bool Process::waitForOutput(const std::string& text, std::chrono::milliseconds timeout) const {
  const auto found = [&] {
    return state_->output.find(text) != std::string::npos ||
           state_->errors.find(text) != std::string::npos;
  };
  std::unique_lock lock(state_->mutex);
  state_->changed.wait_for(lock, timeout, [&] { return found() || state_->streamsOpen == 0; });
  return found();
}

void Process::signal(int number) { ::kill(state_->pid, number); }

std::optional<int> Process::wait(std::chrono::milliseconds timeout) const {
  const auto ended = [&] { return state_->exitCode.has_value() && state_->streamsOpen == 0; };
  std::unique_lock lock(state_->mutex);
  if (!state_->changed.wait_for(lock, timeout, ended)) return std::nullopt;
  return state_->exitCode;
}

}  // namespace cleave::test
