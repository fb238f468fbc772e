// Fuzz target: frames that a peer may send after the handshake, and their times (see
// session_input.h). A tensor link and an engine of a client or a server process them on one thread.
// An Error may end the session; any other exception is a finding.
#include <boost/asio/io_context.hpp>
#include <deque>
#include <memory>
#include <string>

#include "common/engine/coordinator.h"
#include "common/engine/participant.h"
#include "common/link/tensor_link.h"
#include "common/link/wire_messages.h"
#include "compression/registry.h"
#include "tests/fuzz/session_input.h"

using namespace cleave;
using namespace cleave::fuzz;

namespace {

namespace asio = boost::asio;

constexpr std::uint32_t kMicroBatches = 4;
constexpr std::uint32_t kBatch = 10;
constexpr std::int64_t kWidth = 16;
constexpr std::size_t kBlobBytes = 100;
constexpr Flow kFlows[] = {activationAt(0), activationAt(1), gradientAt(1), gradientAt(0),
                           kWeightsBody,    kGradsBody,      kTraceBody};

TensorSpec specOf(Flow, std::uint32_t samples) {
  return {DType::f32, {static_cast<std::int64_t>(samples), kWidth}, MemoryOrder::contiguous};
}

std::uint32_t small(std::uint64_t number) {
  return static_cast<std::uint32_t>(
      std::min<std::uint64_t>(number, std::numeric_limits<std::uint32_t>::max()));
}

class Session {
 public:
  explicit Session(std::uint8_t flags)
      : role_((flags & kClient) != 0 ? Role::client : Role::server),
        codec_((flags & kCoded) != 0 ? "block:bits=8" : "none"),
        connection_(std::make_shared<Connection>(asio::ip::tcp::socket(io_), ConnectionOptions{})),
        link_(std::make_shared<TensorLink>(
            linkOptions((flags & kInitialWeights) != 0), std::make_shared<BufferPool>(),
            io_.get_executor(),
            TensorLink::Callbacks{
                [this](Message message) { arrived_.push_back(std::move(message)); },
                [](const TransferRecord&) {}, [](std::exception_ptr) {}})),
        client_(role_ == Role::client ? coordinator((flags & kInitialWeights) != 0) : nullptr),
        server_(role_ == Role::server ? participant((flags & kInitialWeights) != 0) : nullptr),
        engine_(client_ ? static_cast<Engine&>(*client_) : *server_) {
    link_->attach(connection_, {});
    if (client_ && (flags & kInitialWeights) != 0) {
      client_->sendWeights(std::make_shared<const Bytes>(kBlobBytes));
    }
  }

  void run(Reader& input) {
    while (!input.atEnd()) {
      perform(static_cast<Command>(input.byte() % kCommands), input);
      settle();
    }
  }

 private:
  TensorLinkOptions linkOptions(bool initialWeights) const {
    TensorLinkOptions options;
    options.role = role_;
    options.microBatches = kMicroBatches;
    options.inFlight = 2;
    options.maxBatch = kBatch;
    for (const Flow flow : options.place.flows()) options.codecs[flow].own = makeCodec(codec_);
    options.spec = specOf;
    options.priority = findSchedule("priority").linkPriority;
    options.maxBlobBytes = 1000;
    options.initialWeights = initialWeights;
    options.errorEvery = 2;
    options.trace = std::make_shared<TraceRecorder>(TraceWindow{1, 2});
    return options;
  }

  std::unique_ptr<Coordinator> coordinator(bool initialWeights) const {
    return std::make_unique<Coordinator>(
        EngineOptions{&findSchedule("priority"), kMicroBatches, 2, initialWeights},
        std::vector<BodyPeer>{{Place{}, link_}});
  }
  std::unique_ptr<Participant> participant(bool initialWeights) const {
    return std::make_unique<Participant>(
        EngineOptions{&findSchedule("priority"), kMicroBatches, 2, initialWeights}, Place{},
        std::vector<std::shared_ptr<EngineLink>>{link_});
  }

  void perform(Command command, Reader& input) {
    switch (command) {
      case Command::tensor:
        return sendTensor(input);
      case Command::segment: {
        const std::uint64_t stream = input.number();
        wire::Segment segment;
        segment.set_offset(input.number());
        return frame(FrameKind::segment, stream, segment.SerializeAsString(), input.twoBytes());
      }
      case Command::received:
        return frame(FrameKind::received, 0, toWire(ReceivedReport{key(input), 0.1, 0}), 0);
      case Command::step:
        return frame(
            FrameKind::step, 0,
            toWire(StepDecision{input.number(), (input.byte() & 1) != 0, {0.1}, 1, 1, false, {}}),
            0);
      case Command::bodyDone:
        return frame(FrameKind::bodyDone, 0, toWire(BodyDone{input.number(), {1, true}}), 0);
      case Command::stepOk:
        return frame(FrameKind::stepOk, 0, toWire(StepOk{input.number()}), 0);
      case Command::fetch:
        return frame(FrameKind::fetch, 0, toWire(Fetch{kFlows[4 + input.byte() % 3]}), 0);
      case Command::raw: {
        const auto kind = static_cast<FrameKind>(1 + input.byte() % 18);
        const std::size_t bytes = input.twoBytes();
        const auto metadata = input.rest(bytes);
        return frame(kind, isTensorData(kind) ? 1 : 0,
                     {reinterpret_cast<const char*>(metadata.data()), metadata.size()}, 0);
      }
      case Command::work:
        for (unsigned left = input.byte() % 32; left > 0 && work(); --left) settle();
        return;
      case Command::begin:
        return begin(input);
    }
  }

