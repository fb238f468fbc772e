// A body in a process of its own. The process runs the client's code, so nothing that it returns is
// trusted: sizes and types are compared with the plan, and a wrong answer ends the run.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/engine/worker.h"
#include "common/model/body.h"
#include "common/resources/buffer.h"
#include "common/run/plan.h"
#include "proto/stage.pb.h"
#include "stage/replies.h"
#include "stage/stage_processes.h"

namespace cleave {

// The memory through which tensors pass to and from a run's stage. Buffers of `inputs` can be read
// by the stage's process, and those of `outputs` can be changed by it at any time. The pools share
// the memory, and must be used by this run only.
struct StageMemory {
  // Allocates nothing before it is used. Throws RunError "cannot-start-stage".
  explicit StageMemory(const RunPlan& plan);
  // Returns the pages to the system that no buffer uses. Any thread.
  void returnFree() const;

  std::shared_ptr<SharedBlocks> input, output;
  std::shared_ptr<BufferPool> inputs, outputs;
  std::shared_ptr<Buffer> note;  // of the operator being computed: the first bytes of `output`
};

// Starts the process for a plan's body.
std::unique_ptr<StageProcess> startStage(StageProcesses& processes, const RunPlan& plan,
                                         int threads, const StageMemory& memory);

// The functions of Body block the calling thread until the process answers. They throw the
// process's errors, and RunError "action-too-long" if an answer takes longer than `maxSeconds`,
// "body-crashed" if the process ends, and "bad-stage" if it answers what the plan does not allow.
// collect() throws the same.
class RemoteBody : public Body, public ActionProcess {
 public:
  // Builds the body. `account`: for the tensors that it returns; may be null. `log`: gets what the
  // process has written to its standard error, when the body is destroyed.
  RemoteBody(std::unique_ptr<StageProcess> process, const RunPlan& plan, int threads,
             double maxSeconds, StageMemory memory, std::shared_ptr<MemoryAccount> account,
             std::function<void(const std::string& text)> log);
  ~RemoteBody() override;

  // Makes the actions of each micro-batch, and the report and update of a body without replicas,
  // start without waiting for the process. The body must outlive the table.
  void startActions(ActionTable& table);
  void collect() override;
  std::optional<DeviceWorker::Started> started() const override;

  TensorBundle forward(const MicroBatch& at, TensorBundle activations0) override;
  TensorBundle backward(const MicroBatch& at, TensorBundle gradients1) override;
  void backwardWeights(const MicroBatch& at) override;
  GradientReport report(std::uint64_t step) override;
  std::size_t shareSize() override;
  void writeShare(std::uint64_t step, std::span<float> share) override;
  void readSum(std::uint64_t step, std::span<const float> sum) override;
  void update(const StepDecision& decision) override;
  std::uint64_t weightsDigest() override;
  std::vector<std::byte> exportWeights() override;
  std::vector<std::byte> exportGradients() override;
  void importWeights(std::span<const std::byte> file) override;
  std::vector<std::byte> saveFile() override;
  void restoreFile(std::span<const std::byte> file) override;

 private:
  using Request = wire::StageRequest;
  using Reply = wire::StageReply;

  // A tensor that the process writes.
  struct Output {
    Flow flow;
    TensorSpec spec;
    Buffer written;
  };
  using Results = std::vector<Output>;
  // A request of a started action.
  struct Asked {
    Request::Kind kind = Request::FORWARD;
    SteadyTime since;  // when the process could begin with it
    std::function<Result(const Reply& reply)> resultOf;
    Done done;
  };

  void end();
  void send(const Request& request);
  SteadyTime deadlineOf(SteadyTime since) const;
  std::optional<Reply> receive(Request::Kind kind, SteadyTime since);
  [[noreturn]] void throwCrashed(Request::Kind kind);
  Reply call(const Request& request);
  Reply call(Request::Kind kind, std::uint64_t step = 0);
  void start(const Request& request, std::function<Result(const Reply& reply)> resultOf, Done done);
  bool finishOldest();
  std::pair<Request, Results> requestOf(Request::Kind kind, const MicroBatch& at,
                                        TensorBundle inputs, const std::vector<Flow>& outputs);
  TensorBundle compute(Request::Kind kind, const MicroBatch& at, TensorBundle inputs,
                       const std::vector<Flow>& outputs);
  TensorBundle take(Results results) const;
  void give(Payload input, Request& request);
  Payload taken(Flow flow, const TensorSpec& spec, Buffer written) const;
  void put(std::span<const std::byte> bytes);
  std::vector<std::byte> take(const Reply& reply);
  [[noreturn]] void refuse(const std::string& what);

  const RunPlan& plan_;
  const double maxSeconds_;
  const std::vector<Flow> activations_, gradients_;  // the results of forward() and backward()
  const StageMemory memory_;
  const std::shared_ptr<BufferPool> inputs_, outputs_;  // charged to the account
  const std::size_t maxResult_;                         // bytes of a state, weights, or a share
  const std::unique_ptr<StageProcess> process_;
  const std::function<void(const std::string& text)> log_;
  std::deque<Asked> asked_;  // oldest first
  GivenInputs given_;
};

}  // namespace cleave
