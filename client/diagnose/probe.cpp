#include "client/diagnose/probe.h"

#include <spdlog/fmt/fmt.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/experimental/channel.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <csignal>
#include <optional>
#include <utility>

#include "common/core/log.h"
#include "common/core/progress_clock.h"
#include "common/files/environment.h"
#include "common/files/record.h"
#include "common/link/probe/probe_link.h"
#include "common/program/program.h"

namespace cleave {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;

constexpr std::chrono::milliseconds kTick{500};
constexpr int kRoundTrips = 10;
constexpr std::uint64_t kFirstWarmUp = 64'000;
constexpr std::uint64_t kLastWarmUp = 64'000'000;
constexpr double kWarmUpSeconds = 0.2;  // a transfer of this duration opens TCP's window
// After this idle time, TCP starts with a small window again (RFC 2861).
constexpr double kIdleSeconds = 0.15;

class Prober {
 public:
  Prober(ServerAddress address, const ProbeOptions& options)
      : address_(std::move(address)),
        options_(options),
        signals_(io_, SIGINT, SIGTERM),
        finished_(io_, 2),
        ended_(io_, 1) {}

  ProbeResult run() {
    std::exception_ptr error;
    asio::co_spawn(io_, waitForSignals(), [](std::exception_ptr) {});
    asio::co_spawn(io_, probe(), [&](std::exception_ptr failed) {
      error = std::move(failed);
      io_.stop();
    });
    io_.run();
    if (error) std::rethrow_exception(error);
    if (interrupted_) throw interruptedError();
    return std::move(result_);
  }

 private:
  asio::awaitable<void> probe() {
    wire::Hello hello;
    hello.set_kind(wire::Hello::PROBE);
    hello.set_software(softwareVersion());
    // This is a named variable because GCC 12 destroys temporaries of a co_await expression twice.
    const std::function<wire::Hello()> makeHello = [hello] { return hello; };
    OpenConnection open = co_await connectToServer(address_, makeHello, options_.retrySeconds);
    connection_ = std::move(open.connection);
    result_.server = address_.text();
    result_.options = " --server " + shellWord(result_.server);
    if (address_.tls) result_.options += " --tls " + shellWord(address_.tls->folder());
    result_.serverSoftware = open.ok.software();
    result_.session = open.ok.session();
    link_.emplace(Role::client, *connection_, [this](const ProbeLink::Finished& stream) {
      finished_.try_send(error_code(), stream);
    });
    asio::co_spawn(io_, connection_->run(*link_), [this](std::exception_ptr error, std::string) {
      endError_ = std::move(error);
      finished_.close();
      ended_.try_send(error_code());
    });
    asio::co_spawn(io_, watch(), asio::detached);
    std::exception_ptr failed;
    try {
      co_await measure();
    } catch (...) {
      failed = std::current_exception();
    }
    // Only a successful probe sends Bye: after a failure, Bye would wait behind up to a gigabyte of
    // queued data.
    if (failed) {
      connection_->fail(failed);
    } else {
      connection_->sayBye("done");
    }
    co_await ended_.async_receive(asio::use_awaitable);
    if (failed) std::rethrow_exception(failed);
  }

  // Ends the connection if it brings no progress, or if the whole probe takes longer than a server
  // allows. Ends with io_.
  asio::awaitable<void> watch() {
    const SteadyTime start = now();
    ProgressClock clock(start);
    asio::steady_timer timer(io_);
    while (true) {
      timer.expires_after(kTick);
      co_await timer.async_wait(asio::use_awaitable);
      const double without = clock.secondsWithout(link_->progress(), now());
      const bool isStuck = options_.progressSeconds > 0 && without >= options_.progressSeconds;
      if (!isStuck && now() - start < kMaxProbeSession) continue;
      connection_->fail(std::make_exception_ptr(RunError(
          "no-progress",
          isStuck ? fmt::format("the server at {} has sent and taken no byte of a probe for {:.0f} "
                                "s, although the connection is open",
                                address_.text(), without)
                  : fmt::format("the probe of {} was not done after {:g} minutes", address_.text(),
                                secondsSince(start) / 60),
          "check the server's log, then probe again")));
      co_return;
    }
  }

