#include "common/replicas/gloo_group.h"

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <stdexcept>
#include <thread>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <utility>

#include "common/core/endpoint.h"
#include "common/core/error.h"
#include "common/replicas/group_channel.h"

namespace cleave {
namespace {

using Milliseconds = std::chrono::milliseconds;

// The longest that Gloo waits for another replica's connection, in multiples of its timeout.
constexpr int kGlooConnectTimeouts = 5;

}  // namespace

// A channel that can be taken away from the thread in which Gloo connects.
class LentChannel {
 public:
  explicit LentChannel(GroupChannel& channel) : channel_(&channel) {}

  // Waits until no call is under way. After the group has ended, none takes long.
  void takeBack() {
    const std::lock_guard lock(mutex_);
    channel_ = nullptr;
  }
  template <typename Use>
  auto use(const Use& call) {
    const std::lock_guard lock(mutex_);
    if (channel_ == nullptr) throw std::runtime_error("the group of replicas has ended");
    return call(*channel_);
  }

 private:
  std::mutex mutex_;
  GroupChannel* channel_;  // guarded by mutex_; nullptr: taken back
};

namespace {

// The part of c10d's store that ProcessGroupGloo uses to connect. c10d's own TCPStore accepts
// anybody's connections.
class ChannelStore : public c10d::Store {
 public:
  ChannelStore(std::shared_ptr<LentChannel> channel, Milliseconds timeout)
      : Store(timeout), channel_(std::move(channel)) {}

  c10::intrusive_ptr<Store> clone() override {
    return c10::make_intrusive<ChannelStore>(channel_, timeout_);
  }
  void set(const std::string& key, const std::vector<std::uint8_t>& value) override {
    channel_->use([&](GroupChannel& channel) {
      channel.set(named(key), {value.begin(), value.end()});
    });
  }
  std::vector<std::uint8_t> get(const std::string& key) override {
    const std::string value = valueOf(key, timeout_);
    return {value.begin(), value.end()};
  }
  bool check(const std::vector<std::string>& keys) override {
    return channel_->use([&](GroupChannel& channel) {
      return std::all_of(keys.begin(), keys.end(),
                         [&](const std::string& key) { return channel.has(named(key)); });
    });
  }
  void wait(const std::vector<std::string>& keys) override { wait(keys, timeout_); }
  void wait(const std::vector<std::string>& keys, const Milliseconds& timeout) override {
    for (const std::string& key : keys) valueOf(key, std::min(timeout, timeout_));
  }
  std::int64_t add(const std::string&, std::int64_t) override { return refuse(); }
  bool deleteKey(const std::string&) override { return refuse() != 0; }
  std::int64_t getNumKeys() override { return refuse(); }

 private:
  static std::string named(const std::string& key) { return "gloo/" + key; }
  [[noreturn]] static std::int64_t refuse() {
    throw std::logic_error("Gloo uses an operation of the store that Cleave does not provide");
  }
  std::string valueOf(const std::string& key, Milliseconds timeout) {
    return channel_->use([&](GroupChannel& channel) { return channel.get(named(key), timeout); });
  }

  const std::shared_ptr<LentChannel> channel_;
};

std::vector<at::Tensor> asTensors(std::span<float> values) {
  return {at::from_blob(values.data(), {static_cast<std::int64_t>(values.size())}, at::kFloat)};
}

RunError failed(const std::string& code, const std::string& sentence, double retrySeconds = 0) {
  return {ErrorKind::attempt, code, sentence,
          "check the network between the servers, and resume the run", retrySeconds};
}

}  // namespace

GlooGroup::GlooGroup(std::vector<std::string> hosts) : hosts_(std::move(hosts)) {}

GlooGroup::~GlooGroup() = default;

// ProcessGroupGloo's constructor cannot be interrupted, and waits for replicas that have ended
// after they joined. It therefore runs in a thread of its own, which is left alone if the group
// ends.
void GlooGroup::open(GroupChannel& channel, std::size_t rank, Milliseconds timeout) {
  const auto lent = std::make_shared<LentChannel>(channel);
  std::thread([self = shared_from_this(), lent, rank, timeout] {
    self->connect(lent, rank, timeout);
  }).detach();
  std::string fault = "the group of replicas has ended";
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return group_ || fault_ || isInterrupted_; });
    if (group_) return;
    if (fault_) fault = *fault_;
  }
  lent->takeBack();
  throw failed("replica-unreachable", "the replicas cannot connect to each other: " + fault,
               kJoinRetrySeconds);
}

