// The tensor link: frames that it refuses from a hostile peer, and two engines that train through
// two links over a real connection, with the same threads as in client and server.
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/use_future.hpp>
#include <catch2/catch.hpp>
#include <cstring>
#include <future>
#include <numeric>
#include <thread>

#include "common/engine/worker.h"
#include "common/link/tensor_link.h"
#include "common/link/wire_messages.h"
#include "common/net/streams/io_thread.h"
#include "compression/registry.h"
#include "tests/support/error_code.h"
#include "tests/support/models/virtual_run.h"
#include "tests/support/network/relay.h"

namespace cleave::test {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using namespace std::chrono_literals;

constexpr std::uint32_t kMicroBatches = 4;
constexpr std::uint32_t kBatch = 10;
constexpr std::int64_t kWidth = 1000;
constexpr std::size_t kBlobBytes = 100'000;

TensorSpec specOf(Flow, std::uint32_t samples) {
  return {DType::f32, {static_cast<std::int64_t>(samples), kWidth}, MemoryOrder::contiguous};
}

TensorLinkOptions optionsFor(Role role, const std::string& codec, const Schedule& schedule,
                             std::uint32_t inFlight) {
  TensorLinkOptions options;
  options.role = role;
  options.microBatches = kMicroBatches;
  options.inFlight = inFlight;
  options.maxBatch = kBatch;
  for (const Flow flow : options.place.flows()) options.codecs[flow].own = makeCodec(codec);
  options.spec = specOf;
  options.priority = schedule.linkPriority;
  options.maxBlobBytes = 1 << 20;
  options.errorEvery = 3;
  return options;
}

void addLevels(TensorLinkOptions& options) {
  options.hasCodecLevels = true;
  for (auto& [flow, codec] : options.codecs) {
    if (hasRawFormat(*codec.own)) codec.eight = makeCodec("block:bits=8");
  }
}

// ---- A device whose memory only its own codecs can read ----

std::vector<std::byte> turned(const std::byte* data, std::size_t bytes) {
  std::vector<std::byte> all(data, data + bytes);
  for (std::byte& each : all) each = ~each;
  return all;
}

class TurnedCodec : public DeviceCodec {
 public:
  explicit TurnedCodec(std::shared_ptr<const Codec> codec) : codec_(std::move(codec)) {}

  std::string spec() const override { return codec_->spec(); }
  std::size_t maxEncodedBytes(const TensorSpec& spec) const override {
    return codec_->maxEncodedBytes(spec);
  }
  Encoded encode(const CodecContext& context, const CodecState& state, CutContext& cut,
                 const TensorView& view, std::span<std::byte> out) const override {
    const std::vector<std::byte> values = turned(view.data, view.spec.bytes());
    return codec_->encode(context, state, cut, {values.data(), view.spec}, out);
  }
  CodecState decode(const CodecContext& context, const CodecState& state, CutContext& cut,
                    std::span<const std::byte> bytes, MutableTensorView out) const override {
    std::vector<std::byte> values(out.spec.bytes());
    CodecState after = codec_->decode(context, state, cut, bytes, {values.data(), out.spec});
    std::ranges::copy(turned(values.data(), values.size()), out.data);
    return after;
  }
  std::shared_ptr<std::byte> allocate(std::size_t bytes) const override {
    auto owner = std::make_shared<std::vector<std::byte>>(bytes + 1);
    return {owner, owner->data()};
  }
  void copyToHost(const std::byte* from_dev, std::size_t bytes, std::byte* to) const override {
    std::ranges::copy(turned(from_dev, bytes), to);
  }

 private:
  const std::shared_ptr<const Codec> codec_;
};

void useTurnedCodecs(TensorLinkOptions& options) {
  for (auto& [flow, codec] : options.codecs) {
    if (codec.own->isIdentity()) continue;
    codec.ownOnDevice = std::make_shared<TurnedCodec>(codec.own);
    if (codec.hasLevels()) codec.eightOnDevice = std::make_shared<TurnedCodec>(codec.eight);
  }
}

Payload onTurnedDevice(const Payload& payload) {
  auto owner = std::make_shared<std::vector<std::byte>>(
      turned(payload.view().data, payload.view().spec.bytes()));
  const std::byte* const data = owner->data();
  return Payload({data, payload.view().spec, MemoryPlace::device}, std::move(owner));
}

// ---- Two engines over a real connection ----

Payload ramp(std::uint32_t samples, float first) {
  auto values = std::make_shared<std::vector<float>>(samples * kWidth);
  for (std::size_t j = 0; j < values->size(); ++j)
    (*values)[j] = first + static_cast<float>(j % 256);
  const auto* data = reinterpret_cast<const std::byte*>(values->data());
  return Payload({data, specOf(activationAt(0), samples)}, values);
}

float firstValue(const Payload& payload) {
  std::vector<std::byte> bytes(payload.view().data, payload.view().data + sizeof(float));
  if (payload.view().place == MemoryPlace::device) bytes = turned(bytes.data(), bytes.size());
  float value = 0;
  std::memcpy(&value, bytes.data(), sizeof value);
  return value;
}

// What a side has recorded of the traffic: codec and bytes by key.
class Traffic : public TrafficObserver {
 public:
  bool wants(const Key&) const override { return true; }
  void crossed(const Key& key, const std::string& codec, CodecLevel,
               const TensorView& tensor) override {
    const std::lock_guard lock(mutex_);
    const bool isNew =
        seen_.try_emplace(key, codec, std::vector(tensor.data, tensor.data + tensor.spec.bytes()))
            .second;
    if (!isNew || tensor.place != MemoryPlace::host) isDamaged_ = true;
  }
  // Whether both sides have recorded the same, and each tensor once.
  bool sameAs(const Traffic& other) const {
    return !isDamaged_ && !other.isDamaged_ && seen_ == other.seen_;
  }
  std::size_t size() const { return seen_.size(); }

