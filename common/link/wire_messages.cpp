#include "common/link/wire_messages.h"

#include <cmath>

#include "common/core/printable.h"
#include "common/files/sha256.h"

namespace cleave {
namespace {

[[noreturn]] void refuse(const std::string& sentence) {
  throw ProtocolError("bad-metadata", sentence);
}

double checkedFinite(double value, const char* what) {
  if (!std::isfinite(value)) refuse(std::string(what) + " is not finite");
  return value;
}

double checkedRate(double rate) {
  if (!std::isfinite(rate) || rate < 0) refuse("a rate is negative or not finite");
  return rate;
}

void toWire(const EdgeReport::OfFlow& flow, wire::EdgeFlow& proto) {
  proto.set_bytes(flow.bytes);
  proto.set_encode_seconds(flow.encodeSeconds);
  proto.set_decode_seconds(flow.decodeSeconds);
}

EdgeReport::OfFlow fromWire(const wire::EdgeFlow& proto) {
  return {checkedRate(proto.bytes()), checkedSeconds(proto.encode_seconds()),
          checkedSeconds(proto.decode_seconds())};
}

}  // namespace

double checkedSeconds(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) refuse("a duration is negative or not finite");
  return seconds;
}

double checkedSnr(double snrDb) {
  if (!std::isfinite(snrDb)) refuse("a signal-to-noise ratio is not finite");
  return snrDb;
}

// A body has one encoder and one decoder at most.
std::vector<InsertBasis> basesFromWire(
    const google::protobuf::RepeatedPtrField<wire::InsertBasis>& proto) {
  if (proto.size() > 1) refuse("a message has more than one basis of an insert");
  std::vector<InsertBasis> bases;
  for (const wire::InsertBasis& each : proto) {
    if (each.values().size() > kMaxBasisBytes) refuse("the basis of an insert is too large");
    bases.push_back({each.cut(), each.values()});
  }
  return bases;
}

void basesToWire(const std::vector<InsertBasis>& bases,
                 google::protobuf::RepeatedPtrField<wire::InsertBasis>& proto) {
  for (const InsertBasis& basis : bases) {
    wire::InsertBasis& each = *proto.Add();
    each.set_cut(basis.cut);
    each.set_values(basis.values);
  }
}

void toWire(const Key& key, wire::Key& proto) {
  proto.set_phase(std::string(phaseName(key.phase)));
  proto.set_step(key.step);
  proto.set_micro_batch(key.i);
  proto.set_flow(std::string(flowName(key.flow)));
}

Key keyFromWire(const wire::Key& proto) {
  const auto phase = phaseFromName(proto.phase());
  const auto flow = flowFromName(proto.flow());
  if (!phase || !flow) throw ProtocolError("bad-key", "a key names an unknown phase or flow");
  return {*phase, proto.step(), proto.micro_batch(), *flow};
}

void toWire(const TensorSpec& spec, wire::TensorSpec& proto) {
  proto.set_dtype(std::string(dtypeName(spec.dtype)));
  for (const std::int64_t dim : spec.shape) proto.add_shape(static_cast<std::uint64_t>(dim));
  proto.set_order(std::string(memoryOrderName(spec.order)));
}

TensorSpec specFromWire(const wire::TensorSpec& proto) {
  const auto dtype = dtypeFromName(proto.dtype());
  const auto order = memoryOrderFromName(proto.order());
  if (!dtype || !order || proto.shape_size() > static_cast<int>(kMaxRank)) {
    throw ProtocolError("bad-tensor",
                        "a tensor has an unknown dtype or order, or too many dimensions");
  }
  TensorSpec spec{*dtype, {}, *order};
  for (const std::uint64_t dim : proto.shape()) {
    // Clamps to a size larger than any tensor. It matches no negotiated shape, so the tensor is
    // rejected when the shapes are compared.
    spec.shape.push_back(
        static_cast<std::int64_t>(std::min<std::uint64_t>(dim, std::uint64_t{1} << 62)));
  }
  return spec;
}