  static Key key(Reader& input) {
    const std::uint8_t choice = input.byte();
    return {(choice & 0x10) != 0 ? Phase::eval : Phase::train, input.number(),
            small(input.number()), kFlows[(choice & 0x0f) % std::size(kFlows)]};
  }

  void sendTensor(Reader& input) {
    const std::uint64_t stream = input.number();
    const Key named = key(input);
    const std::uint32_t microBatches = small(input.number());
    const std::uint32_t samples = small(input.number());
    const std::uint8_t choice = input.byte();
    const std::size_t payload = input.twoBytes();
    wire::Tensor tensor;
    toWire(named, *tensor.mutable_key());
    // Shape and sizes are correct, unless `choice` requests wrong ones or the flow has no correct
    // ones.
    const bool isSensible =
        microBatches > 0 && microBatches <= samples && samples <= kBatch && named.i < microBatches;
    TensorSpec spec =
        specOf(named.flow, isSensible ? Division{microBatches, samples}.size(named.i) : samples);
    if ((choice & 0x01) != 0) spec.shape.push_back(static_cast<std::int64_t>(input.number()));
    const bool isTensor = !isBlob(named.flow);
    if (isTensor) toWire(spec, *tensor.mutable_spec());
    tensor.set_codec((choice & 0x02) != 0 ? "other" : isTensor ? codec_ : "none");
    tensor.set_encoded_bytes((choice & 0x04) != 0 ? input.number() : payload);
    tensor.set_micro_batches(microBatches);
    tensor.set_samples(samples);
    tensor.set_weight_version(named.step == 0 ? 0 : named.step - 1 + (choice >> 6));
    frame(FrameKind::tensor, stream, tensor.SerializeAsString(), payload);
  }

  // Processes a frame in the same way as a connection; the frame is within the limits.
  void frame(FrameKind kind, std::uint64_t stream, const std::string& metadata,
             std::size_t payloadBytes) {
    FrameHeader header;
    header.kind = kind;
    header.stream = stream;
    header.metadataBytes = static_cast<std::uint32_t>(metadata.size());
    header.payloadBytes = static_cast<std::uint32_t>(payloadBytes);
    checkFrame(header, ConnectionState::open);
    if (kind == FrameKind::ping || kind == FrameKind::pong || kind == FrameKind::failure ||
        kind == FrameKind::bye) {
      return;
    }
    const auto bytes = std::as_bytes(std::span(metadata.data(), metadata.size()));
    std::span<std::byte> place;
    if (isTensorData(kind)) {
      place = link_->placePayload(header, bytes);
      std::fill(place.begin(), place.end(), std::byte{0x3c});
      // In a payload of block:bits=8, this byte means that headers and codes follow.
      if (kind == FrameKind::tensor && !place.empty()) place[0] = std::byte{0x01};
    }
    link_->receivedFrame(header, bytes, place);
  }

  // Runs the codecs and delivers their results. Outgoing frames are dropped and reported as
  // written.
  void settle() {
    do {
      io_.restart();
      io_.poll();
      while (const auto frame = connection_->outbox().next(kMaxSegmentBytes, kMaxSegmentBytes)) {
        if (frame->written) frame->written();
      }
      while (!arrived_.empty()) {
        Message message = std::move(arrived_.front());
        arrived_.pop_front();
        engine_.receive(0, std::move(message));
      }
      io_.restart();
    } while (io_.poll() > 0);
  }

  bool work() {
    std::optional<Work> work = engine_.next();
    if (!work) return false;
    const std::uint64_t token = work->token;
    engine_.complete(token, resultOf(*work), 1e-3);
    return true;
  }

  static Result resultOf(const Work& work) {
    switch (work.kind) {
      case ActionKind::report:
        return GradientReport{1, true};
      case ActionKind::decide:
        return StepDecision{work.at.step, true, {0.1}, 1, 1, false, {}};
      case ActionKind::exportBlob:
        return std::make_shared<const Bytes>(kBlobBytes);
      case ActionKind::headForward:
      case ActionKind::tailStep:
      case ActionKind::bodyForward:
      case ActionKind::bodyBackward: {
        const TensorSpec spec = specOf(activationAt(0), work.at.size());
        const auto values = std::make_shared<Bytes>(spec.bytes());
        return bundleOf(Payload({values->data(), spec}, values));
      }
      default:
        return std::monostate{};
    }
  }

  void begin(Reader& input) {
    const Phase phase = (input.byte() & 1) != 0 ? Phase::eval : Phase::train;
    const std::uint32_t samples = 1 + input.byte() % kBatch;
    if (!client_ || !client_->batchDone() || !client_->weightsInPlace()) return;
    const std::uint64_t step = phase == Phase::train ? engine_.applied() + 1 : ++evaluated_;
    client_->begin({phase, step, 0, {Division::of(samples, kMicroBatches)}});
  }

  const Role role_;
  const std::string codec_;
  asio::io_context io_;
  std::deque<Message> arrived_;
  const std::shared_ptr<Connection> connection_;
  const std::shared_ptr<TensorLink> link_;
  const std::unique_ptr<Coordinator> client_;  // either this or the server exists
  const std::unique_ptr<Participant> server_;
  Engine& engine_;
  std::uint64_t evaluated_ = 0;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Reader input({reinterpret_cast<const std::byte*>(data), size});
  try {
    Session session(input.byte());
    session.run(input);
  } catch (const Error&) {
  }
  return 0;
}
