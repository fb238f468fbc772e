#include "tests/virtual_pair.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <utility>

namespace cleave::test {
namespace {

Role other(Role role) { return role == Role::client ? Role::server : Role::client; }

TensorMessage copyTensor(const TensorMessage& message) {
  TensorMessage copy;
  copy.flow = message.flow;
  copy.at = message.at;
  copy.weightVersion = message.weightVersion;
  copy.payload = Payload(message.payload.view(), message.payload.owner());
  return copy;
}

char letter(ActionKind kind) {
  switch (kind) {
    case ActionKind::headForward:
    case ActionKind::bodyForward:
      return 'F';
    case ActionKind::tailStep:
      return 'T';
    case ActionKind::headBackward:
      return 'H';
    default:
      return 'B';
  }
}

}  // namespace

Message copyOf(const Message& message) {
  if (const auto* tensor = std::get_if<TensorMessage>(&message)) return copyTensor(*tensor);
  if (const auto* done = std::get_if<BodyDone>(&message)) return *done;
  if (const auto* decision = std::get_if<StepDecision>(&message)) return *decision;
  if (const auto* ok = std::get_if<StepOk>(&message)) return *ok;
  if (const auto* fetch = std::get_if<Fetch>(&message)) return *fetch;
  return std::get<Blob>(message);
}

Payload smallPayload(float value) {
  auto owner = std::make_shared<float>(value);
  const auto* data = reinterpret_cast<const std::byte*>(owner.get());
  return Payload({data, {DType::f32, {1}, MemoryOrder::contiguous}}, owner);
}

class VirtualPair::Link : public EngineLink {
 public:
  Link(VirtualPair& pair, Role role) : pair_(pair), role_(role) {}

  void send(Message message) override {
    if (auto* tensor = std::get_if<TensorMessage>(&message)) {
      pair_.side(role_).outgoing.push_back(std::move(*tensor));
      pair_.startSending(role_);
      return;
    }
    auto shared = std::make_shared<Message>(std::move(message));
    pair_.clock_.after(pair_.jittered(pair_.options_.latency),
                       [this, shared] { pair_.deliver(other(role_), *shared); });
  }
  void commit() override {}

 private:
  VirtualPair& pair_;
  Role role_;
};

VirtualPair::VirtualPair(const VirtualOptions& options) : options_(options) {
  for (const Role role : {Role::client, Role::server}) {
    Side& made = side(role);
    made.link = std::make_unique<Link>(*this, role);
    EngineOptions engine;
    engine.role = role;
    engine.schedule = options.schedule;
    engine.microBatches = options.microBatches;
    engine.inFlight = resolveInFlight(*options.schedule, options.inFlight, options.microBatches);
    engine.fetchGradients = options.fetchGradients && role == Role::client;
    made.engine = std::make_unique<Engine>(engine, *made.link);
  }
}

VirtualPair::~VirtualPair() = default;

Engine& VirtualPair::engine(Role role) { return *side(role).engine; }

std::string VirtualPair::takeOrder(Role role) {
  std::string order = std::exchange(side(role).order, "");
  if (!order.empty()) order.pop_back();
  return order;
}

std::uint64_t VirtualPair::fingerprint(Role role) const {
  std::uint64_t sum = 0;
  for (const std::uint64_t hash : sides_[static_cast<std::size_t>(role)].hashes) {
    sum = sum * 1000003 + hash;
  }
  return sum;
}

double VirtualPair::jittered(double seconds) {
  if (options_.jitterSeed == 0) return seconds;
  const std::uint64_t bits = randomBits(randomKey(options_.jitterSeed, "jitter"), draws_++);
  return seconds * 2 * static_cast<double>(bits >> 11) * 0x1p-53;
}

double VirtualPair::run(Phase phase, std::uint64_t step, std::uint32_t samples) {
  const double start = clock_.now();
  engine(Role::client)
      .begin({phase, step, 0, microBatchCount(samples, options_.microBatches), samples});
  startWork(Role::client);
  while (!engine(Role::client).batchDone()) {
    REQUIRE(clock_.runNext());  // otherwise a deadlock
  }
  const double end = clock_.now();
  while (clock_.runNext()) {  // messages still in flight, such as StepOk
  }
  return end - start;
}

void VirtualPair::startWork(Role role) {
  Side& worker = side(role);
  if (worker.busy) return;
  auto work = worker.engine->next();
  if (!work) return;
  const auto index = static_cast<std::size_t>(work->kind);
  if (index < kScheduledKinds) {
    worker.order += letter(work->kind) + std::to_string(work->at.i) + " ";
  }
  countInFlight(*work);
  worker.busy = true;
  auto shared = std::make_shared<Work>(std::move(*work));
  const double seconds = jittered(options_.seconds[index]);
  clock_.after(seconds, [this, role, shared, seconds] {
    Side& done = side(role);
    done.busy = false;
    done.engine->complete(shared->token, perform(done, *shared), seconds);
    startWork(role);
  });
  startWork(role);
}

void VirtualPair::countInFlight(const Work& work) {
  const bool train = work.at.phase == Phase::train;
  if (work.kind == ActionKind::headForward) {
    mostInFlight_ = std::max(mostInFlight_, ++inFlight_);
  } else if (work.kind == (train ? ActionKind::headBackward : ActionKind::tailStep)) {
    --inFlight_;
  }
}

Result VirtualPair::perform(Side& worker, const Work& work) {
  std::uint64_t& hash = worker.hashes[static_cast<std::size_t>(work.kind)];
  hash = hash * 31 + work.at.step * 1000 + work.at.i + 1;
  switch (work.kind) {
    case ActionKind::report:
      return GradientReport{1, true};
    case ActionKind::decide:
      return StepDecision{work.at.step, true, {0.1}, 1, 1};
    case ActionKind::update:
      return std::monostate{};
    case ActionKind::exportBlob:
      return std::make_shared<const std::vector<std::byte>>(8);
    case ActionKind::headBackward:
      return Payload();
    default:
      return smallPayload(static_cast<float>(work.at.i));
  }
}

void VirtualPair::startSending(Role role) {
  Side& sender = side(role);
  if (sender.sending || sender.outgoing.empty()) return;
  const auto urgent = std::min_element(
      sender.outgoing.begin(), sender.outgoing.end(), [&](const auto& a, const auto& b) {
        return options_.schedule->linkPriority(a.flow) < options_.schedule->linkPriority(b.flow);
      });
  auto shared = std::make_shared<Message>(std::move(*urgent));
  sender.outgoing.erase(urgent);
  sender.sending = true;
  clock_.after(jittered(options_.tensorSeconds), [this, role, shared] {
    side(role).sending = false;
    clock_.after(jittered(options_.latency),
                 [this, role, shared] { deliver(other(role), *shared); });
    startSending(role);
  });
}

void VirtualPair::deliver(Role to, const Message& message) {
  engine(to).receive(copyOf(message));
  startWork(to);
}

void VirtualPair::inject(Role role, Message message) {
  engine(role).receive(std::move(message));
  startWork(role);
}

}  // namespace cleave::test
