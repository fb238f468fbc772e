#include "stage/stage_processes.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <span>
#include <system_error>
#include <utility>
#include <vector>

#include "common/core/error.h"
#include "common/core/printable.h"
#include "stage/orders.h"

namespace cleave {
namespace {

constexpr std::size_t kPipeBytes = std::size_t{64} << 10;  // what a pipe holds

RunError failed(const std::string& sentence) {
  return {"no-stage-server", sentence,
          "install cleave-stage beside cleave-server, and restart the server"};
}

RunError cannotStart(const std::error_code& reason) {
  return {"cannot-start-stage",
          "the process of the run's stage cannot be started: " + reason.message(),
          "ask the server's operator to allow more processes, open files or memory"};
}

std::pair<OpenFile, OpenFile> socketPair() {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    throw std::system_error(errno, std::generic_category(), "socketpair");
  }
  return {OpenFile(ends[0]), OpenFile(ends[1])};
}

// What a pipe contains, at most kPipeBytes; does not block.
std::string readAll(const OpenFile& pipe) {
  std::string text(kPipeBytes, '\0');
  const ssize_t size = ::read(pipe.get(), text.data(), text.size());
  text.resize(size > 0 ? static_cast<std::size_t>(size) : 0);
  return text;
}

// The ends for reading and writing. If the pipe is full, writing fails.
std::pair<OpenFile, OpenFile> pipeForErrors() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK) != 0) {
    throw std::system_error(errno, std::generic_category(), "pipe2");
  }
  return {OpenFile(ends[0]), OpenFile(ends[1])};
}

bool sendOrder(const OpenFile& socket, const StageOrder& order, std::span<const int> files) {
  return sendWithFiles(socket.get(), std::as_bytes(std::span(&order, 1)), files);
}

bool receiveReply(const OpenFile& socket, StageOrderReply& reply, std::vector<OpenFile>& files) {
  return receiveWithFiles(socket.get(), bytesOf(reply), files);
}

}  // namespace

// ---- One process ----

StageProcess::StageProcess(StageWatch& watch, std::shared_ptr<WatchedProcess> process,
                           OpenFile socket, OpenFile errors)
    : watch_(watch),
      process_(std::move(process)),
      socket_(std::move(socket)),
      errors_(std::move(errors)) {
  // A process that does not read must not block this one.
  ::fcntl(socket_.get(), F_SETFL, O_NONBLOCK);
  watch_.add(process_);
}

// The watch waits for its end.
StageProcess::~StageProcess() {
  process_->kill();
  watch_.wake();
}

