#include "client/local_server.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <thread>
#include <vector>

#include "common/core/clock.h"
#include "common/core/error.h"

namespace cleave {
namespace {

constexpr double kStartSeconds = 60;
constexpr double kStopSeconds = 10;

[[noreturn]] void refuse(const std::string& sentence) {
  throw RunError("no-local-server", sentence,
                 "start cleave-server yourself and give --server HOST:PORT");
}

std::string serverProgram() {
  const auto program =
      std::filesystem::read_symlink("/proc/self/exe").parent_path() / "cleave-server";
  if (!std::filesystem::exists(program)) refuse("there is no " + program.string());
  return program.string();
}

// The first line that comes from `descriptor`, or an empty one at its end or after kStartSeconds.
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

}  // namespace

LocalServer::LocalServer(const std::string& store, const std::string& device) {
  // The user's own: no limit but the machine's.
  std::vector<std::string> arguments = {serverProgram(), "serve", "--log-level", "warn"};
  for (const std::string& setting :
       {std::string("listen.port=0"), "store=" + store, "device=" + device,
        std::string("limits.memory_mib=16777216"), std::string("status.socket=off")}) {
    arguments.insert(arguments.end(), {"--set", setting});
  }
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);

  int pipe[2];
  if (::pipe2(pipe, O_CLOEXEC) != 0) refuse("cannot make a pipe");
  const pid_t parent = ::getpid();
  process_ = ::fork();
  if (process_ < 0) refuse("cannot start a process");
  if (process_ == 0) {
    // In a group of its own, so that Ctrl-C reaches it through us, after our goodbye; and gone when
    // we are.
    ::setpgid(0, 0);
    ::prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (::getppid() != parent) ::_exit(1);
    ::dup2(pipe[1], STDOUT_FILENO);
    ::execv(argv[0], argv.data());
    ::_exit(127);
  }
  ::close(pipe[1]);
  const std::string line = readLine(pipe[0]);
  ::close(pipe[0]);
  const std::size_t colon = line.rfind(':');
  if (line.find(" listens on ") == std::string::npos || colon == std::string::npos) {
    stop();
    refuse("cleave-server did not start (above: what it said)");
  }
  address_ = {"127.0.0.1", line.substr(colon + 1), nullptr};
}

LocalServer::~LocalServer() { stop(); }

void LocalServer::stop() {
  if (process_ <= 0) return;
  ::kill(process_, SIGTERM);
  const SteadyTime start = now();
  int status = 0;
  while (::waitpid(process_, &status, WNOHANG) == 0) {
    if (secondsSince(start) > kStopSeconds) ::kill(process_, SIGKILL);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  process_ = -1;
}

}  // namespace cleave
