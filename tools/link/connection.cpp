#include "tools/link/connection.h"

#include <sys/socket.h>

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <utility>

namespace cleave::link {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

constexpr std::size_t kMaxRead = std::size_t{256} << 10;

std::array<asio::mutable_buffer, 2> buffers(const Ring::Pieces& pieces) {
  return {asio::mutable_buffer(pieces[0].data(), pieces[0].size()),
          asio::mutable_buffer(pieces[1].data(), pieces[1].size())};
}

// A linger time of zero makes the kernel send a reset instead of a normal close.
void closeWithReset(tcp::socket& socket) {
  error_code ignored;
  socket.set_option(asio::socket_base::linger(true, 0), ignored);
  socket.close(ignored);
}

}  // namespace

Connection::Connection(tcp::socket client, std::uint64_t number, Shaper& up, Shaper& down,
                       std::function<void()> wake)
    : number_(number),
      client_(std::move(client)),
      target_(client_.get_executor()),
      halves_{Half{client_, target_, up}, Half{target_, client_, down}},
      wake_(std::move(wake)) {}

void Connection::start(tcp::socket target) {
  target_ = std::move(target);
  open_ = true;
  for (Half& half : halves_) {
    error_code ignored;  // if the peer has closed the connection, the first read fails
    half.from.set_option(tcp::no_delay(true), ignored);
    half.from.non_blocking(true, ignored);
    half.shaper.open(number_);
    if (half.dead) half.shaper.kill(number_);
    awaitError(half);
  }
}

bool Connection::move(Time now) {
  if (!open_ || closed_) return false;
  for (Half& half : halves_) {
    half.shaper.advance(now);  // frees space in the queue
    read(half, now);
  }
  for (Half& half : halves_) {
    if (!closed_) write(half, now);
  }
  const auto done = [](const Half& half) { return half.finished || (half.dead && half.ended); };
  if (!closed_ && done(halves_[0]) && done(halves_[1])) close();
  return !closed_ && (mayRead(halves_[0]) || mayRead(halves_[1]));
}

bool Connection::mayRead(const Half& half) const {
  return !half.ended && !half.awaitsBytes && half.shaper.room(number_) > 0;
}

void Connection::read(Half& half, Time now) {
  if (half.errorSeen) lose(half, now);
  if (!mayRead(half)) return;
  const std::size_t room = std::min(half.shaper.room(number_), kMaxRead);
  error_code error;
  const std::size_t got = half.from.read_some(buffers(half.ring.space(room)), error);
  if (error == asio::error::eof) {
    half.ended = true;
    half.shaper.finish(number_, now);
    return;
  }
  if (error && error != asio::error::would_block) return lose(half, now);
  half.ring.append(got);
  half.shaper.push(number_, got, now, got == room);
  if (got < room) awaitBytes(half);
}

void Connection::write(Half& half, Time now) {
  if (half.finished) return;
  Shaper::Arrived arrived = half.shaper.arrived(number_, now);
  if (arrived.bytes > 0 && !half.awaitsRoom) {
    error_code error;
    std::size_t taken = arrived.bytes;
    if (!half.receiverGone) {
      taken = half.to.write_some(buffers(half.ring.front(arrived.bytes)), error);
    }
    if (error && error != asio::error::would_block) {
      lose(opposite(half), now);
      taken = arrived.bytes;
    }
    half.shaper.take(number_, taken, now);
    half.ring.dropFront(taken);
    arrived.bytes -= taken;
    if (arrived.bytes > 0) awaitRoom(half);
  }
  if (arrived.reset) return reset();
  if (!arrived.end || arrived.bytes > 0) return;
  half.finished = true;
  error_code ignored;  // the receiver may already have closed the connection
  half.to.shutdown(tcp::socket::shutdown_send, ignored);
}

void Connection::awaitBytes(Half& half) {
  half.awaitsBytes = true;
  half.from.async_wait(tcp::socket::wait_read,
                       [self = shared_from_this(), &half](const error_code&) {
                         half.awaitsBytes = false;
                         self->wake_();
                       });
}

void Connection::awaitRoom(Half& half) {
  half.awaitsRoom = true;
  half.shaper.block(number_);
  half.to.async_wait(tcp::socket::wait_write,
                     [self = shared_from_this(), &half](const error_code&) {
                       half.awaitsRoom = false;
                       self->wake_();
                     });
}

// Detects a reset even while nothing is being read.
void Connection::awaitError(Half& half) {
  half.from.async_wait(
      tcp::socket::wait_error, [self = shared_from_this(), &half](const error_code& cancelled) {
        if (cancelled || self->closed_) return;
        int error = 0;
        socklen_t size = sizeof error;
        ::getsockopt(half.from.native_handle(), SOL_SOCKET, SO_ERROR, &error, &size);
        if (error == 0) return;  // both directions closed normally
        half.errorSeen = true;
        self->wake_();
      });
}

// Call when the source of this half was reset.
void Connection::lose(Half& half, Time now) {
  if (std::exchange(half.lost, true)) return;
  opposite(half).receiverGone = true;
  half.ended = true;
  half.ring.dropBack(half.shaper.abort(number_, now));
}

void Connection::kill(bool up) {
  Half& half = halves_[up ? 0 : 1];
  half.dead = true;
  if (open_ && !closed_) half.shaper.kill(number_);
}

void Connection::reset() {
  closeWithReset(client_);
  closeWithReset(target_);
  close();
}

void Connection::close() {
  if (std::exchange(closed_, true)) return;
  error_code ignored;
  client_.close(ignored);
  target_.close(ignored);
  if (!open_) return;
  for (Half& half : halves_) half.shaper.close(number_);
}

}  // namespace cleave::link
