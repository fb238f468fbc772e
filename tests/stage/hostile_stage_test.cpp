// Attacks of a stage's process on the server: it runs the client's code, so it may do whatever its
// confinement (confinement_test.cpp) allows.
#include <google/protobuf/stubs/logging.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <catch2/catch.hpp>
#include <chrono>
#include <csignal>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "compression/registry.h"
#include "stage/orders.h"
#include "tests/support/models/playing_stage.h"

namespace cleave {
namespace {

using namespace cleave::test;
using wire::StageReply;
using wire::StageRequest;

// ---- Processes ----

struct Child {
  pid_t process = 0;
  std::string name;
  char state = 0;
  std::uint64_t started = 0;  // numbers of processes are used again
};

std::vector<Child> childrenOf(pid_t parent) {
  std::vector<Child> children;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    if (entry.path().filename().string().find_first_not_of("0123456789") != std::string::npos) {
      continue;
    }
    std::ifstream file(entry.path() / "stat");
    std::string stat;  // empty if the process has ended since
    std::getline(file, stat);
    const std::size_t open = stat.find('('), close = stat.rfind(')');
    if (open == std::string::npos || close == std::string::npos) continue;
    std::istringstream rest(stat.substr(close + 1));
    char state = 0;
    pid_t of = 0;
    rest >> state >> of;
    if (of != parent) continue;
    constexpr int kFieldsBeforeStart = 17;  // proc(5): the start is field 22
    std::string skipped;
    for (int n = 0; n < kFieldsBeforeStart; ++n) rest >> skipped;
    std::uint64_t started = 0;
    rest >> started;
    children.push_back({std::stoi(stat), stat.substr(open + 1, close - open - 1), state, started});
  }
  return children;
}

// The stage server that this process has started last.
pid_t stageServer() {
  Child newest;
  for (const Child& child : childrenOf(::getpid())) {
    const bool isOne = child.name == "cleave-stage" && child.state != 'Z';
    if (isOne && child.started >= newest.started) newest = child;
  }
  REQUIRE(newest.process != 0);
  return newest.process;
}

bool noneIsLeft() { return childrenOf(stageServer()).empty(); }

std::size_t openDescriptors() {
  return static_cast<std::size_t>(std::distance(
      std::filesystem::directory_iterator("/proc/self/fd"), std::filesystem::directory_iterator()));
}

std::string statusRow(const std::filesystem::path& folder, const std::string& key) {
  std::ifstream file(folder / "status");
  for (std::string row; std::getline(file, row);) {
    if (row.starts_with(key + ":")) return row.substr(row.find_first_not_of(" \t", key.size() + 1));
  }
  return "";
}

TEST_CASE("a stage's process has nothing but its run") {
  const RunPlan plan = planRun(specWith());
  const RemoteBody body = remote(plan);
  std::vector<Child> children;
  REQUIRE(soon([&] {  // those of other tests have ended
    children = childrenOf(stageServer());
    return children.size() == 1;
  }));
  const std::filesystem::path folder = "/proc/" + std::to_string(children[0].process);
  std::size_t threads = 0;
  for (const auto& thread : std::filesystem::directory_iterator(folder / "task")) {
    CHECK(statusRow(thread.path(), "Seccomp") == "2");
    CHECK(statusRow(thread.path(), "NoNewPrivs") == "1");
    ++threads;
  }
  CHECK(threads == 2);
  int badness = 0;
  std::ifstream(folder / "oom_score_adj") >> badness;
  CHECK(badness == 1000);
  std::error_code error;
  std::filesystem::directory_iterator descriptors(folder / "fd", error);
  if (error) return;  // only root may read the rest
  for (const auto& each : descriptors) {
    const std::string target = std::filesystem::read_symlink(each.path()).string();
    CAPTURE(target);
    CHECK((target.starts_with("pipe:") || target.starts_with("socket:")));
  }
  std::ifstream file(folder / "environ");
  for (std::string variable; std::getline(file, variable, '\0');) {
    const std::string name = variable.substr(0, variable.find('='));
    CAPTURE(name);
    CHECK((name == "OMP_WAIT_POLICY" || name == "GLIBC_TUNABLES" || name == "LD_LIBRARY_PATH"));
  }
}

TEST_CASE("ended runs leave no process and no descriptor") {
  const RunPlan plan = planRun(specWith());
  { const RemoteBody first = remote(plan); }
  REQUIRE(soon(noneIsLeft));
  const std::size_t before = openDescriptors();
  for (int n = 0; n < 8; ++n) {
    REQUIRE(soon(noneIsLeft));
    RemoteBody body = remote(plan);
    ::kill(childrenOf(stageServer()).at(0).process, SIGSEGV);
    CHECK(errorCode([&] { forward(body, plan); }) == "body-crashed");
  }
  { const RemoteBody ended = remote(plan); }
  CHECK(soon(noneIsLeft));
  // The watch may still have had the three descriptors of the first one.
  CHECK(soon([&] { return openDescriptors() <= before; }));
}

TEST_CASE("without descriptors, a run does not start, and the next one does") {
  const RunPlan plan = planRun(specWith());
  { const RemoteBody first = remote(plan); }
  REQUIRE(soon(noneIsLeft));
  // The watch closes the descriptors of ended processes when it looks, twice a second.
  std::size_t open = 0;
  do {
    open = openDescriptors();
    std::this_thread::sleep_for(std::chrono::seconds(1));
  } while (openDescriptors() != open);
  rlimit normal{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &normal) == 0);
  const StageMemory memory(plan);
  const int next = ::dup(0);
  ::close(next);
  for (int room = 0; room < 5; ++room) {  // two sockets, a pipe, and a process
    CAPTURE(room);
    const rlimit few{static_cast<rlim_t>(next + room), normal.rlim_max};
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &few) == 0);
    const std::string code = errorCode([&] { startStage(processes(), plan, 1, memory); });
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &normal) == 0);
    CHECK(code == "cannot-start-stage");
  }
  CHECK(soon(noneIsLeft));
  RemoteBody body = remote(plan);
  CHECK(errorCode([&] { forward(body, plan); }) == "");
}