std::string toWire(const BodyDone& done) {
  wire::BodyDone proto;
  proto.set_step(done.step);
  proto.set_gradient_square_sum(done.report.squareSum);
  proto.set_finite(done.report.finite);
  proto.set_peak_memory(done.report.peakMemory);
  basesToWire(done.report.bases, *proto.mutable_bases());
  proto.set_forward_seconds(done.forwardSeconds);
  proto.set_backward_seconds(done.backwardSeconds);
  proto.set_weights_seconds(done.weightsSeconds);
  proto.set_reduce_seconds(done.reduceSeconds);
  proto.set_codec_seconds(done.codecSeconds);
  proto.set_update_seconds(done.updateSeconds);
  proto.set_send_rate(done.sendRate);
  proto.set_receive_rate(done.receiveRate);
  if (done.edge) {
    wire::EdgeReport& edge = *proto.mutable_edge();
    edge.set_rate(done.edge->rate);
    edge.set_round_trip_seconds(done.edge->roundTripSeconds);
    toWire(done.edge->activation, *edge.mutable_activation());
    toWire(done.edge->gradient, *edge.mutable_gradient());
  }
  return proto.SerializeAsString();
}

BodyDone bodyDoneFromWire(std::span<const std::byte> metadata) {
  const auto proto = parseMetadata<wire::BodyDone>(FrameKind::bodyDone, metadata);
  BodyDone done;
  done.step = proto.step();
  done.report = {proto.gradient_square_sum(), proto.finite(), proto.peak_memory(),
                 basesFromWire(proto.bases())};
  // The sum may be infinite or NaN only if the gradients are reported as not finite.
  if (done.report.finite && !(std::isfinite(done.report.squareSum) && done.report.squareSum >= 0)) {
    refuse("a sum of squares is negative, infinite or NaN");
  }
  done.forwardSeconds = checkedSeconds(proto.forward_seconds());
  done.backwardSeconds = checkedSeconds(proto.backward_seconds());
  done.weightsSeconds = checkedSeconds(proto.weights_seconds());
  done.reduceSeconds = checkedSeconds(proto.reduce_seconds());
  done.codecSeconds = checkedSeconds(proto.codec_seconds());
  done.updateSeconds = checkedSeconds(proto.update_seconds());
  done.sendRate = checkedRate(proto.send_rate());
  done.receiveRate = checkedRate(proto.receive_rate());
  if (proto.has_edge()) {
    done.edge = EdgeReport{checkedRate(proto.edge().rate()),
                           checkedSeconds(proto.edge().round_trip_seconds()),
                           fromWire(proto.edge().activation()), fromWire(proto.edge().gradient())};
  }
  return done;
}

std::string toWire(const StepDecision& decision) {
  wire::Step proto;
  proto.set_step(decision.step);
  proto.set_apply(decision.apply);
  for (const double rate : decision.learningRates) proto.add_learning_rates(rate);
  proto.set_clip_factor(decision.clipFactor);
  proto.set_loss_scale(decision.lossScale);
  proto.set_checkpoint(decision.checkpoint);
  for (const std::uint64_t step : decision.keep) proto.add_keep(step);
  basesToWire(decision.bases, *proto.mutable_bases());
  return proto.SerializeAsString();
}

StepDecision decisionFromWire(std::span<const std::byte> metadata) {
  const auto proto = parseMetadata<wire::Step>(FrameKind::step, metadata);
  StepDecision decision;
  decision.step = proto.step();
  if (decision.step == 0) refuse("a Step has number 0, but steps count from 1");
  decision.apply = proto.apply();
  constexpr std::size_t kMaxRates = kMaxParameterGroups + 1;
  const auto rates = static_cast<std::size_t>(proto.learning_rates_size());
  if (rates == 0 || rates > kMaxRates) {
    refuse("a Step has " + std::to_string(rates) + " learning rates, which is not in 1…" +
           std::to_string(kMaxRates));
  }
  for (const double rate : proto.learning_rates()) {
    decision.learningRates.push_back(checkedFinite(rate, "a learning rate"));
  }
  decision.clipFactor = checkedFinite(proto.clip_factor(), "a clip factor");
  decision.lossScale = checkedFinite(proto.loss_scale(), "a loss scale");
  if (decision.lossScale <= 0) refuse("a loss scale is not positive");
  decision.checkpoint = proto.checkpoint();
  constexpr int kMaxKept = 8;
  if (proto.keep_size() > kMaxKept) refuse("a Step keeps more than 8 checkpoints");
  decision.keep.assign(proto.keep().begin(), proto.keep().end());
  decision.bases = basesFromWire(proto.bases());
  return decision;
}

