#include "client/run/child.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <charconv>
#include <chrono>
#include <filesystem>
#include <thread>

#include "common/core/clock.h"
#include "common/core/error.h"
#include "common/core/open_file.h"

namespace cleave {
namespace {

constexpr double kStartSeconds = 60;
constexpr double kEndSeconds = 10;

// Reads a line from `descriptor`. Returns "" at the end of the stream or after kStartSeconds.
std::string readLine(int descriptor) {
  std::string line;
  const SteadyTime start = now();
  while (secondsSince(start) < kStartSeconds) {
    pollfd poll{descriptor, POLLIN, 0};
    constexpr int kMilliseconds = 100;
    if (::poll(&poll, 1, kMilliseconds) <= 0) continue;
    char c = 0;
    if (::read(descriptor, &c, 1) != 1) return "";
    if (c == '\n') return line;
    line += c;
  }
  return "";
}

[[noreturn]] void refuseStart(const std::string& program, const std::string& why) {
  throw RunError("no-child", program + " did not start: " + why,
                 "check that the programs of Cleave are in the same folder and executable");
}

}  // namespace

std::string programBeside(const std::string& name) {
  const std::string program =
      (std::filesystem::read_symlink("/proc/self/exe").parent_path() / name).string();
  if (::access(program.c_str(), X_OK) != 0) {
    refuseStart(program, "it is missing or not executable");
  }
  return program;
}

Child::Child(std::vector<std::string> argv, const Output& output) {
  std::vector<char*> pointers;
  for (std::string& argument : argv) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  const pid_t parent = ::getpid();
  process_ = ::fork();
  if (process_ < 0) refuseStart(argv.front(), "the system cannot start another process");
  if (process_ > 0) return;
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (::getppid() != parent) ::_exit(1);
  if (output.standard >= 0) ::dup2(output.standard, STDOUT_FILENO);
  if (output.errors >= 0) ::dup2(output.errors, STDERR_FILENO);
  ::execv(pointers[0], pointers.data());
  ::_exit(127);
}

Child::~Child() { end(SIGTERM); }

std::optional<int> Child::ended() {
  int status = 0;
  if (!code_ && ::waitpid(process_, &status, WNOHANG) == process_) {
    constexpr int kSignalled = 128;
    code_ = WIFEXITED(status) ? WEXITSTATUS(status) : kSignalled + WTERMSIG(status);
  }
  return code_;
}

void Child::signal(int number) const {
  if (!code_) ::kill(process_, number);
}

int Child::end(int number) {
  signal(number);
  const SteadyTime start = now();
  while (!ended()) {
    if (secondsSince(start) > kEndSeconds) signal(SIGKILL);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return *code_;
}

ListeningChild::ListeningChild(const std::vector<std::string>& argv, int errors) {
  int pipe[2];
  if (::pipe2(pipe, O_CLOEXEC) != 0) refuseStart(argv.front(), "cannot create a pipe");
  const OpenFile from(pipe[0]);
  OpenFile to(pipe[1]);
  child_.emplace(argv, Child::Output{to.get(), errors});
  to.close();  // only the child may hold the write end, so that its exit closes the pipe
  const std::string line = readLine(from.get());
  const std::size_t colon = line.rfind(':');
  const bool listens = line.find("listen") != std::string::npos && colon != std::string::npos;
  const char* const end = line.data() + line.size();
  if (!listens || std::from_chars(line.data() + colon + 1, end, address_.port).ptr != end) {
    refuseStart(argv.front(), "it does not listen; see its error on stderr");
  }
}

}  // namespace cleave
