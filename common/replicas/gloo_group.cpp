#include "common/replicas/gloo_group.h"

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <utility>

#include "common/core/endpoint.h"
#include "common/core/error.h"
#include "common/replicas/group_channel.h"

namespace cleave {
namespace {

using Milliseconds = std::chrono::milliseconds;

// The part of c10d's store that ProcessGroupGloo uses to connect. c10d's own TCPStore accepts
// anybody's connections.
class ChannelStore : public c10d::Store {
 public:
  ChannelStore(GroupChannel& channel, Milliseconds timeout) : Store(timeout), channel_(channel) {}

  c10::intrusive_ptr<Store> clone() override {
    return c10::make_intrusive<ChannelStore>(channel_, timeout_);
  }
  void set(const std::string& key, const std::vector<std::uint8_t>& value) override {
    channel_.set(named(key), {value.begin(), value.end()});
  }
  std::vector<std::uint8_t> get(const std::string& key) override {
    const std::string value = channel_.get(named(key), timeout_);
    return {value.begin(), value.end()};
  }
  bool check(const std::vector<std::string>& keys) override {
    return std::all_of(keys.begin(), keys.end(),
                       [this](const std::string& key) { return channel_.has(named(key)); });
  }
  void wait(const std::vector<std::string>& keys) override { wait(keys, timeout_); }
  void wait(const std::vector<std::string>& keys, const Milliseconds& timeout) override {
    for (const std::string& key : keys) channel_.get(named(key), std::min(timeout, timeout_));
  }
  std::int64_t add(const std::string&, std::int64_t) override { return refuse(); }
  bool deleteKey(const std::string&) override { return refuse() != 0; }
  std::int64_t getNumKeys() override { return refuse(); }

 private:
  static std::string named(const std::string& key) { return "gloo/" + key; }
  [[noreturn]] static std::int64_t refuse() {
    throw std::logic_error("Gloo uses an operation of the store that Cleave does not provide");
  }

  GroupChannel& channel_;
};

std::vector<at::Tensor> asTensors(std::span<float> values) {
  return {at::from_blob(values.data(), {static_cast<std::int64_t>(values.size())}, at::kFloat)};
}

RunError failed(const std::string& code, const std::string& sentence) {
  return {code, sentence, "check the network between the servers, and resume the run"};
}

}  // namespace

GlooGroup::GlooGroup(std::vector<std::string> hosts) : hosts_(std::move(hosts)) {}

GlooGroup::~GlooGroup() = default;

void GlooGroup::open(GroupChannel& channel, std::size_t rank, Milliseconds timeout) {
  try {
    const auto options = c10d::ProcessGroupGloo::Options::create(timeout);
    const std::string host = parseEndpoint({"replicas", hosts_[rank]}, 0).host;
    options->devices = {c10d::ProcessGroupGloo::createDeviceForHostname(host)};
    options->threads = 1;
    auto group = c10::make_intrusive<c10d::ProcessGroupGloo>(
        c10::make_intrusive<ChannelStore>(channel, timeout), static_cast<int>(rank),
        static_cast<int>(hosts_.size()), options);
    const std::lock_guard lock(mutex_);
    group_ = std::move(group);
  } catch (const std::exception& error) {
    throw failed("replica-unreachable",
                 std::string("the replicas cannot connect to each other: ") + error.what());
  }
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
  for (const auto& work : pending_) work->abort();
}

}  // namespace cleave
