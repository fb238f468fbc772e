#include "client/evaluate/verification.h"

#include <ATen/core/Tensor.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "client/data/samples/loader.h"
#include "client/train/step_decider.h"
#include "client/train/train_run.h"
#include "common/device/torch_errors.h"

namespace cleave {
namespace {

// Returns copies, because the update clears the gradients.
std::vector<NamedTensor> copyGradients(const ParameterSet& set) {
  std::vector<NamedTensor> gradients = gradientsOf(set);
  for (NamedTensor& gradient : gradients) gradient.tensor = gradient.tensor.detach().clone();
  return gradients;
}

const at::Tensor& find(const std::vector<NamedTensor>& tensors, const std::string& name) {
  for (const NamedTensor& tensor : tensors) {
    if (tensor.name == name) return tensor.tensor;
  }
  throw RunError("internal-error",
                 "the split model has " + name + ", but the whole model does not");
}

// Reports a difference unless head, body and tail together have as many tensors as the whole model.
void checkComplete(Comparison& result, std::initializer_list<std::size_t> parts, std::size_t whole,
                   const std::string& what) {
  std::size_t sum = 0;
  for (const std::size_t part : parts) sum += part;
  if (sum == whole) return;
  result.note(INFINITY, fmt::format("head, body and tail have {} {}, but the whole model has {}",
                                    sum, what, whole));
}

void compare(Comparison& result, const std::vector<NamedTensor>& split,
             const std::vector<NamedTensor>& whole, const std::string& when) {
  for (const NamedTensor& tensor : split)
    result.add(tensor.tensor, find(whole, tensor.name), tensor.name + when);
}

struct BodyTensors {
  std::vector<NamedTensor> all;       // of all bodies, in the order of the model
  std::vector<NamedTensor> replicas;  // of the bodies' replicas except the first ones
};

// `servers`: one blob per server.
BodyTensors tensorsOf(const std::vector<Blob>& servers, const PreparedRun& run,
                      const std::string& name) {
  BodyTensors tensors;
  for (std::size_t s = 0; s < servers.size(); ++s) {
    const bool isFirst = run.bodies[s].stage.replica.rank == 0;
    for (NamedTensor& tensor : fromSafetensors(servers[s].bytes, name)) {
      (isFirst ? tensors.all : tensors.replicas).push_back(std::move(tensor));
    }
  }
  return tensors;
}

// Throws unless the server can compute the same bits as this process and lets the client fetch its
// weights.
void checkServer(const wire::HelloOk& ok, const PreparedRun& run, double tolerance) {
  if (tolerance == 0 && run.settings.deviceBits != "exact") {
    throw UsageError("bits-differ",
                     "device_bits is fast, so a GPU gives other bits in every computation",
                     "--set device_bits=exact, or allow a difference: --tolerance 1e-3")
        .about("device_bits");
  }
  const auto isCpu = [](const std::string& device) { return device == "cpu"; };
  if (tolerance == 0 && isCpu(run.settings.device) != isCpu(ok.device())) {
    throw UsageError(
        "bits-differ",
        fmt::format("head and tail compute on {}, the body on {}, and CPU and GPU "
                    "round differently",
                    run.settings.device, ok.device()),
        fmt::format("--set device={}, or allow a difference: --tolerance 1e-3", ok.device()));
  }
  if (tolerance == 0 && static_cast<int>(ok.threads()) != run.threads) {
    throw RunError("thread-mismatch",
                   fmt::format("the server computes with {} threads, this client with {}: results "
                               "are bit-identical only with the same number",
                               ok.threads(), run.threads),
                   fmt::format("--set threads.client={}", ok.threads()));
  }
  if (!ok.weights_allowed()) {
    throw RunError("fetch-not-allowed",
                   "this server does not allow clients to fetch the body's weights",
                   "set weights.fetch: true on the server, or omit --server");
  }
}

// What the split model has computed in a step, until it is compared.
struct StepResults {
  std::vector<float> losses;  // by micro-batch, of all clients
  std::size_t clients = 0;    // that have ended the step
  // Of the first client: those of the others are equal, or their weights differ at the end.
  std::vector<NamedTensor> head, tail;
  BodyTensors body;
  double norm = 0;
};

// The steps between the clients' threads and the one that compares.
class StepQueue {
 public:
  // Call for each step of each client. Waits while the client is far ahead of the comparison.
  void ended(std::uint64_t step, const std::function<void(StepResults&)>& add) {
    constexpr std::uint64_t kAhead = 8;
    std::unique_lock lock(mutex_);
    StepResults& results = steps_[step];
    add(results);
    ++results.clients;
    changed_.notify_all();
    changed_.wait(lock, [&] { return isOver_ || step <= taken_ + kAhead; });
  }
  void note(std::uint64_t step, const std::function<void(StepResults&)>& add) {
    const std::lock_guard lock(mutex_);
    add(steps_[step]);
  }
  // Waits for the next step of all clients; nullopt: there is none.
  std::optional<StepResults> take(std::size_t clients) {
    std::unique_lock lock(mutex_);
    const auto isEnded = [&] { return steps_[taken_ + 1].clients == clients; };
    changed_.wait(lock, [&] { return isOver_ || left_ == clients || isEnded(); });
    if (isOver_ || !isEnded()) return std::nullopt;
    StepResults results = std::move(steps_.extract(++taken_).mapped());
    changed_.notify_all();
    return results;
  }
  // A client takes no more steps.
  void left() {
    const std::lock_guard lock(mutex_);
    ++left_;
    changed_.notify_all();
  }
  // Nothing is compared any more.
  void stop() {
    const std::lock_guard lock(mutex_);
    isOver_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::uint64_t, StepResults> steps_;  // that are not taken
  std::uint64_t taken_ = 0;                     // the last one
  std::size_t left_ = 0;
  bool isOver_ = false;
};

// A client of the split model, or a member of its cohort.
class SplitClient {
 public:
  SplitClient(PreparedRun& prepared, const VerifyOptions& options, StepQueue& steps)
      : prepared_(prepared),
        options_(options),
        steps_(steps),
        isFirst_(prepared.plan.member.value_or(0) == 0) {}

