// cleave-client verify: runs some steps through a server, and the same steps with the whole model
// in this process. It compares losses, gradients and weights. Any difference in bits is an error,
// unless --tolerance allows it.

#include <ATen/core/Tensor.h>
#include <spdlog/fmt/fmt.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <deque>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "client/commands/commands.h"
#include "client/data/samples/loader.h"
#include "client/evaluate/comparison.h"
#include "client/run/prepare.h"
#include "client/train/trainer.h"
#include "common/core/log.h"
#include "common/core/units.h"
#include "common/device/torch_errors.h"

namespace cleave {
namespace {

struct VerifyOptions {
  RunOptions run;
  std::uint64_t steps = 3;
  double tolerance = 0;  // maximum relative difference; 0 requires bit-identical results
};

using Comparisons = std::map<std::string, Comparison>;

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

class Verification {
 public:
  Verification(PreparedRun& prepared, std::uint64_t steps, double tolerance)
      : prepared_(prepared),
        steps_(steps),
        tolerance_(tolerance),
        run_(prepared),
        whole_(prepared.plan.stage, *prepared.device),
        decider_(prepared.settings, *prepared.data.train),
        wholeDecider_(prepared.settings, *prepared.data.train) {}

  Comparisons perform();
  // Sends Bye to the server after a failure.
  void end() { run_.close("failed"); }

 private:
  StepDecision decide(const std::vector<BodyDone>& bodies);
  void checkServer(const wire::HelloOk& ok) const;
  void trainSteps();
  void compareStep(std::uint64_t step, const Batch& batch);
  void evaluate();
  void compareGradients(std::uint64_t step);
  void compareLosses(std::uint64_t step, const std::string& when);