  // ---- The sequence of measurements ----

  asio::awaitable<void> measure() {
    const SteadyTime start = now();
    co_await measureRoundTrip();
    co_await warmUp(start);
    for (std::uint64_t bytes = options_.min; bytes <= options_.max; bytes *= 10) {
      const double left = options_.seconds - secondsSince(start);
      if (bytes > options_.min && expectedSeconds(bytes) > left) {
        for (; bytes <= options_.max; bytes *= 10) result_.skipped.push_back(bytes);
        break;
      }
      for (std::uint32_t repeat = 1; repeat <= options_.repeat; ++repeat) {
        if (repeat > 1 && secondsSince(start) > options_.seconds)
          break;  // the last transfer took longer than expected
        co_await transfer(bytes, repeat, true, false);
        co_await transfer(bytes, repeat, false, true);
        co_await transfer(bytes, repeat, true, true);
      }
    }
  }

  asio::awaitable<void> measureRoundTrip() {
    for (int i = 0; i < kRoundTrips; ++i) {
      const Elapsed elapsed = co_await exchange(0, false, true);
      if (i == 0 || elapsed.down < result_.roundTripSeconds) {
        result_.roundTripSeconds = elapsed.down;
      }
    }
  }

  // Sends growing sizes until one of them takes kWarmUpSeconds, so that a slow link is not measured
  // for longer than necessary.
  asio::awaitable<void> warmUp(SteadyTime start) {
    const std::uint64_t max = std::min(kLastWarmUp, std::max(options_.max, kFirstWarmUp));
    for (std::uint64_t bytes = kFirstWarmUp; bytes <= max; bytes *= 4) {
      const Elapsed elapsed = co_await exchange(bytes, true, true);
      learn(bytes, elapsed.up, elapsed.down);
      const double longest = std::max(elapsed.up, elapsed.down) - result_.roundTripSeconds;
      if (longest > kWarmUpSeconds || secondsSince(start) > options_.seconds / 10) break;
    }
  }

  asio::awaitable<void> transfer(std::uint64_t bytes, std::uint32_t repeat, bool up, bool down) {
    co_await openWindows(bytes, up, down);
    const Elapsed elapsed = co_await exchange(bytes, up, down);
    const bool both = up && down;
    const auto record = [&](ProbeWay way, double seconds, double receiverSeconds) {
      result_.transfers.push_back({utcNow(), way, bytes, repeat, oneWay(seconds), receiverSeconds});
    };
    if (up) record(both ? ProbeWay::upOfBoth : ProbeWay::up, elapsed.up, elapsed.upAtReceiver);
    if (down) {
      record(both ? ProbeWay::downOfBoth : ProbeWay::down, elapsed.down, elapsed.downAtReceiver);
    }
    if (!both) learn(bytes, elapsed.up, elapsed.down);
  }

  asio::awaitable<void> openWindows(std::uint64_t bytes, bool up, bool down) {
    const bool upIdles = up && secondsSince(lastUp_) > kIdleSeconds;
    const bool downIdles = down && secondsSince(lastDown_) > kIdleSeconds;
    if (!upIdles && !downIdles) co_return;
    const double inFlight = 2 * result_.roundTripSeconds * std::max(rateUp_, rateDown_);
    const auto enough = static_cast<std::uint64_t>(std::max<double>(kFirstWarmUp, inFlight));
    co_await exchange(std::min(std::max(bytes, kFirstWarmUp), enough), upIdles, downIdles);
  }

  // ---- One exchange ----

  // `up` and `down` are the seconds measured on the client, including the round trip: `up` ends
  // when the server's confirmation arrives, and `down` starts when the request is sent. The members
  // …AtReceiver are the seconds measured by the receiver.
  struct Elapsed {
    double up = 0, upAtReceiver = 0;
    double down = 0, downAtReceiver = 0;
  };

