#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <csignal>
#include <cstring>
#include <deque>
#include <future>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <stop_token>
#include <thread>
#include <utility>

#include "common/core/clock.h"
#include "common/core/error.h"
#include "common/replicas/gloo_group.h"
#include "common/replicas/gradient_reducer.h"
#include "common/replicas/group_channel.h"
#include "common/replicas/group_hub.h"

namespace cleave {
namespace {

using Done = std::function<void(std::exception_ptr)>;

constexpr std::size_t kSliceValues = std::size_t{256} << 10;  // 1 MiB
// Rounds whose values are received while an earlier round is summed.
constexpr std::size_t kAhead = 3;

struct Call {
  std::uint64_t step = 0;
  std::span<float> values = {};
  Done done = {};
};

// What the replicas must agree on before a call.
struct Terms {
  std::uint64_t step = 0;
  std::uint64_t size = 0;
  bool operator==(const Terms&) const = default;
};

Terms termsOf(const Call& call) { return {call.step, call.values.size()}; }

std::string textOf(const Terms& terms) {
  return "the sum of " + std::to_string(terms.size) + " values of step " +
         std::to_string(terms.step);
}

// The values are summed in rounds. In a round, each replica sums one slice of the values: it
// receives this slice from all other replicas (scatter), and sends them the sum (share).
class RoundPlan {
 public:
  RoundPlan(std::span<float> values, std::size_t replicas)
      : values_(values), replicas_(replicas), roundValues_(replicas * kSliceValues) {}

  std::size_t rounds() const { return (values_.size() + roundValues_ - 1) / roundValues_; }
  // The slice that replica `rank` sums; may be empty in the last round.
  std::span<float> slice(std::size_t round, std::size_t rank) const {
    const std::size_t begin = round * roundValues_;
    const auto part = values_.subspan(begin, std::min(roundValues_, values_.size() - begin));
    const std::size_t size = (part.size() + replicas_ - 1) / replicas_;
    const std::size_t first = std::min(rank * size, part.size());
    return part.subspan(first, std::min(size, part.size() - first));
  }

 private:
  const std::span<float> values_;
  const std::size_t replicas_;
  const std::size_t roundValues_;
};

void addTo(std::span<float> sum, std::span<const float> values) {
  for (std::size_t j = 0; j < sum.size(); ++j) sum[j] += values[j];
}

// One reduce() over the connections of a group.
class Exchange {
 public:
  Exchange(GlooGroup& group, std::size_t rank, std::size_t replicas, std::span<float> values,
           std::chrono::milliseconds timeout)
      : group_(group),
        rank_(rank),
        replicas_(replicas),
        plan_(values, replicas),
        timeout_(timeout) {}

  void run() {
    try {
      transferAll();
    } catch (...) {
      group_.close();  // before the memory of the transfers is freed
      throw;
    }
  }

 private:
  static constexpr int kScatterTag = 0;
  static constexpr int kShareTag = 1;
  using Transfers = std::vector<GlooGroup::Transfer>;

  void transferAll() {
    const std::size_t rounds = plan_.rounds();
    buffers_.resize(std::min(rounds, kAhead + 1));
    for (std::size_t round = 0; round < rounds + kAhead; ++round) {
      if (round < rounds) scatter(round);
      if (round < kAhead) continue;
      finish(scattering_);
      sum(round - kAhead);
      if (sharing_.size() > kAhead) finish(sharing_);
      share(round - kAhead);
    }
    while (!sharing_.empty()) finish(sharing_);
  }

  // Receivers first, so that incoming values have a place.
  void scatter(std::size_t round) {
    std::vector<float>& buffer = buffers_[round % buffers_.size()];
    const std::size_t own = plan_.slice(round, rank_).size();
    buffer.resize(own * (replicas_ - 1));
    Transfers& transfers = scattering_.emplace_back();
    for (const std::size_t peer : peers()) {
      if (own > 0) transfers.push_back(group_.receive(peer, received(round, peer), kScatterTag));
    }
    for (const std::size_t peer : peers()) {
      const std::span<float> slice = plan_.slice(round, peer);
      if (!slice.empty()) transfers.push_back(group_.send(peer, slice, kScatterTag));
    }
  }

