// What the server reads from a stage's process, and how it watches and ends it, without Torch:
// the sanitizers see all of it.
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <csignal>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "stage/messages.h"
#include "stage/orders.h"
#include "stage/replies.h"
#include "tests/support/error_code.h"
#include "tests/support/models/playing_process.h"

namespace cleave {
namespace {

using namespace cleave::test;
using wire::StageReply;
using namespace std::chrono_literals;

std::pair<OpenFile, OpenFile> sockets() {
  std::array<int, 2> ends{};
  REQUIRE(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends.data()) ==
          0);
  return {OpenFile(ends[0]), OpenFile(ends[1])};
}

// ---- Messages ----

TEST_CASE("a message that is empty, too large or not one ends the reading") {
  const auto [own, other] = sockets();
  StageReply reply;
  CHECK(readStageMessage(own.get(), reply) == StageRead::nothing);
  const auto readAfter = [&, &from = own, &to = other](const std::string& text) {
    REQUIRE(::send(to.get(), text.data(), text.size(), 0) == static_cast<ssize_t>(text.size()));
    return readStageMessage(from.get(), reply);
  };
  StageReply written;
  written.set_value(7);
  CHECK(readAfter(written.SerializeAsString()) == StageRead::message);
  CHECK(reply.value() == 7);
  CHECK(readAfter("") == StageRead::end);
  CHECK(readAfter("\xff") == StageRead::end);
  CHECK(readAfter(std::string(kMaxStageMessage + 1, '\xff')) == StageRead::end);
}

TEST_CASE("sending to a process that does not read, or has ended, fails at once") {
  ::signal(SIGPIPE, SIG_IGN);  // as in the programs
  auto [own, other] = sockets();
  StageReply reply;
  reply.mutable_failure()->set_sentence(std::string(1000, 'a'));
  std::size_t sent = 0;
  while (sendStageMessage(own.get(), reply)) ++sent;
  CHECK(sent > 0);
  other = OpenFile();
  CHECK_FALSE(sendStageMessage(own.get(), reply));
  reply.mutable_failure()->set_sentence(std::string(kMaxStageMessage, 'a'));
  CHECK_FALSE(sendStageMessage(own.get(), reply));
}

TEST_CASE("descriptors arrive with an order, and an order of another size does not") {
  const auto [own, other] = sockets();
  StageOrder order{.threads = 3};
  const std::vector<int> files(kMaxOrderFiles, own.get());
  REQUIRE(sendWithFiles(own.get(), std::as_bytes(std::span(&order, 1)), files));
  StageOrder received;
  std::vector<OpenFile> descriptors;
  REQUIRE(
      receiveWithFiles(other.get(), std::as_writable_bytes(std::span(&received, 1)), descriptors));
  CHECK(received.threads == 3);
  CHECK(descriptors.size() == kMaxOrderFiles);
  StageOrderReply smaller;
  REQUIRE(sendWithFiles(own.get(), std::as_bytes(std::span(&smaller, 1)), {}));
  CHECK_FALSE(
      receiveWithFiles(other.get(), std::as_writable_bytes(std::span(&received, 1)), descriptors));
}

// ---- Replies ----

TEST_CASE("a reply may release each input once") {
  GivenInputs inputs;
  const auto bytes = std::make_shared<std::vector<std::byte>>(64);
  const auto give = [&](std::uint64_t offset) {
    inputs.add(offset, Payload({bytes->data(), {DType::f32, {16}, {}}}, bytes));
  };
  const auto releasing = [&](std::initializer_list<std::uint64_t> offsets) {
    StageReply reply;
    for (const std::uint64_t offset : offsets) reply.add_released(offset);
    return inputs.release(reply);
  };
  give(0);
  give(64);
  CHECK(releasing({}));
  CHECK(releasing({64}));
  CHECK_FALSE(releasing({64}));
  CHECK_FALSE(releasing({0, 0}));
  CHECK(bytes.use_count() == 1);
  CHECK_FALSE(releasing({~std::uint64_t{0}}));
}

TEST_CASE("the operator in a note has only characters of names") {
  const auto noted = [](const std::string& text) {
    return notedOperator(std::as_bytes(std::span(text.data(), text.size())));
  };
  CHECK(noted("").empty());
  CHECK(noted(std::string(64, '\0')).empty());
  CHECK(noted("\x1b[2J").empty());
  CHECK(noted(std::string("aten.mm\0x", 9)) == ", in the operator aten.mm");
  CHECK(noted(std::string(64, 'a')) == ", in the operator " + std::string(64, 'a'));  // no end
}

// ---- Shared memory ----

bool isResident(const std::byte* page) {
  unsigned char resident = 0;
  REQUIRE(::mincore(const_cast<std::byte*>(page), 1, &resident) == 0);
  return (resident & 1) != 0;
}

TEST_CASE("blocks do not overlap, and free ones are joined") {
  constexpr std::size_t kSize = 64 << 10;
  SharedBlocks blocks(SharedMemory::create(kSize, true));
  std::mt19937 random(1);
  std::map<std::byte*, std::size_t> used;
  const auto releaseAny = [&] {
    auto each = used.begin();
    std::advance(each, random() % used.size());
    const auto [block, size] = *each;
    const std::byte mark{static_cast<unsigned char>(size)};
    CHECK(std::all_of(block, block + size, [mark](std::byte b) { return b == mark; }));
    blocks.release(block);
    used.erase(each);
  };
  for (int n = 0; n < 3000; ++n) {
    const std::size_t size = random() % 3000;
    std::byte* const block = blocks.allocate(size);
    std::memset(block, static_cast<int>(size), size);
    used[block] = size;
    while (used.size() > 30) releaseAny();
  }
  while (!used.empty()) releaseAny();
  std::byte* const all = blocks.allocate(kSize);
  CHECK(blocks.contains(all));
  std::byte* const more = blocks.allocate(1);
  CHECK_FALSE(blocks.contains(more));
  blocks.release(more);
  blocks.release(all);
}

TEST_CASE("free blocks return their pages, and others keep their bytes") {
  const bool peerWrites = GENERATE(false, true);
  constexpr std::size_t kPages = std::size_t{16} << 12;
  SharedBlocks blocks(SharedMemory::create(4 * kPages, peerWrites));
  std::byte* const kept = blocks.allocate(kPages);
  std::byte* const freed = blocks.allocate(kPages);
  std::memset(kept, 1, kPages);
  std::memset(freed, 1, kPages);
  blocks.release(freed);
  CHECK(isResident(freed));
  blocks.returnFree();
  CHECK_FALSE(isResident(freed));
  CHECK(std::all_of(kept, kept + kPages, [](std::byte b) { return b == std::byte{1}; }));
  blocks.release(kept);
}

TEST_CASE("a process can write only to memory that is meant for it") {
  const SharedMemory input = SharedMemory::create(4096, false);
  CHECK_THROWS(SharedMemory::open(OpenFile(::dup(input.file())), 4096, true));
  const SharedMemory mapped = SharedMemory::open(OpenFile(::dup(input.file())), 4096, false);
  CHECK(::mprotect(mapped.bytes().data(), 4096, PROT_READ | PROT_WRITE) != 0);
  for (const SharedMemory& memory : {SharedMemory::create(4096, true)}) {
    CHECK(::ftruncate(memory.file(), 0) != 0);
    CHECK(::ftruncate(memory.file(), 8192) != 0);
  }
}

// ---- Watching and ending ----

void pause(int, std::span<std::byte>) { ::pause(); }
void compute(int, std::span<std::byte>) {
  for (volatile bool computes = true; computes;) {
  }
}

TEST_CASE("a process's end is reported") {
  const auto crashed = playing({}, [](int, auto) { ::raise(SIGUSR1); });
  crashed->waitForMessage(now() + 60s);  // its socket is closed
  CHECK(crashed->state().end() == endText(SIGUSR1));
  const auto exited = playing({}, [](int, auto) { ::_exit(3); });
  exited->waitForMessage(now() + 60s);
  CHECK(exited->state().end() == "exit code 3");
  const auto hung = playing({}, pause);
  CHECK(hung->state().end() == endText(SIGKILL));
  CHECK(hung->state().end() == endText(SIGKILL));
}

TEST_CASE("a process that is no longer used is ended by the watch") {
  auto held = std::make_shared<int>();
  const std::weak_ptr<const void> left = held;
  {
    const auto process = playing({}, pause);
    process->state().keepUntilEnded(std::move(held));
  }
  CHECK(soon([&] { return left.expired(); }));
}

TEST_CASE("a process that computes unasked is killed, and one that was asked is not") {
  const auto asked = playing({}, compute);
  asked->state().asked();
  const auto unasked = playing({}, compute);
  CHECK(soon([&] { return unasked->state().hasComputedUnasked(); }));
  CHECK(soon([&] { return !unasked->state().isEnding(); }));
  CHECK_FALSE(asked->state().hasComputedUnasked());
  CHECK_FALSE(asked->state().isEnding());
}

TEST_CASE("the memory of a process is returned once while it is idle") {
  const auto returned = std::make_shared<std::atomic<int>>(0);
  const auto process = playing({}, pause, [returned] { ++*returned; });
  WatchedProcess& state = process->state();
  state.asked();
  state.asked();
  state.answered();  // one is left
  CHECK(state.look());
  CHECK(*returned == 0);
  state.answered();
  CHECK(soon([&] { return *returned == 1; }));
  CHECK(state.look());
  CHECK(*returned == 1);
}

TEST_CASE("what a process has written is read without waiting, and limited") {
  const auto process = playing({}, [](int socket, auto) {
    const std::string line(4096, 'x');
    for (int n = 0; n < 100; ++n) {
      [[maybe_unused]] const auto written = ::write(2, line.data(), line.size());
    }
    [[maybe_unused]] const auto written = ::write(socket, "x", 1);
    ::pause();
  });
  process->waitForMessage(now() + 60s);
  CHECK(process->takeErrors().size() == 64 << 10);
  CHECK(process->takeErrors().empty());
}

}  // namespace
}  // namespace cleave