void GlooGroup::connect(const std::shared_ptr<LentChannel>& channel, std::size_t rank,
                        Milliseconds timeout) {
  c10::intrusive_ptr<c10d::ProcessGroupGloo> group;
  std::optional<std::string> fault;
  try {
    const auto options = c10d::ProcessGroupGloo::Options::create(timeout / kGlooConnectTimeouts);
    const std::string host = parseEndpoint({"replicas", hosts_[rank]}, 0).host;
    options->devices = {c10d::ProcessGroupGloo::createDeviceForHostname(host)};
    options->threads = 1;
    group = c10::make_intrusive<c10d::ProcessGroupGloo>(
        c10::make_intrusive<ChannelStore>(channel, timeout), static_cast<int>(rank),
        static_cast<int>(hosts_.size()), options);
  } catch (const std::exception& error) {
    fault = error.what();
  }
  const std::lock_guard lock(mutex_);
  if (!isInterrupted_) group_ = std::move(group);
  fault_ = std::move(fault);
  changed_.notify_all();
}

void GlooGroup::close() {
  c10::intrusive_ptr<c10d::ProcessGroupGloo> group;
  const std::lock_guard lock(mutex_);
  pending_.clear();
  group.swap(group_);
  isInterrupted_ = true;
}

GlooGroup::Transfer GlooGroup::begin(std::size_t peer, const Start& start) {
  const std::lock_guard lock(mutex_);
  if (isInterrupted_) throw failed("replica-lost", "the group of replicas has ended");
  try {
    Transfer transfer{start(*group_), peer};
    pending_.push_back(transfer.work);
    return transfer;
  } catch (const std::exception& error) {
    throw failed("replica-lost", "the connection to replica " + std::to_string(peer) + " (" +
                                     hosts_[peer] + ") has failed: " + error.what());
  }
}

GlooGroup::Transfer GlooGroup::send(std::size_t peer, std::span<float> values, int tag) {
  return begin(peer, [&](c10d::ProcessGroupGloo& group) {
    std::vector<at::Tensor> tensors = asTensors(values);
    return group.send(tensors, static_cast<int>(peer), tag);
  });
}

GlooGroup::Transfer GlooGroup::receive(std::size_t peer, std::span<float> values, int tag) {
  return begin(peer, [&](c10d::ProcessGroupGloo& group) {
    std::vector<at::Tensor> tensors = asTensors(values);
    return group.recv(tensors, static_cast<int>(peer), tag);
  });
}

void GlooGroup::wait(const Transfer& transfer, Milliseconds timeout) {
  bool isDone = false;
  std::string why = "the group of replicas has ended";
  try {
    isDone = transfer.work->wait(timeout);
  } catch (const std::exception& error) {
    why = error.what();
  }
  const std::lock_guard lock(mutex_);
  std::erase(pending_, transfer.work);
  if (isDone) return;
  throw failed("replica-lost", "the connection to replica " + std::to_string(transfer.peer) + " (" +
                                   hosts_[transfer.peer] + ") has failed: " + why);
}

void GlooGroup::interrupt() {
  const std::lock_guard lock(mutex_);
  isInterrupted_ = true;
  changed_.notify_all();
  for (const auto& work : pending_) work->abort();
}

}  // namespace cleave