  // In the order of ranks, whichever replica sums; ends in this replica's values.
  void sum(std::size_t round) {
    std::span<float> total = received(round, 0);
    for (std::size_t rank = 1; rank < replicas_; ++rank) {
      std::span<float> next = received(round, rank);
      if (rank == rank_) std::swap(total, next);  // a + b has the bits of b + a
      addTo(total, next);
    }
  }

  void share(std::size_t round) {
    const std::span<float> own = plan_.slice(round, rank_);
    Transfers& transfers = sharing_.emplace_back();
    for (const std::size_t peer : peers()) {
      const std::span<float> slice = plan_.slice(round, peer);
      if (!slice.empty()) transfers.push_back(group_.receive(peer, slice, kShareTag));
    }
    for (const std::size_t peer : peers()) {
      if (!own.empty()) transfers.push_back(group_.send(peer, own, kShareTag));
    }
  }

  // Replica `rank`'s values of the slice that this replica sums; its own are in place.
  std::span<float> received(std::size_t round, std::size_t rank) {
    const std::span<float> own = plan_.slice(round, rank_);
    if (rank == rank_) return own;
    const std::size_t place = rank < rank_ ? rank : rank - 1;
    return std::span(buffers_[round % buffers_.size()]).subspan(place * own.size(), own.size());
  }

  void finish(std::deque<Transfers>& transfers) {
    for (const auto& transfer : transfers.front()) group_.wait(transfer, timeout_);
    transfers.pop_front();
  }

  // The other replicas, beginning with the next one, so that not all send to the same replica.
  std::vector<std::size_t> peers() const {
    std::vector<std::size_t> peers;
    for (std::size_t j = 1; j < replicas_; ++j) peers.push_back((rank_ + j) % replicas_);
    return peers;
  }

  GlooGroup& group_;
  const std::size_t rank_;
  const std::size_t replicas_;
  const RoundPlan plan_;
  const std::chrono::milliseconds timeout_;
  std::vector<std::vector<float>> buffers_;  // outlive the transfers into them
  std::deque<Transfers> scattering_;
  std::deque<Transfers> sharing_;
};

// Writing to a connection that the peer has closed raises SIGPIPE, which would end the process.
// Blocks it in this thread, and in the threads of Gloo that inherit its mask.
void blockSigpipe() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
}

class GlooReducer : public GradientReducer {
 public:
  GlooReducer(const ReplicaGroup& group, std::string_view groupName, const std::stop_token& stop)
      : replicas_(group.hosts.size()),
        rank_(static_cast<std::size_t>(group.rank)),
        timeout_(group.timeout),
        deadline_(now() + group.timeout),
        gloo_(std::make_shared<GlooGroup>(group.hosts)) {
    if (replicas_ > 1) {
      channel_ = std::make_unique<GroupChannel>(
          group, groupName, [gloo = gloo_] { gloo->interrupt(); }, stop);
    }
    const std::stop_callback whenStopped(stop, [this] { abort(); });
    std::promise<void> opened;
    auto result = opened.get_future();
    thread_ = std::thread([this, opened = std::move(opened)]() mutable { run(std::move(opened)); });
    try {
      result.get();
    } catch (...) {
      thread_.join();
      throw;
    }
  }

