#include "common/replicas/group_channel.h"

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/system/system_error.hpp>
#include <condition_variable>
#include <future>
#include <map>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <stop_token>
#include <utility>

#include "common/core/clock.h"
#include "common/core/endpoint.h"
#include "common/core/units.h"
#include "common/net/streams/connect_to.h"
#include "common/net/streams/same_secret.h"
#include "common/replicas/group_connection.h"
#include "common/replicas/group_hub.h"
#include "common/replicas/replica_listener.h"

namespace cleave {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using Kind = GroupMessage::Kind;

constexpr std::chrono::milliseconds kRetryPause{100};
constexpr std::chrono::milliseconds kEndTime{2500};  // a connection takes at most 2 s to finish

}  // namespace

// The connection to the hub, and the values. Owned by the channel and by the coroutine on the io
// thread.
class GroupMembership : public std::enable_shared_from_this<GroupMembership> {
 public:
  GroupMembership(const ReplicaGroup& group, std::string_view groupName, asio::any_io_executor io,
                  std::function<void()> lost)
      : hosts_(group.hosts),
        timeout_(group.timeout),
        hello_({memberDigest(groupName), static_cast<std::size_t>(group.rank), group.hosts.size()}),
        proof_(hubProof(groupName)),
        io_(std::move(io)),
        lost_(std::move(lost)) {}

  // Starts connecting; `hub`: the address of a hub in this process.
  void start(std::optional<tcp::endpoint> hub);
  // Throws unless all replicas have joined by then.
  void waitForAll();
  void set(GroupMessage message);
  // Waits for `key`, until `deadline` if there is one. The caller holds the lock.
  std::map<std::string, std::string>::iterator find(std::unique_lock<std::mutex>& lock,
                                                    const std::string& key,
                                                    std::optional<SteadyTime> deadline);
  // Ends the membership, with the first reason that is given.
  void end(const std::string& reason);
  std::shared_future<void> ended() const { return ended_; }

  mutable std::mutex mutex_;
  std::map<std::string, std::string> values_;
  std::size_t bytes_ = 0;  // of values_

 private:
  asio::awaitable<void> participate(std::optional<tcp::endpoint> hub);
  // One connection, from its start to its end. Returns why it ended.
  asio::awaitable<std::string> connect(std::optional<tcp::endpoint> hub);
  asio::awaitable<SharedSocket> reach(std::optional<tcp::endpoint> hub);
  void received(const GroupMessage& message);
  void store(const GroupMessage& message);
  bool isOver() const;
  // Throws the reason for which the group is not complete. The caller holds the lock.
  [[noreturn]] void throwIncomplete() const;
  std::string nameOf(std::size_t rank) const;
  std::string missingText() const;

  const std::vector<std::string> hosts_;
  const std::chrono::milliseconds timeout_;
  const SteadyTime deadline_ = now() + timeout_;  // to join
  const GroupHello hello_;
  const std::string proof_;
  const asio::any_io_executor io_;
  const std::function<void()> lost_;
  std::promise<void> end_;
  const std::shared_future<void> ended_ = end_.get_future().share();

  // io thread
  std::shared_ptr<GroupConnection> connection_;

  // Guarded by mutex_, like the public members.
  std::condition_variable changed_;
  bool isAccepted_ = false;             // by the hub, on the current connection
  bool isComplete_ = false;             // all replicas have joined
  std::optional<std::string> missing_;  // ranks, a byte each; nullopt: unknown
  std::string fault_;                   // why the last attempt failed
  std::optional<std::string> differs_;  // the hub's reason to refuse this replica
  bool isTaken_ = false;                // the last attempt found the rank taken
  std::optional<std::string> reason_;   // why the group has ended
};

void GroupMembership::start(std::optional<tcp::endpoint> hub) {
  asio::co_spawn(io_, participate(std::move(hub)),
                 [self = shared_from_this()](const std::exception_ptr& bug) {
                   self->end(bug ? "an internal error" : self->fault_);
                   self->end_.set_value();
                 });
}

