// The rules by which tensors may cross: once each, in order, as a reply, and within the credits.
#include "common/link/transfer_order.h"

#include <catch2/catch.hpp>

#include "tests/support/error_code.h"

using namespace cleave;

namespace {

Key keyOf(Flow flow, std::uint64_t step, std::uint32_t i, Phase phase = Phase::train) {
  return {phase, step, i, flow};
}

struct Server {
  explicit Server(std::uint32_t inFlight, std::shared_ptr<MemoryAccount> account = nullptr)
      : order(Role::server, Place{}, inFlight, std::move(account)) {}
  std::string open(Flow flow, std::uint64_t step, std::uint32_t i, Phase phase = Phase::train) {
    return errorCode([&] { order.opened(keyOf(flow, step, i, phase)); });
  }
  TransferOrder order;
};

}  // namespace

TEST_CASE("each tensor of a flow is accepted once per step and micro-batch") {
  Server server(100);
  CHECK(server.open(activationAt(0), 0, 0) == "bad-key");  // steps count from 1
  CHECK(server.open(activationAt(0), 1, 0).empty());
  CHECK(server.open(activationAt(0), 1, 1).empty());
  CHECK(server.open(activationAt(0), 1, 1) == "bad-key");
  CHECK(server.open(activationAt(0), 1, 0) == "bad-key");
  CHECK(server.open(activationAt(0), 2, 0).empty());
  CHECK(server.open(activationAt(0), 1, 7) == "bad-key");
  CHECK(server.open(activationAt(0), 1, 0, Phase::eval)
            .empty());  // evaluations are numbered separately
  CHECK(server.open(activationAt(0), 1, 0, Phase::eval) == "bad-key");
}

TEST_CASE("a gradient is accepted only in training, after its activation was sent") {
  Server server(4);
  CHECK(server.open(activationAt(0), 1, 0).empty());
  CHECK(server.open(gradientAt(1), 1, 0) == "bad-key");
  server.order.queued(keyOf(activationAt(1), 1, 0));
  CHECK(server.open(gradientAt(1), 1, 1) == "bad-key");
  CHECK(server.open(gradientAt(1), 1, 0).empty());
  server.order.queued(keyOf(activationAt(1), 1, 0, Phase::eval));
  CHECK(server.open(gradientAt(1), 1, 0, Phase::eval) == "bad-key");
}

TEST_CASE("a client accepts only answers to its own messages") {
  TransferOrder order(Role::client, Place{}, 4, nullptr);
  const auto open = [&](Flow flow, std::uint64_t step, std::uint32_t i) {
    return errorCode([&] { order.opened(keyOf(flow, step, i)); });
  };
  CHECK(open(activationAt(1), 1, 0) == "bad-key");
  order.queued(keyOf(activationAt(0), 1, 0));
  CHECK(open(activationAt(1), 1, 1) == "bad-key");
  CHECK(open(activationAt(1), 1, 0).empty());
  CHECK(open(activationAt(1), 1, 0) == "bad-key");
  CHECK(open(gradientAt(0), 1, 0) == "bad-key");
  order.queued(keyOf(gradientAt(1), 1, 0));
  CHECK(open(gradientAt(0), 1, 0).empty());
}

TEST_CASE("a credit and its charge are released when the micro-batch's last reply is settled") {
  const auto account = std::make_shared<MemoryAccount>(2 * kMicroBatchBytes);
  Server server(2, account);
  CHECK(server.open(activationAt(0), 1, 0).empty());
  CHECK(server.open(activationAt(0), 1, 1).empty());
  CHECK(account->used() == 2 * kMicroBatchBytes);
  CHECK(server.open(activationAt(0), 1, 2) == "too-many-in-flight");
  server.order.settled(keyOf(activationAt(1), 1, 0));
  CHECK(server.order.inFlight() == 2);  // the micro-batch's gradient/0 has not arrived
  server.order.settled(keyOf(gradientAt(0), 1, 0));
  CHECK(account->used() == kMicroBatchBytes);
  CHECK(server.open(activationAt(0), 1, 2).empty());
  server.order.settled(keyOf(gradientAt(0), 1, 1));
  server.order.settled(keyOf(gradientAt(0), 1, 2));
  CHECK(server.open(activationAt(0), 1, 0, Phase::eval).empty());
  server.order.settled(keyOf(activationAt(1), 1, 0, Phase::eval));
  CHECK(server.order.inFlight() == 0);
  CHECK(account->used() == 0);
}

TEST_CASE("starting the next step does not release the credits of unsettled micro-batches") {
  Server server(1);
  CHECK(server.open(activationAt(0), 1, 0).empty());
  CHECK(server.open(activationAt(0), 2, 0) == "too-many-in-flight");
}

TEST_CASE("with direct links, another W micro-batches may wait for the end of their last reply") {
  constexpr std::uint32_t kInFlight = 2;
  TransferOrder order(Role::server, Place{}, kInFlight, nullptr, true);
  const auto open = [&](std::uint64_t step, std::uint32_t i, Phase phase) {
    return errorCode([&] { order.opened(keyOf(activationAt(0), step, i, phase)); });
  };
  CHECK(open(1, 0, Phase::eval).empty());
  CHECK(open(1, 1, Phase::eval).empty());
  CHECK(open(1, 2, Phase::eval) == "too-many-in-flight");
  for (const std::uint32_t i : {0, 1}) order.queued(keyOf(activationAt(1), 1, i, Phase::eval));
  CHECK(open(1, 2, Phase::eval).empty());
  CHECK(open(1, 3, Phase::eval).empty());
  order.queued(keyOf(activationAt(1), 1, 2, Phase::eval));
  CHECK(open(1, 4, Phase::eval) == "too-many-in-flight");
  CHECK(order.inFlight() == 2 * kInFlight);
  order.settled(keyOf(activationAt(1), 1, 0, Phase::eval));
  CHECK(open(1, 4, Phase::eval).empty());
}

TEST_CASE("with direct links, training micro-batches with gradients stay within W") {
  TransferOrder order(Role::server, Place{}, 2, nullptr, true);
  for (const std::uint32_t i : {0, 1}) {
    order.opened(keyOf(activationAt(0), 1, i));
    order.queued(keyOf(activationAt(1), 1, i));
  }
  order.opened(keyOf(gradientAt(1), 1, 0));
  order.queued(keyOf(gradientAt(0), 1, 0));
  CHECK(errorCode([&] { order.opened(keyOf(activationAt(0), 1, 2)); }) == "too-many-in-flight");
  order.settled(keyOf(gradientAt(0), 1, 0));
  CHECK(errorCode([&] { order.opened(keyOf(activationAt(0), 1, 2)); }).empty());
}

TEST_CASE("with direct links, micro-batches release written replies that are older than W") {
  TransferOrder order(Role::server, Place{}, 1, nullptr, true);
  bool isWritten = true;
  const auto exchange = [&](std::uint32_t i) {
    return errorCode([&] {
      order.opened(keyOf(activationAt(0), 1, i, Phase::eval));
      order.queued(keyOf(activationAt(1), 1, i, Phase::eval), [&] { return isWritten; });
    });
  };
  for (std::uint32_t i = 0; i < 100; ++i) REQUIRE(exchange(i).empty());  // none is settled
  CHECK(order.inFlight() == 1);
  isWritten = false;
  CHECK(exchange(100).empty());
  CHECK(exchange(101) == "too-many-in-flight");
  isWritten = true;
  CHECK(exchange(102).empty());
  CHECK(order.inFlight() == 1);
}
