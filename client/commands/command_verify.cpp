// cleave-client verify: runs some steps through a real server, and the same steps with the whole
// model in this process, and compares losses, gradients and weights. Any difference in their bits
// is an error, unless --tolerance allows it.

#include <ATen/core/Tensor.h>
#include <ATen/ops/sub.h>
#include <spdlog/fmt/fmt.h>

#include <cmath>
#include <cstring>
#include <iostream>
#include <nlohmann/json.hpp>

#include "client/commands/commands.h"
#include "client/data/loader.h"
#include "client/train/prepare.h"
#include "client/train/trainer.h"
#include "common/core/log.h"
#include "common/run/action_tables.h"
#include "common/run/torch_errors.h"

namespace cleave {
namespace {

// Bitwise: unlike a comparison of values, -0 differs from 0, and a NaN equals itself.
bool sameBits(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor x = a.cpu().contiguous();
  const at::Tensor y = b.cpu().contiguous();
  return x.nbytes() == y.nbytes() && std::memcmp(x.data_ptr(), y.data_ptr(), x.nbytes()) == 0;
}

// Everything compared under one name, over all steps.
struct Comparison {
  std::uint64_t values = 0;
  bool equal = true;
  double largestDifference = 0;
  std::string where;  // location of the largest difference
  double differenceSquares = 0, wholeSquares = 0;

  // |split - whole| / |whole|, with all values as one vector.
  double relativeDifference() const {
    if (differenceSquares == 0) return 0;  // only the signs of zeros may differ
    return std::sqrt(differenceSquares / wholeSquares);
  }

  void add(const at::Tensor& split, const at::Tensor& whole, const std::string& name) {
    values += static_cast<std::uint64_t>(whole.numel());
    if (split.sizes() != whole.sizes()) {
      note(INFINITY, name + " (shapes differ)");
      return;
    }
    const at::Tensor exact = whole.to(at::kCPU, at::kDouble);
    wholeSquares += exact.square().sum().item<double>();
    if (sameBits(split, whole)) return;
    const at::Tensor difference = at::sub(split.to(at::kCPU, at::kDouble), exact).abs();
    differenceSquares += difference.square().sum().item<double>();
    const double largest = difference.max().item<double>();
    note(std::isnan(largest) ? INFINITY : largest, name);
  }
  // Converting floats to doubles is lossless.
  void add(double split, double whole, const std::string& name) {
    ++values;
    wholeSquares += whole * whole;
    if (std::memcmp(&split, &whole, sizeof split) == 0) return;
    differenceSquares += (split - whole) * (split - whole);
    note(std::abs(split - whole), name);
  }

  void note(double difference, const std::string& name) {
    equal = false;
    if (!std::isfinite(difference)) differenceSquares = INFINITY;
    if (difference < largestDifference) return;
    largestDifference = difference;
    where = name;
  }
};

using Comparisons = std::map<std::string, Comparison>;

// Copied, because the update clears the gradients.
std::vector<NamedTensor> copyGradients(const ModelPart& part) {
  std::vector<NamedTensor> gradients = gradientsOf(part);
  for (NamedTensor& gradient : gradients) gradient.tensor = gradient.tensor.detach().clone();
  return gradients;
}

const at::Tensor& find(const std::vector<NamedTensor>& tensors, const std::string& name) {
  for (const NamedTensor& tensor : tensors) {
    if (tensor.name == name) return tensor.tensor;
  }
  throw RunError("bad-weights", "the whole model has no " + name + ", which the split has");
}

// Head, body and tail together must have exactly the tensors of the whole model.
void checkComplete(Comparison& result, std::initializer_list<std::size_t> parts, std::size_t whole,
                   const std::string& what) {
  std::size_t sum = 0;
  for (const std::size_t part : parts) sum += part;
  if (sum == whole) return;
  result.note(INFINITY,
              fmt::format("head, body and tail have {} {}, the whole model {}", sum, what, whole));
}

void compare(Comparison& result, const std::vector<NamedTensor>& split,
             const std::vector<NamedTensor>& whole, const std::string& when) {
  for (const NamedTensor& tensor : split)
    result.add(tensor.tensor, find(whole, tensor.name), tensor.name + when);
}

class Verification {
 public:
  Verification(PreparedRun& run, std::uint64_t steps, double tolerance)
      : run_(run),
        steps_(steps),
        tolerance_(tolerance),
        stage_(withTorchErrors(
            [&] { return ClientStage(run.plan.stage, run.settings.wait, *run.device); })),
        whole_(run.plan.stage),
        session_(*run.device) {}

