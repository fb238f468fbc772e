#include "server/run/seat.h"

#include <spdlog/fmt/fmt.h>

#include <cassert>
#include <chrono>
#include <random>
#include <utility>

#include "common/core/error.h"
#include "common/link/probe/trial.h"
#include "common/link/wire_messages.h"
#include "server/run/deadline.h"
#include "server/run/served_run.h"

namespace cleave {
namespace {

namespace asio = boost::asio;

// A token that cannot be guessed, so that without TLS only the client that began a run can continue
// it.
std::uint64_t randomToken() {
  std::random_device random;
  for (;;) {
    const std::uint64_t token = std::uint64_t{random()} << 32 | random();
    if (token != 0) return token;
  }
}

}  // namespace

Seat::Seat(ServedRun& run, const RunResources& resources, std::uint32_t number, RunRequest request,
           std::unique_ptr<Admission::Ticket> ticket,
           std::function<void(std::exception_ptr)> failed)
    : run_(run),
      resources_(resources),
      request_(std::move(request)),
      number_(number),
      ticket_(std::move(ticket)),
      failed_(std::move(failed)),
      token_(randomToken()),
      last_(request_.isTrial() ? LastConnection() : connectionOf(request_.hello)),
      session_(request_.session) {}

void Seat::stored(const LastConnection& connection) {
  last_ = connection;
  throwIfEnded();
}

asio::awaitable<void> Seat::storeConnection(const wire::Hello& hello) {
  // The records of a cohort's run are not this member's, or others may use them too.
  const Cohort& cohort = request_.spec.cohort;
  if (cohort.exists() && (!cohort.needsAll() || &run_.owner() != this)) {
    checkContinues(hello, last_);
    last_ = connectionOf(hello);
    co_return;
  }
  last_ = co_await resources_.store.storeConnection(request_.identity, hello);
}

void Seat::attach(const RunRequest& request, std::shared_ptr<Connection> connection) {
  assert(link_ && token_ != 0);
  const bool wasParked = parked_.has_value();
  parked_.reset();
  if (const auto before = link_->connection()) {
    // Closes the old connection immediately: its socket must not write into a tensor that the new
    // connection continues.
    before->abandon();
    link_->detach();
  }
  if (request.hello.token() != 0) arrived_ = link_->arrived();
  session_ = request.session;
  run_.connected(*this);
  link_->attach(std::move(connection), arrivedFromWire(request.hello.arrived()));
  if (wasParked) run_.tellWhoIsMissing(*this);
}

asio::awaitable<std::string> Seat::serve() {
  std::optional<asio::steady_timer> deadline;
  if (request_.isTrial()) {
    const auto minutes = kMaxTrialSession / std::chrono::minutes(1);
    deadline = failAfter(kMaxTrialSession, link_->connection(),
                         std::make_exception_ptr(trialTooLong(fmt::format("{} minutes", minutes))),
                         resources_.io);
  }
  co_return co_await link_->serve();
}

void Seat::park() {
  assert(link_ && !parked_);
  link_->detach();
  const auto [patience, key] = run_.patience();
  parked_.emplace(Parked{now(), asio::steady_timer(resources_.io, patience)});
  const std::weak_ptr<TensorLink> parkedLink = link_;
  parked_->timer.async_wait([parkedLink, seconds = std::chrono::duration<double>(patience).count(),
                             key](const boost::system::error_code& cancelled) {
    const auto link = parkedLink.lock();
    if (cancelled || !link || link->connection()) return;
    link->fail(std::make_exception_ptr(
        RunError("park-timeout",
                 fmt::format("its client has not reconnected within {:g} s ({})", seconds, key))));
  });
  run_.tellWhoIsMissing(*this);
}

void Seat::end(std::exception_ptr error) {
  if (link_) return link_->fail(std::move(error));
  endError_ = std::move(error);
}

SessionStatus Seat::status() const {
  SessionStatus status;
  status.number = session_;
  status.identity = request_.identity;
  status.run = request_.runId();
  status.memoryBytes = ticket_ ? ticket_->bytes() : 0;
  if (parked_) {
    status.kind = "parked";
    status.seconds = secondsSince(parked_->since);
  }
  run_.describe(*this, status);
  return status;
}

}  // namespace cleave
