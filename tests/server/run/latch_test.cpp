#include "server/run/latch.h"

#include <catch2/catch.hpp>
#include <thread>

namespace cleave::test {
namespace {

TEST_CASE("a latch calls its function once, when it opens, or now if it is open") {
  Latch latch;
  int calls = 0;
  latch.whenOpen([&] { ++calls; });
  CHECK_FALSE(latch.isOpen());
  CHECK(calls == 0);
  latch.open();
  latch.open();
  CHECK(latch.isOpen());
  CHECK(calls == 1);
  latch.whenOpen([&] { calls += 10; });
  CHECK(calls == 11);
}

TEST_CASE("a latch opens when the last copy is destroyed, on any thread") {
  const auto latch = std::make_shared<Latch>();
  std::shared_ptr<const void> held = openedByLast(latch);
  std::thread user([copy = held]() mutable { copy.reset(); });
  user.join();
  CHECK_FALSE(latch->isOpen());
  held.reset();
  CHECK(latch->isOpen());
}

}  // namespace
}  // namespace cleave::test
