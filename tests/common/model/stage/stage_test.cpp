// Cleave's central property: the split model gives bit-identical results to the whole model for
// every cut, every number of micro-batches, and every order of forwards and backwards.
#include <ATen/ops/conv2d.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <numeric>
#include <optional>

#include "common/core/random.h"
#include "common/graph/cuts.h"
#include "common/model/blocks.h"
#include "common/model/graph/graph_blocks.h"
#include "common/model/graph/graph_file.h"
#include "common/model/split_backward.h"
#include "common/model/stage/labeled_batch.h"
#include "common/model/stage/stage.h"
#include "common/model/torch_tensor.h"
#include "common/resources/buffer.h"
#include "tests/support/error_code.h"
#include "tests/support/files/beside_program.h"

namespace cleave::test {
namespace {

constexpr std::uint64_t kSeed = 11;

StageOptions cnnOptions() {
  StageOptions options;
  options.model = {"small_cnn", {{"width", "4"}, {"dropout", "0.25"}}, {2, 17, 16}, 6};
  options.optimizer = {"sgd", {{"momentum", 0.9}, {"weight_decay", 5e-3}, {"nesterov", 1}}};
  options.seed = kSeed;
  const auto [cut0, cut1] = findModel("small_cnn").defaultCuts(options.model);
  options.cuts = {cut0, cut1};
  return options;
}

StageOptions mlpOptions() {
  StageOptions options = cnnOptions();
  options.model = {"mlp", {{"width", "13"}, {"depth", "2"}, {"dropout", "0.25"}}, {3, 7}, 6};
  const auto [cut0, cut1] = findModel("mlp").defaultCuts(options.model);
  options.cuts = {cut0, cut1};
  return options;
}

std::vector<BlockSpec> blocksOf(const StageOptions& options) {
  return findModel(options.model.name).blocks(options.model);
}

struct Batch {
  std::vector<float> values;
  std::vector<std::int64_t> labels;
  TensorSpec spec;

  BatchView view() const {
    const TensorSpec target{DType::i64, {std::ssize(labels)}, MemoryOrder::contiguous};
    return {{{reinterpret_cast<const std::byte*>(values.data()), spec},
             {reinterpret_cast<const std::byte*>(labels.data()), target}}};
  }
};

Batch makeBatch(const ModelSpec& model, std::uint32_t samples, std::uint64_t number) {
  Batch batch;
  batch.spec.shape = {samples};
  batch.spec.shape.insert(batch.spec.shape.end(), model.sampleShape.begin(),
                          model.sampleShape.end());
  batch.values.resize(batch.spec.elements());
  fillNormal(randomKey(kSeed, "batch", {number}), batch.values);
  for (std::uint32_t n = 0; n < samples; ++n) {
    const std::uint64_t bits = randomBits(randomKey(kSeed, "label", {number}), n);
    batch.labels.push_back(
        static_cast<std::int64_t>(bits % static_cast<std::uint64_t>(model.classes)));
  }
  return batch;
}

// Simulates the wire: copies the bytes to different memory.
Payload copied(const Payload& payload) {
  static BufferPool pool;
  const TensorView& view = payload.view();
  auto buffer = std::make_shared<Buffer>(pool.acquire(view.spec.bytes()));
  std::memcpy(buffer->data(), view.data, buffer->size());
  const std::byte* data = buffer->data();
  return Payload({data, view.spec}, std::move(buffer));
}

TensorBundle copied(const TensorBundle& bundle) {
  TensorBundle copies;
  for (const Payload& payload : bundle) copies.push_back(copied(payload));
  return copies;
}

// The order of a step's actions: action k of micro-batch i runs at turn(k, i).
enum class Order { oneByOne, allForwardsFirst, alternating };
constexpr Order kOrders[] = {Order::oneByOne, Order::allForwardsFirst, Order::alternating};

// The options of body k. options.cuts enclose all bodies; options.innerCuts separate them.
StageOptions bodyOptions(const StageOptions& options, int k) {
  std::vector<int> positions = options.innerCuts;
  positions.insert(positions.begin(), options.cuts.cut0);
  positions.push_back(options.cuts.cut1);
  StageOptions own = options;
  own.cuts = {positions.at(static_cast<std::size_t>(k)),
              positions.at(static_cast<std::size_t>(k) + 1), k, k + 1};
  own.innerCuts.clear();
  std::erase_if(own.inserts, [&](const InsertSpec& insert) {
    const auto cut = static_cast<int>(insert.cut);
    return cut < own.cuts.number0 || cut > own.cuts.number1;
  });
  own.headIsFrozen =
      options.headIsFrozen && trainedCount(blocksFor(options), 0, own.cuts.cut0) == 0;
  return own;
}

StageOptions clientOptions(StageOptions options) {
  options.cuts.number1 = static_cast<int>(options.innerCuts.size()) + 1;
  return options;
}

struct Split {
  explicit Split(const StageOptions& options)
      : client(clientOptions(options)),
        body(bodyOptions(options, 0)),
        defers(options.splitsBackward) {
    for (std::size_t k = 1; k <= options.innerCuts.size(); ++k) {
      others.push_back(std::make_unique<BodyStage>(bodyOptions(options, static_cast<int>(k))));
    }
  }

  void runBatch(Phase phase, std::uint64_t step, std::uint32_t microBatches, const Batch& batch,
                Order order) {
    client.beginBatch(batch.view(), step);
    const auto samples = static_cast<std::uint32_t>(batch.labels.size());
    const Division division = Division::of(samples, microBatches);
    const std::uint32_t count = division.count;
    const auto forward = [&](std::uint32_t i) {
      const MicroBatch at{phase, step, i, division};
      TensorBundle activations1 = body.forward(at, copied(client.headForward(at)));
      for (const auto& other : others) activations1 = other->forward(at, copied(activations1));
      TensorBundle gradients1 = client.tailStep(at, copied(activations1));
      if (phase == Phase::train) gradients[i] = std::move(gradients1);
    };
    const auto backward = [&](std::uint32_t i) {
      if (phase != Phase::train) return;
      const MicroBatch at{phase, step, i, division};
      if (gradients.at(i).empty()) return;
      // Bodies without gradients at their last cut have no backward.
      TensorBundle gradients0 = std::move(gradients.at(i));
      const auto through = [&](BodyStage& stage) {
        if (!gradients0.empty()) gradients0 = stage.backward(at, copied(gradients0));
        if (defers && !gradients0.empty()) later.emplace_back(&stage, at);
      };
      for (auto other = others.rbegin(); other != others.rend(); ++other) through(**other);
      through(body);
      if (!gradients0.empty()) client.headBackward(at, copied(gradients0));
      gradients.erase(i);
    };
    // Backwards follow forwards after zero, all, or two micro-batches.
    const std::uint32_t trail =
        order == Order::oneByOne ? 0 : (order == Order::alternating ? 2 : count);
    for (std::uint32_t turn = 0; turn < count + trail; ++turn) {
      if (turn < count) forward(turn);
      if (turn >= trail && turn - trail < count) backward(turn - trail);
    }
    for (const auto& [stage, at] : std::exchange(later, {})) stage->backwardWeights(at);
  }

  // A body gets the bases of its own decoder only.
  void update(const StepDecision& decision) {
    client.update(decision);
    const auto ofBody = [&](std::size_t number) {
      StepDecision own = decision;
      std::erase_if(own.bases, [&](const InsertBasis& basis) { return basis.cut != number; });
      return own;
    };
    body.update(ofBody(0));
    for (std::size_t k = 0; k < others.size(); ++k) others[k]->update(ofBody(k + 1));
  }

  GradientReport report() {
    GradientReport sum;
    const auto add = [&](const GradientReport& part) {
      sum.squareSum += part.squareSum;
      sum.bases.insert(sum.bases.end(), part.bases.begin(), part.bases.end());
    };
    add(client.headReport());
    add(body.report());
    for (const auto& other : others) add(other->report());
    add(client.tailReport());
    return sum;
  }
  std::vector<NamedTensor> gradientTensors() {
    auto ofBodies = fromSafetensors(body.exportGradients(), "gradients");
    for (const auto& other : others) {
      ofBodies = joined(ofBodies, fromSafetensors(other->exportGradients(), "gradients"), {});
    }
    return joined(gradientsOf(client.head()), ofBodies, gradientsOf(client.tail()));
  }
  std::vector<NamedTensor> weights() {
    auto ofBodies = fromSafetensors(body.exportWeights(), "weights");
    for (const auto& other : others) {
      ofBodies = joined(ofBodies, fromSafetensors(other->exportWeights(), "weights"), {});
    }
    return joined(weightsOf(client.evaluatedHead()), ofBodies, weightsOf(client.evaluatedTail()));
  }

  static std::vector<NamedTensor> joined(std::vector<NamedTensor> head,
                                         const std::vector<NamedTensor>& middle,
                                         const std::vector<NamedTensor>& tail) {
    head.insert(head.end(), middle.begin(), middle.end());
    head.insert(head.end(), tail.begin(), tail.end());
    return head;
  }