std::string toWire(const StepOk& ok) {
  wire::StepOk proto;
  proto.set_step(ok.step);
  proto.set_weights_digest(ok.weights);
  return proto.SerializeAsString();
}

StepOk stepOkFromWire(std::span<const std::byte> metadata) {
  const auto proto = parseMetadata<wire::StepOk>(FrameKind::stepOk, metadata);
  return {proto.step(), proto.weights_digest()};
}

std::string toWire(const Fetch& fetch) {
  wire::Fetch proto;
  proto.set_flow(std::string(flowName(fetch.flow)));
  return proto.SerializeAsString();
}

Fetch fetchFromWire(std::span<const std::byte> metadata) {
  const auto proto = parseMetadata<wire::Fetch>(FrameKind::fetch, metadata);
  const auto flow = flowFromName(proto.flow());
  if (!flow || (*flow != kWeightsBody && *flow != kGradsBody && *flow != kTraceBody)) {
    refuse("a Fetch requests none of weights/body, grads/body and trace/body");
  }
  return {*flow};
}

std::string toWire(const Resume& resume) {
  wire::Resume proto;
  proto.set_step(resume.step);
  return proto.SerializeAsString();
}

Resume resumeFromWire(std::span<const std::byte> metadata) {
  const std::uint64_t step = parseMetadata<wire::Resume>(FrameKind::resume, metadata).step();
  if (step == 0) refuse("a Resume has step 0, but there are no checkpoints before step 1");
  return {step};
}

std::string toWire(const Saved& saved) {
  wire::Saved proto;
  proto.set_step(saved.step);
  proto.set_sha256(saved.sha256);
  proto.set_body_sha256(saved.body);
  proto.set_bytes(saved.bytes);
  proto.set_seconds(saved.seconds);
  proto.set_code(saved.code);
  proto.set_sentence(saved.sentence);
  return proto.SerializeAsString();
}

Saved savedFromWire(std::span<const std::byte> metadata) {
  constexpr std::size_t kMaxText = 1000;
  const auto proto = parseMetadata<wire::Saved>(FrameKind::saved, metadata);
  Saved saved;
  saved.step = proto.step();
  saved.sha256 = proto.sha256();
  saved.body = proto.body_sha256();
  saved.bytes = proto.bytes();
  saved.seconds = checkedSeconds(proto.seconds());
  saved.code = printable(proto.code(), kMaxText);
  saved.sentence = printable(proto.sentence(), kMaxText);
  if (saved.code.empty() != (saved.sha256.size() == kSha256Bytes)) {
    refuse("a Saved has neither a digest nor a code, or both");
  }
  if (!saved.body.empty() && saved.body.size() != kSha256Bytes) {
    refuse("a Saved has a digest of the body of another size");
  }
  return saved;
}

std::string toWire(const Missing& missing) {
  wire::Roster proto;
  for (const std::string& name : missing.members) proto.add_missing(name);
  proto.set_in_progress(missing.inProgress);
  proto.set_turn(missing.turn);
  return proto.SerializeAsString();
}

Missing missingFromWire(std::span<const std::byte> metadata) {
  const auto proto = parseMetadata<wire::Roster>(FrameKind::roster, metadata);
  Missing missing;
  for (const std::string& name : proto.missing()) missing.members.push_back(printable(name));
  missing.inProgress = proto.in_progress();
  missing.turn = printable(proto.turn());
  return missing;
}

void toWire(const Roster& roster, wire::CohortPlan& proto) {
  proto.mutable_train_samples()->Assign(roster.train.begin(), roster.train.end());
  proto.mutable_evaluation_samples()->Assign(roster.evaluation.begin(), roster.evaluation.end());
  for (const Attendance& each : roster.attendance) {
    wire::Attendance& attendance = *proto.add_attendance();
    attendance.set_first_step(each.firstStep);
    attendance.set_evaluated(each.evaluated);
    attendance.mutable_present()->Assign(each.present.begin(), each.present.end());
  }
}