  Comparisons perform();
  // Sends Bye to the server after a failure.
  void end() { session_.close("failed"); }

 private:
  StepDecision decide(const BodyDone& done);
  StepDecision decisionOf(std::uint64_t step, double norm) const;
  void trainStep(std::uint64_t step, const Batch& batch);
  void evaluate();
  void compareGradients(std::uint64_t step);
  void compareLosses(const std::string& when);
  TensorView view(const Batch& batch) const;

  PreparedRun& run_;
  const std::uint64_t steps_;
  const double tolerance_;
  ClientStage stage_;
  WholeStage whole_;
  Recorder recorder_;
  ClientSession session_;
  Comparisons results_;
  double norm_ = 0;  // of the split model's gradients in the current step
  std::vector<NamedTensor> headGradients_, tailGradients_;
};

Comparisons Verification::perform() {
  const wire::HelloOk ok = connectRun(run_, session_);
  if (tolerance_ == 0 && (run_.settings.device != "cpu" || ok.device() != "cpu")) {
    throw UsageError("bits-differ",
                     fmt::format("head and tail compute on {}, the body on {}: only CPUs give the "
                                 "bits of the whole model, which computes on the CPU",
                                 run_.settings.device, ok.device()),
                     "say how much may differ: --tolerance 1e-3");
  }
  if (tolerance_ == 0 && static_cast<int>(ok.threads()) != run_.threads) {
    throw RunError("thread-mismatch",
                   fmt::format("the server computes with {} threads, this client with {}: other "
                               "counts give other bits",
                               ok.threads(), run_.threads),
                   fmt::format("--set threads.client={}", ok.threads()));
  }
  if (!ok.weights_allowed()) {
    throw RunError("fetch-not-allowed", "the server's policy does not hand out the body's weights",
                   "set weights.fetch: true there, or leave out --server");
  }
  const auto files = std::make_shared<RunFiles>(
      recorder_, run_.folder, RunIdentity{run_.hello.run_id(), ok.session()}, metricNames());
  session_.start(
      run_.plan, 0,
      clientActions(stage_, run_.threads, [this](const BodyDone& done) { return decide(done); }),
      true, files);
  sendInitialWeights(run_, stage_, session_);
  whole_.importWeights(run_.weights);
  run_.weights.clear();
  Loader::Options options;
  options.batch = run_.settings.batch;
  options.shuffle = true;
  options.seed = run_.settings.seed;
  options.epoch = 1;
  Loader loader(run_.data.train, session_.pool(), options);
  for (std::uint64_t step = 1; step <= steps_; ++step) {
    const auto batch = loader.next();
    if (!batch) break;
    trainStep(step, *batch);
  }
  evaluate();

  const Blob body = session_.fetch(Flow::weightsBody);
  const std::vector<NamedTensor> whole = weightsOf(whole_.part());
  const std::vector<NamedTensor> head = weightsOf(stage_.head());
  const std::vector<NamedTensor> middle = fromSafetensors(body.bytes, "weights/body");
  const std::vector<NamedTensor> tail = weightsOf(stage_.tail());
  checkComplete(results_["weights/body"], {head.size(), middle.size(), tail.size()}, whole.size(),
                "weights");
  compare(results_["weights/head"], head, whole, "");
  compare(results_["weights/body"], middle, whole, "");
  compare(results_["weights/tail"], tail, whole, "");
  session_.close("done");
  return results_;
}

StepDecision Verification::decide(const BodyDone& done) {
  headGradients_ = copyGradients(stage_.head());
  tailGradients_ = copyGradients(stage_.tail());
  norm_ = gradientNorm(done.step, stage_.headReport(), done.report, stage_.tailReport());
  return decisionOf(done.step, norm_);
}

StepDecision Verification::decisionOf(std::uint64_t step, double norm) const {
  const LearningRateOptions rates = learningRateOptions(run_.settings, *run_.data.train);
  return decideStep(step, learningRate(rates, step), norm, run_.settings.clipNorm);
}

TensorView Verification::view(const Batch& batch) const { return viewOf(batch, *run_.data.train); }

void Verification::trainStep(std::uint64_t step, const Batch& batch) {
  const std::uint32_t count = microBatchCount(batch.samples(), run_.settings.microBatches);
  stage_.beginBatch(view(batch), batch.labels);
  session_.runBatch({Phase::train, step, 0, count, batch.samples()});
  whole_.runBatch(Phase::train, step, run_.settings.microBatches, view(batch), batch.labels);
  compareLosses(fmt::format(" in step {}", step));
  compareGradients(step);
  // Each model computes its own norm, and the two must agree.
  const double norm = std::sqrt(whole_.part().gradientReport().squareSum);
  results_["gradient norm"].add(norm_, norm, fmt::format("step {}", step));
  whole_.update(decisionOf(step, norm));
}

void Verification::evaluate() {
  Loader::Options options;
  options.batch = run_.settings.evalBatch;
  Loader loader(run_.data.test, session_.pool(), options);
  const auto batch = loader.next();
  if (!batch) return;
  const std::uint32_t count = microBatchCount(batch->samples(), run_.settings.microBatches);
  stage_.beginBatch(view(*batch), batch->labels);
  session_.runBatch({Phase::eval, 1, 0, count, batch->samples()});
  whole_.runBatch(Phase::eval, 1, run_.settings.microBatches, view(*batch), batch->labels);
  compareLosses(" in evaluation");
}

void Verification::compareLosses(const std::string& when) {
  const auto& split = stage_.losses();
  const auto& whole = whole_.losses();
  for (std::size_t i = 0; i < whole.size(); ++i) {
    results_["losses"].add(split.at(i), whole[i], fmt::format("micro-batch {}{}", i, when));
  }
}

void Verification::compareGradients(std::uint64_t step) {
  const std::string when = fmt::format(" in step {}", step);
  const std::vector<NamedTensor> whole = gradientsOf(whole_.part());
  const Blob& body = *session_.engine().blob();
  const std::vector<NamedTensor> middle = fromSafetensors(body.bytes, "grads/body");
  checkComplete(results_["gradients/body"],
                {headGradients_.size(), middle.size(), tailGradients_.size()}, whole.size(),
                "gradients");
  compare(results_["gradients/head"], headGradients_, whole, when);
  compare(results_["gradients/body"], middle, whole, when);
  compare(results_["gradients/tail"], tailGradients_, whole, when);
}

void print(const Comparisons& results, const PreparedRun& run) {
  for (const auto& [name, result] : results) {
    std::cout << fmt::format("{:<15} {:>10} values  ", name, result.values)
              << (result.equal ? "equal to the bit"
                               : fmt::format("differ by {:.2g} of their norm, most by {:.3g}: {}",
                                             result.relativeDifference(), result.largestDifference,
                                             result.where))
              << "\n";
  }
  std::cout << fmt::format("{}, {} micro-batches, schedule {}, {} thread{} a side; files in {}\n",
                           run.settings.model, run.settings.microBatches, run.settings.schedule,
                           run.threads, run.threads == 1 ? "" : "s", run.folder);
}

}  // namespace

int verifyCommand(const VerifyOptions& options) {
  startLog("cleave-client",
           options.run.common.logLevel == "info" ? "warn" : options.run.common.logLevel);
  PreparedRun run = prepareRun(options.run, Purpose::verification);
  setComputeThreads(run.threads);
  Verification verification(run, options.steps, options.tolerance);
  const Comparisons results = [&] {
    try {
      return verification.perform();
    } catch (const std::exception&) {
      verification.end();
      throw;
    }
  }();
  bool equal = true;
  bool passed = true;
  nlohmann::json json;
  for (const auto& [name, result] : results) {
    // A comparison without values proves nothing.
    equal = equal && result.equal && result.values > 0;
    const bool agrees =
        options.tolerance == 0 ? result.equal : result.relativeDifference() <= options.tolerance;
    passed = passed && agrees && result.values > 0;
    json["compared"][name] = {{"values", result.values},
                              {"equal", result.equal},
                              {"largest_difference", result.largestDifference},
                              {"relative_difference", result.relativeDifference()},
                              {"where", result.where}};
  }
  json["equal"] = equal;
  json["passed"] = passed;
  json["tolerance"] = options.tolerance;
  json["folder"] = run.folder;
  if (options.run.json) {
    std::cout << json.dump(2) << std::endl;
  } else {
    print(results, run);
    std::cout << (equal    ? "split and whole are equal to the bit"
                  : passed ? fmt::format("split and whole agree within {:g}", options.tolerance)
                           : "split and whole DIFFER")
              << std::endl;
  }
  return passed ? 0 : 1;
}

}  // namespace cleave
