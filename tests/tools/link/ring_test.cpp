// Compares cleave-link's ring buffer with a plain queue.
#include "tools/link/ring.h"

#include <catch2/catch.hpp>
#include <deque>

#include "common/core/random.h"

namespace cleave::link {
namespace {

TEST_CASE("a ring buffer returns the written bytes in order, even if it wraps and grows") {
  const RandomKey key = randomKey(1, "ring");
  Ring ring;
  std::deque<std::byte> queue;
  std::uint64_t draws = 0;
  std::uint8_t next = 0;
  for (int turn = 0; turn < 3000; ++turn) {
    const std::size_t written = randomBits(key, draws++) % (turn < 2000 ? 9000 : 100);
    std::size_t filled = 0;
    for (const auto& piece : ring.space(written)) {
      for (std::byte& byte : piece) {
        byte = std::byte(next++);
        queue.push_back(byte);
      }
      filled += piece.size();
    }
    REQUIRE(filled == written);
    ring.append(written);
    if (turn % 7 == 0) {
      const std::size_t dropped = randomBits(key, draws++) % (ring.size() + 1) / 8;
      ring.dropBack(dropped);
      queue.resize(queue.size() - dropped);
    }
    REQUIRE(ring.size() == queue.size());
    const std::size_t read = randomBits(key, draws++) % (ring.size() + 1);
    bool same = true;
    for (const auto& piece : ring.front(read)) {
      for (const std::byte byte : piece) {
        same = same && byte == queue.front();
        queue.pop_front();
      }
    }
    REQUIRE(same);
    ring.dropFront(read);
  }
  ring.dropFront(ring.size());
  CHECK(ring.size() == 0);
  CHECK(ring.front(0)[0].empty());
}

}  // namespace
}  // namespace cleave::link