 private:
  std::mutex mutex_;
  std::map<Key, std::pair<std::string, std::vector<std::byte>>> seen_;
  bool isDamaged_ = false;
};

// One side of a run, as in the real programs, but with a fake stage that sums up its inputs.
struct Side {
  Side(Role which, IoThread& ioThread, const std::string& codec, const Schedule& schedule,
       bool onDevice = false)
      : role(which), io(ioThread) {
    const auto mailbox = std::make_shared<Mailbox>(device, kMicroBatches);
    TensorLinkOptions options =
        optionsFor(role, codec, schedule, schedule.defaultInFlight(kMicroBatches));
    options.codecQueue = codecs.open();
    addLevels(options);
    options.levels = levels;
    if (onDevice) useTurnedCodecs(options);
    options.progress = progress;
    options.observers = {&traffic};
    staysOnDevice = onDevice && codec != "none";
    trace = options.trace = std::make_shared<TraceRecorder>(TraceWindow{2, 3});
    link = std::make_shared<TensorLink>(
        std::move(options), std::make_shared<BufferPool>(), io.context().get_executor(),
        TensorLink::Callbacks{
            .deliver = [mailbox](Message message) { mailbox->deliver(std::move(message)); },
            .record =
                [this](const TransferRecord& record) {
                  const std::lock_guard lock(mutex);
                  records.push_back(record);
                },
            .failed = [](std::exception_ptr error) { std::rethrow_exception(error); },
        });
    const EngineOptions engine{&schedule, kMicroBatches, schedule.defaultInFlight(kMicroBatches)};
    worker = std::make_shared<EngineWorker>(
        role == Role::client ? coordinator(engine) : participant(engine), mailbox, table(), [] {},
        [link = link](std::exception_ptr error) { link->fail(std::move(error)); }, nullptr, trace);
    device.attach(worker);
  }
  ~Side() {
    codecs.stop();
    device.detach(worker);
    worker.reset();
    link.reset();
  }

  std::unique_ptr<Engine> coordinator(const EngineOptions& options) {
    auto made = std::make_unique<Coordinator>(options, std::vector<BodyPeer>{{Place{}, link}},
                                              [](std::uint64_t) { return kGradsBody; });
    client = made.get();
    return made;
  }
  std::unique_ptr<Engine> participant(const EngineOptions& options) const {
    return std::make_unique<Participant>(options, Place{},
                                         std::vector<std::shared_ptr<EngineLink>>{link});
  }

  ActionTable table() {
    ActionTable actions;
    for (std::size_t kind = 0; kind < kActionKinds; ++kind) {
      actions[kind] = [this](Work work) { return perform(std::move(work)); };
    }
    return actions;
  }

  Result perform(Work work) {
    // Actions of the same kind run in a fixed order. The order of different kinds depends on the
    // schedule.
    double& kindSum = sums[static_cast<std::size_t>(work.kind)];
    if (const auto* tensors = std::get_if<TensorBundle>(&work.input);
        tensors && !tensors->empty()) {
      kindSum = kindSum * 1.25 + static_cast<double>(firstValue(tensors->front()));
    }
    const std::uint32_t samples = work.at.batch.count == 0 ? 0 : work.at.size();
    switch (work.kind) {
      case ActionKind::report:
        return GradientReport{sum(), true};
      case ActionKind::decide:
        return StepDecision{work.at.step,
                            true,
                            {std::get<std::vector<BodyDone>>(work.input).front().report.squareSum},
                            1,
                            1,
                            false,
                            {}};
      case ActionKind::update:
        sums.back() += std::get<StepDecision>(work.input).learningRates[0];
        return std::monostate{};
      case ActionKind::exportBlob:
        return std::make_shared<const std::vector<std::byte>>(
            std::vector<std::byte>(kBlobBytes, std::byte{7}));
      case ActionKind::headBackward:
      case ActionKind::bodyWeights:
        return std::monostate{};
      default:
        break;
    }
    Payload output = ramp(samples, static_cast<float>(work.at.i + 1));
    return bundleOf(staysOnDevice ? onTurnedDevice(output) : std::move(output));
  }

  const Role role;
  const std::shared_ptr<CodecLevels> levels = std::make_shared<CodecLevels>();
  bool staysOnDevice = false;
  IoThread& io;
  const std::shared_ptr<ProgressCount> progress = std::make_shared<ProgressCount>(0);
  DeviceExecutor device;
  CodecExecutor codecs{2};
  std::shared_ptr<TensorLink> link;
  std::shared_ptr<TraceRecorder> trace;
  std::shared_ptr<EngineWorker> worker;
  Traffic traffic;
  Coordinator* client = nullptr;  // the worker's engine; only on the client
  std::array<double, kActionKinds + 1> sums{};
  double sum() const { return std::accumulate(sums.begin(), sums.end(), 0.0); }
  std::mutex mutex;
  std::vector<TransferRecord> records;
};

// Checks the trace of steps 2 to 4. Step 3 has 3 micro-batches.
void checkTrace(const Trace& trace, Role role, bool coded, const Schedule& schedule) {
  constexpr std::size_t kBatches = kMicroBatches + 3 + kMicroBatches;
  std::array<std::size_t, kTraceActivities> counts{};
  for (const TraceSpan& span : trace.spans) {
    CHECK(span.begin <= span.end);
    ++counts[indexOf(span.activity)];
  }
  const auto count = [&](TraceActivity activity) { return counts[indexOf(activity)]; };
  // Per micro-batch, the client has three actions, and the server two, or three if its backward is
  // split. Each side has two more at the end of a step.
  const std::size_t actions = role == Role::client || schedule.splitsBackward ? 3 : 2;
  CHECK(count(TraceActivity::compute) == actions * kBatches + 3 * 2);
  CHECK(count(TraceActivity::encode) == (coded ? 2 * kBatches : 0));
  CHECK(count(TraceActivity::decode) == (coded ? 2 * kBatches : 0));
  CHECK(count(TraceActivity::queue) == 2 * kBatches);
  CHECK(count(TraceActivity::send) >= 2 * kBatches);
  CHECK(count(TraceActivity::receive) >= 2 * kBatches);
  CHECK(trace.dropped == 0);
}

// Connects the two links, and reconnects them whenever their connection breaks. Runs on the io
// thread.
asio::awaitable<void> connectLinks(Side& client, Side& server, std::uint16_t port,
                                   tcp::acceptor& acceptor, std::atomic<std::size_t>& connections) {
  using namespace asio::experimental::awaitable_operators;
  for (bool isOver = false; !isOver; ++connections) {
    tcp::socket socket(client.io.context());
    co_await socket.async_connect({asio::ip::address_v4::loopback(), port}, asio::use_awaitable);
    tcp::socket accepted = co_await acceptor.async_accept(asio::use_awaitable);
    const Arrived atClient = client.link->arrived();
    const Arrived atServer = server.link->arrived();
    const auto a = std::make_shared<Connection>(std::move(socket), ConnectionOptions{});
    const auto b = std::make_shared<Connection>(std::move(accepted), ConnectionOptions{});
    client.link->attach(a, atServer);
    server.link->attach(b, atClient);
    const auto serve = [&](Side& side) -> asio::awaitable<void> {
      try {
        const std::string reason = co_await side.link->serve();
        CHECK(reason == "done");
        isOver = true;
      } catch (const Error& error) {
        CHECK(error.kind() == ErrorKind::link);
        a->abandon();
        b->abandon();
      }
    };
    co_await (serve(client) && serve(server));
    if (isOver) break;
    client.link->detach();
    server.link->detach();
  }
  ++connections;
}

// The level of a training step; evaluations have CodecLevel::own.
using LevelOf = std::function<CodecLevel(std::uint64_t step)>;

// Cuts the connection each time this many bytes have crossed.
struct Cut {
  Relay::Way way = Relay::Way::up;
  std::uint64_t everyBytes = 0;  // 0: no cuts
  bool isOnce = false;
};

struct Trained {
  double client = 0, server = 0;  // sums of all values that the stages received
  std::size_t connections = 0;
  std::uint64_t progress = 0;  // of the client, without the trace, whose size varies