  // Runs on a thread of its own.
  void run();
  // Throws the error of run(), if any. Call the others after it.
  void check() const {
    if (error_) std::rethrow_exception(error_);
  }
  const std::vector<float>& evaluated() const { return evaluated_; }  // losses of its micro-batches
  const std::vector<NamedTensor>& head() const { return head_; }
  const std::vector<NamedTensor>& tail() const { return tail_; }
  const BodyTensors& body() const { return body_; }  // of the first client
  const PreparedRun& prepared() const { return prepared_; }

 private:
  void trainAndEvaluate(TrainRun& run);
  void trainSteps(TrainRun& run);
  StepDecision decide(TrainRun& run, const std::vector<BodyDone>& bodies);
  void addLosses(TrainRun& run, const MicroBatch& at, std::vector<float>& losses) const;

  PreparedRun& prepared_;
  const VerifyOptions& options_;
  StepQueue& steps_;
  const bool isFirst_;
  std::unique_ptr<StepDecider> decider_;  // after connect()
  std::vector<float> evaluated_;
  std::vector<NamedTensor> head_, tail_;
  BodyTensors body_;
  std::exception_ptr error_;
};

void SplitClient::run() {
  try {
    TrainRun run(prepared_);
    try {
      withTorchErrors([&] { trainAndEvaluate(run); });
      run.close("done");
    } catch (const std::exception&) {
      run.close("failed");
      throw;
    }
  } catch (const std::exception&) {
    error_ = std::current_exception();
    steps_.stop();
  }
  steps_.left();
}

void SplitClient::trainAndEvaluate(TrainRun& run) {
  run.connect();
  for (std::size_t b = 0; b < prepared_.bodies.size(); ++b) {
    checkServer(run.answer(b), prepared_, options_.tolerance);
  }
  decider_ = std::make_unique<StepDecider>(prepared_.settings, prepared_.trainSamples());
  TrainRun::Options options;
  if (isFirst_) options.stepFetch = [](std::uint64_t) { return kGradsBody; };
  run.start([&](const std::vector<BodyDone>& bodies) { return decide(run, bodies); }, options);
  run.loadWeights();
  trainSteps(run);
  Loader loader(prepared_.data.test, run.session().pool(), evaluationOptions(prepared_));
  if (const auto batch = loader.next()) {
    addLosses(run, run.runBatch(Phase::eval, 1, *batch), evaluated_);
  }
  head_ = weightsOf(run.stage().evaluatedHead());
  tail_ = weightsOf(run.stage().evaluatedTail());
  for (auto* const tensors : {&head_, &tail_}) {
    for (NamedTensor& tensor : *tensors) tensor.tensor = tensor.tensor.detach().clone();
  }
  if (isFirst_) body_ = tensorsOf(run.session().fetch(kWeightsBody), prepared_, "weights/body");
}

void SplitClient::trainSteps(TrainRun& run) {
  Loader loader(prepared_.data.train, run.session().pool(), trainingOptions(prepared_, 1));
  // With staleness, the split model's steps overlap; the whole model computes one after the other.
  std::deque<std::pair<MicroBatch, Batch>> open;
  std::uint64_t begun = 0;
  bool isLoaded = false;  // all batches have been taken
  for (;;) {
    while (!isLoaded && begun < options_.steps && run.mayBeginStep(begun + 1)) {
      auto batch = loader.next();
      isLoaded = !batch;
      if (isLoaded) break;
      run.stage().setLossScale(decider_->lossScale());
      auto& [at, kept] = open.emplace_back(MicroBatch{}, std::move(*batch));
      at = run.beginBatch(Phase::train, ++begun, kept);
    }
    if (open.empty()) return;
    run.finishBatch();
    const MicroBatch& at = open.front().first;
    steps_.ended(at.step, [&](StepResults& results) { addLosses(run, at, results.losses); });
    open.pop_front();
  }
}

void SplitClient::addLosses(TrainRun& run, const MicroBatch& at, std::vector<float>& losses) const {
  losses.resize(at.batch.count);
  const Share share = at.batch.shareOfMember(prepared_.plan.member.value_or(0));
  for (std::uint32_t n = 0; n < share.count; ++n) {
    losses[share.at(n)] = run.stage().losses(at.step)[share.at(n)];
  }
}

StepDecision SplitClient::decide(TrainRun& run, const std::vector<BodyDone>& bodies) {
  const GradientReport head = run.stage().headReport();
  const std::uint64_t step = bodies.front().step;
  const StepDecision decision =
      decider_->decide(step, head, reportsOf(bodies), run.stage().tailReport());
  if (!isFirst_) return decision;
  BodyTensors body = tensorsOf(run.session().blobsOfStep(), prepared_, "grads/body");
  steps_.note(step, [&](StepResults& results) {
    results.head = copyGradients(run.stage().head());
    results.tail = copyGradients(run.stage().tail());
    results.body = std::move(body);
    results.norm = decider_->norm();
  });
  return decision;
}

class Verification {
 public:
  Verification(std::vector<PreparedRun>& clients, const Datasets& pooled,
               const VerifyOptions& options)
      : first_(clients.front()), pooled_(pooled), whole_(first_.plan.stage, *first_.device) {
    for (PreparedRun& client : clients) clients_.emplace_back(client, options, steps_);
  }