asio::awaitable<void> GroupMembership::participate(std::optional<tcp::endpoint> hub) {
  while (!isOver() && now() < deadline_) {
    const std::string fault = co_await connect(hub);
    {
      const std::lock_guard lock(mutex_);
      isAccepted_ = false;
      fault_ = fault;
      if (isComplete_) co_return;
    }
    asio::steady_timer pause(io_, kRetryPause);
    co_await pause.async_wait(asio::use_awaitable);
  }
}

asio::awaitable<std::string> GroupMembership::connect(std::optional<tcp::endpoint> hub) {
  SharedSocket socket;
  try {
    socket = co_await reach(hub);
  } catch (const boost::system::system_error& error) {
    co_return error.code() == asio::error::timed_out ? "it does not reply" : error.code().message();
  }
  if (isOver()) co_return fault_;
  connection_ = std::make_shared<GroupConnection>(socket, timeout_);
  const auto take = [this](const GroupMessage& message) { received(message); };
  std::string fault = co_await connection_->run(take);
  connection_ = nullptr;
  co_return fault;
}

asio::awaitable<SharedSocket> GroupMembership::reach(std::optional<tcp::endpoint> hub) {
  const Endpoint host = hub ? Endpoint{hub->address().to_string(), hub->port()}
                            : parseEndpoint({"replicas", hosts_[0]}, 1);
  tcp::socket connected = co_await connectTo(host);
  auto socket = std::make_shared<tcp::socket>(std::move(connected));
  const std::string hello = encodeHello(hello_);
  co_await asio::async_write(*socket, asio::buffer(hello), asio::use_awaitable);
  co_return socket;
}

void GroupMembership::received(const GroupMessage& message) {
  const std::unique_lock lock(mutex_);
  if (!isAccepted_) {
    if (!isSameSecret(message.key, proof_)) throw RunError("not-a-hub", "it is not a replica");
    isAccepted_ = message.kind == Kind::accepted;
    isTaken_ = message.kind == Kind::taken;
    if (message.kind == Kind::differs) differs_ = message.value;
  } else if (message.kind == Kind::missing) {
    missing_ = message.value;
    isComplete_ = missing_->empty();
  } else if (message.kind == Kind::value) {
    store(message);
  } else if (message.kind == Kind::lost && message.key.size() == 1) {
    const auto rank = static_cast<unsigned char>(message.key[0]);
    throw RunError(ErrorKind::attempt, "replica-lost", nameOf(rank) + ": " + message.value);
  }
  changed_.notify_all();
}

void GroupMembership::store(const GroupMessage& message) {
  std::string& value = values_[message.key];
  bytes_ = bytes_ - value.size() + message.value.size();
  if (bytes_ > kMaxGroupBytes) throw RunError("too-many-values", "it sent too many values");
  value = message.value;
}

bool GroupMembership::isOver() const {
  const std::lock_guard lock(mutex_);
  return reason_ || differs_;
}

void GroupMembership::waitForAll() {
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, deadline_, [this] { return isComplete_ || differs_ || reason_; });
  if (!isComplete_) throwIncomplete();
}

void GroupMembership::throwIncomplete() const {
  const std::string hint = "give all servers the same list of replicas, and each its own rank";
  if (differs_) throw RunError("replica-differs", "the replicas differ: " + *differs_, hint);
  if (isTaken_) {
    throw RunError("replica-differs", "another server has already joined as " + nameOf(hello_.rank),
                   hint);
  }
  const std::string within = " within " + durationText(Nanoseconds(timeout_));
  const std::string check = "check that its server runs, and that the other servers can reach it";
  if (missing_ && isAccepted_) {
    throw RunError(
        ErrorKind::attempt, "replica-unreachable",
        missingText() + (missing_->size() == 1 ? " has" : " have") + " not joined" + within, check,
        kJoinRetrySeconds);
  }
  throw RunError(ErrorKind::attempt, "replica-unreachable",
                 nameOf(0) + " cannot be reached" + within + ": " + fault_, check,
                 kJoinRetrySeconds);
}

