#include "stage/served_stage.h"

#include <ATen/record_function.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "common/core/error.h"
#include "common/device/torch_errors.h"
#include "common/files/environment.h"
#include "common/link/wire_messages.h"
#include "common/model/graph/operator_note.h"
#include "common/model/stage/stage.h"
#include "common/net/frames/failure.h"
#include "common/run/plan.h"
#include "common/run/run_spec.h"
#include "proto/wire.pb.h"
#include "stage/messages.h"

namespace cleave {
namespace {

using wire::StageReply;
using wire::StageRequest;

MicroBatch microBatchOf(const StageRequest& request) {
  MicroBatch at{static_cast<Phase>(request.phase()),
                request.step(),
                request.i(),
                {request.micro_batches(), request.samples()}};
  for (int m = 0; m + 1 < request.members_size(); m += 2) {
    at.batch.members.push_back({request.members(m), request.members(m + 1)});
  }
  return at;
}

StepDecision decisionOf(const StageRequest& request) {
  const wire::StageDecision& wire = request.decision();
  StepDecision decision;
  decision.step = request.step();
  decision.apply = wire.apply();
  decision.learningRates = {wire.learning_rates().begin(), wire.learning_rates().end()};
  decision.clipFactor = wire.clip_factor();
  decision.lossScale = wire.loss_scale();
  decision.bases = basesFromWire(wire.bases());
  return decision;
}

std::vector<std::byte> bytesOf(std::span<const float> values) {
  const auto bytes = std::as_bytes(values);
  return {bytes.begin(), bytes.end()};
}

// LibTorch itself runs a backward's operators.
void noteBackwardOperators() {
  at::addGlobalCallback(at::RecordFunctionCallback([](const at::RecordFunction& function) {
                          noteOperator(function.name());
                          return std::unique_ptr<at::ObserverContext>();
                        }).scopes({at::RecordScope::BACKWARD_FUNCTION}));
}

class ServedStage {
 public:
  explicit ServedStage(const StageEnds& ends) : ends_(ends) {}

  StageReply answer(const StageRequest& request) {
    StageReply reply;
    reply.set_done(true);
    try {
      withTorchErrors([&] {
        try {
          perform(request, reply);
        } catch (const c10::Error& error) {
          if (!isOutOfMemory(error)) throw;
          throw std::bad_alloc();
        }
      });
    } catch (const Error& error) {
      fail(reply, error);
    } catch (const std::bad_alloc&) {
      fail(reply,
           RunError("memory-exceeded", "the run needs more memory than was admitted for it"));
    } catch (const std::exception& error) {
      fail(reply,
           computesGraph(request) ? operatorError(error.what()) : RunError("", error.what()));
    }
    for (const std::uint64_t offset : std::exchange(released_, {})) reply.add_released(offset);
    return reply;
  }

 private:
  // LibTorch has no type for it on a CPU.
  static bool isOutOfMemory(const c10::Error& error) {
    return std::strstr(error.what_without_backtrace(), "DefaultCPUAllocator") != nullptr;
  }
  static void fail(StageReply& reply, const Error& error) {
    reply.Clear();
    *reply.mutable_failure() = failureOf(error);
  }

  // Whether LibTorch computes a client's graph, with which a library that it uses may fail.
  bool computesGraph(const StageRequest& request) const {
    return isGraph_ &&
           (request.kind() == StageRequest::FORWARD || request.kind() == StageRequest::BACKWARD ||
            request.kind() == StageRequest::WEIGHTS);
  }
  static RunError operatorError(const std::string& reason) {
    return RunError(ErrorKind::usage, "bad-graph",
                    "the operator " + std::string(lastNotedOperator()) +
                        " cannot be computed: " + reason,
                    "check the arguments of this operator in your model, and export it again")
        .about("model.file");
  }

  void perform(const StageRequest& request, StageReply& reply) {
    if (request.kind() != StageRequest::TAKE) result_ = nullptr;
    switch (request.kind()) {
      case StageRequest::PUT:
        return put(request);
      case StageRequest::TAKE:
        return take(request, reply);
      case StageRequest::BUILD:
        return build(request);
      case StageRequest::FORWARD:
        return leave(stage().forward(microBatchOf(request), inputs(request)), request);
      case StageRequest::BACKWARD:
        return leave(stage().backward(microBatchOf(request), inputs(request)), request);
      case StageRequest::WEIGHTS:
        return stage().backwardWeights(microBatchOf(request));
      case StageRequest::REPORT: {
        const GradientReport report = stage().report(request.step());
        reply.set_square_sum(report.squareSum);
        reply.set_finite(report.finite);
        basesToWire(report.bases, *reply.mutable_bases());
        reply.set_peak_memory(cpuDevice().peakMemory());
        return;
      }
      case StageRequest::SHARE_SIZE:
        return reply.set_value(stage().shareSize());
      case StageRequest::WRITE_SHARE: {
        std::vector<float> share(stage().shareSize());
        stage().writeShare(request.step(), share);
        return offer(bytesOf(share), reply);
      }
      case StageRequest::READ_SUM: {
        const std::vector<std::byte> sum = std::exchange(given_, {});
        std::vector<float> values(sum.size() / sizeof(float));
        std::memcpy(values.data(), sum.data(), values.size() * sizeof(float));
        return stage().readSum(request.step(), values);
      }
      case StageRequest::UPDATE:
        return stage().update(decisionOf(request));
      case StageRequest::DIGEST:
        return reply.set_value(stage().weightsDigest());
      case StageRequest::EXPORT_WEIGHTS:
        return offer(stage().weightsFile(), reply);
      case StageRequest::EXPORT_GRADIENTS:
        return offer(stage().gradientsFile(), reply);
      case StageRequest::IMPORT_WEIGHTS:
        return stage().importWeights(std::exchange(given_, {}));
      case StageRequest::SAVE:
        return offer(stage().stateFile(), reply);
      case StageRequest::RESTORE:
        return stage().restoreFile(std::exchange(given_, {}));
      default:
        throw std::logic_error("the request is unknown");
    }
  }