  const PreparedRun& prepared_;
  const std::uint64_t steps_;
  const double tolerance_;
  TrainRun run_;
  WholeStage whole_;
  StepDecider decider_, wholeDecider_;
  Comparisons results_;
  struct Gradients {
    std::vector<NamedTensor> head, tail;
    BodyTensors body;
    double norm = 0;
  };
  std::map<std::uint64_t, Gradients> gradients_;  // of the split model, by step
};

Comparisons Verification::perform() {
  run_.connect();
  for (std::size_t b = 0; b < prepared_.bodies.size(); ++b) checkServer(run_.answer(b));
  TrainRun::Options options;
  options.fetchGradients = true;
  run_.start([this](const std::vector<BodyDone>& bodies) { return decide(bodies); }, options);
  whole_.importWeights(initialWeights(prepared_));
  run_.loadWeights();
  trainSteps();
  evaluate();

  const std::vector<NamedTensor> whole = weightsOf(whole_.evaluatedSet());
  const std::vector<NamedTensor> head = weightsOf(run_.stage().evaluatedHead());
  const BodyTensors middle =
      tensorsOf(run_.session().fetch(kWeightsBody), prepared_, "weights/body");
  const std::vector<NamedTensor> tail = weightsOf(run_.stage().evaluatedTail());
  checkComplete(results_["weights/body"], {head.size(), middle.all.size(), tail.size()},
                whole.size(), "weights");
  compare(results_["weights/head"], head, whole, "");
  compare(results_["weights/body"], middle.all, whole, "");
  compare(results_["weights/body"], middle.replicas, whole, "");
  compare(results_["weights/tail"], tail, whole, "");
  run_.close("done");
  return results_;
}

// Throws unless the server can compute the same bits as this process and lets the client fetch its
// weights.
void Verification::checkServer(const wire::HelloOk& ok) const {
  if (tolerance_ == 0 && prepared_.settings.deviceBits != "exact") {
    throw UsageError("bits-differ",
                     "device_bits is fast, so a GPU gives other bits in every computation",
                     "--set device_bits=exact, or allow a difference: --tolerance 1e-3")
        .about("device_bits");
  }
  const auto isCpu = [](const std::string& device) { return device == "cpu"; };
  if (tolerance_ == 0 && isCpu(prepared_.settings.device) != isCpu(ok.device())) {
    throw UsageError(
        "bits-differ",
        fmt::format("head and tail compute on {}, the body on {}, and CPU and GPU "
                    "round differently",
                    prepared_.settings.device, ok.device()),
        fmt::format("--set device={}, or allow a difference: --tolerance 1e-3", ok.device()));
  }
  if (tolerance_ == 0 && static_cast<int>(ok.threads()) != prepared_.threads) {
    throw RunError("thread-mismatch",
                   fmt::format("the server computes with {} threads, this client with {}: results "
                               "are bit-identical only with the same number",
                               ok.threads(), prepared_.threads),
                   fmt::format("--set threads.client={}", ok.threads()));
  }
  if (!ok.weights_allowed()) {
    throw RunError("fetch-not-allowed",
                   "this server does not allow clients to fetch the body's weights",
                   "set weights.fetch: true on the server, or omit --server");
  }
}

void Verification::trainSteps() {
  Loader::Options options;
  options.batch = prepared_.settings.batch;
  options.order = shuffledOrder(prepared_.data.train->size(), prepared_.settings.seed, 1);
  Loader loader(prepared_.data.train, run_.session().pool(), options);
  // With staleness, the split model's steps overlap; the whole model computes one after the other.
  std::deque<Batch> open;
  std::uint64_t begun = 0, ended = 0;
  bool isLoaded = false;  // all batches have been taken
  for (;;) {
    while (!isLoaded && begun < steps_ && run_.mayBeginStep(begun + 1)) {
      auto batch = loader.next();
      isLoaded = !batch;
      if (isLoaded) break;
      run_.stage().setLossScale(decider_.lossScale());
      run_.beginBatch(Phase::train, ++begun, open.emplace_back(std::move(*batch)));
    }
    if (open.empty()) break;
    run_.finishBatch();
    compareStep(++ended, open.front());
    open.pop_front();
  }
}

StepDecision Verification::decide(const std::vector<BodyDone>& bodies) {
  const GradientReport head = run_.stage().headReport();
  const std::uint64_t step = bodies.front().step;
  Gradients& gradients = gradients_[step];
  gradients.head = copyGradients(run_.stage().head());
  gradients.tail = copyGradients(run_.stage().tail());
  gradients.body = tensorsOf(run_.session().gradients(), prepared_, "grads/body");
  const StepDecision decision =
      decider_.decide(step, head, reportsOf(bodies), run_.stage().tailReport());
  gradients.norm = decider_.norm();
  return decision;
}

// Call when the split model's step has ended.
void Verification::compareStep(std::uint64_t step, const Batch& batch) {
  whole_.setLossScale(wholeDecider_.lossScale());
  withTorchErrors(
      [&] { whole_.runBatch(Phase::train, step, prepared_.settings.microBatches, viewOf(batch)); });
  compareLosses(step, fmt::format(" in step {}", step));
  // Each model computes its own norm, and the two must agree.
  const StepDecision decision = wholeDecider_.decide(step, whole_.report(), {}, {});
  compareGradients(step);
  results_["gradient norm"].add(gradients_.at(step).norm, wholeDecider_.norm(),
                                fmt::format("step {}", step));
  gradients_.erase(step);
  whole_.update(decision);
}

void Verification::evaluate() {
  Loader::Options options;
  options.batch = prepared_.settings.evalBatch;
  Loader loader(prepared_.data.test, run_.session().pool(), options);
  const auto batch = loader.next();
  if (!batch) return;
  run_.runBatch(Phase::eval, 1, *batch);
  whole_.runBatch(Phase::eval, 1, prepared_.settings.microBatches, viewOf(*batch));
  compareLosses(1, " in evaluation");
}

void Verification::compareLosses(std::uint64_t step, const std::string& when) {
  const auto& split = run_.stage().losses(step);
  const auto& whole = whole_.losses();
  for (std::size_t i = 0; i < whole.size(); ++i) {
    results_["losses"].add(split.at(i), whole[i], fmt::format("micro-batch {}{}", i, when));
  }
}

void Verification::compareGradients(std::uint64_t step) {
  const std::string when = fmt::format(" in step {}", step);
  const std::vector<NamedTensor> whole = gradientsOf(whole_.set());
  const Gradients& split = gradients_.at(step);
  checkComplete(results_["gradients/body"],
                {split.head.size(), split.body.all.size(), split.tail.size()}, whole.size(),
                "gradients");
  compare(results_["gradients/head"], split.head, whole, when);
  compare(results_["gradients/body"], split.body.all, whole, when);
  compare(results_["gradients/body"], split.body.replicas, whole, when);
  compare(results_["gradients/tail"], split.tail, whole, when);
}

// Whether values were compared. A part may have no values to compare: for example, a body without
// trainable parameters has no gradients.
bool hasItsValues(const std::string& name, const Comparison& result, const RunPlan& plan) {
  if (result.values > 0) return true;
  const int cut0 = plan.stage.cuts.cut0, cut1 = plan.stage.cuts.cut1;
  const std::map<std::string, std::pair<int, int>> parts = {
      {"head", {0, cut0}},
      {"body", {cut0, cut1}},
      {"tail", {cut1, static_cast<int>(plan.blocks.size())}}};
  const auto part = parts.find(name.substr(name.find('/') + 1));
  if (part == parts.end()) return false;
  const auto [first, last] = part->second;
  return (name.starts_with("gradients/") ? trainedCount(plan.blocks, first, last)
                                         : parameterCount(plan.blocks, first, last)) == 0;
}

void print(const Comparisons& results, const PreparedRun& run) {
  for (const auto& [name, result] : results) {
    std::cout << fmt::format("{:<15} {:>10} values  ", name, result.values)
              << (result.equal
                      ? "bit-identical"
                      : fmt::format("relative difference {:.2g}, largest difference {:.3g} in {}",
                                    result.relativeDifference(), result.largestDifference,
                                    result.where))
              << "\n";
  }
  std::cout << fmt::format(
      "{}, {}, {} micro-batches, schedule {}, {} per side; files in {}\n", run.settings.model.name,
      countText(run.bodies.size(), "server"), run.settings.microBatches, run.settings.schedule,
      countText(static_cast<std::uint64_t>(run.threads), "thread"), run.folder);
}

int verifyCommand(const VerifyOptions& options) {
  startLog("cleave-client",
           options.run.common.logLevel == "info" ? "warn" : options.run.common.logLevel);
  PreparedRun run = prepareRun(options.run, Purpose::verification);
  logWarnings(run, *processLog());
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
    const bool hasValues = hasItsValues(name, result, run.plan);
    equal = equal && result.equal && hasValues;
    const bool agrees =
        options.tolerance == 0 ? result.equal : result.relativeDifference() <= options.tolerance;
    passed = passed && agrees && hasValues;
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
    std::cout << (equal    ? "split and whole are bit-identical"
                  : passed ? fmt::format("split and whole agree within {:g}", options.tolerance)
                           : "split and whole DIFFER")
              << std::endl;
  }
  return passed ? 0 : 1;
}

}  // namespace

void addVerifyCommand(CLI::App& app, std::function<int()>& command) {
  static VerifyOptions options;
  CLI::App* verify = app.add_subcommand(
      "verify", "Checks that the split model trains exactly like the whole model in one process");
  addRunOptions(*verify, options.run);
  verify->add_option("--steps", options.steps, "Steps to compare")
      ->default_str("3")
      ->check(CLI::Range(std::uint64_t{1}, std::uint64_t{1000000}));
  verify
      ->add_option(
          "--tolerance", options.tolerance,
          "Maximum difference, |split - whole| / |whole|, per kind of result; 0 requires "
          "bit-identical results, which needs CPUs on both sides, or GPUs of the same model")
      ->default_str("0")
      ->check(CLI::Range(0.0, 1.0));
  verify->footer(
      "Example:\n  cleave-client verify --config configs/fashion_mnist.yaml "
      "--set train.micro_batches=7\n\nThe run fails if the split model and the "
      "whole model differ by more than --tolerance. "
      "Exit codes: 0 done, 1 failed run, 2 usage error or unsafe configuration.");
  verify->callback([&] { command = [&] { return verifyCommand(options); }; });
}

}  // namespace cleave