// In a process of an ordinary user, because root has no such limit.
int startWithoutProcesses() {
  constexpr int kFailed = 1, kUnreachable = 2;
  constexpr uid_t kNobody = 65534;
  if (::getuid() == 0 && (::setgid(kNobody) != 0 || ::setuid(kNobody) != 0)) return kFailed;
  const auto program =
      std::filesystem::read_symlink("/proc/self/exe").parent_path() / "cleave-stage";
  if (::access(program.c_str(), X_OK) != 0) return kUnreachable;
  StageProcesses own;
  const RunPlan plan = planRun(specWith());
  const StageMemory memory(plan);
  const pid_t server = stageServer();
  rlimit normal{};
  if (::prlimit(server, RLIMIT_NPROC, nullptr, &normal) != 0) return kFailed;
  const rlimit few{0, normal.rlim_max};
  if (::prlimit(server, RLIMIT_NPROC, &few, nullptr) != 0) return kFailed;
  const std::string code = errorCode([&] { startStage(own, plan, 1, memory); });
  ::prlimit(server, RLIMIT_NPROC, &normal, nullptr);
  const std::string next = errorCode([&] { startStage(own, plan, 1, memory); });
  return code == "cannot-start-stage" && next.empty() ? 0 : kFailed;
}

TEST_CASE("if no more processes may be started, a run does not start, and the next one does") {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(startWithoutProcesses());
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 2) {
    WARN("skipped: an ordinary user cannot start programs in this folder");
  } else {
    CHECK(WEXITSTATUS(status) == 0);
  }
}

