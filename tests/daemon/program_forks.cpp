#include "tests/daemon/program_forks.h"

#include <fcntl.h>
#include <linux/close_range.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <climits>
#include <filesystem>
#include <mutex>
#include <span>
#include <stdexcept>

#include "stage/orders.h"

namespace cleave::test {
namespace {

// The process with the loaded programs. It ends when this process closes the socket.
class LoadedPrograms {
 public:
  explicit LoadedPrograms(const std::string& path);
  pid_t fork(const std::vector<std::string>& arguments, const std::vector<std::string>& environment,
             int output, int errors);

 private:
  std::mutex mutex_;
  OpenFile socket_;
};

LoadedPrograms::LoadedPrograms(const std::string& path) {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    throw std::runtime_error("no socket for " + path);
  }
  socket_ = OpenFile(ends[0]);
  const OpenFile other(ends[1]);
  const pid_t pid = ::fork();
  if (pid < 0) throw std::runtime_error(path + " cannot be started");
  if (pid == 0) {
    ::dup2(other.get(), 0);
    ::close_range(3, UINT_MAX, CLOSE_RANGE_CLOEXEC);
    ::execl(path.c_str(), path.c_str(), nullptr);
    ::_exit(127);
  }
}

pid_t LoadedPrograms::fork(const std::vector<std::string>& arguments,
                           const std::vector<std::string>& environment, int output, int errors) {
  std::string strings;
  for (const auto* list : {&arguments, &environment}) {
    for (const std::string& each : *list) strings.append(each.c_str(), each.size() + 1);
  }
  ForkOrder order{.bytes = strings.size(), .arguments = arguments.size()};
  const std::lock_guard lock(mutex_);
  // The program's parent ends at once, and this process takes its place.
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  pid_t pid = 0;
  std::vector<OpenFile> none;
  const bool done = sendWithFiles(socket_.get(), bytesOf(order), std::array{output, errors}) &&
                    sendWithFiles(socket_.get(), std::as_bytes(std::span(strings)), {}) &&
                    receiveWithFiles(socket_.get(), bytesOf(pid), none);
  ::prctl(PR_SET_CHILD_SUBREAPER, 0);
  if (!done || pid <= 0) throw std::runtime_error(arguments[0] + " cannot be forked");
  return pid;
}

}  // namespace

std::optional<pid_t> forkProgram(const std::vector<std::string>& arguments,
                                 const std::vector<std::string>& environment, int output,
                                 int errors) {
  const std::filesystem::path program = arguments.at(0);
  if (program.filename() != "cleave-client" && program.filename() != "cleave-server") return {};
  const std::string loaded = program.parent_path() / "forked_programs";
  if (::access(loaded.c_str(), X_OK) != 0) return {};
  static LoadedPrograms programs(loaded);
  return programs.fork(arguments, environment, output, errors);
}

}  // namespace cleave::test