  bool sameValues(const Trained& other) const {
    return client == other.client && server == other.server;
  }
};

Trained trainThroughLinks(const std::string& codec, const std::string& scheduleName,
                          bool serverOnDevice = false, Cut cut = {},
                          const LevelOf& levelOf = nullptr) {
  const Schedule& schedule = findSchedule(scheduleName);
  IoThread io;
  tcp::acceptor acceptor(io.context(), {asio::ip::address_v4::loopback(), 0});
  Relay relay("127.0.0.1", acceptor.local_endpoint().port());
  Side client(Role::client, io, codec, schedule);
  Side server(Role::server, io, codec, schedule, serverOnDevice);
  std::atomic<std::size_t> connections = 0;
  if (cut.everyBytes > 0) relay.cutAfter(cut.way, cut.everyBytes);
  auto over = asio::co_spawn(io.context(),
                             connectLinks(client, server, relay.port(), acceptor, connections),
                             asio::use_future);

  std::atomic<bool> stop = false;
  std::thread serverDevice([&] { server.device.runUntil([&] { return stop.load(); }); });
  std::thread cutter([&] {
    // After each cut, the count for the next cut starts with the new connection.
    for (std::size_t cuts = 1; cut.everyBytes > 0 && !cut.isOnce && !stop;
         std::this_thread::sleep_for(1ms)) {
      if (connections < cuts) continue;
      relay.cutAfter(cut.way, cut.everyBytes);
      ++cuts;
    }
  });
  Coordinator& engine = *client.client;
  const auto run = [&](Phase phase, std::uint64_t step, std::uint32_t samples) {
    if (levelOf && phase == Phase::train) client.levels->set(phase, step, levelOf(step));
    engine.begin({phase, step, 0, {Division::of(samples, kMicroBatches)}});
    client.device.notify();
    client.device.runUntil([&] { return engine.batchDone(); });
  };
  for (std::uint64_t step = 1; step <= 5; ++step) run(Phase::train, step, step == 3 ? 3 : kBatch);
  CHECK(engine.blob()->bytes.size() == kBlobBytes);
  CHECK(engine.blob()->bytes[kBlobBytes - 1] == std::byte{7});
  run(Phase::eval, 1, kBatch);
  client.device.runUntil([&] { return engine.appliedByPeers() == 5; });
  engine.fetch(kTraceBody);
  client.device.runUntil([&] { return engine.blob().has_value(); });
  const bool coded = codec != "none";
  if (cut.everyBytes == 0) {
    checkTrace(client.trace->trace(), Role::client, coded, schedule);
    checkTrace(
        traceFromServer(engine.blob()->bytes, client.trace->window(), kMicroBatches, Place{}),
        Role::server, coded, schedule);
  }

  stop = true;
  cutter.join();
  relay.cutAfter(cut.way, std::numeric_limits<std::uint32_t>::max());
  // The last cut may break the connection just now; the next one then says Bye too.
  std::shared_ptr<Connection> ended;  // io thread
  while (over.wait_for(1ms) != std::future_status::ready) {
    asio::post(io.context(), [&] {
      const auto connection = client.link->connection();
      if (connection && connection != std::exchange(ended, connection)) connection->sayBye("done");
    });
  }
  over.get();
  server.device.notify();
  serverDevice.join();
  io.stop();

  // Checks that both sides recorded the same transfers, and that their bytes equal the
  // connection's.
  CHECK(client.records.size() == server.records.size());
  const LinkTotals here = client.link->totals();
  const LinkTotals there = server.link->totals();
  CHECK(here.reconnects + 1 == connections);
  CHECK(there.reconnects + 1 == connections);
  CHECK(here.rawUp == there.rawUp);
  CHECK(here.rawDown == there.rawDown);
  if (cut.everyBytes == 0) {
    CHECK(here.up() == there.up());
    CHECK(here.down() == there.down());
    const ByteCounts bytes = client.link->connection()->bytes();
    CHECK(here.up() == bytes.controlSent + bytes.tensorSent);
    CHECK(here.down() == bytes.controlReceived + bytes.tensorReceived);
  }
  // What one side recorded as it sent it, the other one recorded as it received it: 4 flows of 5
  // steps, of which one has 3 micro-batches, and the activations of an evaluation.
  CHECK(client.traffic.sameAs(server.traffic));
  CHECK(client.traffic.size() == 4 * (4 * kMicroBatches + 3) + 2 * kMicroBatches);
  bool anySnr = false;
  for (const TransferRecord& record : client.records) {
    CHECK(record.wireSeconds.has_value());
    anySnr = anySnr || record.snrDb.has_value();
  }
  // These codecs are exact on a ramp of 256 values.
  const bool isExact = codec == "none" || codec == "fp16" || codec == "uniform:bits=16" ||
                       codec == "power:rank=2,iterations=1";
  if (!levelOf) CHECK(anySnr != isExact);
  // Each tensor has the codec of its batch's level, on both sides.
  for (const auto* records : {&client.records, &server.records}) {
    for (const TransferRecord& record : *records) {
      if (!levelOf || isBlob(record.key.flow)) continue;
      const CodecLevel level =
          record.key.phase == Phase::train ? levelOf(record.key.step) : CodecLevel::own;
      CHECK(record.codec == (level == CodecLevel::eight ? "block:bits=8" : codec));
      if (level == CodecLevel::raw) CHECK(record.wireBytes > record.rawBytes);
    }
  }
  return {client.sum(), server.sum(), connections, *client.progress - engine.blob()->bytes.size()};
}

TEST_CASE("levels are kept for the latest batches of each phase") {
  CodecLevels levels;
  const auto key = [](Phase phase, std::uint64_t step) {
    return Key{phase, step, 0, activationAt(0)};
  };
  for (std::uint64_t step = 1; step <= 1000; ++step) {
    levels.set(Phase::train, step, CodecLevel::eight);
    CHECK(levels.of(key(Phase::train, step)) == CodecLevel::eight);
  }
  levels.set(Phase::eval, 1, CodecLevel::raw);
  CHECK(levels.of(key(Phase::eval, 1)) == CodecLevel::raw);
  CHECK(levels.of(key(Phase::eval, 2)) == CodecLevel::own);
  levels.arrived(key(Phase::eval, 2), CodecLevel::eight);
  CHECK(levels.of(key(Phase::eval, 2)) == CodecLevel::eight);
  CHECK(levels.of(key(Phase::train, 990)) == CodecLevel::eight);
  CHECK(levels.of(key(Phase::train, 1)) == CodecLevel::own);  // forgotten
  levels.arrived(key(Phase::train, 1000), CodecLevel::eight);
  CHECK(errorCode([&] { levels.arrived(key(Phase::train, 1000), CodecLevel::own); }) ==
        "bad-tensor");
}

TEST_CASE("each batch has the level that the client chooses, in both directions") {
  const auto levelOf = [](std::uint64_t step) { return static_cast<CodecLevel>(step % 3); };
  for (const std::string codec :
       {"uniform:bits=4", "topk:ratio=0.1", "power:rank=2,iterations=1"}) {
    for (const bool isOnDevice : {false, true}) {
      CAPTURE(codec, isOnDevice);
      const Trained trained = trainThroughLinks(codec, "priority", isOnDevice, {}, levelOf);
      CHECK(trained.sameValues(
          trainThroughLinks(codec, "1f1b", isOnDevice, {Relay::Way::up, 29'989}, levelOf)));
    }
  }
}

TEST_CASE(
    "two engines train through two links, with every codec and schedule, to the same values") {
  const auto expected = trainThroughLinks("none", "priority");
  CHECK(expected.client != 0);
  for (const std::string codec : {"none", "fp16", "uniform:bits=16"}) {
    for (const std::string schedule : {"priority", "gpipe", "1f1b", "zb"}) {
      CAPTURE(codec, schedule);
      const Trained trained = trainThroughLinks(codec, schedule);
      CHECK(trained.client == Approx(expected.client));
      CHECK(trained.server == Approx(expected.server));
    }
  }
  trainThroughLinks("uniform:bits=4", "priority");
}

TEST_CASE("a server that keeps its tensors on its device trains to the same values") {
  for (const std::string codec : {"none", "fp16", "uniform:bits=16", "topk:ratio=0.5"}) {
    CAPTURE(codec);
    CHECK(trainThroughLinks(codec, "priority", true)
              .sameValues(trainThroughLinks(codec, "priority")));
  }
}

TEST_CASE("a link with repeatedly broken connections delivers the same tensors as one connection") {
  for (const std::string codec : {"none", "block:bits=8", "power:rank=2,iterations=1"}) {
    const Trained expected = trainThroughLinks(codec, "priority");
    CHECK(expected.connections == 1);
    for (const Relay::Way way : {Relay::Way::up, Relay::Way::down}) {
      // The intervals range from little more than a tensor, which has 3 kB to 12 kB, to more than a
      // step.
      for (const std::uint64_t bytes : {13'007, 29'989, 50'021, 79'987}) {
        CAPTURE(codec, way, bytes);
        const Trained trained = trainThroughLinks(codec, "priority", false, {way, bytes});
        CHECK(trained.sameValues(expected));
        CHECK(trained.connections > 1);
        CHECK(trained.progress > 0);
        CHECK(trained.progress <= expected.progress);  // bytes that are sent again do not count
      }
    }
  }
}

#ifdef CLEAVE_SANITIZED
constexpr std::uint64_t kCutEvery = 3769;
#else
constexpr std::uint64_t kCutEvery = 751;
#endif

TEST_CASE("a connection may break after any byte of the first steps") {
  // A step sends about 250 kB with the codec none; frames have 100 bytes to 12 kB.
  for (const std::string codec : {"none", "block:bits=8"}) {
    const Trained expected = trainThroughLinks(codec, "1f1b");
    for (const Relay::Way way : {Relay::Way::up, Relay::Way::down}) {
      for (std::uint64_t bytes = 1; bytes < 60'000; bytes += kCutEvery) {
        CAPTURE(codec, way, bytes);
        const Trained trained = trainThroughLinks(codec, "1f1b", false, {way, bytes, true});
        CHECK(trained.sameValues(expected));
        CHECK(trained.connections == 2);
      }
    }
  }
}

// ---- Sending ----

void ignored(std::exception_ptr) {}

// A server's link whose outbox is inspected instead of sent.
struct SendingServer {
  explicit SendingServer(const std::string& codec, bool rawNonFinite = false,
                         bool onDevice = false) {
    connection = std::make_shared<Connection>(tcp::socket(io), ConnectionOptions{});
    TensorLinkOptions options =
        optionsFor(Role::server, codec, findSchedule("priority"), kMicroBatches);
    options.rawNonFinite = rawNonFinite;
    if (onDevice) useTurnedCodecs(options);
    link = std::make_shared<TensorLink>(
        std::move(options), std::make_shared<BufferPool>(), io.get_executor(),
        TensorLink::Callbacks{[](Message) {}, [](const TransferRecord&) {}, ignored});
    link->attach(connection, {});
  }
  // The payloads waiting to be sent, concatenated.
  std::vector<std::byte> sent() {
    io.restart();
    io.poll();
    std::vector<std::byte> bytes;
    while (const auto frame = connection->outbox().next(kMaxSegmentBytes, kMaxSegmentBytes)) {
      bytes.insert(bytes.end(), frame->payload.begin(), frame->payload.end());
    }
    return bytes;
  }

  asio::io_context io;
  std::shared_ptr<Connection> connection;
  std::shared_ptr<TensorLink> link;
};

// ---- A hostile peer ----

// A server's (or client's) link without a connection: tests pass frames to the link directly.
struct HostileClient {
  explicit HostileClient(bool initialWeights = false, Role ours = Role::server,
                         std::shared_ptr<TraceRecorder> trace = nullptr,
                         std::size_t limit = std::size_t{1} << 30,
                         const std::string& weightsSha256 = "", bool isEdge = false,
                         bool hasCodecLevels = false)
      : account(std::make_shared<MemoryAccount>(limit)) {
    TensorLinkOptions options = optionsFor(ours, "none", findSchedule("priority"), 2);
    options.hasCodecLevels = hasCodecLevels;
    options.isEdge = isEdge;
    if (isEdge) options.elsewhere = FlowMap<bool>({activationAt(1), gradientAt(1)}, true);
    options.account = account;
    options.initialWeights = initialWeights;
    options.weightsSha256 = weightsSha256;
    options.trace = std::move(trace);
    options.maxBlobBytes = 1000;
    link = std::make_shared<TensorLink>(
        std::move(options), std::make_shared<BufferPool>(), io.get_executor(),
        TensorLink::Callbacks{[this](Message message) { delivered.push_back(std::move(message)); },
                              [](const TransferRecord&) {}, ignored});
    link->attach(std::make_shared<Connection>(tcp::socket(io), ConnectionOptions{}), {});
    tensor.mutable_key()->set_phase("train");
    tensor.mutable_key()->set_step(1);
    tensor.mutable_key()->set_flow("activation/0");
    tensor.mutable_spec()->set_dtype("f32");
    tensor.mutable_spec()->add_shape(3);
    tensor.mutable_spec()->add_shape(kWidth);
    tensor.mutable_spec()->set_order("contiguous");
    tensor.set_codec("none");
    tensor.set_encoded_bytes(3 * kWidth * 4);
    tensor.set_micro_batches(kMicroBatches);
    tensor.set_samples(kBatch);
  }

  void frame(FrameKind kind, std::uint64_t stream, const std::string& metadata,
             std::uint32_t payloadBytes) {
    FrameHeader header;
    header.kind = kind;
    header.stream = stream;
    header.metadataBytes = static_cast<std::uint32_t>(metadata.size());
    header.payloadBytes = payloadBytes;
    const auto bytes = std::as_bytes(std::span(metadata.data(), metadata.size()));
    std::span<std::byte> place;
    if (kind == FrameKind::tensor || kind == FrameKind::segment) {
      place = link->placePayload(header, bytes);
      REQUIRE(place.size() == payloadBytes);
      std::fill(place.begin(), place.end(), std::byte{1});
    }
    link->receivedFrame(header, bytes, place);
  }
  std::string open(std::uint64_t stream, std::uint32_t payloadBytes) {
    return codeOf(
        [&] { frame(FrameKind::tensor, stream, tensor.SerializeAsString(), payloadBytes); });
  }
  std::string segment(std::uint64_t stream, std::uint64_t offset, std::uint32_t payloadBytes,
                      const std::string& sha256 = "") {
    wire::Segment proto;
    proto.set_offset(offset);
    proto.set_sha256(sha256);
    return codeOf(
        [&] { frame(FrameKind::segment, stream, proto.SerializeAsString(), payloadBytes); });
  }
  template <typename Action>
  static std::string codeOf(const Action& action) {
    try {
      action();
    } catch (const Error& error) {
      return error.code();
    }
    return "";
  }

  const std::shared_ptr<MemoryAccount> account;
  asio::io_context io;  // tasks run only if a test polls it
  std::vector<Message> delivered;
  std::shared_ptr<TensorLink> link;
  wire::Tensor tensor;
};

TEST_CASE("a tensor that its codec cannot encode is sent raw if the run allows it") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const auto sentOf = [&](bool rawNonFinite, bool onDevice = false) {
    SendingServer server("uniform:bits=8", rawNonFinite, onDevice);
    Payload payload = ramp(3, nan);
    if (onDevice) payload = onTurnedDevice(payload);
    server.link->send(TensorMessage{
        activationAt(1), {Phase::train, 1, 0, {kMicroBatches, kBatch}}, 0, std::move(payload)});
    return server.sent();
  };
  CHECK(sentOf(false).empty());  // the link ends the connection instead
  const std::vector<std::byte> sent = sentOf(true);
  REQUIRE(sent.size() == 1 + 3 * kWidth * sizeof(float));
  CHECK(sent[0] == std::byte{0});
  const Payload original = ramp(3, nan);
  CHECK(std::memcmp(sent.data() + 1, original.view().data, sent.size() - 1) == 0);
  CHECK(sentOf(true, true) == sent);
  CHECK(sentOf(false, true).empty());
}

TEST_CASE("a tensor in one or several segments is delivered") {
  HostileClient client;
  CHECK(client.open(1, 12000) == "");
  CHECK(client.delivered.size() == 1);
  client.tensor.mutable_key()->set_micro_batch(1);
  CHECK(client.open(2, 5000) == "");
  CHECK(client.segment(2, 5000, 6999) == "");
  CHECK(client.delivered.size() == 1);
  CHECK(client.segment(2, 11999, 1) == "");
  CHECK(client.delivered.size() == 2);
}

TEST_CASE("an unexpected tensor is refused before memory is allocated") {
  using Damage = std::function<void(wire::Tensor&)>;
  const std::vector<std::pair<std::string, Damage>> damages = {
      {"bad-key", [](auto& tensor) { tensor.mutable_key()->set_phase("dream"); }},
      {"bad-key", [](auto& tensor) { tensor.mutable_key()->set_flow("activation/2"); }},
      {"bad-key", [](auto& tensor) { tensor.mutable_key()->set_phase("probe"); }},
      {"bad-key", [](auto& tensor) { tensor.mutable_key()->set_flow("probe"); }},
      {"bad-key", [](auto& tensor) { tensor.mutable_key()->set_micro_batch(4); }},
      {"bad-key", [](auto& tensor) { tensor.mutable_key()->set_micro_batch(0xffffffff); }},
      {"bad-key", [](auto& tensor) { tensor.set_samples(0); }},
      {"bad-key", [](auto& tensor) { tensor.set_samples(11); }},
      {"bad-key", [](auto& tensor) { tensor.set_micro_batches(0); }},
      {"bad-key", [](auto& tensor) { tensor.set_micro_batches(5); }},
      {"unexpected-message", [](auto& tensor) { tensor.mutable_key()->set_flow("activation/1"); }},
      {"unexpected-message", [](auto& tensor) { tensor.mutable_key()->set_flow("weights/body"); }},
      {"bad-tensor", [](auto& tensor) { tensor.mutable_spec()->set_dtype("f64"); }},
      {"bad-tensor", [](auto& tensor) { tensor.mutable_spec()->set_dtype("f16"); }},
      {"bad-tensor", [](auto& tensor) { tensor.mutable_spec()->set_order("channels_last"); }},
      {"bad-tensor", [](auto& tensor) { tensor.mutable_spec()->set_shape(0, 2); }},
      {"bad-tensor", [](auto& tensor) { tensor.mutable_spec()->set_shape(0, ~std::uint64_t{0}); }},
      {"bad-tensor", [](auto& tensor) { tensor.mutable_spec()->add_shape(1); }},
      {"bad-tensor",
       [](auto& tensor) {
         for (int dim = 0; dim < 20; ++dim) tensor.mutable_spec()->add_shape(1);
       }},
      {"bad-tensor", [](auto& tensor) { tensor.clear_spec(); }},
      {"bad-tensor", [](auto& tensor) { tensor.set_codec("fp16"); }},
      {"bad-tensor", [](auto& tensor) { tensor.set_codec_level(1); }},  // the run has no levels
      {"bad-tensor", [](auto& tensor) { tensor.set_encoded_bytes(12001); }},
      {"bad-tensor", [](auto& tensor) { tensor.set_encoded_bytes(11999); }},
      {"bad-tensor", [](auto& tensor) { tensor.set_encoded_bytes(~std::uint64_t{0}); }},
      {"bad-metadata", [](auto& tensor) { tensor.set_encode_seconds(-1); }},
      {"bad-metadata",
       [](auto& tensor) { tensor.set_queue_seconds(std::numeric_limits<double>::quiet_NaN()); }},
  };
  for (std::size_t damage = 0; damage < damages.size(); ++damage) {
    CAPTURE(damage);
    HostileClient client;
    damages[damage].second(client.tensor);
    CHECK(client.open(1, 1000) == damages[damage].first);
    CHECK(client.delivered.empty());
  }
}

TEST_CASE("a tensor must have a level of the run, and that of its batch") {
  const auto client = [] {
    return HostileClient(false, Role::server, nullptr, std::size_t{1} << 30, "", false, true);
  };
  for (const std::uint32_t level : {3u, 4u, 0xffffffffu}) {
    HostileClient hostile = client();
    hostile.tensor.set_codec_level(level);
    CHECK(hostile.open(1, 12000) == "bad-tensor");
  }
  for (const std::uint32_t second : {0u, 1u, 2u}) {
    HostileClient hostile = client();
    hostile.tensor.set_codec_level(2);
    CHECK(hostile.open(1, 12000) == "");
    hostile.tensor.mutable_key()->set_micro_batch(1);
    hostile.tensor.set_codec_level(second);
    CHECK(hostile.open(2, 12000) == (second == 2 ? "" : "bad-tensor"));
  }
}

TEST_CASE("initial weights are accepted once, as weights/body, and within the agreed size") {
  const auto open = [](HostileClient& client, const std::string& flow, std::uint64_t stream,
                       std::uint64_t bytes) {
    client.tensor.mutable_key()->set_step(0);
    client.tensor.mutable_key()->set_flow(flow);
    client.tensor.clear_spec();
    client.tensor.set_encoded_bytes(bytes);
    return client.open(stream, 500);
  };
  HostileClient none(false), once(true), gradients(true), long_(true), coded(true), digest(true);
  CHECK(open(none, "weights/body", 1, 1000) == "unexpected-message");
  CHECK(open(once, "weights/body", 1, 1000) == "");
  CHECK(open(once, "weights/body", 2, 1000) == "unexpected-message");
  CHECK(open(gradients, "grads/body", 1, 1000) == "unexpected-message");
  CHECK(open(long_, "weights/body", 1, 1001) == "bad-tensor");
  CHECK(open(long_, "weights/body", 2, ~std::uint64_t{0}) == "bad-tensor");
  coded.tensor.set_codec("fp16");
  CHECK(open(coded, "weights/body", 1, 1000) == "bad-tensor");
  CHECK(open(digest, "weights/body", 1, 1000) == "");
  CHECK(digest.segment(1, 500, 500, std::string(31, 'x')) == "bad-segment");
  CHECK(digest.segment(1, 500, 499, std::string(32, 'x')) == "bad-segment");
  CHECK(digest.segment(1, 500, 500, std::string(32, 'x')) ==
        "");  // a wrong digest, which is detected later
  CHECK(digest.delivered.empty());
}

TEST_CASE("initial weights must have the digest that the Hello announced") {
  // The digest of the 1000 bytes that HostileClient sends.
  const std::string sent =
      "\x35\x3c\x38\x35\x2a\x85\x5c\x80\xf4\xec\xb0\x79\x3a\x76\x49\x32"
      "\x28\x54\x1b\x5f\xab\x5e\xf7\xaf\x26\xef\xfa\xc9\x1e\x77\xec\x46";
  const std::string other(32, 'x');
  const auto delivered = [&](const std::string& announced) {
    HostileClient client(true, Role::server, nullptr, std::size_t{1} << 30, announced);
    client.tensor.mutable_key()->set_step(0);
    client.tensor.mutable_key()->set_flow("weights/body");
    client.tensor.clear_spec();
    client.tensor.set_encoded_bytes(1000);
    REQUIRE(client.open(1, 1000) == "");
    REQUIRE(client.segment(1, 1000, 0, sent) == "");
    client.io.poll();
    return client.delivered.size();
  };
  CHECK(delivered("") == 1);
  CHECK(delivered(sent) == 1);
  CHECK(delivered(other) == 0);
}

TEST_CASE("a server's trace is accepted only if requested, and within its maximum size") {
  const auto open = [](std::shared_ptr<TraceRecorder> trace, std::uint64_t bytes) {
    HostileClient server(false, Role::client, std::move(trace));
    server.link->send(Fetch{kTraceBody});
    server.io.poll();
    server.tensor.mutable_key()->set_step(0);
    server.tensor.mutable_key()->set_flow("trace/body");
    server.tensor.clear_spec();
    server.tensor.set_encoded_bytes(bytes);
    return server.open(1, 8);
  };
  const auto trace = std::make_shared<TraceRecorder>(TraceWindow{1, 1});
  CHECK(open(trace, 8) == "");
  CHECK(open(trace, kMaxTraceBytes) == "");
  CHECK(open(trace, kMaxTraceBytes + 1) == "bad-tensor");
  CHECK(open(nullptr, 8) == "bad-tensor");
}

TEST_CASE("a blob is refused if it was not requested or is sent twice") {
  HostileClient server(false, Role::client);
  server.tensor.mutable_key()->set_step(0);
  server.tensor.mutable_key()->set_flow("weights/body");
  server.tensor.clear_spec();
  server.tensor.set_encoded_bytes(8);
  CHECK(server.open(1, 8) == "unexpected-message");
  server.link->send(Fetch{kWeightsBody});
  server.io.poll();
  CHECK(server.open(2, 8) == "");
  CHECK(server.open(3, 8) == "unexpected-message");
}

TEST_CASE("metadata that is not valid protobuf is refused") {
  HostileClient client;
  for (const FrameKind kind : {FrameKind::tensor, FrameKind::segment, FrameKind::step,
                               FrameKind::fetch, FrameKind::received}) {
    CHECK(HostileClient::codeOf([&] { client.frame(kind, 1, "\xff\xff\xff\xff", 0); }) ==
          "bad-metadata");
  }
}

TEST_CASE("segments out of order are refused") {
  const auto afterOpen = [](std::uint64_t stream, std::uint64_t offset, std::uint32_t bytes,
                            const std::string& sha = "") {
    HostileClient client;
    REQUIRE(client.open(5, 1000) == "");
    return client.segment(stream, offset, bytes, sha);
  };
  CHECK(afterOpen(5, 1000, 11000) == "");
  CHECK(afterOpen(4, 1000, 100) == "unknown-stream");
  CHECK(afterOpen(5, 999, 100) == "bad-segment");   // overlaps
  CHECK(afterOpen(5, 0, 1000) == "bad-segment");    // repeats the first segment
  CHECK(afterOpen(5, 1001, 100) == "bad-segment");  // leaves a gap
  CHECK(afterOpen(5, 1000, 11001) == "bad-segment");
  CHECK(afterOpen(5, ~std::uint64_t{0}, 1) == "bad-segment");
  CHECK(afterOpen(5, 1000, 0) == "bad-segment");
  CHECK(afterOpen(5, 1000, 11000, std::string(32, 'x')) ==
        "bad-segment");  // only blobs of weights may have a digest
  HostileClient client;
  CHECK(client.open(1, 12001) == "bad-segment");
}

TEST_CASE("a stream number that was used before is refused") {
  HostileClient client;
  REQUIRE(client.open(5, 12000) == "");
  client.tensor.mutable_key()->set_micro_batch(1);
  CHECK(client.open(5, 12000) == "bad-segment");
  CHECK(client.open(4, 12000) == "bad-segment");
}

TEST_CASE("more micro-batches in flight than agreed are refused") {
  HostileClient client;
  for (std::uint32_t i = 0; i < 2; ++i) {
    client.tensor.mutable_key()->set_micro_batch(i);
    CHECK(client.open(i + 1, 12000) == "");
  }
  client.tensor.mutable_key()->set_micro_batch(2);
  client.tensor.mutable_spec()->set_shape(0, 2);
  client.tensor.set_encoded_bytes(2 * kWidth * 4);
  CHECK(client.open(3, 8000) == "too-many-in-flight");
}

TEST_CASE("a tensor that is sent again is refused before memory is allocated") {
  HostileClient whole;
  REQUIRE(whole.open(1, 12000) == "");
  const std::size_t used = whole.account->used();
  CHECK(whole.open(2, 12000) == "bad-key");
  CHECK(whole.account->used() == used);
  CHECK(whole.delivered.size() == 1);

  HostileClient unfinished;
  REQUIRE(unfinished.open(1, 1) == "");
  CHECK(unfinished.open(2, 1) == "bad-key");
}

TEST_CASE("a session's account is charged for a tensor from its first segment until it is freed") {
  HostileClient client;
  CHECK(client.account->used() == 0);
  REQUIRE(client.open(1, 5000) == "");
  const std::size_t open = BufferPool::capacityFor(12000) + kMicroBatchBytes;
  CHECK(client.account->used() == open);
  REQUIRE(client.segment(1, 5000, 7000) == "");
  CHECK(client.account->used() == open);  // the engine has not taken the tensor yet
  client.delivered.clear();
  CHECK(client.account->used() == kMicroBatchBytes);  // charged until the reply is sent
}

TEST_CASE("a peer that exceeds its account is refused, even within the agreed limits") {
  HostileClient client(false, Role::server, nullptr,
                       kMicroBatchBytes + BufferPool::capacityFor(12000) - 1);
  CHECK(client.open(1, 12000) == "memory-exceeded");
  CHECK(client.delivered.empty());
}

TEST_CASE(
    "messages of the other direction, and impossible values in control messages, are refused") {
  HostileClient client;
  const auto control = [&](FrameKind kind, const std::string& metadata) {
    return HostileClient::codeOf([&] { client.frame(kind, 0, metadata, 0); });
  };
  CHECK(control(FrameKind::bodyDone, "") == "unexpected-message");
  CHECK(control(FrameKind::stepOk, "") == "unexpected-message");
  wire::Fetch fetch;
  fetch.set_flow("activation/0");
  CHECK(control(FrameKind::fetch, fetch.SerializeAsString()) == "bad-metadata");
  fetch.set_flow("trace/body");  // the run did not request a trace
  CHECK(control(FrameKind::fetch, fetch.SerializeAsString()) == "unexpected-message");
  fetch.set_flow("probe");  // belongs to probe sessions
  fetch.set_bytes(1000);
  CHECK(control(FrameKind::fetch, fetch.SerializeAsString()) == "bad-metadata");
  wire::Step step;
  step.set_step(1);
  step.set_loss_scale(1);
  CHECK(control(FrameKind::step, step.SerializeAsString()) ==
        "bad-metadata");  // the message has no learning rate
  step.add_learning_rates(std::numeric_limits<double>::infinity());
  CHECK(control(FrameKind::step, step.SerializeAsString()) == "bad-metadata");
  step.set_learning_rates(0, 0.1);
  step.set_clip_factor(std::numeric_limits<double>::quiet_NaN());
  CHECK(control(FrameKind::step, step.SerializeAsString()) == "bad-metadata");
  step.set_clip_factor(1);
  for (const double scale : {0.0, -1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    step.set_loss_scale(scale);
    CHECK(control(FrameKind::step, step.SerializeAsString()) == "bad-metadata");
  }
  step.set_loss_scale(1);
  CHECK(control(FrameKind::step, step.SerializeAsString()) == "");
  wire::Received received;
  received.mutable_key()->set_phase("train");
  received.mutable_key()->set_flow("activation/1");
  received.set_wire_seconds(-1);
  CHECK(control(FrameKind::received, received.SerializeAsString()) == "bad-metadata");
  received.set_wire_seconds(1);
  CHECK(control(FrameKind::received, received.SerializeAsString()) ==
        "bad-key");  // acknowledges a tensor that was not sent
}

TEST_CASE("an edge carries only the tensors of its cut") {
  const auto refused = [](Flow flow) {
    HostileClient edge(false, Role::server, nullptr, std::size_t{1} << 30, "", true);
    edge.tensor.mutable_key()->set_flow(flowName(flow));
    return edge.open(1, 3 * kWidth * 4);
  };
  CHECK(refused(activationAt(0)) == "");
  CHECK(refused(gradientAt(0)) == "unexpected-message");
  CHECK(refused(activationAt(1)) == "bad-key");
  CHECK(refused(gradientAt(1)) == "bad-key");
  CHECK(refused(kWeightsBody) == "unexpected-message");
  for (const FrameKind kind : {FrameKind::step, FrameKind::fetch, FrameKind::bodyDone,
                               FrameKind::resume, FrameKind::samples, FrameKind::drain}) {
    HostileClient edge(false, Role::server, nullptr, std::size_t{1} << 30, "", true);
    CHECK(edge.codeOf([&] { edge.frame(kind, 0, "", 0); }) == "unexpected-message");
  }
}

TEST_CASE("in a run with edges, a Received without a key confirms control frames") {
  HostileClient edge(false, Role::server, nullptr, std::size_t{1} << 30, "", true);
  wire::Received received;
  const auto confirm = [&](std::uint64_t control) {
    received.set_control(control);
    return edge.codeOf(
        [&] { edge.frame(FrameKind::received, 0, received.SerializeAsString(), 0); });
  };
  CHECK(confirm(0) == "");
  CHECK(confirm(1) == "bad-arrived");  // nothing was sent
  for (int frame = 0; frame < 255; ++frame) REQUIRE(confirm(0) == "");
  edge.io.poll();
  CHECK(confirm(1) == "");  // 256 frames were confirmed by one
  CHECK(confirm(2) == "bad-arrived");
  HostileClient client;
  CHECK(client.codeOf([&] {
    client.frame(FrameKind::received, 0, wire::Received().SerializeAsString(), 0);
  }) == "bad-key");
}

TEST_CASE("the cut context of an activation is kept only for a gradient that uses it") {
  TensorCodecOptions options;
  options.account = std::make_shared<MemoryAccount>(std::size_t{1} << 30);
  options.codecs[activationAt(0)].own = makeCodec("topk:ratio=0.1");
  const TensorSpec spec = specOf(activationAt(0), 3);
  std::vector<float> values(spec.elements(), 1.0F);
  const TensorView view{reinterpret_cast<const std::byte*>(values.data()), spec};
  const Key key{Phase::train, 1, 0, activationAt(0)};
  for (const std::string gradient : {"none", "topk:ratio=0.1"}) {
    options.codecs[gradientAt(0)].own = makeCodec(gradient);
    TensorCodecs codecs(options, std::make_shared<BufferPool>());
    codecs.encode(key, view);
    CHECK((options.account->used() > 0) == (gradient != "none"));
  }
  CHECK(options.account->used() == 0);
}

TEST_CASE("restored codec states give the same bytes as uninterrupted ones") {
  TensorCodecOptions options;
  options.seed = 5;
  options.errorEvery = 0;
  for (const Flow flow : Place{}.flows()) {
    options.codecs[flow].own = makeCodec("power:rank=2,iterations=1");
  }
  const TensorSpec spec{DType::f32, {2, 16, 6, 8}, MemoryOrder::contiguous};
  std::vector<float> values(spec.elements());
  const auto encode = [&](TensorCodecs& codecs, std::uint64_t step, std::uint32_t i) {
    for (std::size_t j = 0; j < values.size(); ++j) {
      values[j] = static_cast<float>((j * 2654435761u + step) % 1000) - 500;
    }
    const Key key{Phase::train, step, i, activationAt(0)};
    const auto encoded =
        codecs.encode(key, {reinterpret_cast<const std::byte*>(values.data()), spec});
    const auto bytes = encoded.bytes.span();
    return std::vector<std::byte>(bytes.begin(), bytes.end());
  };
  const auto pool = std::make_shared<BufferPool>();
  TensorCodecs whole(options, pool);
  for (std::uint32_t i = 0; i < 2; ++i) encode(whole, 1, i);
  whole.commit(1);
  const auto saved = whole.save();
  REQUIRE(saved.size() == 2);
  TensorCodecs resumed(options, pool), fresh(options, pool);
  resumed.restore(saved);
  for (std::uint32_t i = 0; i < 2; ++i) {
    const auto expected = encode(whole, 2, i);
    CHECK((encode(resumed, 2, i) == expected));
    CHECK((encode(fresh, 2, i) != expected));
  }

  // A state that cannot be restored leaves all states unchanged.
  auto broken = saved;
  const std::span<const std::byte> bytes = broken[1].bytes.span();
  broken[1].bytes = broken[1].bytes.part(bytes.first(bytes.size() - 1));
  CHECK(errorCode([&] { resumed.restore(broken); }) == "bad-checkpoint");
  resumed.commit(2);
  whole.commit(2);
  CHECK((encode(resumed, 3, 0) == encode(whole, 3, 0)));
}

}  // namespace
}  // namespace cleave::test