  ClientStage client;
  BodyStage body;
  std::vector<std::unique_ptr<BodyStage>> others;  // the bodies after the first one
  bool defers;
  std::map<std::uint32_t, TensorBundle> gradients;
  std::vector<std::pair<BodyStage*, MicroBatch>> later;  // backwardWeights() to come
};

std::map<std::string, at::Tensor> byName(const std::vector<NamedTensor>& tensors) {
  std::map<std::string, at::Tensor> map;
  for (const NamedTensor& named : tensors) map[named.name] = named.tensor;
  return map;
}

// Returns the first difference; empty if there is none.
std::string difference(const std::vector<NamedTensor>& left,
                       const std::vector<NamedTensor>& right) {
  const auto a = byName(left), b = byName(right);
  if (a.size() != b.size()) return std::to_string(a.size()) + " and " + std::to_string(b.size());
  for (const auto& [name, tensor] : a) {
    const auto found = b.find(name);
    if (found == b.end()) return name + " is missing";
    const at::Tensor x = tensor.contiguous(), y = found->second.contiguous();
    if (x.sizes() != y.sizes() || x.scalar_type() != y.scalar_type())
      return name + " has another form";
    if (std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) != 0) {
      return name + " differs by up to " + std::to_string(x.sub(y).abs().max().item<double>());
    }
  }
  return "";
}

std::string difference(const std::vector<float>& left, const std::vector<float>& right) {
  if (left.size() != right.size()) return "number of losses";
  if (std::memcmp(left.data(), right.data(), left.size() * sizeof(float)) != 0) return "losses";
  return "";
}

// The third step is skipped, and the fourth step is clipped.
StepDecision decisionOf(std::uint64_t step) {
  StepDecision decision;
  decision.step = step;
  decision.apply = step != 3;
  decision.learningRates = {0.1 / static_cast<double>(step)};
  decision.clipFactor = step == 4 ? 0.3 : 1;
  return decision;
}

// Trains both models for four steps with an evaluation in between. Returns the first difference.
std::string splitAgainstWhole(const StageOptions& options, std::uint32_t samples,
                              std::uint32_t microBatches, Order order) {
  Split split(options);
  WholeStage whole(options);
  for (std::uint64_t step = 1; step <= 4; ++step) {
    const std::string where = " at step " + std::to_string(step);
    const Batch batch = makeBatch(options.model, samples, step);
    split.runBatch(Phase::train, step, microBatches, batch, order);
    whole.runBatch(Phase::train, step, microBatches, batch.view());
    if (auto d = difference(split.client.losses(), whole.losses()); !d.empty()) return d + where;
    const auto gradients = gradientsOf(whole.set());
    const auto trained =
        std::count_if(whole.set().parameters().begin(), whole.set().parameters().end(),
                      [](const NamedTensor& each) { return each.tensor.requires_grad(); });
    if (std::ssize(gradients) != trained) return "gradients are missing";
    if (auto d = difference(split.gradientTensors(), gradients); !d.empty()) {
      return "gradient " + d + where;
    }
    const GradientReport report = split.report(), ofWhole = whole.report();
    if (report.squareSum != ofWhole.squareSum) return "square sum" + where;
    if (report.bases != ofWhole.bases) return "basis of an insert" + where;
    StepDecision decision = decisionOf(step);
    decision.bases = report.bases;
    split.update(decision);
    whole.update(decision);
    if (step == 2) {
      split.runBatch(Phase::eval, 1, microBatches, batch, order);
      whole.runBatch(Phase::eval, 1, microBatches, batch.view());
      if (auto d = difference(split.client.losses(), whole.losses()); !d.empty())
        return d + " in eval";
    }
    if (auto d = difference(split.weights(), weightsOf(whole.evaluatedSet())); !d.empty()) {
      return "weight " + d + where;
    }
  }
  return "";
}

TEST_CASE("split equals whole for every cut") {
  setComputeThreads(1);
  for (StageOptions options : {mlpOptions(), cnnOptions()}) {
    const int blocks = static_cast<int>(blocksOf(options).size());
    int turn = 0;
    for (options.cuts.cut0 = 1; options.cuts.cut0 < blocks - 1; ++options.cuts.cut0) {
      for (options.cuts.cut1 = options.cuts.cut0 + 1; options.cuts.cut1 < blocks;
           ++options.cuts.cut1) {
        const Order order = kOrders[turn++ % 3];
        INFO(options.model.name << " cut at " << options.cuts.cut0 << " and " << options.cuts.cut1
                                << ", order " << static_cast<int>(order));
        CHECK(splitAgainstWhole(options, 13, 4, order) == "");
      }
    }
  }
}

TEST_CASE("split equals whole for any number of micro-batches and any order of actions") {
  for (const StageOptions& options : {mlpOptions(), cnnOptions()}) {
    for (const std::uint32_t samples : {10, 13}) {
      for (const std::uint32_t microBatches : {1, 2, 4, 7, 8}) {
        for (const Order order : kOrders) {
          INFO(options.model.name << ", " << samples << " samples, " << microBatches
                                  << " micro-batches, order " << static_cast<int>(order));
          CHECK(splitAgainstWhole(options, samples, microBatches, order) == "");
        }
      }
    }
  }
}

// In images of 1 x 1, the strides of a tensor are ambiguous, and kernels depend on them.
TEST_CASE("split equals whole at cuts with images of 1 x 1") {
  setComputeThreads(1);
  StageOptions options = cnnOptions();
  options.model = {"mobilenet_v2", {{"width", "0.25"}}, {3, 32, 32}, 6};
  for (const bool splitsBackward : {false, true}) {
    options.splitsBackward = splitsBackward;
    for (int cut1 = 16; cut1 <= 20; ++cut1) {
      options.cuts = {3, cut1};
      CAPTURE(cut1, splitsBackward);
      CHECK(splitAgainstWhole(options, 8, 2, Order::alternating) == "");
    }
  }
}

TEST_CASE("split equals whole with two threads, and with images of a realistic size") {
  setComputeThreads(2);
  CHECK(splitAgainstWhole(mlpOptions(), 13, 4, Order::alternating) == "");
  StageOptions options = cnnOptions();
  options.model = {"small_cnn", {}, {1, 28, 28}, 10};
  CHECK(splitAgainstWhole(options, 64, 4, Order::alternating) == "");
  setComputeThreads(1);
}

TEST_CASE("split equals whole if the gradients of the body's weights are computed last") {
  for (StageOptions options : {mlpOptions(), cnnOptions()}) {
    options.splitsBackward = true;
    for (const Order order : kOrders) {
      for (const Precision precision : {Precision::fp32, Precision::bf16}) {
        options.bodyPrecision = precision;
        for (const bool recompute : {false, true}) {
          options.recompute = recompute;
          CAPTURE(options.model.name, order, precision, recompute);
          CHECK(splitAgainstWhole(options, 13, 4, order) == "");
        }
      }
    }
  }
  StageOptions options = cnnOptions();
  options.splitsBackward = true;
  options.freeze = {"conv2.*"};
  CHECK(splitAgainstWhole(options, 13, 4, Order::alternating) == "");
}

// The first kernel does not divide the images of 17 x 17 and of 8 x 8 that it is used for.
const InsertSpec kConv0{0, "conv", {{"channels", 3}, {"kernel", 3}}};
const InsertSpec kConv1{1, "conv", {{"channels", 5}, {"kernel", 2}}};
const InsertSpec kLinear0{0, "linear", {{"rank", 3}}};
const InsertSpec kLinear1{1, "linear", {{"rank", 4}}};
const InsertSpec kResidual0{0, "residual", {{"rank", 2}}};
const InsertSpec kResidual1{1, "residual", {{"rank", 4}}};

// Their ranks are 4, 2, 1, … and 4, 4, 4, 2, …: the second one changes after the step that is
// skipped.
const std::vector<InsertSpec> kDecaying = {
    {0, "decaying", {{"rank", 4}, {"every_steps", 1}, {"decay", 0.5}, {"l1", 0.01}}},
    {1, "decaying", {{"rank", 4}, {"every_steps", 3}, {"decay", 0.5}, {"min_rank", 2}}}};

InsertSpec pca(std::uint32_t cut, double channels, double kernel, double everySteps) {
  return {
      cut,
      "pca",
      {{"channels", channels}, {"kernel", kernel}, {"every_steps", everySteps}, {"decay", 0.5}}};
}

// Frozen, with corrections.
void correctInserts(StageOptions& options, std::uint32_t lastCut = 1) {
  options.inserts = {{0, "linear", {{"rank", 3}, {"correction", 0.3}}},
                     {lastCut, "residual", {{"rank", 4}, {"correction", 0.2}}}};
  options.freeze = {"insert.*"};
}

TEST_CASE("split equals whole with learned inserts") {
  setComputeThreads(1);
  StageOptions mobile = cnnOptions();
  mobile.model = {"mobilenet_v2", {{"width", "0.25"}}, {3, 34, 34}, 6};
  mobile.cuts = {2, 18};
  using Inserts = std::vector<InsertSpec>;
  const Inserts ofImages[] = {{kConv0}, {kConv1}, {kConv1, kConv0}, {kLinear0, kResidual1}};
  const Inserts ofFeatures[] = {{kLinear0}, {kLinear1}, {kResidual0, kLinear1}, {kResidual1}};
  for (StageOptions options : {mlpOptions(), mobile}) {
    for (const Inserts& inserts : options.model.name == "mlp" ? ofFeatures : ofImages) {
      options.inserts = inserts;
      for (const bool splitsBackward : {false, true}) {
        options.splitsBackward = splitsBackward;
        for (const Order order : {Order::oneByOne, Order::alternating}) {
          CAPTURE(options.model.name, inserts.size(), inserts.front().kind, inserts.front().cut,
                  splitsBackward, order);
          CHECK(splitAgainstWhole(options, 8, 3, order) == "");
        }
      }
    }
  }
}

TEST_CASE("split equals whole with two inserts at a cut") {
  setComputeThreads(1);
  const InsertSpec outer0{0, "linear", {{"rank", 2}}};
  const InsertSpec outer1{1, "conv", {{"channels", 3}, {"kernel", 2}}};
  StageOptions images = cnnOptions();
  images.cuts = {4, 8};  // images cross both
  images.inserts = {kConv0, kLinear1, outer0, outer1};
  StageOptions features = mlpOptions();
  features.inserts = {kLinear0, kResidual1, outer0, {1, "linear", {{"rank", 2}}}};
  StageOptions tracked = images;  // around one that is trained
  tracked.inserts = {kConv0, kLinear1, pca(0, 2, 1, 1), pca(1, 3, 2, 2)};
  StageOptions corrected = images;
  correctInserts(corrected);
  corrected.inserts.push_back({0, "linear", {{"rank", 2}, {"correction", 0.2}}});
  corrected.inserts.push_back({1, "conv", {{"channels", 3}, {"correction", 0.1}}});
  StageOptions several = cnnOptions();
  several.cuts = {1, 8};
  several.innerCuts = {4};
  several.inserts = {kConv1, {1, "linear", {{"rank", 2}}}, kLinear0, pca(0, 2, 1, 1)};
  for (StageOptions options : {images, features, tracked, corrected, several}) {
    for (const bool splitsBackward : {false, true}) {
      options.splitsBackward = options.recompute = splitsBackward;
      options.averageDecay = splitsBackward ? 0.9 : 0;
      CAPTURE(options.model.name, options.inserts.back().kind, options.innerCuts.size(),
              splitsBackward);
      CHECK(splitAgainstWhole(options, 13, 4, Order::alternating) == "");
    }
  }
}

TEST_CASE("split equals whole with inserts between several bodies") {
  StageOptions options = cnnOptions();
  options.cuts = {1, 8};
  options.innerCuts = {4};
  const InsertSpec last{2, "residual", {{"rank", 5}}};
  for (const bool splitsBackward : {false, true}) {
    options.splitsBackward = splitsBackward;
    for (const std::vector<InsertSpec>& inserts :
         {std::vector{kConv1}, std::vector{kLinear0, kConv1, last}}) {
      options.inserts = inserts;
      CHECK(splitAgainstWhole(options, 13, 4, Order::alternating) == "");
    }
  }
}

TEST_CASE("split equals whole with inserts in every precision, averages, and recomputed forwards") {
  StageOptions options = mlpOptions();
  options.inserts = {kLinear0, kResidual1};
  for (const Precision body : {Precision::fp32, Precision::bf16, Precision::fp16}) {
    options.clientPrecision = options.bodyPrecision = body;
    options.recompute = !options.recompute;
    options.averageDecay = 0.9 - options.averageDecay;
    CAPTURE(precisionName(body));
    CHECK(splitAgainstWhole(options, 13, 4, Order::alternating) == "");
  }
}

TEST_CASE("split equals whole with inserts whose rank shrinks") {
  setComputeThreads(1);
  for (StageOptions options : {mlpOptions(), cnnOptions()}) {
    options.inserts = kDecaying;
    for (const Precision precision : {Precision::fp32, Precision::fp16}) {
      options.clientPrecision = options.bodyPrecision = precision;
      for (const bool splitsBackward : {false, true}) {
        options.splitsBackward = options.recompute = splitsBackward;
        options.averageDecay = splitsBackward ? 0.9 : 0;
        CAPTURE(options.model.name, precisionName(precision), splitsBackward);
        CHECK(splitAgainstWhole(options, 13, 4, Order::alternating) == "");
      }
    }
  }
}

TEST_CASE("split equals whole with inserts that track their basis") {
  setComputeThreads(1);
  for (StageOptions options : {mlpOptions(), cnnOptions()}) {
    const double kernel = options.model.name == "mlp" ? 1 : 3;
    options.inserts = {pca(0, 3, kernel, 1), pca(1, 4, 1, 2)};
    for (const Order order : kOrders) {
      for (const bool splitsBackward : {false, true}) {
        options.splitsBackward = options.recompute = splitsBackward;
        options.averageDecay = splitsBackward ? 0.9 : 0;
        CAPTURE(options.model.name, order, splitsBackward);
        CHECK(splitAgainstWhole(options, 13, 4, order) == "");
      }
    }
  }
  StageOptions several = cnnOptions();
  several.cuts = {1, 8};
  several.innerCuts = {4};
  several.inserts = {pca(0, 3, 1, 1), pca(1, 4, 2, 1), pca(2, 5, 1, 3)};
  several.bodyPrecision = Precision::bf16;
  CHECK(splitAgainstWhole(several, 13, 4, Order::alternating) == "");
}

// Trains up to the last step, and returns the report on it; it is not updated.
GradientReport trainWhole(WholeStage& whole, const StageOptions& options, std::uint64_t first,
                          std::uint64_t last) {
  for (std::uint64_t step = first;; ++step) {
    whole.runBatch(Phase::train, step, 2, makeBatch(options.model, 13, step).view());
    const GradientReport report = whole.report();
    if (step == last) return report;
    StepDecision decision = decisionOf(step);
    decision.bases = report.bases;
    whole.update(decision);
  }
}

TEST_CASE("a tracked basis of a peer is refused unless it fits, and changes nothing then") {
  StageOptions options = mlpOptions();
  options.inserts = {pca(0, 3, 1, 2)};
  WholeStage whole(options);
  const GradientReport report = trainWhole(whole, options, 1, 2);
  REQUIRE(report.bases.size() == 1);
  // Bases that a body does not need.
  for (const bool hasDecoder : {true, false}) {
    StageOptions other = options;
    if (!hasDecoder) other.inserts.clear();
    BodyStage body(bodyOptions(other, 0));
    StepDecision decision = decisionOf(1);
    decision.bases = report.bases;
    CHECK(errorCode([&] { body.update(decision); }) == "bad-tensor");
  }
  CHECK(report.bases.front().values.size() % (3 * sizeof(std::uint16_t)) == 0);
  std::vector<NamedTensor> before = weightsOf(whole.set());
  for (NamedTensor& each : before) each.tensor = each.tensor.clone();
  const auto refused = [&](std::uint64_t step, std::vector<InsertBasis> bases) {
    StepDecision decision = decisionOf(step);
    decision.bases = std::move(bases);
    CHECK(errorCode([&] { whole.update(decision); }) == "bad-tensor");
    CHECK(difference(weightsOf(whole.set()), before) == "");
  };
  refused(2, {});
  refused(3, report.bases);  // no step that has a new basis
  const auto changed = [&](auto change) {
    std::vector<InsertBasis> bases = report.bases;
    change(bases.front());
    return bases;
  };
  refused(2, changed([](InsertBasis& basis) { basis.cut = 1; }));
  refused(2, changed([](InsertBasis& basis) { basis.values.pop_back(); }));
  refused(2, changed([](InsertBasis& basis) { basis.values += "ab"; }));
  for (const char* value : {"\xff\x7f", "\x00\x7c", "\x00\x40"}) {  // NaN, infinity, 2
    refused(2, changed([&](InsertBasis& basis) { basis.values.replace(0, 2, value, 2); }));
  }
  // Rows that are not orthonormal.
  refused(2, changed([](InsertBasis& basis) { basis.values.assign(basis.values.size(), 0); }));
  refused(2, changed([](InsertBasis& basis) {
            const std::size_t row = basis.values.size() / 3;
            basis.values.replace(row, row, basis.values, 0, row);
          }));
  StepDecision decision = decisionOf(2);
  decision.bases = report.bases;
  whole.update(decision);
  CHECK(difference(weightsOf(whole.set()), before).find("differs") != std::string::npos);
}

TEST_CASE("split equals whole with frozen inserts that correct the gradient") {
  setComputeThreads(1);
  for (StageOptions options : {mlpOptions(), cnnOptions()}) {
    correctInserts(options);
    for (const Precision precision : {Precision::fp32, Precision::bf16}) {
      options.clientPrecision = options.bodyPrecision = precision;
      for (const bool splitsBackward : {false, true}) {
        options.splitsBackward = options.recompute = splitsBackward;
        options.averageDecay = splitsBackward ? 0.9 : 0;
        CAPTURE(options.model.name, precisionName(precision), splitsBackward);
        CHECK(splitAgainstWhole(options, 13, 4, Order::alternating) == "");
      }
    }
  }
  StageOptions several = cnnOptions();
  several.cuts = {1, 8};
  several.innerCuts = {4};
  correctInserts(several, 2);
  several.inserts.push_back({1, "conv", {{"channels", 5}, {"kernel", 2}, {"correction", 0.1}}});
  CHECK(splitAgainstWhole(several, 13, 4, Order::alternating) == "");
  // The correction changes the training.
  StageOptions corrected = cnnOptions();
  correctInserts(corrected);
  StageOptions plain = corrected;
  for (InsertSpec& insert : plain.inserts) insert.parameters["correction"] = 0;
  WholeStage with(corrected), without(plain);
  const Batch batch = makeBatch(plain.model, 13, 1);
  with.runBatch(Phase::train, 1, 4, batch.view());
  without.runBatch(Phase::train, 1, 4, batch.view());
  CHECK(with.losses() == without.losses());
  CHECK(difference(gradientsOf(with.set()), gradientsOf(without.set())).find("differs") !=
        std::string::npos);
}

TEST_CASE("inserts are trained even if all other parameters are frozen") {
  StageOptions options = mlpOptions();
  options.inserts = {kLinear0, kLinear1};
  options.freeze = {"*"};
  const auto trained = [&] {
    std::vector<std::string> names;
    const WholeStage whole(options);
    for (const NamedTensor& each : whole.set().parameters()) {
      if (each.tensor.requires_grad()) names.push_back(each.name);
    }
    return names;
  };
  CHECK(trained() == std::vector<std::string>{"insert.0.encoder.weight", "insert.0.encoder.bias",
                                              "insert.0.decoder.weight", "insert.0.decoder.bias",
                                              "insert.1.encoder.weight", "insert.1.encoder.bias",
                                              "insert.1.decoder.weight", "insert.1.decoder.bias"});
  CHECK(splitAgainstWhole(options, 13, 4, Order::alternating) == "");
  options.freeze = {"*", "insert.0.*", "!insert.0.*.bias", "insert.1.decoder*"};
  CHECK(trained() == std::vector<std::string>{"insert.0.encoder.bias", "insert.0.decoder.bias",
                                              "insert.1.encoder.weight", "insert.1.encoder.bias"});
  CHECK(splitAgainstWhole(options, 13, 4, Order::alternating) == "");
}

TEST_CASE("split equals whole with inserts in an exported model") {
  const GraphFile file(besideProgram("tiny.pt2"));
  const GraphCuts cuts(file.graph());
  StageOptions options = cnnOptions();
  options.model = {"graph", {}, {1, 8, 8}, 10};
  options.model.graphBlocks = blocksOfParts(cuts.split({cuts.find("norm"), cuts.find("pool")}));
  options.cuts = {1, 2};
  for (const std::vector<InsertSpec>& inserts :
       {std::vector{kConv0}, std::vector{kResidual0, kConv1},
        std::vector{kConv0, kConv1, kResidual0, kLinear1}}) {
    options.inserts = inserts;
    for (const bool splitsBackward : {false, true}) {
      options.splitsBackward = splitsBackward;
      CHECK(splitAgainstWhole(options, 8, 3, Order::alternating) == "");
    }
  }
  correctInserts(options);
  CHECK(splitAgainstWhole(options, 8, 3, Order::alternating) == "");
}

TEST_CASE("split equals whole for every pair of cuts of an exported model") {
  setComputeThreads(1);
  const GraphFile file(besideProgram("tiny.pt2"));
  const GraphCuts cuts(file.graph());
  StageOptions options = cnnOptions();
  options.cuts = {1, 2};
  int pairs = 0;
  for (const GraphCut& first : cuts.cuts()) {
    for (const GraphCut& second : cuts.cuts()) {
      if (second.position <= first.position) continue;
      ++pairs;
      options.model = {"graph", {}, {1, 8, 8}, 10};
      options.model.graphBlocks = blocksOfParts(cuts.split({first, second}));
      for (const std::uint32_t microBatches : {1, 2, 3, 7, 8}) {
        for (const Order order : kOrders) {
          CAPTURE(first.names.front(), second.names.front(), microBatches, order);
          CHECK(splitAgainstWhole(options, 13, microBatches, order) == "");
        }
      }
    }
  }
  CHECK(pairs == 15);
}

at::Tensor normal(const Shape& shape, std::uint64_t number) {
  const at::Tensor tensor = at::empty(shape);
  fillNormal(randomKey(kSeed, "normal", {number}),
             {tensor.mutable_data_ptr<float>(), static_cast<std::size_t>(tensor.numel())});
  return tensor;
}

TEST_CASE("a split backward defers the weights of products and convolutions that are used once") {
  const auto leaf = [](const Shape& shape, std::uint64_t number) {
    return normal(shape, number).set_requires_grad(true);
  };
  struct Leaves {
    at::Tensor input, kernel, scale, once, twice;
  };
  const auto leaves = [&] {
    return Leaves{leaf({2, 3, 6, 6}, 1), leaf({4, 3, 3, 3}, 2), leaf({4}, 3), leaf({16, 8}, 4),
                  leaf({8, 8}, 5)};
  };
  const auto outputOf = [](const Leaves& l) {
    const at::Tensor maps = at::conv2d(l.input, l.kernel).mul(l.scale.view({1, 4, 1, 1}));
    return at::mm(at::mm(at::mm(maps.flatten(2).view({8, 16}), l.once), l.twice), l.twice);
  };
  const at::Tensor gradient = normal({8, 8}, 6);
  const Leaves whole = leaves(), split = leaves();
  outputOf(whole).backward(gradient);
  SplitBackward backward({{outputOf(split)}, {gradient}}, {split.input});
  CHECK(difference({{"input", split.input.grad()}}, {{"input", whole.input.grad()}}) == "");
  CHECK(difference({{"twice", split.twice.grad()}}, {{"twice", whole.twice.grad()}}) == "");
  CHECK(difference({{"scale", split.scale.grad()}}, {{"scale", whole.scale.grad()}}) == "");
  CHECK_FALSE(split.kernel.grad().defined());
  CHECK_FALSE(split.once.grad().defined());
  backward.finish();
  CHECK(difference({{"kernel", split.kernel.grad()}}, {{"kernel", whole.kernel.grad()}}) == "");
  CHECK(difference({{"once", split.once.grad()}}, {{"once", whole.once.grad()}}) == "");
  CHECK(difference({{"input", split.input.grad()}}, {{"input", whole.input.grad()}}) == "");
  CHECK(difference({{"twice", split.twice.grad()}}, {{"twice", whole.twice.grad()}}) == "");
}

TEST_CASE("two to four bodies in a row equal the whole model") {
  StageOptions options = cnnOptions();
  options.cuts = {1, 13};
  for (const std::vector<int>& inner : {std::vector{6}, std::vector{4, 8}, std::vector{3, 7, 10}}) {
    options.innerCuts = inner;
    for (const Order order : kOrders) {
      CAPTURE(inner.size(), order);
      CHECK(splitAgainstWhole(options, 13, 4, order) == "");
    }
  }
  options.splitsBackward = true;
  CHECK(splitAgainstWhole(options, 13, 4, Order::alternating) == "");
  // No gradient crosses the first inner cut if nothing in front of it is trained.
  options.innerCuts = {4, 8};
  options.freeze = {"conv1.*", "bn1.*"};
  options.headIsFrozen = true;
  CHECK(splitAgainstWhole(options, 13, 4, Order::alternating) == "");
}

TEST_CASE("a kept gradient is not changed when later gradients are added to a weight") {
  // With one sample, the gradient of `shift` is a view of the product's.
  const auto leaf = [](const Shape& shape, std::uint64_t number) {
    return normal(shape, number).set_requires_grad(true);
  };
  struct Leaves {
    at::Tensor input, weight, shift;
  };
  const auto leaves = [&] { return Leaves{leaf({4, 5}, 1), leaf({5, 6}, 2), leaf({4, 6}, 3)}; };
  const auto outputOf = [](const Leaves& l) {
    return at::mm(l.input, l.weight).unsqueeze(0).add(l.shift.unsqueeze(0));
  };
  const Leaves whole = leaves(), split = leaves();
  std::vector<SplitBackward> later;
  for (const std::uint64_t number : {4, 5}) {
    const at::Tensor gradient = normal({1, 4, 6}, number);
    outputOf(whole).backward(gradient.clone());
    later.push_back(SplitBackward({{outputOf(split)}, {gradient.clone()}}, {split.input}));
  }
  for (SplitBackward& each : later) each.finish();
  CHECK(difference({{"shift", split.shift.grad()}}, {{"shift", whole.shift.grad()}}) == "");
  CHECK(difference({{"weight", split.weight.grad()}}, {{"weight", whole.weight.grad()}}) == "");
}

TEST_CASE("the comparison detects a deliberately injected difference") {
  const StageOptions options = mlpOptions();
  StageOptions other = options;
  other.seed += 1;
  const WholeStage a(options), b(other);
  CHECK(difference(weightsOf(a.set()), weightsOf(a.set())) == "");
  CHECK(difference(weightsOf(a.set()), weightsOf(b.set())).find("differs") != std::string::npos);
}

TEST_CASE("a repeated run is bit-identical, and training changes the weights") {
  const StageOptions options = cnnOptions();
  std::optional<std::vector<NamedTensor>> first;
  for (int time = 0; time < 2; ++time) {
    Split split(options);
    const auto before = byName(split.weights());
    const at::Tensor start = before.at("conv2.weight").clone();
    for (std::uint64_t step = 1; step <= 3; ++step) {
      split.runBatch(Phase::train, step, 4, makeBatch(options.model, 10, step), Order::alternating);
      split.update(decisionOf(step));
    }
    CHECK_FALSE(difference({{"w", start}}, {{"w", byName(split.weights()).at("conv2.weight")}}) ==
                "");
    if (!first) {
      first = split.weights();
    } else {
      CHECK(difference(*first, split.weights()) == "");
    }
  }
}

// The state is written to a file and read again.
std::vector<NamedTensor> copyOf(const std::vector<NamedTensor>& tensors) {
  return fromSafetensors(toSafetensors(tensors), "saved");
}

TEST_CASE("stages restored in a new process continue bit-identically") {
  for (StageOptions options : {cnnOptions(), mlpOptions()}) {
    for (const char* optimizer : {"sgd", "adam"}) {
      CAPTURE(options.model.name, optimizer);
      if (std::string(optimizer) == "adam") {
        options.optimizer = {"adam", {}};
        correctInserts(options);
      }
      const auto train = [&](Split& split, std::uint64_t first, std::uint64_t last) {
        for (std::uint64_t step = first; step <= last; ++step) {
          split.runBatch(Phase::train, step, 4, makeBatch(options.model, 10, step),
                         Order::alternating);
          split.update(decisionOf(step));
        }
      };
      Split whole(options);
      train(whole, 1, 4);
      const auto client = copyOf(whole.client.save());
      const auto body = copyOf(whole.body.save());
      train(whole, 5, 7);

      Split resumed(options);
      train(resumed, 1, 1);
      resumed.client.restore(client);
      resumed.body.restore(body);
      train(resumed, 5, 7);
      CHECK(difference(resumed.weights(), whole.weights()) == "");
      CHECK(difference(resumed.client.losses(), whole.client.losses()) == "");
    }
  }
}

// ---- Inserts whose rank shrinks ----

// The features of an insert at cut 0: rows of E, elements of e, columns of D.
std::vector<at::Tensor> featuresIn(const std::vector<NamedTensor>& tensors, std::int64_t first,
                                   std::int64_t count) {
  const auto named = byName(tensors);
  return {named.at("insert.0.encoder.weight").narrow(0, first, count),
          named.at("insert.0.encoder.bias").narrow(0, first, count),
          named.at("insert.0.decoder.weight").narrow(1, first, count)};
}

double largestOf(const std::vector<at::Tensor>& tensors) {
  double largest = 0;
  for (const at::Tensor& each : tensors) {
    if (each.numel() > 0) largest = std::max(largest, each.abs().max().item<double>());
  }
  return largest;
}

TEST_CASE("dropped features of an insert stay zero with every optimizer, and have no gradient") {
  const OptimizerSpec optimizers[] = {
      {"sgd", {{"momentum", 0.9}, {"weight_decay", 0.1}, {"nesterov", 1}}},
      {"adam", {{"weight_decay", 0.1}}},
      {"adamw", {{"weight_decay", 0.1}}}};
  const std::int64_t ranks[] = {4, 4, 2, 2, 1, 1, 1, 1};  // of steps 1 to 8
  for (StageOptions options : {mlpOptions(), cnnOptions()}) {
    options.inserts = {
        {0, "decaying", {{"rank", 4}, {"every_steps", 2}, {"decay", 0.5}, {"l1", 0.01}}}};
    for (const OptimizerSpec& optimizer : optimizers) {
      options.optimizer = optimizer;
      options.averageDecay = 0.9 - options.averageDecay;
      WholeStage whole(options);
      for (std::uint64_t step = 1; step <= 7; ++step) {
        CAPTURE(options.model.name, optimizer.name, options.averageDecay, step);
        whole.runBatch(Phase::train, step, 2, makeBatch(options.model, 9, step).view());
        const std::int64_t now = ranks[step - 1], next = ranks[step];
        CHECK(largestOf(featuresIn(gradientsOf(whole.set()), now, 4 - now)) == 0);
        CHECK(largestOf(featuresIn(gradientsOf(whole.set()), now - 1, 1)) > 0);
        whole.update(decisionOf(step));
        for (const ParameterSet* set : {&whole.set(), &whole.evaluatedSet()}) {
          CHECK(largestOf(featuresIn(weightsOf(*set), next, 4 - next)) == 0);
          CHECK(largestOf(featuresIn(weightsOf(*set), next - 1, 1)) > 0);
        }
      }
    }
  }
}

TEST_CASE("the L1 penalty changes only the features that are dropped next") {
  StageOptions options = mlpOptions();
  options.optimizer = {"sgd", {}};
  const std::map<std::string, double> plain = {
      {"rank", 8}, {"every_steps", 3}, {"decay", 0.75}, {"min_rank", 5}, {"l1", 0}};
  std::map<std::string, double> penalised = plain;
  penalised["l1"] = 0.01;
  // Features 6 and 7 are dropped after step 3, feature 5 after step 6, and no others.
  const std::pair<std::int64_t, std::int64_t> penalisedIn[] = {{6, 8}, {6, 8}, {6, 8}, {5, 6},
                                                               {5, 6}, {5, 6}, {5, 5}};
  for (std::uint64_t step = 1; step <= 7; ++step) {
    CAPTURE(step);
    std::vector<std::vector<NamedTensor>> weights;
    std::vector<NamedTensor> before;
    for (const auto& parameters : {plain, penalised}) {
      options.inserts = {{0, "decaying", parameters}};
      WholeStage whole(options);
      before = weightsOf(whole.set());
      for (NamedTensor& each : before) {
        if (each.name.starts_with("insert.")) each.tensor = normal(each.tensor.sizes().vec(), step);
      }
      whole.importWeights(before);
      whole.runBatch(Phase::train, step, 2, makeBatch(options.model, 9, step).view());
      StepDecision decision = decisionOf(step);
      decision.apply = true;
      decision.clipFactor = 0.25;
      decision.lossScale = 2;
      whole.update(decision);
      weights.push_back(copyOf(weightsOf(whole.set())));
    }
    const auto [first, last] = penalisedIn[step - 1];
    const std::int64_t left = step % 3 == 0 ? first : last;  // those that remain after the step
    for (std::int64_t f = 0; f < left; ++f) {
      CAPTURE(f);
      const auto with = featuresIn(weights[1], f, 1), without = featuresIn(weights[0], f, 1);
      const auto old = featuresIn(before, f, 1);
      const double change = f < first ? 0 : 0.01 * decisionOf(step).learningRates.front();
      for (std::size_t t = 0; t < with.size(); ++t) {
        const at::Tensor expected = old[t].sign().mul(-change);
        CHECK(largestOf({with[t].sub(without[t]).sub(expected)}) <= (f < first ? 0 : 1e-6));
      }
    }
    // Nothing else changes, in particular not the decoder's bias.
    auto a = byName(weights[0]), b = byName(weights[1]);
    for (const char* name : {"encoder.weight", "encoder.bias", "decoder.weight"}) {
      a.erase("insert.0." + std::string(name));
    }
    for (const auto& [name, tensor] : a) CHECK(tensor.equal(b.at(name)));
  }
}

// ---- Replicas ----

// A client, and the replicas of its body.
struct ReplicaSplit {
  explicit ReplicaSplit(StageOptions options)
      : client(clientOptions(options)), defers(options.splitsBackward) {
    const std::uint32_t count = options.replica.count;
    for (std::uint32_t rank = 0; rank < count; ++rank) {
      options.replica = {rank, count};
      bodies.push_back(std::make_unique<BodyStage>(bodyOptions(options, 0)));
    }
  }