  BodyStage& stage() {
    if (!stage_) throw std::logic_error("the stage is not built");
    return *stage_;
  }

  void build(const StageRequest& request) {
    wire::RunSpec spec;
    const std::vector<std::byte> bytes = std::exchange(given_, {});
    if (!spec.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
      throw std::logic_error("the run spec cannot be parsed");
    }
    const RunPlan plan = planRun(runSpecFromWire(spec));
    setComputeThreads(static_cast<int>(request.threads()));
    isGraph_ = plan.stage.model.graphBlocks != nullptr;
    stage_ = std::make_unique<BodyStage>(plan.stage);
  }

  void put(const StageRequest& request) {
    const auto piece = ends_.input.bytes().subspan(request.offset(), request.bytes());
    if (given_.empty()) given_.reserve(request.total());
    given_.insert(given_.end(), piece.begin(), piece.end());
  }

  void take(const StageRequest& request, StageReply& reply) {
    const std::span<std::byte> room = ends_.output.bytes().subspan(request.offset());
    const std::size_t size = result_ ? result_(room.first(request.bytes())) : 0;
    left_ -= size;
    if (left_ == 0) result_ = nullptr;
    reply.set_bytes(size);
  }

  void offer(std::vector<std::byte> bytes, StageReply& reply) {
    reply.set_bytes(left_ = bytes.size());
    result_ = [this, bytes = std::move(bytes)](std::span<std::byte> into) {
      const std::size_t size = std::min(into.size(), left_);
      std::memcpy(into.data(), bytes.data() + (bytes.size() - left_), size);
      return size;
    };
  }

  void offer(TensorFile file, StageReply& reply) {
    reply.set_bytes(left_ = file.size());
    const auto shared = std::make_shared<TensorFile>(std::move(file));
    result_ = [shared](std::span<std::byte> into) { return shared->read(into); };
  }

  // Tensors in the shared memory, which no operator writes to. The reply after their last use
  // releases them.
  TensorBundle inputs(const StageRequest& request) {
    TensorBundle bundle;
    for (const wire::StageTensor& tensor : request.inputs()) {
      std::byte* const data = ends_.input.bytes().subspan(tensor.offset()).data();
      const std::shared_ptr<const void> owner(
          data, [this, offset = tensor.offset()](const void*) { released_.push_back(offset); });
      bundle.push_back({{data, specFromWire(tensor)}, owner});
    }
    return bundle;
  }

  void leave(const TensorBundle& outputs, const StageRequest& request) const {
    for (std::size_t j = 0; j < outputs.size(); ++j) {
      const TensorView& output = outputs[j].view();
      const wire::StageTensor& expected = request.outputs().at(static_cast<int>(j));
      if (output.spec != specFromWire(expected)) {
        throw std::logic_error("the stage computed " + toString(output.spec));
      }
      if (output.spec.bytes() == 0) continue;
      std::memcpy(ends_.output.bytes().subspan(expected.offset()).data(), output.data,
                  output.spec.bytes());
    }
  }

  const StageEnds& ends_;
  std::vector<std::uint64_t> released_;  // inputs, since the last reply; outlives the stage
  std::unique_ptr<BodyStage> stage_;
  bool isGraph_ = false;
  std::vector<std::byte> given_;  // put in, for the next request
  // Copies the next bytes of the last request's result, of which `left_` are left.
  std::function<std::size_t(std::span<std::byte> into)> result_;
  std::size_t left_ = 0;
};

}  // namespace

void serveStage(const StageEnds& ends) {
  const std::span<std::byte> note = ends.output.bytes().first(kOperatorNoteBytes);
  noteOperatorsIn({reinterpret_cast<char*>(note.data()), note.size()});
  noteBackwardOperators();
  ServedStage stage(ends);
  StageRequest request;
  bool isTrimmed = true;
  for (;;) {
    switch (readStageMessage(ends.socket.get(), request)) {
      case StageRead::end:
        return;
      case StageRead::nothing:  // for kIdleSeconds
        if (!isTrimmed) releaseMemory();
        isTrimmed = true;
        break;
      case StageRead::message:
        isTrimmed = false;
        if (!sendStageMessage(ends.socket.get(), stage.answer(request))) return;
    }
  }
}

}  // namespace cleave