  asio::awaitable<Elapsed> exchange(std::uint64_t bytes, bool up, bool down) {
    if (interrupted_) throw interruptedError();
    const SteadyTime start = now();
    if (down) link_->fetch(bytes);
    if (up) link_->send(bytes);
    Elapsed elapsed;
    for (int left = (up ? 1 : 0) + (down ? 1 : 0); left > 0; --left) {
      const ProbeLink::Finished stream = co_await nextFinished();
      (stream.up ? elapsed.up : elapsed.down) = secondsBetween(start, stream.at);
      (stream.up ? elapsed.upAtReceiver : elapsed.downAtReceiver) = stream.receiverSeconds;
      (stream.up ? lastUp_ : lastDown_) = stream.at;
    }
    co_return elapsed;
  }

  asio::awaitable<ProbeLink::Finished> nextFinished() {
    try {
      co_return co_await finished_.async_receive(asio::use_awaitable);
    } catch (const boost::system::system_error&) {
      // The channel was closed by a signal or with the connection.
    }
    if (interrupted_) throw interruptedError();
    if (endError_) std::rethrow_exception(endError_);
    throw RunError("server-left", "the server ended the probe early",
                   "check the server's log, then probe again");
  }

  // Subtracts half of the round trip, which is the time that the request or the confirmation takes.
  // The result is at least half of `seconds`, because this exchange may have been faster than the
  // measured round trip.
  double oneWay(double seconds) const {
    return std::max(seconds - result_.roundTripSeconds / 2, seconds / 2);
  }

  // ---- Predicting a transfer's duration ----

  void learn(std::uint64_t bytes, double up, double down) {
    const auto rate = [&](double seconds) {
      return static_cast<double>(bytes) /
             std::max(seconds - result_.roundTripSeconds, seconds / 10);
    };
    if (up > 0 && bytes >= learnedUp_) {
      learnedUp_ = bytes;
      rateUp_ = rate(up);
    }
    if (down > 0 && bytes >= learnedDown_) {
      learnedDown_ = bytes;
      rateDown_ = rate(down);
    }
  }

  double expectedSeconds(std::uint64_t bytes) const {
    const auto n = static_cast<double>(bytes);
    const double up = n / rateUp_, down = n / rateDown_;
    return options_.repeat * (up + down + std::max(up, down) + 3 * result_.roundTripSeconds);
  }

  // ---- Signals ----

  asio::awaitable<void> waitForSignals() {
    co_await signals_.async_wait(asio::use_awaitable);
    interrupted_ = true;
    processLog()->info("stopping; interrupt again to exit immediately");
    if (link_) {
      finished_.close();
    } else {
      io_.stop();  // abandons a connection attempt
    }
    co_await signals_.async_wait(asio::use_awaitable);
    ::_exit(1);
  }

  const ServerAddress address_;
  const ProbeOptions options_;
  asio::io_context io_{1};
  asio::signal_set signals_;
  asio::experimental::channel<void(error_code, ProbeLink::Finished)> finished_;
  asio::experimental::channel<void(error_code)> ended_;
  std::shared_ptr<Connection> connection_;
  std::optional<ProbeLink> link_;
  bool interrupted_ = false;
  std::exception_ptr endError_;  // the error that ended the connection

  double rateUp_ = 1e6, rateDown_ = 1e6;  // current estimates in bytes per second
  // Size of the transfer from which each estimate was computed.
  std::uint64_t learnedUp_ = 0, learnedDown_ = 0;
  SteadyTime lastUp_ = now(), lastDown_ = now();  // when the last streams ended
  ProbeResult result_;
};

}  // namespace

ProbeResult probeLink(const ServerAddress& address, const ProbeOptions& options) {
  processLog()->info("measuring the link to {}, for at most about {:g} s", address.text(),
                     options.seconds);
  return Prober(address, options).run();
}

}  // namespace cleave
