#include "common/link/tensor_link.h"

#include <algorithm>
#include <span>
#include <string>
#include <utility>
#include <variant>

#include "common/link/wire_messages.h"

namespace cleave {
namespace {

// After this many control frames, a link that may lack tensors confirms them.
constexpr std::uint64_t kConfirmEvery = 256;
static_assert(8 * kConfirmEvery <= ConnectionSlot::kMaxUnconfirmed);

}  // namespace

// Passes on what arrives over one connection, until the link has detached it.
class TensorLink::Gate : public FrameSink {
 public:
  explicit Gate(TensorLink& link) : link_(&link) {}
  void close() { link_ = nullptr; }

  std::span<std::byte> placePayload(const FrameHeader& header,
                                    std::span<const std::byte> metadata) override {
    return link().placePayload(header, metadata);
  }
  void receivedFrame(const FrameHeader& header, std::span<const std::byte> metadata,
                     std::span<const std::byte> payload) override {
    link().receivedFrame(header, metadata, payload);
  }

 private:
  TensorLink& link() const {
    if (link_ != nullptr) return *link_;
    throw RunError(ErrorKind::link, "connection-replaced",
                   "a newer connection has replaced this one");
  }
  TensorLink* link_;
};

TensorLink::TensorLink(TensorLinkOptions options, std::shared_ptr<BufferPool> pool,
                       boost::asio::any_io_executor io, Callbacks callbacks)
    : role_(options.role),
      place_(options.place),
      elsewhere_(options.elsewhere),
      isEdge_(options.isEdge),
      isCohort_(options.partBytes > 0),
      needsSamples_(std::any_of(options.codecs.begin(), options.codecs.end(),
                                [](const auto& each) { return each.second.own->keepsSamples(); })),
      deliver_(std::move(callbacks.deliver)),
      slot_(std::make_shared<ConnectionSlot>(std::move(io), std::move(callbacks.failed),
                                             options.progress)),
      log_(std::make_shared<TransferLog>(role_, options.inFlight, std::move(callbacks.record))),
      samples_(needsSamples_ ? options.trainSamples : 0, options.maxBatch) {
  if (!options.levels) options.levels = std::make_shared<CodecLevels>();
  if (options.account) pool = pool->chargedTo(options.account);
  const auto agreed = std::make_shared<const TensorLinkOptions>(std::move(options));
  const auto order = agreed->order ? agreed->order
                                   : std::make_shared<TransferOrder>(
                                         role_, agreed->place, agreed->inFlight, agreed->account);
  codecTasks_ = std::make_shared<CodecTasks>(*agreed, pool, slot_);
  sender_ = std::make_shared<TensorSender>(agreed, slot_, codecTasks_, order, log_);
  receiver_ =
      std::make_shared<TensorReceiver>(agreed, pool, slot_, codecTasks_, order, log_, deliver_);
}

// ---- Connections ----

void TensorLink::attach(std::shared_ptr<Connection> connection, const Arrived& peer) {
  gate_ = std::make_shared<Gate>(*this);
  slot_->attach(std::move(connection), peer.control);
  sender_->resume(peer);
}

boost::asio::awaitable<std::string> TensorLink::serve() {
  const auto gate = gate_;
  const auto connection = slot_->connection();
  co_return co_await connection->run(*gate);
}

void TensorLink::detach() {
  if (!gate_) return;
  std::exchange(gate_, nullptr)->close();
  slot_->detach();
  receiver_->detach();
}

Arrived TensorLink::arrived() const { return {slot_->controlReceived(), receiver_->arrived()}; }

LinkTotals TensorLink::totals() const {
  LinkTotals totals = log_->totals(slot_->bytes(), slot_->peakSent(), slot_->peakReceived());
  totals.reconnects = slot_->reconnects();
  totals.offlineSeconds = slot_->offlineSeconds();
  return totals;
}

// ---- Messages ----

void TensorLink::send(Message message) {
  if (auto* tensor = std::get_if<TensorMessage>(&message)) {
    sender_->sendTensor(std::move(*tensor));
  } else if (auto* blob = std::get_if<Blob>(&message)) {
    // Each answers the other.
    if (blob->flow == kPartsClient) receiver_->expectBlob(kSumsClient);
    if (blob->flow == kSumsClient) receiver_->expectBlob(kPartsClient);
    sender_->sendBlob(std::move(*blob));
  } else if (auto* done = std::get_if<BodyDone>(&message)) {
    done->codecSeconds += takeCodecSeconds();
    done->sendRate = slot_->sendRate();
    done->receiveRate = slot_->receiveRate();
    slot_->sendControl(FrameKind::bodyDone, toWire(*done));
  } else if (const auto* decision = std::get_if<StepDecision>(&message)) {
    slot_->sendControl(FrameKind::step, toWire(*decision));
  } else if (const auto* ok = std::get_if<StepOk>(&message)) {
    slot_->sendControl(FrameKind::stepOk, toWire(*ok));
  } else if (const auto* fetch = std::get_if<Fetch>(&message)) {
    receiver_->expectBlob(fetch->flow);
    slot_->sendControl(FrameKind::fetch, toWire(*fetch));
  } else if (const auto* resume = std::get_if<Resume>(&message)) {
    slot_->sendControl(FrameKind::resume, toWire(*resume));
  } else if (const auto* saved = std::get_if<Saved>(&message)) {
    slot_->sendControl(FrameKind::saved, toWire(*saved));
  } else if (const auto* drain = std::get_if<Drain>(&message)) {
    slot_->sendControl(FrameKind::drain, toWire(*drain));
  } else if (const auto* missing = std::get_if<Missing>(&message)) {
    slot_->sendControl(FrameKind::roster, toWire(*missing));
  }
}

void TensorLink::sendSamples(std::uint64_t step, const std::vector<std::uint32_t>& numbers) {
  if (!needsSamples_) return;
  codecTasks_->post([step, numbers](TensorCodecs& codecs) { codecs.addSamples(step, numbers); });
  for (std::size_t first = 0; first < numbers.size(); first += kMaxSampleNumbers) {
    const auto part =
        std::span(numbers).subspan(first, std::min(kMaxSampleNumbers, numbers.size() - first));
    slot_->sendControl(
        FrameKind::samples,
        toWire(SampleNumbers{step, static_cast<std::uint32_t>(first), {part.begin(), part.end()}}));
  }
}

void TensorLink::saveCodecs(std::uint64_t since, std::function<void(SavedCodecs saved)> saved) {
  codecTasks_->post([since, saved = std::move(saved)](const TensorCodecs& codecs) {
    SavedCodecs result;
    try {
      result.states = codecs.save(since);
    } catch (const RunError&) {
      result.error = std::current_exception();
    }
    saved(std::move(result));
  });
}

void TensorLink::restoreCodecs(std::vector<TensorCodecs::SavedState> states) {
  codecTasks_->post([states = std::move(states)](TensorCodecs& codecs) { codecs.restore(states); });
}

void TensorLink::receivedFrame(const FrameHeader& header, std::span<const std::byte> metadata,
                               std::span<const std::byte>) {
  if (isTensorData(header.kind)) return receiver_->received(header);
  receivedControl(header.kind, metadata);
  slot_->countControl();
  if (mayLackTensors() && slot_->controlReceived() % kConfirmEvery == 0) confirmControl();
}

void TensorLink::deliverStep(Message message) {
  slot_->countProgress(1);
  deliver_(std::move(message));
}

void TensorLink::confirmControl() {
  wire::Received proto;
  proto.set_control(slot_->controlReceived());
  slot_->sendControl(FrameKind::received, proto.SerializeAsString());
}

void TensorLink::receivedControl(FrameKind kind, std::span<const std::byte> metadata) {
  const bool atServer = role_ == Role::server;
  if (isEdge_ && kind != FrameKind::received) {
    throw ProtocolError("unexpected-message", std::string(frameKindName(kind)) +
                                                  " arrived over a direct link, which carries only "
                                                  "tensors");
  }
  switch (kind) {
    case FrameKind::received: {
      const auto proto = parseMetadata<wire::Received>(FrameKind::received, metadata);
      if (mayLackTensors() && !proto.has_key()) return slot_->confirmControl(proto.control());
      const ReceivedReport report = reportFrom(proto);
      slot_->confirmControl(report.control);
      return sender_->acknowledged(report);
    }
    case FrameKind::bodyDone:
      if (!atServer) return deliverStep(bodyDoneFromWire(metadata));
      break;
    case FrameKind::stepOk:
      if (!atServer) return deliverStep(stepOkFromWire(metadata));
      break;
    case FrameKind::step: {
      // The first server of a cohort passes it on to members that obey.
      if (!atServer && isCohort_) return deliver_(decisionFromWire(metadata));
      if (!atServer) break;
      const StepDecision decision = decisionFromWire(metadata);
      samples_.decided(decision.step);
      return deliver_(decision);
    }
    case FrameKind::samples: {
      if (!atServer) break;
      SampleNumbers samples = sampleNumbersFromWire(metadata);
      samples_.received(samples);
      return codecTasks_->post([samples = std::move(samples)](TensorCodecs& codecs) {
        codecs.addSamples(samples.step, samples.numbers);
      });
    }
    case FrameKind::fetch:
      if (!atServer) break;
      if (const Fetch fetch = fetchFromWire(metadata); !sender_->answer(fetch)) deliver_(fetch);
      return;
    case FrameKind::resume:
      if (atServer) return deliver_(resumeFromWire(metadata));
      break;
    case FrameKind::saved:
      if (!atServer || isCohort_) return deliver_(savedFromWire(metadata));
      break;
    case FrameKind::drain:
      if (!atServer || isCohort_) return deliver_(drainFromWire(metadata));
      break;
    case FrameKind::roster:
      if (!atServer && isCohort_) return deliver_(missingFromWire(metadata));
      break;
    default:
      break;
  }
  throw ProtocolError("unexpected-message",
                      std::string(frameKindName(kind)) + " is sent only in the other direction");
}

}  // namespace cleave
