// A session's memory account, and the buffers charged to it.
#include "common/resources/memory_account.h"

#include <catch2/catch.hpp>
#include <thread>
#include <vector>

#include "common/resources/buffer.h"
#include "tests/support/error_code.h"

using namespace cleave;

TEST_CASE("an account refuses a charge above its limit, and then charges nothing") {
  const auto account = std::make_shared<MemoryAccount>(1000);
  const MemoryCharge first(account, 600);
  CHECK(errorCode([&] { MemoryCharge(account, 401); }) == "memory-exceeded");
  CHECK(errorCode([&] { MemoryCharge(account, ~std::size_t{0}); }) == "memory-exceeded");
  CHECK(account->used() == 600);
  const MemoryCharge rest(account, 400);
  CHECK(account->used() == 1000);
  CHECK(errorCode([&] { MemoryCharge(account, 1); }) == "memory-exceeded");
}

TEST_CASE("a charge is released once, even if it was moved") {
  const auto account = std::make_shared<MemoryAccount>(1000);
  {
    MemoryCharge charge(account, 100);
    MemoryCharge moved = std::move(charge);
    CHECK(account->used() == 100);
    moved = MemoryCharge(account, 30);
    CHECK(account->used() == 30);
    const MemoryCharge none(nullptr, 5000);
    moved = {};
    CHECK(account->used() == 0);
  }
  CHECK(account->used() == 0);
}

TEST_CASE("an account's limit can be raised while it is in use") {
  const auto account = std::make_shared<MemoryAccount>(1000);
  const MemoryCharge first(account, 900);
  CHECK(errorCode([&] { MemoryCharge(account, 200); }) == "memory-exceeded");
  account->raiseLimit(100);
  const MemoryCharge second(account, 200);
  CHECK(account->used() == account->limit());
}

TEST_CASE("the sum of concurrent charges never exceeds the limit") {
  const auto account = std::make_shared<MemoryAccount>(64);
  std::vector<std::thread> threads;
  std::atomic<bool> exceeded = false;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int round = 0; round < 20000; ++round) {
        try {
          const MemoryCharge charge(account, 20);
          if (account->used() > account->limit()) exceeded = true;
        } catch (const ProtocolError&) {
          // The remaining buffers are charged here.
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK_FALSE(exceeded);
  CHECK(account->used() == 0);
}

TEST_CASE("a pool's buffers are charged with their full size until they are freed") {
  BufferPool pool;
  const auto account = std::make_shared<MemoryAccount>(10000);
  const auto charged = pool.chargedTo(account);
  {
    Buffer buffer = charged->acquire(5000);
    CHECK(account->used() == BufferPool::capacityFor(5000));
    buffer.shrink(10);  // it still occupies the same memory
    CHECK(account->used() == BufferPool::capacityFor(5000));
    Buffer moved = std::move(buffer);
    CHECK(errorCode([&] { charged->acquire(6000); }) == "memory-exceeded");
    moved = charged->acquire(100);
    CHECK(account->used() == BufferPool::capacityFor(100));
    const Buffer uncharged = pool.acquire(1 << 20);
    CHECK(account->used() == BufferPool::capacityFor(100));
  }
  CHECK(account->used() == 0);
  CHECK(pool.retainedBytes() == charged->retainedBytes());  // the pools share the retained memory
}
