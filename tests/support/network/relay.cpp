#include "tests/support/network/relay.h"

#include <algorithm>
#include <array>
#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <deque>
#include <future>
#include <limits>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "common/core/random.h"

namespace cleave::test {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kRead = std::size_t{64} << 10;
constexpr std::size_t kHeld = std::size_t{256} << 10;
constexpr std::uint64_t kNever = std::numeric_limits<std::uint64_t>::max();
constexpr std::size_t kHeldDelayed = std::size_t{64} << 20;

}  // namespace

// These members are used only on the relay's thread.
struct Relay::State {
  State(const std::string& host, std::uint16_t targetPort)
      : targets(tcp::resolver(context).resolve(host, std::to_string(targetPort))),
        acceptor(context, tcp::endpoint(asio::ip::address_v4::loopback(), 0)) {
    accept();
    thread = std::thread([this] { context.run(); });
  }

  void accept();
  void advanceAll();
  void resetAll();
  void abandonAll(End end);
  // Runs `task` on the relay's thread and returns its result.
  template <typename Task>
  auto onThread(Task task) {
    std::packaged_task<decltype(task())()> packaged(std::move(task));
    auto done = packaged.get_future();
    asio::post(context, std::move(packaged));
    return done.get();
  }
  std::size_t maxHeld() const { return oneWay.count() > 0 ? kHeldDelayed : kHeld; }

  asio::io_context context{1};
  const tcp::resolver::results_type targets;
  tcp::acceptor acceptor;
  const std::uint16_t port = acceptor.local_endpoint().port();
  std::set<std::shared_ptr<Link>> links;
  std::uint64_t accepted = 0;
  bool stalled = false;
  std::array<bool, 2> damages = {};  // whether to damage the next bytes: up, down
  std::chrono::microseconds oneWay{0};
  std::uint64_t seed = 0;
  std::array<std::byte, kRead> scratch;
  std::uint64_t up = 0;
  std::uint64_t down = 0;
  // The byte counts at which all connections are reset: up, down.
  std::array<std::uint64_t, 2> cutAt = {kNever, kNever};
  std::thread thread;
};

// A client's connection and the corresponding connection to the target. Sockets are read and
// written only when they are ready and the relay is not stalled, so that stall() stops all
// transfers.
class Relay::Link : public std::enable_shared_from_this<Link> {
 public:
  Link(State& relay, tcp::socket client, std::uint64_t number);

  // Connects to the target, or continues after a stall. Does nothing while stalled.
  void advance();
  void reset();
  void abandon(End end);

 private:
  struct Chunk {
    Clock::time_point due;
    std::vector<std::byte> bytes;  // empty: the end of the stream
  };
  struct Direction {
    tcp::socket& from;
    tcp::socket& to;
    std::uint64_t& forwarded;
    std::uint64_t number;
    asio::steady_timer timer;
    std::deque<Chunk> chunks = {};
    std::size_t held = 0;     // bytes in chunks
    std::size_t sent = 0;     // bytes sent of the first chunk
    std::uint64_t drawn = 0;  // number of random delays drawn
    Clock::time_point lastDue = {};
    bool awaitsBytes = false;
    bool awaitsTurn = false;  // waiting for room at the receiver, or for a chunk's due time
    bool ended = false;       // the last byte was read
    bool finished = false;    // all data was forwarded after the end
  };

  void connected();
  bool mayReceive(const Direction& direction) const;
  void awaitBytes(Direction& direction);
  void receive(Direction& direction);
  Clock::time_point nextDue(Direction& direction) const;
  void send(Direction& direction);
  bool sendSome(Direction& direction);
  void finish(Direction& direction);
  void close();

  State& relay_;
  tcp::socket client_;
  tcp::socket target_;
  Direction up_;
  Direction down_;
  bool connecting_ = false;
  bool connected_ = false;
  bool closed_ = false;
  bool isHalfOpen_ = false;  // only one end is open: nothing crosses any more
};

Relay::Link::Link(State& relay, tcp::socket client, std::uint64_t number)
    : relay_(relay),
      client_(std::move(client)),
      target_(relay.context),
      up_{client_, target_, relay.up, 2 * number, asio::steady_timer(relay.context)},
      down_{target_, client_, relay.down, 2 * number + 1, asio::steady_timer(relay.context)} {}