  ~GlooReducer() override {
    abort();
    {
      const std::lock_guard lock(mutex_);
      isStopping_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  void reduce(std::uint64_t step, std::span<float> values, Done done) override {
    {
      const std::lock_guard lock(mutex_);
      if (call_) throw std::logic_error("a call of the reducer is pending");
      call_ = Call{step, values, std::move(done)};
    }
    changed_.notify_all();
  }

  void abort() override {
    isAborted_ = true;
    if (channel_ != nullptr) channel_->leave();
  }

 private:
  void run(std::promise<void> opened) {
    try {
      blockSigpipe();
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline_ - now());
      if (channel_ != nullptr)
        gloo_->open(*channel_, rank_, std::clamp(left, kMinOpenTime, kMaxOpenTime));
      opened.set_value();
    } catch (...) {
      return opened.set_exception(std::current_exception());
    }
    while (const std::optional<Call> call = nextCall()) answer(*call);
    gloo_->close();
  }

  // Nullopt: the reducer is being destroyed.
  std::optional<Call> nextCall() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return call_ || isStopping_; });
    return std::exchange(call_, std::nullopt);
  }

  void answer(const Call& call) {
    try {
      if (failure_) std::rethrow_exception(failure_);
      perform(call);
    } catch (const Error&) {
      failure_ = std::current_exception();
    } catch (const std::exception& error) {
      failure_ =
          std::make_exception_ptr(RunError(ErrorKind::attempt, "replica-lost",
                                           std::string("this replica has failed: ") + error.what(),
                                           "check the memory of its machine, and resume the run"));
    }
    if (failure_) endGroup();
    call.done(failure_);
  }

  // The other replicas' calls fail too, instead of waiting for this one.
  void endGroup() {
    gloo_->close();
    if (channel_ != nullptr) channel_->leave();
  }

  void perform(const Call& call) {
    if (isAborted_)
      throw RunError(ErrorKind::attempt, "replica-lost", "this replica has left the group",
                     "the run has ended on this server; its log says why");
    if (channel_ == nullptr) return;
    agree(call);
    Exchange(*gloo_, rank_, replicas_, call.values, timeout_).run();
  }

  // Waits until all replicas make the same call.
  void agree(const Call& call) {
    const Terms own = termsOf(call);
    const std::string prefix = "call/" + std::to_string(calls_++) + "/";
    channel_->set(prefix + std::to_string(rank_),
                  std::string(reinterpret_cast<const char*>(&own), sizeof own));
    for (std::size_t rank = 0; rank < replicas_; ++rank) {
      const std::string offer = channel_->take(prefix + std::to_string(rank));
      Terms terms;
      std::memcpy(&terms, offer.data(), std::min(sizeof terms, offer.size()));
      if (terms == own && offer.size() == sizeof terms) continue;
      throw RunError("replica-differs",
                     "replica " + std::to_string(rank) + " wants " + textOf(terms) +
                         ", and this replica wants " + textOf(own),
                     "check that all servers have the same version, and resume the run");
    }
  }

  static constexpr std::chrono::milliseconds kMinOpenTime{1000};
  static constexpr std::chrono::milliseconds kMaxOpenTime{30'000};

  const std::size_t replicas_;
  const std::size_t rank_;
  const std::chrono::milliseconds timeout_;
  const SteadyTime deadline_;  // to join
  std::atomic<bool> isAborted_ = false;
  const std::shared_ptr<GlooGroup> gloo_;
  std::unique_ptr<GroupChannel> channel_;  // nullptr: a single replica

  // reducer's thread
  std::uint64_t calls_ = 0;
  std::exception_ptr failure_;

  std::mutex mutex_;  // guards the rest, except thread_
  std::condition_variable changed_;
  std::optional<Call> call_;
  bool isStopping_ = false;
  std::thread thread_;
};

}  // namespace

std::unique_ptr<GradientReducer> joinReplicas(const ReplicaGroup& group, std::string_view groupName,
                                              const std::stop_token& stop) {
  const std::size_t replicas = group.hosts.size();
  if (replicas < 1 || replicas > kMaxReplicas || group.rank < 0 ||
      static_cast<std::size_t>(group.rank) >= replicas) {
    throw std::invalid_argument("a group has 1 to " + std::to_string(kMaxReplicas) +
                                " replicas, and ranks from 0");
  }
  return std::make_unique<GlooReducer>(group, groupName, stop);
}

}  // namespace cleave