  Comparisons perform();

 private:
  void compareSteps();
  void compareStep(std::uint64_t step, const StepResults& split, double norm);
  void compareEvaluation();
  void compareLosses(const std::vector<float>& split, const std::string& when);
  void compareWeights();

  const PreparedRun& first_;
  const Datasets& pooled_;
  WholeStage whole_;
  StepQueue steps_;
  std::deque<SplitClient> clients_;
  Comparisons results_;
};

Comparisons Verification::perform() {
  std::vector<std::jthread> threads;
  for (SplitClient& client : clients_) {
    threads.emplace_back([&client] { client.run(); });
  }
  setComputeThreads(first_.threads);
  whole_.importWeights(initialWeights(first_));
  try {
    withTorchErrors([&] { compareSteps(); });
  } catch (...) {
    steps_.stop();
    throw;
  }
  threads.clear();  // joins them
  for (const SplitClient& client : clients_) client.check();
  withTorchErrors([&] { compareEvaluation(); });
  compareWeights();
  return results_;
}

void Verification::compareSteps() {
  std::unique_ptr<StepDecider> decider;
  std::unique_ptr<Loader> loader;
  for (std::uint64_t step = 1;; ++step) {
    const auto split = steps_.take(clients_.size());
    if (!split) return;
    // The clients have connected, so the plan of all batches is known.
    if (step == 1) {
      decider = std::make_unique<StepDecider>(first_.settings, first_.trainSamples());
      Loader::Options options = trainingOptions(first_, 1);
      const auto& joint = first_.plan.joint;
      if (joint) usePass(joint->trainingPass(std::nullopt, 1), options);  // the samples of all
      loader = std::make_unique<Loader>(pooled_.train, std::make_shared<BufferPool>(), options);
    }
    const auto batch = loader->next();
    whole_.setLossScale(decider->lossScale());
    whole_.runBatch(Phase::train, step, first_.plan.division(Phase::train, step, batch->samples()),
                    viewOf(*batch));
    // Each model computes its own norm, and the two must agree.
    const StepDecision decision = decider->decide(step, whole_.report(), {}, {});
    compareStep(step, *split, decider->norm());
    whole_.update(decision);
  }
}

void Verification::compareStep(std::uint64_t step, const StepResults& split, double norm) {
  const std::string when = fmt::format(" in step {}", step);
  compareLosses(split.losses, when);
  const std::vector<NamedTensor> whole = gradientsOf(whole_.set());
  checkComplete(results_["gradients/body"],
                {split.head.size(), split.body.all.size(), split.tail.size()}, whole.size(),
                "gradients");
  compare(results_["gradients/head"], split.head, whole, when);
  compare(results_["gradients/body"], split.body.all, whole, when);
  compare(results_["gradients/body"], split.body.replicas, whole, when);
  compare(results_["gradients/tail"], split.tail, whole, when);
  results_["gradient norm"].add(split.norm, norm, fmt::format("step {}", step));
}

void Verification::compareEvaluation() {
  Loader::Options options = evaluationOptions(first_);
  const auto& joint = first_.plan.joint;
  if (joint) usePass(joint->evaluationPass(std::nullopt), options);
  const auto batch = Loader(pooled_.test, std::make_shared<BufferPool>(), options).next();
  if (!batch) return;
  const Division division = first_.plan.division(Phase::eval, 1, batch->samples());
  whole_.runBatch(Phase::eval, 1, division, viewOf(*batch));
  std::vector<float> losses(division.count);
  for (const SplitClient& client : clients_) {
    const Share share = division.shareOfMember(client.prepared().plan.member.value_or(0));
    for (std::uint32_t n = 0; n < share.count; ++n) {
      losses[share.at(n)] = client.evaluated()[share.at(n)];
    }
  }
  compareLosses(losses, " in evaluation");
}

void Verification::compareLosses(const std::vector<float>& split, const std::string& when) {
  const auto& whole = whole_.losses();
  for (std::size_t i = 0; i < whole.size(); ++i) {
    results_["losses"].add(split.at(i), whole[i], fmt::format("micro-batch {}{}", i, when));
  }
}

void Verification::compareWeights() {
  const std::vector<NamedTensor> whole = weightsOf(whole_.evaluatedSet());
  const BodyTensors& middle = clients_.front().body();
  checkComplete(results_["weights/body"],
                {clients_.front().head().size(), middle.all.size(), clients_.front().tail().size()},
                whole.size(), "weights");
  compare(results_["weights/body"], middle.all, whole, "");
  compare(results_["weights/body"], middle.replicas, whole, "");
  for (const SplitClient& client : clients_) {
    const auto member = client.prepared().plan.member;
    const std::string of = member ? fmt::format(" of member {}", *member) : "";
    compare(results_["weights/head"], client.head(), whole, of);
    compare(results_["weights/tail"], client.tail(), whole, of);
  }
}

}  // namespace

Comparisons verifyRun(std::vector<PreparedRun>& clients, const Datasets& pooled,
                      const VerifyOptions& options) {
  return Verification(clients, pooled, options).perform();
}

}  // namespace cleave