void Relay::Link::advance() {
  if (closed_ || isHalfOpen_ || relay_.stalled) return;
  if (connected_) {
    send(up_);
    send(down_);
  } else if (!connecting_) {
    connecting_ = true;
    asio::async_connect(target_, relay_.targets,
                        [self = shared_from_this()](const error_code& error, const tcp::endpoint&) {
                          if (self->closed_) return;
                          error ? self->reset() : self->connected();
                        });
  }
}

void Relay::Link::connected() {
  for (tcp::socket* socket : {&client_, &target_}) {
    error_code ignored;  // if the peer is gone, the first read reports it
    socket->set_option(tcp::no_delay(true), ignored);
    socket->non_blocking(true, ignored);
  }
  connected_ = true;
  advance();
}

bool Relay::Link::mayReceive(const Direction& direction) const {
  return !closed_ && !isHalfOpen_ && !relay_.stalled && !direction.ended &&
         direction.held < relay_.maxHeld();
}

void Relay::Link::awaitBytes(Direction& direction) {
  if (direction.awaitsBytes || !mayReceive(direction)) return;
  direction.awaitsBytes = true;
  direction.from.async_wait(tcp::socket::wait_read,
                            [self = shared_from_this(), &direction](const error_code&) {
                              direction.awaitsBytes = false;
                              self->receive(direction);
                            });
}

void Relay::Link::receive(Direction& direction) {
  if (!mayReceive(direction)) return;
  error_code error;
  const std::size_t max = std::min(kRead, relay_.maxHeld() - direction.held);
  const std::size_t got = direction.from.read_some(asio::buffer(relay_.scratch, max), error);
  if (error == asio::error::would_block) return awaitBytes(direction);
  if (error && error != asio::error::eof) return reset();

  direction.ended = error == asio::error::eof;
  direction.held += got;
  if (got > 0 && std::exchange(relay_.damages[direction.number % 2], false)) {
    relay_.scratch[got - 1] = ~relay_.scratch[got - 1];
  }
  const auto begin = relay_.scratch.begin();
  direction.chunks.push_back(
      {nextDue(direction), {begin, begin + static_cast<std::ptrdiff_t>(got)}});
  send(direction);
}

// The due time is never before the previous chunk's, to keep the order.
Clock::time_point Relay::Link::nextDue(Direction& direction) const {
  std::chrono::microseconds delay = relay_.oneWay;
  if (delay.count() > 0) {
    const RandomKey key = randomKey(relay_.seed, "jitter", {direction.number});
    const auto range = static_cast<std::uint64_t>(delay.count()) + 1;
    delay += std::chrono::microseconds(randomBits(key, direction.drawn++) % range);
  }
  direction.lastDue = std::max(direction.lastDue, Clock::now() + delay);
  return direction.lastDue;
}

// Forwards the data that is due, as much as the receiver accepts, schedules the rest, and reads
// more.
void Relay::Link::send(Direction& direction) {
  while (!closed_ && !isHalfOpen_ && !relay_.stalled && !direction.awaitsTurn &&
         !direction.chunks.empty()) {
    const auto continueSending = [self = shared_from_this(), &direction](const error_code&) {
      direction.awaitsTurn = false;
      self->send(direction);
    };
    if (direction.chunks.front().due > Clock::now()) {
      direction.awaitsTurn = true;
      direction.timer.expires_at(direction.chunks.front().due);
      direction.timer.async_wait(continueSending);
    } else if (!sendSome(direction)) {
      direction.awaitsTurn = true;
      direction.to.async_wait(tcp::socket::wait_write, continueSending);
    }
  }
  awaitBytes(direction);
}

// Forwards part of the first chunk. Returns false if the receiver currently accepts nothing.
bool Relay::Link::sendSome(Direction& direction) {
  const Chunk& chunk = direction.chunks.front();
  if (chunk.bytes.empty()) {
    finish(direction);
    return true;
  }
  error_code error;
  const std::uint64_t cutAt = relay_.cutAt[direction.number % 2];
  const auto max = static_cast<std::size_t>(
      std::min<std::uint64_t>(chunk.bytes.size() - direction.sent, cutAt - direction.forwarded));
  const std::size_t sent =
      direction.to.write_some(asio::buffer(chunk.bytes.data() + direction.sent, max), error);
  if (error == asio::error::would_block) return false;
  if (error) {
    reset();
    return true;
  }
  direction.forwarded += sent;
  direction.held -= sent;
  direction.sent += sent;
  if (direction.forwarded == cutAt) {
    relay_.cutAt = {kNever, kNever};
    relay_.resetAll();
    return true;
  }
  if (direction.sent == chunk.bytes.size()) {
    direction.sent = 0;
    direction.chunks.pop_front();
  }
  return true;
}