TEST_CASE("if the stage server ends, its runs end, and the next run starts another one") {
  const RunPlan plan = planRun(specWith());
  StageProcesses own;
  const StageMemory memory(plan);
  const auto start = [&] {
    return RemoteBody(startStage(own, plan, 1, memory), plan, 1, 60, memory, nullptr,
                      [](const std::string&) {});
  };
  RemoteBody first = start();
  const pid_t server = stageServer();
  const pid_t process = childrenOf(server).at(0).process;
  REQUIRE(::kill(server, SIGKILL) == 0);
  pollfd ended{static_cast<int>(::syscall(SYS_pidfd_open, process, 0)), POLLIN, 0};
  ::poll(&ended, 1, 10'000);
  ::close(ended.fd);
  CHECK(errorCode([&] { forward(first, plan); }) == "body-crashed");
  RemoteBody second = start();
  CHECK(stageServer() != server);
  CHECK(errorCode([&] { forward(second, plan); }) == "");
}

// ---- Messages and shared memory ----

TEST_CASE("what a process writes later does not change what a codec reads") {
  RunSpec spec = specWith();
  spec.codecs["activation/1"] = parseCodec("topk:ratio=0.1");
  const RunPlan plan = planRun(spec);
  RemoteBody body = bodyOf(plan, [&](int socket, std::span<std::byte> output) {
    std::thread([output] {
      for (int n = 0;; ++n) std::memset(output.data(), n, output.size());
    }).detach();
    answering(replyWith())(socket, output);
  });
  const auto bytesOf = [](const TensorBundle& bundle) {
    const TensorView view = bundle.at(0).view();
    return std::vector<std::byte>(view.data, view.data + view.spec.bytes());
  };
  std::size_t changes = 0;
  std::vector<std::byte> last;
  for (int n = 0; n < 200; ++n) {
    const TensorBundle bundle = forward(body, plan);
    const std::vector<std::byte> bytes = bytesOf(bundle);
    changes += bytes != last ? 1 : 0;
    last = bytes;
    for (int read = 0; read < 50; ++read) REQUIRE(bytesOf(bundle) == bytes);
  }
  CHECK(changes > 1);  // the process does write
}

TEST_CASE("descriptors that a process sends are dropped") {
  const RunPlan plan = planRun(specWith());
  RemoteBody body = bodyOf(plan, [&](int socket, std::span<std::byte>) {
    StageRequest request;
    while (readStageMessage(socket, request) == StageRead::message) {
      const std::string text = replyWith().SerializeAsString();
      const std::vector<int> files(kMaxOrderFiles, 0);
      sendWithFiles(socket, std::as_bytes(std::span(text)), files);
    }
  });
  const std::size_t before = openDescriptors();
  for (int n = 0; n < 20; ++n) forward(body, plan);
  CHECK(openDescriptors() <= before);  // other processes may have ended
}

TEST_CASE("a process that does not read does not block the server") {
  const RunPlan plan = planRun(specWith());
  RemoteBody body = bodyOf(plan, [&](int socket, std::span<std::byte>) {
    while (sendStageMessage(socket, replyWith())) {
    }
  });
  const std::string code = errorCode([&] {
    for (int n = 0; n < 10'000; ++n) forward(body, plan);
  });
  CHECK(code == "body-crashed");
}

TEST_CASE("a process that computes between two actions ends its run") {
  const RunPlan plan = planRun(specWith());
  std::array<int, 2> done{};
  REQUIRE(::pipe(done.data()) == 0);
  const Play play = [&](int socket, std::span<std::byte>) {
    wire::StageRequest request;
    for (int n = 0; n < 2; ++n) {  // the spec and the build
      readStageMessage(socket, request);
      sendStageMessage(socket, replyWith());
    }
    for (volatile bool computes = true; computes;) {
    }
  };
  RemoteBody body = bodyOf(plan, play);
  ::close(done[1]);
  char byte = 0;
  REQUIRE(::read(done[0], &byte, 1) == 0);  // no action is needed to find it
  CHECK(errorCode([&] { forward(body, plan); }) == "bad-stage");
  ::close(done[0]);
}

TEST_CASE("a process that closes its socket and goes on computing is ended") {
  const RunPlan plan = planRun(specWith());
  RemoteBody body = bodyOf(plan, whenForward([](int socket) {
                             ::close(socket);
                             for (volatile bool computes = true; computes;) {
                             }
                           }));
  const auto playing = [] {
    return std::ranges::count_if(childrenOf(::getpid()),
                                 [](const Child& child) { return child.name != "cleave-stage"; });
  };
  REQUIRE(soon([&] { return playing() == 1; }));
  CHECK(errorCode([&] { forward(body, plan); }) == "body-crashed");
  CHECK(soon([&] { return playing() == 0; }));
}

TEST_CASE("a process that ends between two actions ends its run") {
  const RunPlan plan = planRun(specWith());
  RemoteBody body = bodyOf(plan, [](int socket, std::span<std::byte>) {
    StageRequest request;
    do {
      readStageMessage(socket, request);
      sendStageMessage(socket, replyWith());
    } while (request.kind() != StageRequest::BUILD);
  });
  CHECK(errorCode([&] { forward(body, plan); }) == "body-crashed");
  CHECK(errorCode([&] { body.exportWeights(); }) == "body-crashed");
}

TEST_CASE("messages of odd sizes end the run") {
  const RunPlan plan = planRun(specWith());
  const std::size_t size =
      GENERATE(std::size_t{0}, std::size_t{1}, kMaxStageMessage + 1, 2 * kMaxStageMessage);
  CHECK(codeOfForward(plan, whenForward([&](int socket) {
                        const std::string zeros(size, '\0');
                        [[maybe_unused]] const auto sent = ::send(socket, zeros.data(), size, 0);
                      })) == "body-crashed");
}

// ---- Random replies ----

class RandomReplies {
 public:
  explicit RandomReplies(std::uint64_t seed) : random_(seed) {}

  bool chance(std::uint64_t percent) { return below(100) < percent; }
  std::uint64_t below(std::uint64_t bound) { return random_() % bound; }

  // A reply as a process would send it, with some fields that are wrong, or some bytes of it.
  std::string next() {
    StageReply reply = replyWith();
    if (chance(10)) reply.set_done(false);
    wire::Failure& failure = *reply.mutable_failure();
    if (chance(10)) failure.set_kind(static_cast<wire::Failure::Kind>(below(7)));
    if (chance(20)) failure.set_code(chance(50) ? "memory-exceeded" : text());
    if (chance(20)) failure.set_sentence(text());
    if (chance(20)) failure.set_hint(text());
    while (chance(10)) reply.add_released(number());
    if (chance(50)) reply.set_bytes(number());
    if (chance(20)) reply.set_value(number());
    if (chance(20)) reply.set_square_sum(std::bit_cast<double>(random_()));
    std::string bytes = reply.SerializeAsString();
    if (chance(10)) bytes.resize(below(bytes.size() + 1));
    while (!bytes.empty() && chance(10)) bytes[below(bytes.size())] ^= 1 << below(8);
    return bytes;
  }

 private:
  std::uint64_t number() {
    static constexpr std::uint64_t kNumbers[] = {
        0, 1, 64, 1000, 4096, 1 << 20, 1ULL << 32, 1ULL << 63, ~std::uint64_t{0}};
    return kNumbers[below(std::size(kNumbers))];
  }
  std::string text() {
    std::string made(below(3000), 'x');
    for (char& c : made) c = static_cast<char>(below(128));  // valid UTF-8
    return made;
  }

  std::mt19937_64 random_;
};

// Calls a function of the body. Whatever the replies are, only an Error may leave it.
void callAny(Body& body, const RunPlan& plan, std::uint64_t function) {
  switch (function) {
    case 0: {
      const TensorBundle bundle = forward(body, plan);
      REQUIRE(bundle.size() == 1);
      REQUIRE(bundle[0].view().spec == flowSpec(plan.blocks, plan.stage.cuts, activationAt(1), 4));
      return;
    }
    case 1:
      body.report(0);
      return;
    case 2:
      body.update({});
      return;
    case 3:
      body.weightsDigest();
      return;
    case 4: {
      const std::size_t size = body.shareSize();
      REQUIRE(size <= shareSize(plan));
      return;
    }
    case 5:
      body.exportWeights();
      return;
    case 6: {
      std::vector<float> share(10);
      body.writeShare(1, share);
      return;
    }
    default:
      body.importWeights(std::vector<std::byte>(3 << 20));
  }
}

TEST_CASE("random replies end the run with an error, or are used as the plan allows") {
  google::protobuf::SetLogHandler(nullptr);  // as in the programs
  const RunPlan plan = planRun(specWith());
  std::size_t calls = 0, errors = 0;
  for (std::uint64_t seed = 0; seed < 1000; ++seed) {
    CAPTURE(seed);
    RandomReplies replies(seed);
    std::array<int, 2> ends{};
    REQUIRE(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) == 0);
    OpenFile other(ends[1]);
    // All replies wait in the socket; no process is behind it.
    auto process = std::make_unique<StageProcess>(
        watch(), std::make_shared<WatchedProcess>(0, OpenFile(), nullptr, nullptr),
        OpenFile(ends[0]), OpenFile());
    for (int early = 0; early < 2; ++early) sendStageMessage(ends[1], replyWith());
    for (int n = 0; n < 50; ++n) {
      const std::string reply = replies.next();
      REQUIRE(::send(ends[1], reply.data(), reply.size(), 0) == static_cast<ssize_t>(reply.size()));
    }
    ::shutdown(ends[1], SHUT_WR);
    const StageMemory memory(plan);
    RemoteBody body(std::move(process), plan, 1, 60, memory, nullptr, [](const std::string&) {});
    for (int n = 0; n < 20; ++n) {
      ++calls;
      if (!errorCode([&] { callAny(body, plan, replies.below(8)); }).empty()) ++errors;
    }
  }
  CHECK(errors > calls / 10);
  CHECK(errors < calls / 10 * 9);
}

}  // namespace
}  // namespace cleave