  void runBatch(Phase phase, std::uint64_t step, std::uint32_t microBatches, const Batch& batch) {
    client.beginBatch(batch.view(), step);
    const auto samples = static_cast<std::uint32_t>(batch.labels.size());
    MicroBatch at{phase, step, 0, {Division::of(samples, microBatches)}};
    std::vector<TensorBundle> gradients;
    for (at.i = 0; at.i < at.batch.count; ++at.i) {
      const TensorBundle activations1 = bodyOf(at).forward(at, copied(client.headForward(at)));
      gradients.push_back(client.tailStep(at, copied(activations1)));
    }
    if (phase == Phase::eval) return;
    for (at.i = 0; at.i < at.batch.count; ++at.i) {
      client.headBackward(at, copied(bodyOf(at).backward(at, copied(gradients[at.i]))));
      if (defers) bodyOf(at).backwardWeights(at);
    }
    reduce(step);
  }

  void reduce(std::uint64_t step) {
    std::vector<float> sum;
    for (const auto& body : bodies) {
      std::vector<float> values(body->shareSize(), 7);
      body->writeShare(step, values);
      if (sum.empty()) {
        sum = values;
      } else {
        for (std::size_t v = 0; v < sum.size(); ++v) sum[v] += values[v];
      }
    }
    for (const auto& body : bodies) body->readSum(step, sum);
  }