std::string GroupMembership::nameOf(std::size_t rank) const {
  const std::string host = rank < hosts_.size() ? " (" + hosts_[rank] + ")" : "";
  return "replica " + std::to_string(rank) + host;
}

std::string GroupMembership::missingText() const {
  std::string text;
  for (const char rank : *missing_) {
    text += (text.empty() ? "" : ", ") + nameOf(static_cast<unsigned char>(rank));
  }
  return text;
}

void GroupMembership::set(GroupMessage message) {
  asio::post(io_, [self = shared_from_this(), message = std::move(message)] {
    if (self->connection_ != nullptr) self->connection_->send(message);
  });
}

std::map<std::string, std::string>::iterator GroupMembership::find(
    std::unique_lock<std::mutex>& lock, const std::string& key,
    std::optional<SteadyTime> deadline) {
  auto found = values_.end();
  const auto isDecided = [&] {
    found = values_.find(key);
    return found != values_.end() || reason_;
  };
  if (deadline) {
    changed_.wait_until(lock, *deadline, isDecided);
  } else {
    changed_.wait(lock, isDecided);
  }
  if (found != values_.end()) return found;
  throw RunError(ErrorKind::attempt, "replica-lost",
                 reason_ ? *reason_ : "a replica has not sent " + key + " in time",
                 "check the server of that replica, and resume the run");
}

void GroupMembership::end(const std::string& reason) {
  {
    const std::lock_guard lock(mutex_);
    if (reason_) return;
    reason_ = reason;
  }
  changed_.notify_all();
  lost_();
  asio::post(io_, [self = shared_from_this()] {
    if (self->connection_ != nullptr) self->connection_->finish();
  });
}

GroupChannel::GroupChannel(const ReplicaGroup& group, std::string_view groupName,
                           std::function<void()> lost, const std::stop_token& stop)
    : listener_(group.listener) {
  parseEndpoint({"replicas", group.hosts.at(0)}, 1);
  if (listener_ == nullptr) {
    listener_ = std::make_shared<ReplicaListener>(group.hosts.at(group.rank));
  }
  std::optional<tcp::endpoint> ownHub;
  if (group.rank == 0) {
    hub_ = std::make_shared<GroupHub>(groupName, group.hosts.size(), group.timeout);
    listener_->open(hub_);
    ownHub = listener_->reachableEndpoint();
  }
  membership_ =
      std::make_shared<GroupMembership>(group, groupName, listener_->executor(), std::move(lost));
  membership_->start(ownHub);
  const std::stop_callback whenStopped(stop, [this] { leave(); });
  try {
    membership_->waitForAll();
  } catch (...) {
    closeAll();
    throw;
  }
}

GroupChannel::~GroupChannel() { closeAll(); }

void GroupChannel::closeAll() {
  leave();
  membership_->ended().wait_for(kEndTime);
  if (hub_ == nullptr) return;
  // If all had joined, the end of this replica's connection has ended the group.
  asio::post(listener_->executor(), [hub = hub_] { hub->finish(); });
  hub_->ended().wait_for(kEndTime);
  listener_->close(hub_);
}

void GroupChannel::set(const std::string& key, const std::string& value) {
  if (key.size() > kMaxKeyBytes || value.size() > kMaxValueBytes) {
    throw std::length_error("a value of a group is too large: " + key);
  }
  membership_->set({Kind::value, key, value});
}

std::string GroupChannel::get(const std::string& key, std::chrono::milliseconds timeout) {
  std::unique_lock lock(membership_->mutex_);
  return membership_->find(lock, key, now() + timeout)->second;
}

std::string GroupChannel::take(const std::string& key) {
  std::unique_lock lock(membership_->mutex_);
  const auto found = membership_->find(lock, key, std::nullopt);
  std::string value = std::move(found->second);
  membership_->bytes_ -= value.size();
  membership_->values_.erase(found);
  return value;
}

bool GroupChannel::has(const std::string& key) const {
  const std::lock_guard lock(membership_->mutex_);
  return membership_->values_.contains(key);
}

void GroupChannel::leave() { membership_->end("this replica has left the group"); }

}  // namespace cleave