void Relay::Link::finish(Direction& direction) {
  direction.chunks.pop_front();
  direction.finished = true;
  error_code ignored;  // no need to notify a receiver that is gone
  direction.to.shutdown(tcp::socket::shutdown_send, ignored);
  if (up_.finished && down_.finished) close();
}

// With a linger time of zero, close sends a reset.
void Relay::Link::reset() {
  error_code ignored;
  for (tcp::socket* socket : {&client_, &target_}) {
    socket->set_option(asio::socket_base::linger(true, 0), ignored);
  }
  close();
}

void Relay::Link::abandon(End end) {
  isHalfOpen_ = true;
  tcp::socket& socket = end == End::client ? client_ : target_;
  error_code ignored;
  socket.set_option(asio::socket_base::linger(true, 0), ignored);
  socket.close(ignored);
}

void Relay::Link::close() {
  closed_ = true;
  error_code ignored;
  client_.close(ignored);
  target_.close(ignored);
  up_.timer.cancel();
  down_.timer.cancel();
  relay_.links.erase(shared_from_this());
}

void Relay::State::accept() {
  acceptor.async_accept([this](const error_code& error, tcp::socket socket) {
    if (error) return;
    const auto link = std::make_shared<Link>(*this, std::move(socket), accepted++);
    links.insert(link);
    link->advance();
    accept();
  });
}

void Relay::State::advanceAll() {
  const auto now = links;  // a copy: a link with an error removes itself from the list
  for (const auto& link : now) link->advance();
}

void Relay::State::resetAll() {
  const auto now = links;  // a copy: each link removes itself from the list
  for (const auto& link : now) link->reset();
}

void Relay::State::abandonAll(End end) {
  for (const auto& link : links) link->abandon(end);
}

Relay::Relay(const std::string& targetHost, std::uint16_t targetPort)
    : state_(std::make_unique<State>(targetHost, targetPort)) {}

Relay::~Relay() {
  cut();
  state_->context.stop();
  state_->thread.join();
}

std::uint16_t Relay::port() const { return state_->port; }

std::uint64_t Relay::bytesUp() const {
  return state_->onThread([state = state_.get()] { return state->up; });
}

std::uint64_t Relay::bytesDown() const {
  return state_->onThread([state = state_.get()] { return state->down; });
}

void Relay::cut() {
  state_->onThread([state = state_.get()] { state->resetAll(); });
}

void Relay::abandon(End end) {
  state_->onThread([state = state_.get(), end] { state->abandonAll(end); });
}

void Relay::cutAfter(Way way, std::uint64_t bytes) {
  state_->onThread([state = state_.get(), way, bytes] {
    state->cutAt = {kNever, kNever};
    const std::uint64_t crossed = way == Way::up ? state->up : state->down;
    state->cutAt[way == Way::up ? 0 : 1] = crossed + bytes;
  });
}

void Relay::stall(bool stalled) {
  state_->onThread([state = state_.get(), stalled] {
    state->stalled = stalled;
    state->advanceAll();
  });
}

void Relay::damage(Way way) {
  state_->onThread([state = state_.get(), way] { state->damages[way == Way::up ? 0 : 1] = true; });
}

void Relay::delay(std::chrono::microseconds oneWay, std::uint64_t seed) {
  state_->onThread([state = state_.get(), oneWay, seed] {
    state->oneWay = oneWay;
    state->seed = seed;
    state->advanceAll();  // the limit of held bytes may have increased
  });
}

RepeatedCuts::RepeatedCuts(Relay& relay, Relay::Way way, std::uint64_t everyBytes)
    : thread_([this, &relay, way, everyBytes] {
        const auto crossed = [&] {
          return way == Relay::Way::up ? relay.bytesUp() : relay.bytesDown();
        };
        while (!isOver_) {
          const std::uint64_t cutAt = crossed() + everyBytes;
          relay.cutAfter(way, everyBytes);
          do {
            // A client takes a few ms to connect again.
            std::this_thread::sleep_for(std::chrono::milliseconds(30));
          } while (!isOver_ && crossed() < cutAt);
        }
      }) {}

RepeatedCuts::~RepeatedCuts() {
  isOver_ = true;
  thread_.join();
}

}  // namespace cleave::test