  void update(const StepDecision& decision) {
    client.update(decision);
    for (const auto& body : bodies) body->update(decision);
  }

  std::vector<NamedTensor> gradientTensors(std::size_t rank) {
    return Split::joined(gradientsOf(client.head()),
                         fromSafetensors(bodies[rank]->exportGradients(), "gradients"),
                         gradientsOf(client.tail()));
  }
  std::vector<NamedTensor> weights(std::size_t rank) {
    return Split::joined(weightsOf(client.evaluatedHead()),
                         fromSafetensors(bodies[rank]->exportWeights(), "weights"),
                         weightsOf(client.evaluatedTail()));
  }
  double squareSum(std::size_t rank, std::uint64_t step) {
    return client.headReport().squareSum + bodies[rank]->report(step).squareSum +
           client.tailReport().squareSum;
  }

  std::uint32_t count() const { return static_cast<std::uint32_t>(bodies.size()); }
  BodyStage& bodyOf(const MicroBatch& at) { return *bodies[at.i % count()]; }

  ClientStage client;
  std::vector<std::unique_ptr<BodyStage>> bodies;
  bool defers;
};

TEST_CASE("each replica of a body equals the whole model that adds in the same order") {
  setComputeThreads(1);
  for (StageOptions options : {mlpOptions(), cnnOptions()}) {
    for (const std::uint32_t count : {2, 3, 4}) {
      for (const int variant : {0, 1, 2}) {
        options.replica = {0, count};
        options.bodyReplicas = {count};
        options.microBatches = 7;
        options.recompute = variant == 1;
        options.splitsBackward = variant == 2;
        options.averageDecay = variant == 1 ? 0.9 : 0;
        options.inserts = variant == 1 ? kDecaying : std::vector<InsertSpec>{};
        options.freeze.clear();
        if (variant == 2) correctInserts(options);
        CAPTURE(options.model.name, count, variant);
        ReplicaSplit split(options);
        WholeStage whole(options);
        for (std::uint64_t step = 1; step <= 4; ++step) {
          CAPTURE(step);
          // The last batch has fewer micro-batches.
          const Batch batch = makeBatch(options.model, step == 4 ? 8 : 17, step);
          const std::uint32_t microBatches = step == 4 ? 4 : 7;
          split.runBatch(Phase::train, step, microBatches, batch);
          whole.runBatch(Phase::train, step, microBatches, batch.view());
          CHECK(difference(split.client.losses(step), whole.losses()) == "");
          for (std::uint32_t rank = 0; rank < count; ++rank) {
            CHECK(difference(split.gradientTensors(rank), gradientsOf(whole.set())) == "");
            CHECK(split.squareSum(rank, step) == whole.report().squareSum);
          }
          split.update(decisionOf(step));
          whole.update(decisionOf(step));
          for (std::uint32_t rank = 0; rank < count; ++rank) {
            CHECK(difference(split.weights(rank), weightsOf(whole.evaluatedSet())) == "");
          }
          split.runBatch(Phase::eval, step, microBatches, batch);
          whole.runBatch(Phase::eval, step, microBatches, batch.view());
          CHECK(difference(split.client.losses(step), whole.losses()) == "");
        }
      }
    }
  }
}

TEST_CASE("a body's gradients do not depend on which member's micro-batches come first") {
  setComputeThreads(1);
  // The second member has no samples.
  const Division division = Division::ofMembers({7, 0, 5, 3}, 2);
  const auto inMemberOrder = [&] {
    std::vector<std::uint32_t> order(division.count);
    std::iota(order.begin(), order.end(), 0);
    return order;
  };
  for (StageOptions options : {mlpOptions(), cnnOptions()}) {
    options.cohort.id = "cohort";
    for (const int variant : {0, 1, 2}) {
      options.recompute = variant == 1;
      options.splitsBackward = variant == 2;
      options.microBatches = division.count;
      CAPTURE(options.model.name, variant);
      const Batch batch = makeBatch(options.model, division.samples, 1);
      // Returns the gradients, and the weights after an update.
      const auto train = [&](const std::vector<std::uint32_t>& order) {
        ClientStage client(options);
        BodyStage body(options);
        client.beginBatch(batch.view());
        const auto at = [&](std::uint32_t i) { return MicroBatch{Phase::train, 1, i, division}; };
        std::map<std::uint32_t, TensorBundle> gradients;
        for (const std::uint32_t i : order) {
          TensorBundle sent = body.forward(at(i), copied(client.headForward(at(i))));
          gradients[i] = client.tailStep(at(i), copied(sent));
        }
        for (const std::uint32_t i : order) (void)body.backward(at(i), copied(gradients.at(i)));
        if (options.splitsBackward) {
          for (const std::uint32_t i : order) body.backwardWeights(at(i));
        }
        CHECK(body.report().squareSum > 0);
        auto tensors = fromSafetensors(body.exportGradients(), "gradients");
        body.update(decisionOf(1));
        for (NamedTensor& weight : fromSafetensors(body.exportWeights(), "weights")) {
          tensors.push_back({"updated " + weight.name, weight.tensor});
        }
        return tensors;
      };
      const auto expected = train(inMemberOrder());
      CHECK(difference(train({4, 0, 5, 7, 1, 6, 2, 8, 3}), expected) == "");
      CHECK(difference(train({7, 8, 4, 5, 6, 0, 1, 2, 3}), expected) == "");
      options.cohort.order = kGlobal;
      CHECK(difference(train(inMemberOrder()), expected) != "");
      options.cohort.order = kByMember;
    }
  }
}

TEST_CASE("another number of replicas gives other bits") {
  setComputeThreads(1);
  StageOptions options = cnnOptions();
  options.microBatches = 8;
  std::vector<std::vector<NamedTensor>> gradients;
  for (const std::uint32_t count : {1, 2, 4}) {
    options.bodyReplicas = {count};
    WholeStage whole(options);
    const Batch batch = makeBatch(options.model, 24, 1);
    whole.runBatch(Phase::train, 1, 8, batch.view());
    gradients.push_back(gradientsOf(whole.set()));
  }
  CHECK(difference(gradients[0], gradients[1]) != "");
  CHECK(difference(gradients[1], gradients[2]) != "");
}

TEST_CASE("a share has the gradients, and a slot of statistics per micro-batch") {
  for (StageOptions options : {mlpOptions(), cnnOptions()}) {
    options.replica = {1, 2};
    options.microBatches = 4;
    const std::vector<BlockSpec> blocks = blocksFor(options);
    BodyStage body(options);
    const auto trained =
        static_cast<std::size_t>(trainedCount(blocks, options.cuts.cut0, options.cuts.cut1));
    CHECK(body.shareSize() == maxShareSize(options, blocks));
    std::size_t gradients = 0;  // each with a value that says whether it exists
    for (const BlockSpec& block : std::span(blocks).subspan(
             static_cast<std::size_t>(options.cuts.cut0),
             static_cast<std::size_t>(options.cuts.cut1 - options.cuts.cut0))) {
      for (const ParameterSpec& each : block.tensors) {
        gradients += !each.isBuffer && each.isTrainable ? 1 : 0;
      }
    }
    CHECK((body.shareSize() > trained + gradients) == (options.model.name == "small_cnn"));
  }
}

// ---- Staleness ----

// Runs training steps of a split model so that they overlap: the forwards of D later steps run
// between the forward and the update of a step.
class Overlapping {
 public:
  Overlapping(const StageOptions& options, std::uint64_t steps)
      : options_(options), split_(options), steps_(steps) {}