Roster rosterFromWire(const wire::CohortPlan& proto, const Cohort& cohort) {
  const std::size_t members = cohort.size();
  const auto isOfAll = [&](const auto& list) {
    return static_cast<std::size_t>(list.size()) == members;
  };
  const std::size_t max = cohort.isRelay() ? kMaxTurns : kMaxAttendances;
  bool fits = isOfAll(proto.train_samples()) && isOfAll(proto.evaluation_samples()) &&
              static_cast<std::size_t>(proto.attendance_size()) <= max;
  Roster roster;
  roster.train.assign(proto.train_samples().begin(), proto.train_samples().end());
  roster.evaluation.assign(proto.evaluation_samples().begin(), proto.evaluation_samples().end());
  for (const wire::Attendance& each : proto.attendance()) {
    Attendance next{
        each.first_step(), each.evaluated(), {each.present().begin(), each.present().end()}};
    const Attendance* const before =
        roster.attendance.empty() ? nullptr : &roster.attendance.back();
    const bool isPossible = cohort.isRelay() ? next.present.size() == 1
                                             : before == nullptr || next.present != before->present;
    fits = fits && isPossible && next.follows(before, members);
    roster.attendance.push_back(std::move(next));
  }
  if (!fits) {
    throw ProtocolError("bad-metadata", "the plan of a cohort is not one of its " +
                                            std::to_string(members) + " members");
  }
  return roster;
}

std::string toWire(const Drain& drain) {
  wire::Drain proto;
  proto.set_seconds(drain.seconds);
  proto.set_member(drain.member);
  proto.set_joins(drain.joins);
  return proto.SerializeAsString();
}

Drain drainFromWire(std::span<const std::byte> metadata) {
  const auto proto = parseMetadata<wire::Drain>(FrameKind::drain, metadata);
  return {checkedSeconds(proto.seconds()), printable(proto.member()), proto.joins()};
}

std::string toWire(const SampleNumbers& samples) {
  wire::Samples proto;
  proto.set_step(samples.step);
  proto.set_first(samples.first);
  proto.mutable_numbers()->Add(samples.numbers.begin(), samples.numbers.end());
  return proto.SerializeAsString();
}

SampleNumbers sampleNumbersFromWire(std::span<const std::byte> metadata) {
  const auto proto = parseMetadata<wire::Samples>(FrameKind::samples, metadata);
  if (proto.step() == 0) refuse("a Samples has step 0, but steps count from 1");
  if (proto.numbers().empty()) refuse("a Samples has no numbers");
  return {proto.step(), proto.first(), {proto.numbers().begin(), proto.numbers().end()}};
}

std::string toWire(const ReceivedReport& report) {
  wire::Received proto;
  toWire(report.key, *proto.mutable_key());
  proto.set_wire_seconds(report.wireSeconds);
  proto.set_decode_seconds(report.decodeSeconds);
  proto.set_control(report.control);
  return proto.SerializeAsString();
}

ReceivedReport receivedFromWire(std::span<const std::byte> metadata) {
  return reportFrom(parseMetadata<wire::Received>(FrameKind::received, metadata));
}

ReceivedReport reportFrom(const wire::Received& proto) {
  return {keyFromWire(proto.key()), checkedSeconds(proto.wire_seconds()),
          checkedSeconds(proto.decode_seconds()), proto.control()};
}

void toWire(const Arrived& arrived, wire::Arrived& proto) {
  proto.Clear();
  proto.set_control(arrived.control);
  for (const auto& [flow, count] : arrived.flows) {
    wire::ArrivedOfFlow& each = *proto.add_flows();
    each.set_flow(flowName(flow));
    each.set_complete(count.complete);
    each.set_bytes(count.bytes);
  }
}

Arrived arrivedFromWire(const wire::Arrived& proto) {
  Arrived arrived;
  arrived.control = proto.control();
  for (const wire::ArrivedOfFlow& each : proto.flows()) {
    const auto flow = flowFromName(each.flow());
    if (!flow || arrived.flows.find(*flow) != nullptr) {
      throw ProtocolError("bad-metadata", "the received counts name the flow '" +
                                              printable(each.flow()) +
                                              "', which is unknown or repeated");
    }
    arrived.flows[*flow] = {each.complete(), each.bytes()};
  }
  return arrived;
}

}  // namespace cleave
