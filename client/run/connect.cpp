#include "client/run/connect.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <cmath>
#include <exception>
#include <iterator>
#include <optional>
#include <random>
#include <sstream>
#include <string_view>
#include <utility>

#include "common/core/clock.h"
#include "common/core/log.h"
#include "common/core/printable.h"
#include "common/link/wire_messages.h"
#include "common/net/connection_messages.h"
#include "common/net/streams/connect_to.h"

namespace cleave {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;

constexpr double kFirstPause = 0.25;  // seconds; doubled each time
constexpr double kLongestPause = 4;
constexpr std::chrono::seconds kHttpDeadline{2};

asio::steady_timer::duration duration(double seconds) {
  return std::chrono::duration_cast<asio::steady_timer::duration>(
      std::chrono::duration<double>(seconds));
}

std::span<const std::byte> bytesOf(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

// Throws unless `metadata` is a HelloOk that answers `hello`. checkAnswer() checks the run's
// details.
wire::HelloOk helloOkFrom(std::span<const std::byte> metadata, const wire::Hello& hello) {
  auto ok = parseMetadata<wire::HelloOk>(FrameKind::helloOk, metadata);
  if (ok.session() == 0) {
    throw ProtocolError("bad-metadata", "a HelloOk has the session 0; sessions count from 1");
  }
  if (ok.weights_stored() && hello.weights_sha256().empty()) {
    throw ProtocolError("bad-metadata",
                        "a HelloOk says that the server has the body's initial weights, but the "
                        "Hello had no digest");
  }
  return ok;
}

void warnWherePlain(const ServerAddress& address, const tcp::socket& socket) {
  boost::system::error_code error;
  const auto remote = socket.remote_endpoint(error);
  if (address.tls || error || remote.address().is_loopback()) return;
  processLog()->warn(
      "the connection to {} is neither encrypted nor authenticated: set tls.enabled, or pass --tls "
      "DIR",
      address.text());
}

// What the client waits for before it takes part; empty: nothing.
std::string waitText(const Missing& missing) {
  if (!missing.turn.empty()) {
    return missing.inProgress ? "the end of the turn of " + missing.turn
                              : missing.turn + ", whose turn it is";
  }
  if (missing.inProgress) return "the next checkpoint of the cohort's run in progress";
  if (missing.members.empty()) return "";
  return fmt::format("other members of the cohort: {}", fmt::join(missing.members, ", "));
}

// Logs each change of what the client waits for. `known`: what was logged last.
void announceMissing(const std::string& metadata, std::string& known) {
  const std::string what = waitText(missingFromWire(bytesOf(metadata)));
  if (!what.empty() && std::exchange(known, what) != what) {
    processLog()->info("waiting for {}", what);
  }
}

// `waits` is set if the server has let the client wait for its cohort.
asio::awaitable<wire::HelloOk> shakeHands(Connection& connection, const wire::Hello& hello,
                                          bool& waits) {
  std::optional<RunError> refused;
  try {
    try {
      co_await connection.writeHandshakeFrame(FrameKind::hello, hello.SerializeAsString());
    } catch (const RunError& error) {
      // A server with too many connections sends an error and closes the connection before it reads
      // a Hello. With TLS, it closes the connection without an error message.
      const bool isRefusal = error.kind() == ErrorKind::link && error.code() != "hello-timeout";
      if (!isRefusal || connection.isWithinTls()) throw;
    }
    auto frame = co_await connection.readHandshakeFrame(ConnectionState::awaitingHelloOk);
    for (std::string waitsFor; frame.kind == FrameKind::roster;) {
      waits = true;
      announceMissing(frame.metadata, waitsFor);
      frame = co_await connection.readHandshakeFrame(ConnectionState::awaitingHelloOk);
    }
    const auto metadata = bytesOf(frame.metadata);
    if (frame.kind == FrameKind::helloOk) co_return helloOkFrom(metadata, hello);
    refused = errorFromFailure(metadata);
  } catch (const ProtocolError& error) {
    // The peer may not be a Cleave server, so the error names the address, which the user can
    // check.
    throw RunError(error, connection.peer() + ": " + error.what(), error.hint());
  }
  throw RunError(*refused, "the server at " + connection.peer() + " refuses: " + refused->what(),
                 refused->hint());
}

// Whether an HTTP server listens at this address. Such a server does not answer a Hello, because it
// waits for the end of the request.
asio::awaitable<bool> speaksHttp(const ServerAddress& address) {
  using namespace asio::experimental::awaitable_operators;
  constexpr std::string_view kRequest = "GET / HTTP/1.0\r\n\r\n";
  constexpr std::string_view kAnswer = "HTTP/";
  const auto ask = [&]() -> asio::awaitable<bool> {
    tcp::socket socket = co_await connectTo(address);
    co_await asio::async_write(socket, asio::buffer(kRequest), asio::use_awaitable);
    std::string answer(kAnswer.size(), '\0');
    co_await asio::async_read(socket, asio::buffer(answer), asio::use_awaitable);
    co_return answer == kAnswer;
  };
  asio::steady_timer deadline(co_await asio::this_coro::executor, kHttpDeadline);
  try {
    const auto first = co_await (ask() || deadline.async_wait(asio::use_awaitable));
    co_return first.index() == 0 && std::get<0>(first);
  } catch (const boost::system::system_error&) {
    co_return false;
  }
}

// Like shakeHands(), but if there is no answer, checks whether an HTTP server listens at the
// address and says so in the error.
asio::awaitable<wire::HelloOk> shakeHandsWith(const ServerAddress& address, Connection& connection,
                                              const wire::Hello& hello, bool& waits) {
  std::exception_ptr silent;
  try {
    co_return co_await shakeHands(connection, hello, waits);
  } catch (const RunError& error) {
    // A literal, because nothing else distinguishes silence from other faults of a connection.
    if (error.code() != "hello-timeout") throw;
    silent = std::current_exception();
  }
  if (!co_await speaksHttp(address)) std::rethrow_exception(silent);
  throw RunError("not-cleave", address.text() + " does not speak Cleave: it is an HTTP server",
                 "set --server to the port on which cleave-server listens (default: 4800)");
}

// An open connection, or the reason for a failure that a retry may fix.
struct Attempt {
  std::optional<OpenConnection> open;
  std::exception_ptr error;
  std::string what;
  double retrySeconds = 0;  // from the server's refusal; 0: not given
  bool waited = false;      // for other members of the cohort
};

// Whether this is the run's first connection, or a reconnection.
enum class Stage : std::uint8_t { first, again };

// Whether a retry may fix the error. The server may be restarting, and with TLS, a server with too
// many connections closes the connection without a message.
bool mayPass(const RunError& error) {
  return error.retrySeconds() > 0 || error.kind() == ErrorKind::link;
}

}  // namespace

std::string startHint(const ServerAddress& address) {
  const bool isLocal = isLoopbackHost(address.host);
  return fmt::format(
      "start it there: cleave-server serve --config configs/server.yaml{} --set "
      "listen.port={}{}{}; "
      "or check host, port and firewall",
      isLocal ? "" : " --set listen.address=0.0.0.0", address.port,
      address.tls || !isLocal ? " --set tls.enabled=true" : "",
      address.tls || isLocal ? "" : ", and pass --tls DIR here");
}

namespace {

// Returns failures that a retry may fix, and throws all others.
asio::awaitable<Attempt> tryToConnect(const ServerAddress& address,
                                      const std::function<wire::Hello()>& hello, Stage stage) {
  Attempt attempt;
  std::shared_ptr<Connection> connection;
  try {
    auto socket = co_await connectTo(address);
    warnWherePlain(address, socket);
    ConnectionOptions options;
    options.tls = address.tls;
    options.serverName = address.host;
    connection = std::make_shared<Connection>(std::move(socket), std::move(options));
  } catch (const boost::system::system_error& error) {
    if (error.code() == asio::error::host_not_found && stage == Stage::first) {
      throw UsageError("no-such-host",
                       "--server " + address.text() + ": there is no host '" + address.host +
                           "': " + error.code().message(),
                       "check the name, or give the server's IP address")
          .about("--server");
    }
    attempt.what = "cannot connect to " + address.text() + ": " + error.code().message();
    attempt.error = std::make_exception_ptr(
        RunError(ErrorKind::link, "no-server", attempt.what, startHint(address)).about("--server"));
    co_return attempt;
  }
  const wire::Hello sent = hello();
  try {
    wire::HelloOk ok = co_await shakeHandsWith(address, *connection, sent, attempt.waited);
    attempt.open = OpenConnection{std::move(connection), std::move(ok)};
  } catch (const RunError& error) {
    // The server may be restarting while the client waits for other members of its cohort.
    const bool mayWaitOn =
        sent.has_member() && sent.token() == 0 && error.kind() == ErrorKind::attempt;
    if (!mayPass(error) && !mayWaitOn) throw;
    attempt.error = std::current_exception();
    attempt.what = error.what();
    attempt.retrySeconds = error.retrySeconds();
  }
  co_return attempt;
}

// A random factor between 0.8 and 1.2 for the pause before a retry, so that the clients of a
// restarted server do not all reconnect at the same time.
double jitter(std::random_device& random) {
  return std::uniform_real_distribution<double>(0.8, 1.2)(random);
}

// Throws the last attempt's error, after `seconds` of attempts.
[[noreturn]] void giveUp(const Attempt& attempt, double seconds) {
  try {
    std::rethrow_exception(attempt.error);
  } catch (const RunError& error) {
    if (seconds < 1) throw;
    throw RunError(error, fmt::format("{}; tried for {:.0f} s", error.what(), seconds),
                   error.hint());
  }
}

asio::awaitable<OpenConnection> retry(ServerAddress address, std::function<wire::Hello()> hello,
                                      double retrySeconds, Stage stage) {
  SteadyTime start = now();
  double backOff = kFirstPause;
  std::random_device random;
  for (;;) {
    Attempt attempt = co_await tryToConnect(address, hello, stage);
    if (attempt.open) co_return std::move(*attempt.open);
    if (attempt.waited) start = now();
    const double left = retrySeconds - secondsSince(start);
    double pause = std::min(backOff * jitter(random), left);
    if (attempt.retrySeconds > 0) {
      pause = attempt.retrySeconds;  // the server would refuse an earlier attempt
    } else {
      backOff = std::min(2 * backOff, kLongestPause);
    }
    if (left <= 0 || pause > left) giveUp(attempt, secondsSince(start));
    processLog()->warn("{}; retrying in {:.2f} s, for {:.0f} s more", attempt.what, pause,
                       std::ceil(left));
    asio::steady_timer timer(co_await asio::this_coro::executor, duration(pause));
    co_await timer.async_wait(asio::use_awaitable);
  }
}

}  // namespace

ServerAddress parseAddress(const std::string& text) {
  const Placed value{"--server", text};
  if (text.find_first_of(",+") != std::string::npos) {
    refuseEndpoint(value, "lists several servers", "give one address, such as 10.0.0.5:4800");
  }
  return {parseEndpoint(value, 1), nullptr};
}

namespace {

// The parts of the text between separators, without spaces around them.
std::vector<std::string> partsOf(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream rest(text);
  for (std::string each; std::getline(rest, each, separator);) {
    const std::size_t begin = each.find_first_not_of(' ');
    const std::size_t end = each.find_last_not_of(' ');
    parts.push_back(begin == std::string::npos ? "" : each.substr(begin, end - begin + 1));
  }
  return parts;
}

}  // namespace

BodyServers parseBodyServers(const std::string& text) {
  BodyServers servers;
  for (const std::string& each : partsOf(text, '+')) servers.push_back(parseAddress(each));
  if (servers.empty()) parseAddress(text);  // throws
  return servers;
}

std::vector<BodyServers> parseAddresses(const std::string& text) {
  std::vector<BodyServers> bodies;
  for (const std::string& each : partsOf(text, ',')) bodies.push_back(parseBodyServers(each));
  return bodies;
}

std::vector<ServerAddress> allServers(const std::vector<BodyServers>& bodies) {
  std::vector<ServerAddress> servers;
  for (const BodyServers& body : bodies) servers.insert(servers.end(), body.begin(), body.end());
  return servers;
}

asio::awaitable<OpenConnection> connectToServer(ServerAddress address,
                                                std::function<wire::Hello()> hello,
                                                double retrySeconds) {
  return retry(std::move(address), std::move(hello), retrySeconds, Stage::first);
}

asio::awaitable<OpenConnection> reconnectToServer(ServerAddress address,
                                                  std::function<wire::Hello()> hello,
                                                  double retrySeconds) {
  return retry(std::move(address), std::move(hello), retrySeconds, Stage::again);
}

RunError interruptedError() {
  return RunError(ErrorKind::interrupt, "interrupted", "interrupted", "rerun the command");
}

}  // namespace cleave