  // Calls `check` for each step after its backwards, before its update.
  void train(std::uint64_t first, std::uint64_t last,
             const std::function<void(std::uint64_t step, const Batch& batch)>& check) {
    begun_ = first - 1;
    for (std::uint64_t step = first; step <= last; ++step) {
      while (begun_ < std::min(steps_, step + options_.staleness)) forward(++begun_);
      backward(step);
      check(step, batches_.at(step));
      split_.update(plainDecision(step));
      batches_.erase(step);
    }
  }
  Split& split() { return split_; }

  // Without a step that is skipped: no step is, unless the loss is scaled.
  static StepDecision plainDecision(std::uint64_t step) {
    StepDecision decision = decisionOf(step);
    decision.apply = true;
    return decision;
  }
  static constexpr std::uint32_t kMicroBatches = 3;
  static constexpr std::uint32_t kSamples = 11;

 private:
  MicroBatch at(std::uint64_t step, std::uint32_t i) const {
    return {Phase::train, step, i, {kMicroBatches, kSamples}};
  }
  void forward(std::uint64_t step) {
    batches_.emplace(step, makeBatch(options_.model, kSamples, step));
    split_.client.beginBatch(batches_.at(step).view(), step);
    for (std::uint32_t i = 0; i < kMicroBatches; ++i) {
      const TensorBundle activations1 =
          split_.body.forward(at(step, i), copied(split_.client.headForward(at(step, i))));
      gradients_[{step, i}] = split_.client.tailStep(at(step, i), copied(activations1));
    }
  }
  void backward(std::uint64_t step) {
    for (std::uint32_t i = 0; i < kMicroBatches; ++i) {
      const TensorBundle gradients0 =
          split_.body.backward(at(step, i), copied(gradients_.at({step, i})));
      if (options_.splitsBackward) split_.body.backwardWeights(at(step, i));
      split_.client.headBackward(at(step, i), copied(gradients0));
    }
  }

