// cleave-client and cleave-server in one process, which forks for each program that a test starts
// (program_forks.h). Only for tests: programs that are forked have the same address layout and
// share what LibTorch has initialised.

#include <fcntl.h>
#include <linux/close_range.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <climits>
#include <csignal>
#include <cstdlib>
#include <span>
#include <string>
#include <vector>

#include "client/client_program.h"
#include "common/files/environment.h"
#include "server/server_program.h"
#include "stage/orders.h"
#include "tests/daemon/program_forks.h"

namespace cleave::test {
namespace {

constexpr int kSocket = 0;

// `start` delivers a byte once `parent`, the tests' process, is this process's parent.
[[noreturn]] void becomeProgram(const ForkOrder& order, const std::string& strings, pid_t parent,
                                int start, const std::vector<OpenFile>& streams) {
  char byte = 0;
  if (::read(start, &byte, 1) != 1) ::_exit(127);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(127);
  ::setpgid(0, 0);
  const int input = ::open("/dev/null", O_RDONLY);
  ::dup2(input, 0);
  ::dup2(streams[0].get(), 1);
  ::dup2(streams[1].get(), 2);
  ::close_range(3, UINT_MAX, 0);
  std::vector<std::string> arguments, environment;
  for (std::size_t at = 0; at < strings.size(); at = strings.find('\0', at) + 1) {
    auto& list = arguments.size() < order.arguments ? arguments : environment;
    list.emplace_back(strings.c_str() + at);
  }
  std::vector<char*> argumentPointers = pointersTo(arguments);
  std::vector<char*> variablePointers = pointersTo(environment);
  environ = variablePointers.data();
  const bool isServer = arguments.at(0).ends_with("cleave-server");
  ::prctl(PR_SET_NAME, isServer ? "cleave-server" : "cleave-client");
  keepFreedMemory();
  endProcess((isServer ? runServerProgram : runClientProgram)(static_cast<int>(arguments.size()),
                                                              argumentPointers.data()));
}

// Forks twice, so that the tests' process becomes the program's parent. Returns the program's id.
pid_t startProgram(const ForkOrder& order, const std::string& strings,
                   const std::vector<OpenFile>& streams) {
  const pid_t tests = ::getppid();
  std::array<int, 2> ids{}, starts{};
  if (::pipe(ids.data()) != 0 || ::pipe(starts.data()) != 0) return 0;
  const OpenFile idReader(ids[0]), idWriter(ids[1]), starter(starts[1]);
  OpenFile start(starts[0]);
  const pid_t middle = ::fork();
  if (middle == 0) {
    const pid_t program = ::fork();
    if (program == 0) becomeProgram(order, strings, tests, start.get(), streams);
    ::_exit(::write(idWriter.get(), &program, sizeof program) == sizeof program ? 0 : 1);
  }
  int status = 0;
  pid_t program = 0;
  if (middle < 0 || ::waitpid(middle, &status, 0) != middle || status != 0) return 0;
  if (::read(idReader.get(), &program, sizeof program) != sizeof program) return 0;
  return ::write(starter.get(), "", 1) == 1 ? program : 0;
}

void serve() {
  ForkOrder order;
  std::vector<OpenFile> streams, none;
  while (receiveWithFiles(kSocket, bytesOf(order), streams)) {
    std::string strings(order.bytes, 0);
    if (!receiveWithFiles(kSocket, std::as_writable_bytes(std::span(strings)), none)) return;
    pid_t program = startProgram(order, strings, streams);
    streams.clear();
    if (!sendWithFiles(kSocket, bytesOf(program), {})) return;
  }
}

}  // namespace
}  // namespace cleave::test

int main() {
  cleave::test::serve();
  std::_Exit(0);
}
