#include "stage/remote_body.h"

#include <algorithm>
#include <cassert>
#include <cctype>
#include <chrono>
#include <cstring>
#include <optional>
#include <system_error>
#include <utility>

#include "common/core/error.h"
#include "common/core/printable.h"
#include "common/core/units.h"
#include "common/engine/schedule.h"
#include "common/engine/worker.h"
#include "common/link/wire_messages.h"
#include "common/model/graph/operator_note.h"
#include "proto/wire.pb.h"
#include "stage/messages.h"

namespace cleave {
namespace {

std::vector<TensorSpec> specsOf(const RunPlan& plan, const std::vector<Flow>& flows,
                                std::uint32_t samples) {
  std::vector<TensorSpec> specs;
  for (const Flow flow : flows) {
    specs.push_back(flowSpec(plan.blocks, plan.stage.cuts, flow, samples));
  }
  return specs;
}

// A buffer in the shared memory.
Buffer sharedBuffer(BufferPool& pool, const SharedBlocks& blocks, std::size_t size) {
  Buffer buffer = pool.acquire(size);
  if (blocks.contains(buffer.data())) return buffer;
  pool.clear();
  buffer = pool.acquire(size);
  if (blocks.contains(buffer.data())) return buffer;
  throw RunError("memory-exceeded", "the run's tensors do not fit into its shared memory");
}

// The action on a micro-batch; none for requests such as RESTORE.
std::optional<ActionKind> actionOf(wire::StageRequest::Kind kind) {
  if (kind == wire::StageRequest::FORWARD) return ActionKind::bodyForward;
  if (kind == wire::StageRequest::BACKWARD) return ActionKind::bodyBackward;
  if (kind == wire::StageRequest::WEIGHTS) return ActionKind::bodyWeights;
  return std::nullopt;
}

std::string nameOf(wire::StageRequest::Kind kind) {
  if (const auto action = actionOf(kind)) return std::string(actionName(*action));
  std::string name = wire::StageRequest::Kind_Name(kind);
  std::transform(name.begin(), name.end(), name.begin(),
                 [](char c) { return c == '_' ? ' ' : static_cast<char>(std::tolower(c)); });
  return name;
}

wire::StageRequest requestFor(wire::StageRequest::Kind kind, std::uint64_t step) {
  wire::StageRequest request;
  request.set_kind(kind);
  request.set_step(step);
  return request;
}

wire::StageRequest requestFor(const StepDecision& decision) {
  wire::StageRequest request = requestFor(wire::StageRequest::UPDATE, decision.step);
  wire::StageDecision& wire = *request.mutable_decision();
  wire.set_apply(decision.apply);
  for (const double rate : decision.learningRates) wire.add_learning_rates(rate);
  wire.set_clip_factor(decision.clipFactor);
  wire.set_loss_scale(decision.lossScale);
  basesToWire(decision.bases, *wire.mutable_bases());
  return request;
}

GradientReport reportOf(const wire::StageReply& reply) {
  return {reply.square_sum(), reply.finite(), reply.peak_memory(), basesFromWire(reply.bases())};
}

}  // namespace

// The server alone writes to the input: at most transitBytes(), and as much again for the gaps
// between buffers. It uses only the memory that it has written.
StageMemory::StageMemory(const RunPlan& plan) try {
  const std::size_t size = 2 * (transitBytes(plan) + kStagePieceBytes);
  input = std::make_shared<SharedBlocks>(SharedMemory::create(size, false));
  output = std::make_shared<SharedBlocks>(SharedMemory::create(stageOutputBytes(plan), true));
  inputs = std::make_shared<BufferPool>(transitBytes(plan), input);
  outputs = std::make_shared<BufferPool>(transitBytes(plan), output);
  note = std::make_shared<Buffer>(outputs->acquire(kOperatorNoteBytes));
  assert(output->offsetOf(note->data()) == 0);
  std::memset(note->data(), 0, note->size());
} catch (const std::system_error& error) {
  throw RunError("cannot-start-stage",
                 std::string("the memory of the run's stage cannot be mapped: ") + error.what(),
                 "ask the server's operator to allow more descriptors or memory");
}

void StageMemory::returnFree() const {
  for (const auto& pool : {inputs, outputs}) pool->clear();
  for (const auto& blocks : {input, output}) blocks->returnFree();
}

std::unique_ptr<StageProcess> startStage(StageProcesses& processes, const RunPlan& plan,
                                         int threads, const StageMemory& memory) {
  return processes.start(threads, memory.input->memory(), memory.output->memory(),
                         stageProcessBytes(plan), [memory] { memory.returnFree(); });
}

RemoteBody::RemoteBody(std::unique_ptr<StageProcess> process, const RunPlan& plan, int threads,
                       double maxSeconds, StageMemory memory,
                       std::shared_ptr<MemoryAccount> account,
                       std::function<void(const std::string& text)> log)
    : plan_(plan),
      maxSeconds_(maxSeconds),
      activations_(activationsOf(plan.place.lastCut, plan.place.last)),
      gradients_(gradientsOf(plan.place.firstCut, plan.place.first)),
      memory_(std::move(memory)),
      inputs_(memory_.inputs->chargedTo(account)),
      outputs_(memory_.outputs->chargedTo(std::move(account))),
      maxResult_(std::max({snapshotBytes(plan), std::size_t{maxWeightsBytes(plan)},
                           sizeof(float) * cleave::shareSize(plan)}) +
                 kStagePieceBytes),
      process_(std::move(process)),
      log_(std::move(log)) {
  wire::RunSpec spec;
  toWire(plan.spec, spec);
  const std::string bytes = spec.SerializeAsString();
  put(std::as_bytes(std::span(bytes)));
  Request request;
  request.set_kind(Request::BUILD);
  request.set_threads(static_cast<std::uint32_t>(threads));
  try {
    call(request);
  } catch (...) {
    end();
    throw;
  }
}

RemoteBody::~RemoteBody() { end(); }

void RemoteBody::end() {
  process_->state().kill();
  const std::string errors = process_->takeErrors();
  if (!errors.empty()) log_("its stage wrote: " + printable(errors));
}

// ---- Calls ----

void RemoteBody::send(const Request& request) {
  process_->state().asked();
  if (!sendStageMessage(process_->socket(), request)) throwCrashed(request.kind());
}

SteadyTime RemoteBody::deadlineOf(SteadyTime since) const {
  constexpr double kMax = 1e6;
  return since + std::chrono::duration_cast<SteadyTime::duration>(
                     std::chrono::duration<double>(std::min(maxSeconds_, kMax)));
}

// The reply to the oldest request that has none; nullopt: it has not been sent yet, and time is
// left until then.
std::optional<RemoteBody::Reply> RemoteBody::receive(Request::Kind kind, SteadyTime since) {
  Reply reply;
  const StageRead read = readStageMessage(process_->socket(), reply);
  if (read == StageRead::nothing) {
    if (now() < deadlineOf(since)) return std::nullopt;
    process_->state().kill();
    throw actionTooLong("an action (" + nameOf(kind) + ") took longer than " +
                            durationText(maxSeconds_) +
                            " (limits.action_seconds in the server's configuration), and was ended",
                        actionOf(kind) ? Duration::ofBatch : Duration::ofModel);
  }
  if (read == StageRead::end) throwCrashed(kind);
  process_->state().answered();
  if (!given_.release(reply)) refuse("an input that it did not have");
  throwFailure(reply);
  return reply;
}

void RemoteBody::throwCrashed(Request::Kind kind) {
  if (process_->state().hasComputedUnasked()) {
    refuse("an answer, and then computed between two actions");
  }
  const std::string how = process_->state().end();
  throw RunError("body-crashed",
                 "the process that computes the run's body ended with " + how + " in an action (" +
                     nameOf(kind) + ")" + notedOperator(memory_.note->span()),
                 how.starts_with("signal 9 ")
                     ? "ask the server's operator why it was killed, for example because the "
                       "machine's memory was full; the run's last checkpoint is still valid"
                     : "check the arguments of the model's operators; the run's last checkpoint is "
                       "still valid");
}

RemoteBody::Reply RemoteBody::call(const Request& request) {
  send(request);
  while (!asked_.empty()) {
    if (!finishOldest()) process_->waitForMessage(deadlineOf(asked_.front().since));
  }
  const SteadyTime since = now();
  for (;;) {
    process_->waitForMessage(deadlineOf(since));
    if (auto reply = receive(request.kind(), since)) return *std::move(reply);
  }
}

RemoteBody::Reply RemoteBody::call(Request::Kind kind, std::uint64_t step) {
  return call(requestFor(kind, step));
}

// ---- Started actions ----

void RemoteBody::start(const Request& request, std::function<Result(const Reply& reply)> resultOf,
                       Done done) {
  send(request);
  asked_.push_back({request.kind(), now(), std::move(resultOf), std::move(done)});
}

// Returns false if its reply has not been sent yet.
bool RemoteBody::finishOldest() {
  const auto reply = receive(asked_.front().kind, asked_.front().since);
  if (!reply) return false;
  const Asked asked = std::move(asked_.front());
  asked_.pop_front();
  if (!asked_.empty()) asked_.front().since = now();
  asked.done(asked.resultOf(*reply), nullptr);
  return true;
}

void RemoteBody::collect() {
  while (!asked_.empty() && finishOldest()) {
  }
}

std::optional<DeviceWorker::Started> RemoteBody::started() const {
  if (asked_.empty()) return std::nullopt;
  return DeviceWorker::Started{process_->socket(), deadlineOf(asked_.front().since)};
}

void RemoteBody::startActions(ActionTable& table) {
  const auto starts = [&](ActionKind action, Request::Kind kind, const std::vector<Flow>& outputs) {
    table.starts[indexOf(action)] = [this, kind, &outputs](Work work, Done done) {
      auto [request, results] = requestOf(kind, work.at, std::move(work.tensors()), outputs);
      const auto shared = std::make_shared<Results>(std::move(results));
      start(
          request, [this, shared](const Reply&) { return take(std::move(*shared)); },
          std::move(done));
    };
  };
  starts(ActionKind::bodyForward, Request::FORWARD, activations_);
  starts(ActionKind::bodyBackward, Request::BACKWARD, gradients_);
  const auto nothing = [](const Reply&) -> Result { return std::monostate{}; };
  table.starts[indexOf(ActionKind::bodyWeights)] = [this, nothing](Work work, Done done) {
    start(requestOf(Request::WEIGHTS, work.at, {}, {}).first, nothing, std::move(done));
  };
  table.process = this;
  if (plan_.spec.replicas > 1) return;
  table.starts[indexOf(ActionKind::report)] = [this](Work work, Done done) {
    start(requestFor(Request::REPORT, work.at.step), reportOf, std::move(done));
  };
  table.starts[indexOf(ActionKind::update)] = [this, nothing](Work work, Done done) {
    start(requestFor(std::get<StepDecision>(work.input)), nothing, std::move(done));
  };
}

void RemoteBody::refuse(const std::string& what) {
  process_->state().kill();
  throw RunError("bad-stage", "the process that computes the run's body returned " + what);
}

// ---- Bytes ----

void RemoteBody::put(std::span<const std::byte> bytes) {
  const std::size_t total = bytes.size();
  while (!bytes.empty()) {
    Buffer piece =
        sharedBuffer(*memory_.inputs, *memory_.input, std::min(kStagePieceBytes, bytes.size()));
    std::memcpy(piece.data(), bytes.data(), piece.size());
    Request request;
    request.set_kind(Request::PUT);
    request.set_offset(memory_.input->offsetOf(piece.data()));
    request.set_bytes(piece.size());
    request.set_total(total);
    call(request);
    bytes = bytes.subspan(piece.size());
  }
}

std::vector<std::byte> RemoteBody::take(const Reply& reply) {
  const std::size_t size = reply.bytes();
  if (size > maxResult_) refuse(std::to_string(size) + " bytes, more than its state can have");
  std::vector<std::byte> bytes;
  bytes.reserve(size);
  while (bytes.size() < size) {
    const Buffer piece = sharedBuffer(*memory_.outputs, *memory_.output,
                                      std::min(kStagePieceBytes, size - bytes.size()));
    Request request;
    request.set_kind(Request::TAKE);
    request.set_offset(memory_.output->offsetOf(piece.data()));
    request.set_bytes(piece.size());
    if (call(request).bytes() != piece.size()) refuse("a piece of another size");
    bytes.insert(bytes.end(), piece.span().begin(), piece.span().end());
  }
  return bytes;
}

// ---- Tensors ----

std::pair<RemoteBody::Request, RemoteBody::Results> RemoteBody::requestOf(
    Request::Kind kind, const MicroBatch& at, TensorBundle inputs,
    const std::vector<Flow>& outputs) {
  Request request = requestFor(kind, at.step);
  request.set_phase(static_cast<std::uint32_t>(at.phase));
  request.set_i(at.i);
  request.set_micro_batches(at.batch.count);
  request.set_samples(at.batch.samples);
  for (const EvenSplit& member : at.batch.members) {
    request.add_members(member.count);
    request.add_members(member.samples);
  }
  for (Payload& input : inputs) give(std::move(input), request);
  const auto specs = specsOf(plan_, outputs, at.size());
  Results results;
  for (std::size_t j = 0; j < specs.size(); ++j) {
    Buffer written = sharedBuffer(*outputs_, *memory_.output, specs[j].bytes());
    toWire(specs[j], memory_.output->offsetOf(written.data()), *request.add_outputs());
    results.push_back({outputs[j], specs[j], std::move(written)});
  }
  return {std::move(request), std::move(results)};
}

TensorBundle RemoteBody::take(Results results) const {
  TensorBundle bundle;
  for (auto& [flow, spec, written] : results) {
    bundle.push_back(taken(flow, spec, std::move(written)));
  }
  return bundle;
}

TensorBundle RemoteBody::compute(Request::Kind kind, const MicroBatch& at, TensorBundle inputs,
                                 const std::vector<Flow>& outputs) {
  auto [request, results] = requestOf(kind, at, std::move(inputs), outputs);
  call(request);
  return take(std::move(results));
}

// Passes an input on; copies it if it does not lie in the memory that the process can read.
void RemoteBody::give(Payload input, Request& request) {
  const TensorSpec spec = input.view().spec;
  if (!memory_.input->contains(input.view().data)) {
    auto copy =
        std::make_shared<Buffer>(sharedBuffer(*memory_.inputs, *memory_.input, spec.bytes()));
    if (spec.bytes() > 0) std::memcpy(copy->data(), input.view().data, spec.bytes());
    input = {{copy->data(), spec}, copy};
  }
  const std::size_t offset = memory_.input->offsetOf(input.view().data);
  toWire(spec, offset, *request.add_inputs());
  given_.add(offset, std::move(input));
}

// A tensor that the process has written. The process may change it at any time, and codecs read a
// tensor more than once, so they get a copy. `none` only sends the bytes.
Payload RemoteBody::taken(Flow flow, const TensorSpec& spec, Buffer written) const {
  auto buffer = std::make_shared<Buffer>(std::move(written));
  const FlowCodec& codec = plan_.codecs.at(flow);
  const bool isOnlySent = codec.own->isIdentity() && !codec.hasLevels();
  if (!isOnlySent) {
    auto copy = std::make_shared<Buffer>(inputs_->acquire(spec.bytes()));
    if (spec.bytes() > 0) std::memcpy(copy->data(), buffer->data(), spec.bytes());
    buffer = std::move(copy);
  }
  return {{buffer->data(), spec}, buffer};
}

TensorBundle RemoteBody::forward(const MicroBatch& at, TensorBundle activations0) {
  return compute(Request::FORWARD, at, std::move(activations0), activations_);
}

TensorBundle RemoteBody::backward(const MicroBatch& at, TensorBundle gradients1) {
  return compute(Request::BACKWARD, at, std::move(gradients1), gradients_);
}

void RemoteBody::backwardWeights(const MicroBatch& at) { compute(Request::WEIGHTS, at, {}, {}); }

// ---- Steps and state ----

GradientReport RemoteBody::report(std::uint64_t step) {
  return reportOf(call(Request::REPORT, step));
}

std::size_t RemoteBody::shareSize() {
  const std::size_t size = call(Request::SHARE_SIZE).value();
  if (size > cleave::shareSize(plan_)) refuse("a share of " + std::to_string(size) + " values");
  return size;
}

void RemoteBody::writeShare(std::uint64_t step, std::span<float> share) {
  const std::vector<std::byte> bytes = take(call(Request::WRITE_SHARE, step));
  if (bytes.size() != share.size_bytes()) refuse("a share of another size");
  std::memcpy(share.data(), bytes.data(), bytes.size());
}

void RemoteBody::readSum(std::uint64_t step, std::span<const float> sum) {
  put(std::as_bytes(sum));
  call(Request::READ_SUM, step);
}

void RemoteBody::update(const StepDecision& decision) { call(requestFor(decision)); }

std::uint64_t RemoteBody::weightsDigest() { return call(Request::DIGEST).value(); }

std::vector<std::byte> RemoteBody::exportWeights() { return take(call(Request::EXPORT_WEIGHTS)); }

std::vector<std::byte> RemoteBody::exportGradients() {
  return take(call(Request::EXPORT_GRADIENTS));
}

void RemoteBody::importWeights(std::span<const std::byte> file) {
  put(file);
  call(Request::IMPORT_WEIGHTS);
}

std::vector<std::byte> RemoteBody::saveFile() { return take(call(Request::SAVE)); }

void RemoteBody::restoreFile(std::span<const std::byte> file) {
  put(file);
  call(Request::RESTORE);
}

}  // namespace cleave