  const StageOptions options_;
  Split split_;
  const std::uint64_t steps_;
  std::uint64_t begun_ = 0;
  std::map<std::uint64_t, Batch> batches_;
  std::map<std::pair<std::uint64_t, std::uint32_t>, TensorBundle> gradients_;
};

TEST_CASE("with staleness, overlapping steps equal those of the whole model") {
  setComputeThreads(1);
  for (StageOptions options : {mlpOptions(), cnnOptions()}) {
    for (options.staleness = 1; options.staleness <= 3; ++options.staleness) {
      for (const int variant : {0, 1, 2}) {
        options.recompute = variant == 1;
        options.splitsBackward = variant == 2;
        options.averageDecay = variant == 1 ? 0.9 : 0;
        options.inserts = variant == 1 ? kDecaying : std::vector<InsertSpec>{};
        options.freeze.clear();
        if (variant == 2) correctInserts(options);
        CAPTURE(options.model.name, options.staleness, variant);
        constexpr std::uint64_t kSteps = 7;
        Overlapping overlapping(options, kSteps);
        Split& split = overlapping.split();
        WholeStage whole(options);
        overlapping.train(1, kSteps, [&](std::uint64_t step, const Batch& batch) {
          CAPTURE(step);
          whole.runBatch(Phase::train, step, Overlapping::kMicroBatches, batch.view());
          CHECK(difference(split.client.losses(step), whole.losses()) == "");
          CHECK(split.report().squareSum == whole.report().squareSum);
          CHECK(difference(split.gradientTensors(), gradientsOf(whole.set())) == "");
          whole.update(Overlapping::plainDecision(step));
        });
        CHECK(difference(split.weights(), weightsOf(whole.evaluatedSet())) == "");
        const Batch batch = makeBatch(options.model, 10, 1);
        split.runBatch(Phase::eval, 1, 4, batch, Order::oneByOne);
        whole.runBatch(Phase::eval, 1, 4, batch.view());
        CHECK(difference(split.client.losses(1), whole.losses()) == "");
      }
    }
  }
}

using Values = std::map<std::string, at::Tensor>;

double maxDifference(const Values& left, const Values& right) {
  double max = 0;
  for (const auto& [name, tensor] : left) {
    max = std::max(max, tensor.sub(right.at(name)).abs().max().item<double>());
  }
  return max;
}

// SGD with delayed gradients, written out: the gradients of step n are those of the weights after
// step n - 1 - D, or of the initial ones.
Values delayedSgd(StageOptions options, std::uint32_t staleness, std::uint64_t steps) {
  options.staleness = 0;
  WholeStage model(options);  // computes gradients only
  const auto parametersOf = [&] {
    Values values;
    for (const NamedTensor& each : model.set().parameters()) {
      values[each.name] = each.tensor.detach().clone();
    }
    return values;
  };
  std::vector<Values> history = {parametersOf()};
  for (std::uint64_t step = 1; step <= steps; ++step) {
    const std::uint64_t used = step <= staleness + 1 ? 0 : step - 1 - staleness;
    std::vector<NamedTensor> weights;
    for (const auto& [name, value] : history.at(used)) weights.push_back({name, value});
    model.importWeights(weights);
    model.runBatch(Phase::train, step, Overlapping::kMicroBatches,
                   makeBatch(options.model, Overlapping::kSamples, step).view());
    const StepDecision decision = Overlapping::plainDecision(step);
    Values next = history.back();
    for (const NamedTensor& gradient : gradientsOf(model.set())) {
      next.at(gradient.name) =
          next.at(gradient.name)
              .sub(gradient.tensor, decision.learningRates.front() * decision.clipFactor);
    }
    history.push_back(next);
    StepDecision skip = decision;
    skip.apply = false;
    model.update(skip);  // clears the gradients
  }
  return history.back();
}

TEST_CASE("the whole model with staleness equals a hand-written delayed SGD") {
  for (StageOptions options : {mlpOptions(), cnnOptions()}) {
    options.optimizer = {"sgd", {}};
    constexpr std::uint64_t kSteps = 8;
    for (const std::uint32_t staleness : {0, 1, 3}) {
      CAPTURE(options.model.name, staleness);
      options.staleness = staleness;
      WholeStage whole(options);
      for (std::uint64_t step = 1; step <= kSteps; ++step) {
        const Batch batch = makeBatch(options.model, Overlapping::kSamples, step);
        whole.runBatch(Phase::train, step, Overlapping::kMicroBatches, batch.view());
        whole.update(Overlapping::plainDecision(step));
      }
      const Values weights = byName(weightsOf(whole.set()));
      CHECK(maxDifference(delayedSgd(options, staleness, kSteps), weights) < 1e-6);
      CHECK(maxDifference(delayedSgd(options, staleness + 1, kSteps), weights) > 1e-4);
    }
  }
}

TEST_CASE("with staleness, stages restored while steps overlap continue bit-identically") {
  for (StageOptions options : {mlpOptions(), cnnOptions()}) {
    options.staleness = 2;
    options.inserts = kDecaying;
    constexpr std::uint64_t kSteps = 8;
    const auto ignore = [](std::uint64_t, const Batch&) {};
    for (const std::uint64_t saved : {1, 2, 5}) {  // at first, fewer versions exist
      CAPTURE(options.model.name, saved);
      Overlapping whole(options, kSteps);
      whole.train(1, saved, ignore);
      const auto client = copyOf(whole.split().client.save());
      const auto body = copyOf(whole.split().body.save());

      Overlapping resumed(options, kSteps);
      resumed.split().client.restore(client);
      resumed.split().body.restore(body);
      resumed.train(saved + 1, kSteps, ignore);

      Overlapping undisturbed(options, kSteps);
      undisturbed.train(1, kSteps, ignore);
      CHECK(difference(resumed.split().weights(), undisturbed.split().weights()) == "");

      auto incomplete = body;
      const auto version = std::find_if(
          incomplete.begin(), incomplete.end(),
          [](const NamedTensor& each) { return each.name.find(":version") != std::string::npos; });
      REQUIRE(version != incomplete.end());
      incomplete.erase(version);
      CHECK(errorCode([&] { resumed.split().body.restore(incomplete); }) == "bad-checkpoint");
    }
  }
}

TEST_CASE("a saved state that does not match the stage is refused") {
  const StageOptions options = mlpOptions();
  Split split(options);
  split.runBatch(Phase::train, 1, 2, makeBatch(options.model, 6, 1), Order::oneByOne);
  split.update(decisionOf(1));
  const auto body = split.body.save();
  const auto codeFor = [&](const std::vector<NamedTensor>& saved) {
    return errorCode([&] { split.body.restore(saved); });
  };
  CHECK(codeFor(body).empty());
  CHECK(codeFor(split.client.save()) == "bad-checkpoint");
  auto other = body;
  other.pop_back();  // removes optimizer state, which is valid, because a parameter may lack a
                     // buffer
  other.erase(other.begin());
  CHECK(codeFor(other) == "bad-checkpoint");
  other = body;
  other.push_back(body.front());
  CHECK(codeFor(other) == "bad-checkpoint");
  other = body;
  other[0].tensor = other[0].tensor.flatten();
  CHECK(codeFor(other) == "bad-checkpoint");
  other = body;
  other.push_back({"unknown.weight", body[0].tensor});
  CHECK(codeFor(other) == "bad-checkpoint");
}

TEST_CASE("evaluation changes nothing and counts every sample") {
  const StageOptions options = cnnOptions();
  Split split(options);
  const std::vector<std::byte> before = toSafetensors(split.weights());
  split.runBatch(Phase::eval, 1, 4, makeBatch(options.model, 13, 1), Order::allForwardsFirst);
  CHECK((toSafetensors(split.weights()) == before));
  CHECK(split.gradientTensors().empty());
  CHECK(split.client.metrics().samples == 13);
}

TEST_CASE("gradients accumulate until an update clears them") {
  const StageOptions options = mlpOptions();
  WholeStage whole(options);
  const Batch batch = makeBatch(options.model, 8, 1);
  whole.runBatch(Phase::train, 1, 2, batch.view());
  const double once = whole.report().squareSum;
  whole.runBatch(Phase::train, 1, 2, batch.view());
  CHECK(whole.report().squareSum == Approx(4 * once).epsilon(1e-5));
  StepDecision skip = decisionOf(1);
  skip.apply = false;
  whole.update(skip);
  CHECK(gradientsOf(whole.set()).empty());
}

TEST_CASE("the loss is the mean over the batch's samples, for any number of micro-batches") {
  StageOptions options = mlpOptions();
  options.model.parameters["dropout"] = "0";
  options.cuts = {2, 5};
  const Batch batch = makeBatch(options.model, 10, 1);
  WholeStage one(options), three(options);
  one.runBatch(Phase::train, 1, 1, batch.view());
  three.runBatch(Phase::train, 1, 3, batch.view());
  REQUIRE(one.losses().size() == 1);
  REQUIRE(three.losses().size() == 3);
  CHECK(three.losses()[0] + three.losses()[1] + three.losses()[2] ==
        Approx(one.losses()[0]).epsilon(1e-5));
  CHECK(one.metrics().sums.at("loss") == Approx(10.0 * one.losses()[0]));
  CHECK(three.metrics().sums.at("loss") == Approx(one.metrics().sums.at("loss")).epsilon(1e-5));
  CHECK(three.report().squareSum == Approx(one.report().squareSum).epsilon(1e-4));
}

// The mlp's last layer is set manually, so that its outputs are known.
TEST_CASE("top1 and top5 count the correctly classified samples") {
  StageOptions options = mlpOptions();
  const auto metricsWith = [&](int classes, const std::vector<float>& logits, std::int64_t label) {
    options.model.classes = classes;
    WholeStage whole(options);
    for (const NamedTensor& named : whole.set().parameters()) {
      if (named.name == "fc_out.weight") named.tensor.detach().zero_();
      if (named.name != "fc_out.bias") continue;
      std::memcpy(named.tensor.detach().mutable_data_ptr(), logits.data(),
                  logits.size() * sizeof(float));
    }
    Batch batch = makeBatch(options.model, 2, 1);
    batch.labels = {label, 0};
    whole.runBatch(Phase::eval, 1, 2, batch.view());
    return whole.metrics();
  };
  const std::vector<float> falling = {6, 5, 4, 3, 2, 1};
  CHECK(metricsWith(6, falling, 0).sums.at("top1") == 2);
  CHECK(metricsWith(6, falling, 1).sums.at("top1") == 1);
  CHECK(metricsWith(6, falling, 4).sums.at("top5") == 2);
  CHECK(metricsWith(6, falling, 5).sums.at("top5") == 1);
  CHECK(metricsWith(3, {3, 2, 1}, 2).sums.at("top5") == 2);
  // Among equal values, the first one counts as the model's prediction. A NaN never does.
  CHECK(metricsWith(3, {2, 2, 2}, 1).sums.at("top1") == 1);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  CHECK(metricsWith(6, {nan, nan, nan, nan, nan, nan}, 3).sums.at("top1") == 0);

  const BatchMetrics metrics = metricsWith(6, falling, 0);
  CHECK(metrics.samples == 2);
  CHECK(metrics.sums.at(kLossWeight) == 2);
  const auto values = metricValues(options.scores, metrics);
  CHECK(values.size() == 3);
  CHECK(values[0] == metrics.sums.at(kLossSum) / 2);
  CHECK(values[1] == 1.0);
  BatchMetrics sum;
  sum.add(metrics);
  sum.add(metricsWith(6, falling, 1));
  CHECK(sum.samples == 4);
  CHECK(sum.sums.at("top1") == 3);
}

TEST_CASE("a file of tensors is the same in pieces of any size") {
  Split split(cnnOptions());
  const std::vector<std::byte> whole = toSafetensors(split.body.save());
  for (const std::size_t size :
       {std::size_t{1}, std::size_t{1000}, whole.size(), 2 * whole.size()}) {
    CAPTURE(size);
    TensorFile moved = split.body.stateFile();
    TensorFile file = std::move(moved);
    CHECK(file.size() == whole.size());
    std::vector<std::byte> piece(size), read;
    while (const std::size_t count = file.read(piece)) {
      read.insert(read.end(), piece.begin(), piece.begin() + static_cast<std::ptrdiff_t>(count));
    }
    CHECK((read == whole));
  }
}

TEST_CASE("weights survive a round trip through safetensors bit-identically") {
  const StageOptions options = cnnOptions();
  WholeStage whole(options);
  const Batch batch = makeBatch(options.model, 8, 1);
  whole.runBatch(Phase::train, 1, 2, batch.view());
  const std::vector<NamedTensor> weights = weightsOf(whole.set());
  CHECK(weights.front().name == "conv1.weight");
  CHECK(weights.back().name == "bn3.num_batches_tracked");
  const std::vector<std::byte> file = toSafetensors(weights);
  const std::vector<NamedTensor> back = fromSafetensors(file, "weights");
  CHECK(difference(weights, back) == "");
  REQUIRE(back.size() == weights.size());
  for (std::size_t w = 0; w < back.size(); ++w) {
    CHECK(back[w].name == weights[w].name);
    CHECK(back[w].tensor.is_contiguous());
  }
  CHECK_THROWS_AS(fromSafetensors(std::span(file).first(7), "weights"), UsageError);
}

TEST_CASE("weights loaded into head, body and tail equal the whole model's") {
  StageOptions options = cnnOptions();
  const WholeStage donor(options);
  const std::vector<NamedTensor> donated = weightsOf(donor.set());
  options.seed = kSeed + 1;
  Split split(options);
  REQUIRE(difference(split.weights(), donated) != "");
  split.client.importWeights(donated);
  split.body.importWeights(toSafetensors(
      selectWeights(donated, blocksOf(options), options.cuts.cut0, options.cuts.cut1)));
  CHECK(difference(split.weights(), donated) == "");
  WholeStage whole(options);
  whole.importWeights(donated);
  CHECK(difference(weightsOf(whole.set()), donated) == "");
  CHECK_THROWS_AS(split.body.importWeights(toSafetensors(donated)), UsageError);
}

TEST_CASE("a weights file is compared with the whole model before any weight is loaded") {
  const StageOptions options = cnnOptions();
  const std::vector<BlockSpec> blocks = blocksOf(options);
  std::vector<NamedTensor> weights = weightsOf(WholeStage(options).set());
  CHECK_NOTHROW(checkWeights(weights, blocks, {}, "file"));
  const auto refusal = [&](const std::vector<std::string>& except) -> std::string {
    try {
      checkWeights(weights, blocks, except, "file");
    } catch (const UsageError& error) {
      return error.what() + ("|" + error.hint());
    }
    return "";
  };
  StageOptions others = options;
  others.model.classes = 7;
  weights = weightsOf(WholeStage(others).set());
  CHECK_THAT(refusal({}), Catch::StartsWith("file does not fit the model: fc.weight is [7, ") &&
                              Catch::Contains("but [6, ") && Catch::Contains("1 more") &&
                              Catch::EndsWith("weights.except: [fc]"));
  CHECK(refusal({"fc"}).empty());
  CHECK_THAT(refusal({"fcc"}), Catch::Contains("no block 'fcc'") && Catch::Contains("fc"));
  weights.pop_back();
  weights.erase(weights.begin());
  CHECK_THAT(refusal({"fc"}), Catch::Contains("it has no conv1.weight"));
  weights = weightsOf(WholeStage(mlpOptions()).set());
  CHECK_THAT(refusal({}), Catch::Contains("more of its tensors do not fit"));
}

TEST_CASE("flows have the shapes and the memory order of their cut") {
  const StageOptions options = cnnOptions();
  const std::vector<BlockSpec> blocks = blocksOf(options);
  const TensorSpec image{DType::f32, {5, 4, 8, 8}, MemoryOrder::channelsLast};
  CHECK(flowSpec(blocks, {4, 13}, activationAt(0), 5) == image);
  CHECK(flowSpec(blocks, {4, 13}, gradientAt(0), 5) == image);
  const TensorSpec features{DType::f32, {5, 64}, MemoryOrder::contiguous};
  CHECK(flowSpec(blocks, {4, 13}, activationAt(1), 5) == features);
  CHECK(flowSpec(blocks, {4, 13}, gradientAt(1), 5) == features);
}

TEST_CASE("every optimizer, with clipping, gives the whole model's weights") {
  for (const OptimizerRow& row : optimizerTable()) {
    CAPTURE(row.name);
    StageOptions options = cnnOptions();
    options.optimizer = {std::string(row.name), {}};
    Split split(options);
    WholeStage whole(options);
    for (std::uint64_t step = 1; step <= 3; ++step) {
      const Batch batch = makeBatch(options.model, 9, step);
      split.runBatch(Phase::train, step, 3, batch, Order::allForwardsFirst);
      whole.runBatch(Phase::train, step, 3, batch.view());
      // The norm is summed part by part, as on the client, and for the whole model.
      const double splitSum = split.client.headReport().squareSum + split.body.report().squareSum +
                              split.client.tailReport().squareSum;
      const double wholeSum = whole.report().squareSum;
      CHECK(splitSum == wholeSum);
      StepDecision decision = decisionOf(step);
      decision.clipFactor = 0.5 / (std::sqrt(wholeSum) + 1e-6);
      split.update(decision);
      whole.update(decision);
    }
    CHECK(difference(split.weights(), weightsOf(whole.set())) == "");
  }
}

TEST_CASE("train.clip_value limits each value of the gradients, as PyTorch's clip_grad_value_") {
  constexpr double kLimit = 0.01;
  StageOptions options = cnnOptions();
  options.optimizer = {"sgd", {}};
  options.clipValue = kLimit;
  Split split(options);
  WholeStage whole(options);
  const Batch batch = makeBatch(options.model, 9, 1);
  split.runBatch(Phase::train, 1, 3, batch, Order::allForwardsFirst);
  whole.setLossScale(4);
  whole.runBatch(Phase::train, 1, 3, batch.view());
  whole.report();
  StepDecision decision = decisionOf(1);
  decision.clipFactor = 0.5;
  std::map<std::string, at::Tensor> expected;
  std::int64_t limited = 0;
  const std::vector<NamedTensor> gradients = gradientsOf(whole.set());
  for (const auto& [name, gradient] : gradients) {
    const at::Tensor scaled = gradient.mul(decision.clipFactor / 4);
    limited += scaled.abs().gt(kLimit).sum().item<std::int64_t>();
    expected[name] = scaled.clamp(-kLimit, kLimit);
  }
  CHECK(limited > 0);
  for (const NamedTensor& parameter : whole.set().parameters()) {
    at::Tensor& value = expected.at(parameter.name);
    value = parameter.tensor.detach().sub(value, decision.learningRates.front());
  }
  split.update(decision);
  decision.lossScale = 4;
  whole.update(decision);
  for (const NamedTensor& parameter : whole.set().parameters()) {
    CAPTURE(parameter.name);
    const at::Tensor error = parameter.tensor.detach().sub(expected.at(parameter.name)).abs();
    CHECK(error.max().item<float>() < 1e-6F);
  }
  CHECK(difference(split.weights(), weightsOf(whole.set())) == "");
}

std::vector<NamedTensor> buffersOf(const WholeStage& stage) {
  std::vector<NamedTensor> copies = stage.set().buffers();
  for (NamedTensor& each : copies) each.tensor = each.tensor.clone();
  return copies;
}

TEST_CASE("split equals whole with frozen parameters, and gradients cross only where needed") {
  struct Case {
    std::vector<std::string> freeze;
    bool headIsFrozen;
    std::size_t gradientFlows;
  };
  for (const Case& each :
       {Case{{"conv1*", "bn1*"}, true, 1}, Case{{"*", "!fc.*"}, true, 0},
        Case{{"conv2*"}, false, 2}, Case{{"*", "!conv1*"}, false, 2}, Case{{"fc.*"}, false, 2}}) {
    StageOptions options = cnnOptions();
    options.freeze = each.freeze;
    options.headIsFrozen = each.headIsFrozen;
    CAPTURE(each.freeze);
    const std::vector<BlockSpec> blocks = blocksFor(options);
    const auto flows = placeOfBody(blocks, options.cuts).flows();
    CHECK(std::count_if(flows.begin(), flows.end(), isGradient) ==
          static_cast<std::ptrdiff_t>(each.gradientFlows));
    for (const Order order : kOrders) CHECK(splitAgainstWhole(options, 13, 4, order) == "");
  }
}

TEST_CASE("frozen parameters do not change, and need no memory for training") {
  StageOptions options = cnnOptions();
  const int blocks = static_cast<int>(blocksFor(options).size());
  const std::size_t all = partBytes(options, blocksFor(options), 0, blocks, 1, 1, {1, 1, 1});
  options.freeze = {"*", "!fc.bias"};
  CHECK(partBytes(options, blocksFor(options), 0, blocks, 1, 1, {1, 1, 1}) < all);
  CHECK(trainedCount(blocksFor(options), 0, blocks) == 6);
  WholeStage whole(options);
  std::vector<NamedTensor> before = weightsOf(whole.set());
  for (NamedTensor& each : before) each.tensor = each.tensor.clone();
  const Batch batch = makeBatch(options.model, 8, 1);
  whole.runBatch(Phase::train, 1, 2, batch.view());
  whole.update(decisionOf(1));
  const auto after = byName(weightsOf(whole.set()));
  for (const NamedTensor& each : before) {
    const bool isFrozen = each.name != "fc.bias" &&
                          each.name.find("running") == std::string::npos &&
                          each.name.find("num_batches") == std::string::npos;
    CAPTURE(each.name);
    CHECK(each.tensor.equal(after.at(each.name)) == isFrozen);
  }
}

TEST_CASE("split equals whole with averaged weights, also when restored") {
  for (StageOptions options : {mlpOptions(), cnnOptions()}) {
    options.averageDecay = 0.9;
    CHECK(splitAgainstWhole(options, 13, 4, Order::alternating) == "");
    const auto train = [&](Split& split, std::uint64_t first, std::uint64_t last) {
      for (std::uint64_t step = first; step <= last; ++step) {
        split.runBatch(Phase::train, step, 4, makeBatch(options.model, 10, step), Order::oneByOne);
        split.update(decisionOf(step));
      }
    };
    Split whole(options), resumed(options);
    train(whole, 1, 4);
    resumed.client.restore(copyOf(whole.client.save()));
    resumed.body.restore(copyOf(whole.body.save()));
    CHECK(difference(resumed.weights(), whole.weights()) == "");
    train(whole, 5, 6);
    train(resumed, 5, 6);
    CHECK(difference(resumed.weights(), whole.weights()) == "");

    StageOptions without = options;
    without.averageDecay = 0;
    Split other(without);
    CHECK(errorCode([&] { other.body.restore(copyOf(whole.body.save())); }) == "bad-checkpoint");
    CHECK(errorCode([&] { whole.body.restore(copyOf(other.body.save())); }) == "bad-checkpoint");
  }
}

TEST_CASE("averaged weights start equal to the trained weights and then follow them") {
  StageOptions options = cnnOptions();
  options.averageDecay = 0.2;  // reached at step 2: (1 + 2) / (10 + 2) = 0.25
  StageOptions plain = options;
  plain.averageDecay = 0;
  WholeStage averaged(options), trained(plain);
  const auto start = byName(copyOf(weightsOf(trained.set())));
  averaged.importWeights(weightsOf(trained.set()));
  std::map<std::string, at::Tensor> expected = start;
  for (std::uint64_t step = 1; step <= 3; ++step) {  // the third step is skipped
    const Batch batch = makeBatch(options.model, 10, step);
    for (WholeStage* each : {&averaged, &trained}) {
      each->runBatch(Phase::train, step, 2, batch.view());
      each->update(decisionOf(step));
    }
    CHECK(difference(weightsOf(averaged.set()), weightsOf(trained.set())) == "");
    if (!decisionOf(step).apply) continue;
    const double decay = step == 1 ? 2.0 / 11 : 0.2;
    for (const NamedTensor& each : weightsOf(trained.set())) {
      at::Tensor& average = expected.at(each.name);
      average = average.is_floating_point()
                    ? average.mul(decay).add(each.tensor.detach(), 1 - decay)
                    : each.tensor.detach().clone();
    }
  }
  for (const NamedTensor& each : weightsOf(averaged.evaluatedSet())) {
    INFO(each.name);
    const at::Tensor wanted = expected.at(each.name).to(at::kDouble);
    CHECK(each.tensor.to(at::kDouble).sub(wanted).abs().max().item<double>() < 1e-6);
  }
  trained.runBatch(Phase::eval, 1, 2, makeBatch(options.model, 10, 9).view());
  averaged.runBatch(Phase::eval, 1, 2, makeBatch(options.model, 10, 9).view());
  CHECK(difference(averaged.losses(), trained.losses()) != "");
}

TEST_CASE("split equals whole in every precision, and with recomputed forwards") {
  for (const Precision client : {Precision::fp32, Precision::bf16}) {
    for (const Precision body : {Precision::fp32, Precision::bf16, Precision::fp16}) {
      StageOptions options = cnnOptions();
      options.clientPrecision = client;
      options.bodyPrecision = body;
      CAPTURE(precisionName(client), precisionName(body));
      CHECK(splitAgainstWhole(options, 13, 4, Order::alternating) == "");
      options.recompute = true;
      CHECK(splitAgainstWhole(options, 13, 4, Order::allForwardsFirst) == "");
    }
  }
}

TEST_CASE("a lower precision gives different values that are close to those of fp32") {
  StageOptions options = cnnOptions();
  const Batch batch = makeBatch(options.model, 8, 1);
  const auto lossOf = [&](Precision precision) {
    options.clientPrecision = options.bodyPrecision = precision;
    WholeStage whole(options);
    whole.runBatch(Phase::train, 1, 1, batch.view());
    return whole.losses().at(0);
  };
  const float full = lossOf(Precision::fp32);
  for (const Precision precision : {Precision::bf16, Precision::fp16}) {
    CHECK(lossOf(precision) != full);
    CHECK(lossOf(precision) == Approx(full).epsilon(0.05));
  }
}

// Scaling by a power of two changes no bit of the result.
TEST_CASE("a loss scale multiplies the gradients, and Update divides by it") {
  const StageOptions options = cnnOptions();
  const Batch batch = makeBatch(options.model, 8, 1);
  WholeStage plain(options), scaled(options);
  scaled.setLossScale(1024);
  plain.runBatch(Phase::train, 1, 2, batch.view());
  scaled.runBatch(Phase::train, 1, 2, batch.view());
  CHECK(scaled.losses() == plain.losses());
  CHECK(scaled.report().squareSum == plain.report().squareSum * 1024 * 1024);
  StepDecision decision = decisionOf(1);
  plain.update(decision);
  decision.lossScale = 1024;
  scaled.update(decision);
  CHECK(difference(weightsOf(scaled.set()), weightsOf(plain.set())) == "");
}

TEST_CASE("running statistics change at Update, in the order of the micro-batches") {
  const StageOptions options = cnnOptions();
  constexpr std::uint32_t kMicroBatches = 3;
  const Batch batch = makeBatch(options.model, 10, 1);
  WholeStage whole(options);
  const std::vector<NamedTensor> initial = buffersOf(whole);
  whole.runBatch(Phase::train, 1, kMicroBatches, batch.view());
  CHECK(difference(buffersOf(whole), initial) == "");
  whole.update(decisionOf(1));

  // Forwards run in a different order, and the test adds the statistics by hand.
  const std::vector<BlockSpec> blocks = blocksOf(options);
  const int count = static_cast<int>(blocks.size());
  const ModelPart part(blocks, 0, count, {options.cuts.cut0, options.cuts.cut1});
  ParameterSet set(blocks, 0, count, kSeed);
  LabeledBatch labeled(options.scores, blocks.back().outputShape(), cpuDevice());
  labeled.begin(batch.view());
  std::vector<std::vector<NormStatistics>> statistics(kMicroBatches);
  for (const std::uint32_t i : {2u, 0u, 1u}) {
    const MicroBatch at{Phase::train, 1, i, {kMicroBatches, 10}};
    part.forward({}, labeled.inputs(at), set, {kSeed, at, &statistics[i]});
  }
  for (const auto& each : statistics) set.addStatistics(each);
  CHECK(difference(buffersOf(whole), set.buffers()) == "");
  CHECK(set.buffers()[2].tensor.item<std::int64_t>() == kMicroBatches);

  // A different order gives different bits. PyTorch's formula gives the same values up to rounding.
  ParameterSet reversed(blocks, 0, count, kSeed);
  for (auto each = statistics.rbegin(); each != statistics.rend(); ++each) {
    reversed.addStatistics(*each);
  }
  CHECK(difference(reversed.buffers(), set.buffers()) != "");
  at::Tensor mean = at::zeros({4}), variance = at::ones({4});
  for (const auto& each : statistics) {
    mean = mean.mul(0.9).add(each[0].mean, 0.1);
    variance = variance.mul(0.9).add(each[0].variance, 0.1);
  }
  CHECK(mean.sub(set.buffers()[0].tensor).abs().max().item<double>() < 1e-6);
  CHECK(variance.sub(set.buffers()[1].tensor).abs().max().item<double>() < 1e-6);
}

TEST_CASE("a skipped step does not change the running statistics") {
  const StageOptions options = cnnOptions();
  Split split(options);
  WholeStage whole(options);
  Batch batch = makeBatch(options.model, 10, 1);
  split.runBatch(Phase::train, 1, 3, batch, Order::alternating);
  whole.runBatch(Phase::train, 1, 3, batch.view());
  StepDecision skip = decisionOf(1);
  skip.apply = false;
  split.update(skip);
  whole.update(skip);
  const std::vector<NamedTensor> initial = weightsOf(WholeStage(options).set());
  CHECK(difference(split.weights(), initial) == "");
  CHECK(difference(weightsOf(whole.set()), initial) == "");
}

TEST_CASE("a body's memory is computed from its shapes") {
  StageOptions options;
  options.model = {"mlp", {{"width", "10"}, {"depth", "2"}}, {7}, 3};
  options.cuts = {2, 5};  // the body is relu1, fc2, relu2
  options.optimizer = {"sgd", {{"momentum", 0.9}}};
  CHECK(partBytes(options, blocksFor(options), options.cuts.cut0, options.cuts.cut1, 3, 2,
                  {4, 2, 1}) == 110 * 12 + 100 * 4 + (2 * 30 + 2 * (10 + 10)) * 4 * 4);
  options.optimizer = {"sgd", {}};
  CHECK(partBytes(options, blocksFor(options), options.cuts.cut0, options.cuts.cut1, 3, 2,
                  {4, 2, 1}) == 110 * 8 + 100 * 4 + (2 * 30 + 2 * (10 + 10)) * 4 * 4);
  // Evaluation batches that are larger than those of training.
  CHECK(partBytes(options, blocksFor(options), options.cuts.cut0, options.cuts.cut1, 3, 2,
                  {4, 40, 1}) == 110 * 8 + 100 * 4 + 2 * (10 + 10) * 40 * 4);
  // Each micro-batch has its own statistics: two batch norms, of 8 and 16 channels.
  const StageOptions norms = cnnOptions();
  const auto bytes = [&](std::uint32_t microBatches) {
    return partBytes(norms, blocksFor(norms), norms.cuts.cut0, norms.cuts.cut1, microBatches, 2,
                     {4, 4, 1});
  };
  CHECK(bytes(7) - bytes(6) == 4 * (2 * 8 + 1 + 2 * 16 + 1) + 6 * 512);
  options.model.parameters["width"] = "65536";
  options.model.parameters["depth"] = "64";
  options.cuts = {1, 128};
  constexpr std::uint32_t kMax = std::numeric_limits<std::uint32_t>::max();
  CHECK(partBytes(options, blocksFor(options), options.cuts.cut0, options.cuts.cut1, kMax, kMax,
                  {kMax, kMax, 1}) == std::numeric_limits<std::size_t>::max());
}

// ---- The model `sleep` ----

StageOptions sleepOptions(const std::map<std::string, std::string>& times) {
  StageOptions options = cnnOptions();
  options.model.name = "sleep";
  options.model.parameters.insert(times.begin(), times.end());
  const auto [cut0, cut1] = findModel("sleep").defaultCuts(options.model);
  options.cuts = {cut0, cut1};
  return options;
}

TEST_CASE("the model sleep takes its times, and has tensors and weights of the model in it") {
  const StageOptions options =
      sleepOptions({{"F1", "2"}, {"T3", "2"}, {"B1", "2"}, {"F2", "2"}, {"B2", "1"}, {"W2", "1"}});
  Split split(options);
  const std::vector<std::byte> before = toSafetensors(split.weights());
  CHECK((before == toSafetensors(Split(cnnOptions()).weights())));
  const Batch batch = makeBatch(options.model, 9, 1);
  const auto start = std::chrono::steady_clock::now();
  split.runBatch(Phase::train, 1, 2, batch, Order::allForwardsFirst);
  CHECK(std::chrono::steady_clock::now() - start >= std::chrono::milliseconds(2 * 5 * 2));
  split.update(decisionOf(1));
  CHECK((toSafetensors(split.weights()) == before));
  CHECK(split.client.metrics().samples == 9);

  split.client.beginBatch(batch.view());
  const MicroBatch at{Phase::train, 2, 1, {2, 9}};
  const TensorBundle activation = split.client.headForward(at);
  CHECK(activation.front().view().spec ==
        flowSpec(blocksOf(cnnOptions()), cnnOptions().cuts, activationAt(0), 4));
  CHECK(split.client.headForward({Phase::eval, 2, 1, {2, 9}}).front().view().data ==
        activation.front().view().data);
}

TEST_CASE("the model sleep without times computes what the model in it computes") {
  Split split(sleepOptions({})), model(cnnOptions());
  for (std::uint64_t step = 1; step <= 2; ++step) {
    const Batch batch = makeBatch(cnnOptions().model, 9, step);
    for (Split* each : {&split, &model}) {
      each->runBatch(Phase::train, step, 3, batch, Order::allForwardsFirst);
      each->update(decisionOf(step));
    }
  }
  CHECK((toSafetensors(split.weights()) == toSafetensors(model.weights())));
}

TEST_CASE("only the parts of the model sleep that have a time") {
  const StageOptions options = sleepOptions({{"F2", "0"}});
  Split split(options);
  for (std::uint64_t step = 1; step <= 2; ++step) {
    split.runBatch(Phase::train, step, 3, makeBatch(options.model, 9, step),
                   Order::allForwardsFirst);
    CHECK(split.body.report().squareSum == 0);
    CHECK(split.client.headReport().squareSum > 0);
    CHECK(split.client.tailReport().squareSum > 0);
    split.update(decisionOf(step));
  }
}

TEST_CASE("a split backward sleeps in both of its parts") {
  StageOptions options = sleepOptions({{"B2", "2"}, {"W2", "4"}});
  options.splitsBackward = true;
  BodyStage body(bodyOptions(options, 0));
  ClientStage client(clientOptions(options));
  const Batch batch = makeBatch(options.model, 9, 1);
  client.beginBatch(batch.view(), 1);
  const MicroBatch at{Phase::train, 1, 0, {1, 9}};
  TensorBundle gradients =
      client.tailStep(at, copied(body.forward(at, copied(client.headForward(at)))));
  const auto start = std::chrono::steady_clock::now();
  CHECK(body.backward(at, copied(gradients)).size() == 1);
  const auto between = std::chrono::steady_clock::now();
  body.backwardWeights(at);
  CHECK(between - start >= std::chrono::milliseconds(2));
  CHECK(std::chrono::steady_clock::now() - between >= std::chrono::milliseconds(4));
}

TEST_CASE("the model sleep can be divided at any cuts of the model in it") {
  const auto cutsOf = [](const std::string& at) {
    StageOptions options = cnnOptions();
    options.model = {"sleep", {{"of", "mlp"}, {"at", at}}, {3, 7}, 6};
    return findModel("sleep").blocks(options.model).size() - 1;
  };
  CHECK(cutsOf("1-2") == 2);
  CHECK(cutsOf("1-2-3-5") == 4);
  for (const char* wrong : {"", "1", "2-1", "0-2", "1-6", "1-", "-1-2", "1-2-", "1,2", "a-b"}) {
    INFO(wrong);
    CHECK(errorCode([&] { cutsOf(wrong); }) == "bad-model-parameter");
  }
}

std::string codeOf(const std::function<void()>& call) {
  try {
    call();
  } catch (const UsageError& error) {
    return error.code();
  }
  return "";
}

TEST_CASE("stages refuse inconsistent options") {
  StageOptions options = mlpOptions();
  options.cuts = {3, 3};
  CHECK(codeOf([&] { ClientStage{options}; }) == "bad-cuts");
  CHECK(codeOf([&] { WholeStage{options}; }) == "bad-cuts");
  options = mlpOptions();
  options.optimizer.name = "sgdd";
  CHECK(codeOf([&] { BodyStage{options}; }) == "unknown-optimizer");
  options = mlpOptions();
  options.model.name = "mpl";
  CHECK(codeOf([&] { BodyStage{options}; }) == "unknown-model");
}

TEST_CASE("a label that is not a class is refused with its sample") {
  const StageOptions options = mlpOptions();
  Batch batch = makeBatch(options.model, 4, 1);
  ClientStage client(options);
  for (const std::int64_t label : {6, -1}) {
    batch.labels[2] = label;
    try {
      client.beginBatch(batch.view());
      FAIL_CHECK("was accepted");
    } catch (const UsageError& error) {
      CHECK(error.what() ==
            "label " + std::to_string(label) +
                " of sample 2 of the batch is not one of the model's 6 classes, 0 to 5");
    }
  }
}

TEST_CASE("actions out of order are internal errors") {
  const StageOptions options = mlpOptions();
  Split split(options);
  const Batch batch = makeBatch(options.model, 4, 1);
  split.client.beginBatch(batch.view());
  const MicroBatch at{Phase::train, 1, 0, {2, 4}};
  const auto gradient = [&](Flow flow) {
    const TensorSpec spec = flowSpec(blocksOf(options), options.cuts, flow, 2);
    return bundleOf(toPayload(at::empty(spec.shape).zero_(), spec.order));
  };
  CHECK_THROWS_AS(split.body.backward(at, gradient(gradientAt(1))), std::logic_error);
  CHECK_THROWS_AS(split.client.headBackward(at, gradient(gradientAt(0))), std::logic_error);
  const TensorBundle activation0 = split.client.headForward(at);
  CHECK_THROWS_AS(split.client.headForward(at), std::logic_error);
  split.body.forward(at, copied(activation0));
  CHECK_THROWS_AS(split.body.forward(at, copied(activation0)), std::logic_error);
  // The number of samples differs from the micro-batch's.
  CHECK_THROWS_AS(split.body.forward({Phase::train, 1, 1, {4, 4}}, copied(activation0)),
                  std::logic_error);
}

}  // namespace
}  // namespace cleave::test
