#include "common/resources/fork_join_pair.h"

#include <catch2/catch.hpp>
#include <chrono>
#include <future>
#include <stdexcept>
#include <string>

#include "common/core/clock.h"

using namespace cleave;

TEST_CASE("a helper runs the second function while the caller runs the first") {
  ForkJoinPair helper;
  std::promise<std::thread::id> ranOn;
  std::thread::id seen;
  // The first function returns only after the second has run, so another thread must run it.
  helper.run([&] { seen = ranOn.get_future().get(); },
             [&] { ranOn.set_value(std::this_thread::get_id()); });
  CHECK(seen != std::this_thread::get_id());
}

TEST_CASE("each function runs exactly once, on whichever thread") {
  ForkJoinPair helper;
  int first = 0;
  int second = 0;
  for (int k = 1; k <= 20'000; ++k) {
    helper.run([&] { ++first; }, [&] { ++second; });
    REQUIRE(first == k);
    REQUIRE(second == k);
  }
}

TEST_CASE("a caller does not wait for a helper that is running another caller's function") {
  ForkJoinPair helper;
  std::promise<void> busy;
  std::promise<void> release;
  std::shared_future<void> released(release.get_future());
  std::thread other([&] {
    helper.run(
        [&] {
          busy.set_value();
          released.wait();
        },
        [&] { released.wait(); });
  });
  busy.get_future().wait();
  std::thread::id first;
  std::thread::id second;
  helper.run([&] { first = std::this_thread::get_id(); },
             [&] { second = std::this_thread::get_id(); });
  CHECK(first == std::this_thread::get_id());
  CHECK(second == std::this_thread::get_id());
  release.set_value();
  other.join();
}

TEST_CASE("an exception from a function is rethrown to the caller after both have finished") {
  ForkJoinPair helper;
  const auto fail = [](const std::string& text) { throw std::runtime_error(text); };
  const auto textOf = [&](const std::function<void()>& first,
                          const std::function<void()>& second) -> std::string {
    try {
      helper.run(first, second);
    } catch (const std::runtime_error& error) {
      return error.what();
    }
    return "";
  };
  const auto nothing = [] {};
  CHECK(textOf([&] { fail("first"); }, nothing) == "first");
  CHECK(textOf(nothing, [&] { fail("second"); }) == "second");
  CHECK(textOf([&] { fail("first"); }, [&] { fail("second"); }) == "first");
  // Makes sure that the second function runs on the helper's thread.
  std::promise<void> begun;
  const auto waitForIt = [&] { begun.get_future().wait(); };
  CHECK(textOf(waitForIt, [&] {
          begun.set_value();
          fail("second");
        }) == "second");
  CHECK(textOf(nothing, nothing).empty());
}