void StageProcess::waitForMessage(std::chrono::steady_clock::time_point deadline) const {
  const auto left =
      std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
  // A process that has ended leaves the end of the file.
  pollfd poll{socket_.get(), POLLIN, 0};
  ::poll(&poll, 1, static_cast<int>(std::clamp(left.count(), 0L, 60'000L)));
}

std::string StageProcess::takeErrors() { return readAll(errors_); }

// ---- All processes ----

StageProcesses::StageProcesses() {
  try {
    startServer();
  } catch (const RunError& error) {
    startError_ = error.what();
    return;
  }
  auto [errors, written] = pipeForErrors();
  sendOrder(socket_, {.kind = StageOrder::Kind::trial}, std::array{written.get()});
  trialErrors_ = std::move(errors);
}

StageProcesses::~StageProcesses() { endServer(); }

const std::string& StageProcesses::missing() {
  const std::lock_guard lock(mutex_);
  if (!startError_.empty()) throw failed(startError_);
  if (!trialErrors_) return missing_;
  StageOrderReply reply;
  std::vector<OpenFile> files;
  if (!receiveReply(socket_, reply, files)) throw failed("the stage server has ended");
  if (reply.error != 0) missing_ = "fork: " + std::generic_category().message(reply.error);
  if (reply.status != 0) {
    missing_ = printable(readAll(trialErrors_));
    if (missing_.empty()) missing_ = "its process ended with " + endText(reply.status);
  }
  trialErrors_ = OpenFile();
  return missing_;
}

void StageProcesses::startServer() {
  auto [own, other] = socketPair();
  const std::filesystem::path program =
      std::filesystem::read_symlink("/proc/self/exe").parent_path() / "cleave-stage";
  constexpr int kSocket = 3;
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, other.get(), kSocket);
  posix_spawn_file_actions_addclosefrom_np(&actions, kSocket + 1);
  std::string path = program.string(), number = std::to_string(kSocket);
  std::array<char*, 3> arguments = {path.data(), number.data(), nullptr};
  std::string policy = "OMP_WAIT_POLICY=passive", pages = "GLIBC_TUNABLES=glibc.malloc.hugetlb=1";
  std::array<char*, 4> environment = {policy.data(), pages.data(), nullptr, nullptr};
  std::string libraries = "LD_LIBRARY_PATH=";
  if (const char* const folders = std::getenv("LD_LIBRARY_PATH")) {  // by cleave-with-torch
    libraries += folders;
    environment[2] = libraries.data();
  }
  const int error = ::posix_spawn(&server_, path.c_str(), &actions, nullptr, arguments.data(),
                                  environment.data());
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) {
    server_ = 0;
    throw failed("cannot start " + path + ": " + std::generic_category().message(error));
  }
  socket_ = std::move(own);
  ++generation_;
}

void StageProcesses::endServer() {
  if (server_ == 0) return;
  ::kill(server_, SIGKILL);
  ::waitpid(server_, nullptr, 0);
  server_ = 0;
}

bool StageProcesses::exchange(const StageOrder& order, std::span<const int> sent,
                              StageOrderReply& reply, std::vector<OpenFile>& received) {
  return sendOrder(socket_, order, sent) && receiveReply(socket_, reply, received);
}

std::unique_ptr<StageProcess> StageProcesses::start(int threads, const SharedMemory& input,
                                                    const SharedMemory& output,
                                                    std::size_t memoryBytes,
                                                    std::function<void()> returnMemory) try {
  missing();
  auto [own, other] = socketPair();
  const timeval idle{.tv_sec = kStageIdleSeconds, .tv_usec = 0};
  ::setsockopt(other.get(), SOL_SOCKET, SO_RCVTIMEO, &idle, sizeof idle);
  auto [errors, written] = pipeForErrors();
  const StageOrder order{.threads = static_cast<std::uint32_t>(threads),
                         .inputBytes = input.bytes().size(),
                         .outputBytes = output.bytes().size(),
                         .memoryBytes = memoryBytes};
  const std::array sent = {other.get(), written.get(), input.file(), output.file()};
  StageOrderReply reply;
  std::vector<OpenFile> files;
  std::unique_lock lock(mutex_);
  if (!exchange(order, sent, reply, files)) {
    endServer();
    startServer();
    if (!exchange(order, sent, reply, files)) throw failed("the stage server has ended");
  }
  const std::uint64_t generation = generation_;
  lock.unlock();
  if (files.size() != 1) {
    own = OpenFile();  // if the process has been forked, it reads the end of the file, and ends
    if (reply.process != 0) statusOf(reply.process, generation);
    throw cannotStart({reply.error != 0 ? reply.error : EMFILE, std::generic_category()});
  }
  auto process = std::make_shared<WatchedProcess>(
      reply.process, std::move(files[0]),
      [this, number = reply.process, generation] { return statusOf(number, generation); },
      std::move(returnMemory));
  return std::make_unique<StageProcess>(watch_, std::move(process), std::move(own),
                                        std::move(errors));
} catch (const std::system_error& error) {
  throw cannotStart(error.code());
}

int StageProcesses::statusOf(pid_t process, std::uint64_t generation) {
  const std::lock_guard lock(mutex_);
  const StageOrder order{.kind = StageOrder::Kind::status, .process = process};
  StageOrderReply reply;
  std::vector<OpenFile> files;
  // If its parent has ended, so has the process.
  const bool isKnown = generation == generation_ && exchange(order, {}, reply, files);
  return isKnown ? reply.status : SIGKILL;
}

}  // namespace cleave
