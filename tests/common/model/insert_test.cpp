// Learned inserts: their shapes, their initial values, and what they refuse. stage_test.cpp
// compares split and whole models that have inserts.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linalg_eigh.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <limits>
#include <set>
#include <tuple>

#include "common/core/random.h"
#include "common/model/blocks.h"
#include "common/model/insert_pca.h"
#include "common/model/inserts.h"
#include "common/model/stage/insert_inputs.h"
#include "common/model/stage/insert_trainer.h"
#include "common/model/stage/stage.h"
#include "tests/support/error_code.h"

namespace cleave::test {
namespace {

StageOptions mobileNet(std::int64_t size = 224) {
  StageOptions options;
  options.model = {"mobilenet_v2", {}, {3, size, size}, 10};
  options.cuts = {2, 21};
  options.seed = 3;
  return options;
}

StageOptions mlp() {
  StageOptions options = mobileNet();
  options.model = {"mlp", {{"width", "6"}}, {4}, 3};
  options.cuts = {2, 4};
  return options;
}

InsertSpec conv(std::uint32_t cut, double channels, double kernel) {
  return {cut, "conv", {{"channels", channels}, {"kernel", kernel}}};
}

InsertSpec linear(std::uint32_t cut, double rank) { return {cut, "linear", {{"rank", rank}}}; }

// The blocks before and after a cut with a tensor of this shape, which return their input
// unchanged.
std::vector<BlockSpec> passing(const Shape& shape) {
  BlockSpec block;
  block.outputs = {{shape}};
  block.forward = [](const TensorList& x, std::span<const at::Tensor>, const BlockContext&) {
    return x;
  };
  return {block, block};
}

at::Tensor values(const Shape& shape) {
  const at::Tensor tensor = at::empty(shape);
  fillNormal(randomKey(5, "input"),
             {tensor.mutable_data_ptr<float>(), static_cast<std::size_t>(tensor.numel())});
  return tensor;
}

double bytesAtCuts(const StageOptions& options) {
  const std::vector<BlockSpec> blocks = blocksFor(options);
  double bytes = 0;
  for (const Flow flow : placeOfBody(blocks, options.cuts).flows()) {
    bytes += static_cast<double>(flowSpec(blocks, options.cuts, flow, 64).bytes());
  }
  return bytes;
}

TEST_CASE("inserts make the bytes of activations and gradients smaller") {
  StageOptions options = mobileNet();
  const double plain = bytesAtCuts(options);
  options.inserts = {conv(0, 20, 4), conv(1, 320, 1)};
  const std::vector<BlockSpec> blocks = blocksFor(options);
  const TensorSpec first{DType::f32, {64, 20, 28, 28}, MemoryOrder::channelsLast};
  const TensorSpec second{DType::f32, {64, 320, 7, 7}, MemoryOrder::channelsLast};
  CHECK(flowSpec(blocks, options.cuts, activationAt(0), 64) == first);
  CHECK(flowSpec(blocks, options.cuts, gradientAt(0), 64) == first);
  CHECK(flowSpec(blocks, options.cuts, activationAt(1), 64) == second);
  CHECK(flowSpec(blocks, options.cuts, gradientAt(1), 64) == second);
  CHECK(bytesAtCuts(options) / plain == Approx(0.0676).margin(0.00005));
  options.inserts = {conv(0, 32, 4), conv(1, 320, 1)};
  CHECK(bytesAtCuts(options) / plain == Approx(0.0878).margin(0.00005));
}

TEST_CASE("a second insert at a cut encodes what the first one puts out") {
  StageOptions options = mobileNet();
  const double plain = bytesAtCuts(options);
  options.inserts = {conv(0, 20, 4), conv(1, 320, 1), conv(0, 40, 2), linear(1, 200)};
  const std::vector<BlockSpec> blocks = blocksFor(options);
  CHECK(outputsAt(blocks, options.cuts, 0).front().shape == Shape{40, 14, 14});
  CHECK(outputsAt(blocks, options.cuts, 1).front().shape == Shape{200, 7, 7});
  CHECK(bytesAtCuts(options) / plain == Approx(0.0380).margin(0.00005));
  const ParameterSet head(blocks, 0, 2, 1), body(blocks, 2, 21, 1);
  for (const char* name : {"insert.0.encoder.weight", "insert.0.2.encoder.weight"}) {
    CHECK(head.has(name));
  }
  for (const char* name : {"insert.0.decoder.weight", "insert.0.2.decoder.weight",
                           "insert.1.encoder.bias", "insert.1.2.encoder.bias"}) {
    CHECK(body.has(name));
  }
  const std::vector<PlacedInsert> placed =
      placeInserts(passing({20, 28, 28}), {conv(3, 10, 2), linear(3, 5)}, {1}, 3);
  REQUIRE(placed.size() == 2);
  CHECK(placed[1].level == 1);
  CHECK(placed[1].prefix == "insert.3.2.");
  CHECK(placed[1].layers.encoder.output == Shape{5, 14, 14});
  CHECK(placed[1].layers.decoder.output == Shape{10, 14, 14});
  // The decoders undo the encoders: all features are kept here.
  const at::Tensor x = values({2, 6});
  std::vector<BlockSpec> features = passing({6});
  addInserts(features, {linear(0, 6), linear(0, 6)}, {1}, 0);
  const at::NoGradGuard noGrad;
  const ParameterSet encoder(features, 0, 1, 1), decoder(features, 1, 2, 1);
  const TensorList encoded = features[0].forward({x}, encoder.tensors(), {});
  CHECK(features[1].forward(encoded, decoder.tensors(), {}).front().equal(x));
}

struct Passed {
  at::Tensor encoded, decoded;
};

Shape shapeOf(const at::Tensor& x) { return {x.sizes().begin() + 1, x.sizes().end()}; }

Passed pass(const at::Tensor& x, const InsertSpec& insert,
            const std::vector<NamedTensor>& weights = {}) {
  std::vector<BlockSpec> blocks = passing(shapeOf(x));
  addInserts(blocks, {insert}, {1}, 0);
  const at::NoGradGuard noGrad;
  const ParameterSet encoder(blocks, 0, 1, 1), decoder(blocks, 1, 2, 1);
  loadWeights(encoder, selectWeights(weights, blocks, 0, 1));
  loadWeights(decoder, selectWeights(weights, blocks, 1, 2));
  Passed passed;
  passed.encoded = blocks[0].forward({x}, encoder.tensors(), {}).front();
  passed.decoded = blocks[1].forward({passed.encoded}, decoder.tensors(), {}).front();
  CHECK(passed.encoded.sizes().slice(1).vec() == blocks[0].outputShape());
  CHECK(passed.decoded.sizes() == x.sizes());
  return passed;
}

TEST_CASE("linear, decaying and residual begin as the identity of the first features") {
  for (const std::string kind : {"linear", "decaying", "residual"}) {
    for (const auto& [shape, dimension] : {std::pair{Shape{2, 6}, 1}, std::pair{Shape{2, 5, 6}, 2},
                                           std::pair{Shape{2, 6, 3, 4}, 1}}) {
      CAPTURE(kind, shape.size());
      const at::Tensor x = values(shape);
      const auto ofRank = [&](double rank) {
        InsertSpec insert{0, kind, {{"rank", rank}}};
        if (kind == "decaying") insert.parameters["every_steps"] = 10;
        return insert;
      };
      const Passed passed = pass(x, ofRank(4));
      CHECK(passed.encoded.equal(x.narrow(dimension, 0, 4)));
      CHECK(passed.decoded.narrow(dimension, 0, 4).equal(x.narrow(dimension, 0, 4)));
      CHECK(passed.decoded.narrow(dimension, 4, 2).abs().max().item<float>() == 0);
      const Passed all = pass(x, ofRank(6));
      CHECK(all.decoded.equal(x));
    }
  }
}

TEST_CASE("the rank is the previous interval's share, rounded down, and at least min_rank") {
  const auto ranks = [](const RankDecay& decay, std::uint64_t steps) {
    std::vector<std::int64_t> all;
    for (std::uint64_t step = 1; step <= steps; ++step) all.push_back(decay.rankAt(step));
    return all;
  };
  using Ranks = std::vector<std::int64_t>;
  CHECK(ranks({.rank = 10, .minRank = 1, .share = 0.5, .everySteps = 2}, 10) ==
        Ranks{10, 10, 5, 5, 2, 2, 1, 1, 1, 1});
  CHECK(ranks({.rank = 10, .minRank = 4, .share = 0.9, .everySteps = 1}, 9) ==
        Ranks{10, 9, 8, 7, 6, 5, 4, 4, 4});
  CHECK(ranks({.rank = 3, .minRank = 2, .share = 0, .everySteps = 1}, 3) == Ranks{3, 2, 2});
  const RankDecay constant{.rank = 7, .minRank = 1, .share = 1, .everySteps = 1};
  CHECK(constant.rankAt(std::uint64_t{1} << 62) == 7);
  const RankDecay slow{.rank = 1 << 16, .minRank = 1, .share = 0.99999, .everySteps = 1};
  CHECK(slow.rankAt(3) == (1 << 16) - 2);
  CHECK(slow.rankAt(std::uint64_t{1} << 62) == 1);
}

TEST_CASE("a convolution covers images that its kernel does not divide") {
  const Passed passed = pass(values({2, 3, 7, 10}), conv(0, 5, 4));
  CHECK(passed.encoded.sizes().vec() == Shape{2, 5, 2, 3});
  // Every position of the image affects the encoded tensor.
  at::Tensor x = values({1, 3, 7, 10});
  const at::Tensor before = pass(x, conv(0, 5, 4)).encoded;
  x.select(2, 6).select(2, 9).add_(1);
  CHECK_FALSE(pass(x, conv(0, 5, 4)).encoded.equal(before));
}

TEST_CASE("a convolution keeps the magnitude of its input") {
  const at::Tensor x = values({4, 32, 32, 32});
  const Passed passed = pass(x, conv(0, 20, 4));
  CHECK(passed.encoded.std().item<double>() == Approx(1).epsilon(0.1));
  CHECK(passed.decoded.std().item<double>() == Approx(1).epsilon(0.1));
}

// ---- Principal components ----

// Values whose features are correlated and have different means.
at::Tensor correlated(const Shape& shape) {
  const at::Tensor x = values(shape);
  const std::int64_t dimension =
      shape.size() == 4 ? 1 : static_cast<std::int64_t>(shape.size()) - 1;
  const at::Tensor shared = x.mean(dimension, true).mul(4);
  Shape ofFeatures(shape.size(), 1);
  ofFeatures[static_cast<std::size_t>(dimension)] = x.size(dimension);
  return x.add(shared).add(at::arange(x.size(dimension)).view(ofFeatures));
}

struct Solved {
  PrincipalComponents components;
  Passed passed;
  double error = 0;  // measured
};

Solved solve(const at::Tensor& x, const InsertSpec& insert) {
  const InsertLayers layers = layersFor(insert, {{shapeOf(x)}});
  const Shape& weight = layers.encoder.tensors.front().shape;
  InsertStatistics statistics(layers.kernel, elementCount(weight) / weight.front());
  for (std::int64_t n = 0; n < x.size(0); ++n) statistics.add(x.narrow(0, n, 1));
  Solved solved;
  solved.components = statistics.components();
  solved.passed = pass(x, insert, solved.components.weights(layers, "insert.0."));
  const at::Tensor centered = withoutMean(x, solved.components.mean);
  solved.error = solved.passed.decoded.sub(x).square().sum().item<double>() /
                 centered.square().sum().item<double>();
  return solved;
}

TEST_CASE("principal components of full rank reproduce the tensor") {
  const auto isExact = [](const at::Tensor& x, const InsertSpec& insert) {
    return solve(x, insert).passed.decoded.sub(x).abs().max().item<double>() < 1e-4;
  };
  CHECK(isExact(correlated({40, 6}), linear(0, 6)));
  CHECK(isExact(correlated({9, 5, 6}), linear(0, 6)));
  CHECK(isExact(correlated({9, 6, 3, 4}), linear(0, 6)));
  CHECK(isExact(correlated({9, 6, 3, 4}), conv(0, 6, 1)));
  CHECK(isExact(correlated({20, 3, 8, 6}), conv(0, 12, 2)));
}

TEST_CASE("principal components leave the error that their variances say, the smallest one") {
  const std::pair<at::Tensor, std::vector<InsertSpec>> cases[] = {
      {correlated({400, 8}), {linear(0, 1), linear(0, 3), linear(0, 7)}},
      {correlated({30, 8, 4, 6}), {linear(0, 1), linear(0, 3)}},
      {correlated({30, 2, 8, 6}), {conv(0, 1, 2), conv(0, 3, 2), conv(0, 7, 2)}}};
  for (const auto& [x, inserts] : cases) {
    double last = 1;
    for (const InsertSpec& insert : inserts) {
      const Solved solved = solve(x, insert);
      const std::int64_t rank = solved.passed.encoded.size(1);
      CAPTURE(x.dim(), insert.kind, rank);
      CHECK(solved.error == Approx(solved.components.error(rank)).epsilon(1e-3));
      CHECK(solved.error < 0.95 * last);
      last = solved.error;
      CHECK(solved.components.rankFor(solved.components.error(rank)) == rank);
      const Passed unsolved = pass(x, insert);
      CHECK(solved.passed.decoded.sub(x).square().sum().item<double>() <
            unsolved.decoded.sub(x).square().sum().item<double>());
      const Solved again = solve(x, insert);
      CHECK(again.passed.encoded.equal(solved.passed.encoded));
    }
  }
  at::Tensor x = values({4, 6});
  x[1][2] = std::numeric_limits<float>::infinity();
  CHECK(errorCode([&] { solve(x, linear(0, 2)); }) == "non-finite");
  CHECK(errorCode([] { InsertStatistics(0, 1 << 15); }) == "bad-insert");
}

InsertSpec pca(std::uint32_t cut, double channels, double kernel) {
  return {cut, "pca", {{"channels", channels}, {"kernel", kernel}}};
}

PrincipalComponents componentsOf(const at::Tensor& x, const InsertLayers& layers) {
  InsertStatistics statistics(layers.kernel, elementCount(layers.encoder.tensors.front().shape) /
                                                 layers.encoder.tensors.front().shape.front());
  statistics.add(x);
  return statistics.components();
}

TEST_CASE("a tracked insert of full rank reproduces the tensor") {
  for (const auto& [shape, channels, kernel] :
       {std::tuple{Shape{40, 6}, 6, 1}, std::tuple{Shape{9, 5, 6}, 6, 1},
        std::tuple{Shape{6, 3, 4, 6}, 12, 2}}) {
    CAPTURE(shape.size());
    const at::Tensor x = values(shape).add(3);
    const InsertSpec insert = pca(0, channels, kernel);
    const InsertLayers layers = layersFor(insert, {BlockOutput{shapeOf(x)}});
    const auto weights = componentsOf(x, layers).weights(layers, "insert.0.");
    CHECK(pass(x, insert).decoded.allclose(x, 1e-5, 1e-5));  // initially the identity
    CHECK(pass(x, insert, weights).decoded.allclose(x, 1e-5, 1e-5));
  }
}

TEST_CASE("a tracked basis converges to the principal components of what its encoder gets") {
  std::vector<BlockSpec> blocks = passing({10});
  addInserts(blocks, {pca(0, 3, 1)}, {1}, 0);
  ParameterSet encoder(blocks, 0, 1, 1);
  const at::Tensor scale = at::arange(10, 0, -1).to(at::kFloat).pow(2);
  const at::Tensor x = values({500, 10}).mul(scale).matmul(values({10, 10}));
  std::vector<NormStatistics> statistics;
  BlockContext context;
  context.statistics = &statistics;
  const at::NoGradGuard noGrad;
  blocks[0].forward({x}, encoder.tensors(), context);
  REQUIRE(statistics.size() == 1);
  TrackedBases tracked;
  tracked.add({0, 5, true}, encoder.tensors()[0], encoder.tensors()[kBasisCovariance], {});
  const auto error = [&] {
    const at::Tensor& basis = encoder.tensors()[0];
    const at::Tensor rest = x.sub(x.matmul(basis.t()).matmul(basis));
    return rest.square().sum().item<double>() / x.square().sum().item<double>();
  };
  double before = error();
  for (std::uint64_t step = 1; step <= 20; ++step) {
    const auto bases = tracked.next(step);
    CHECK(bases.size() == (step % 5 == 0 ? 1 : 0));
    encoder.addStatistics(statistics);
    StepDecision decision;
    decision.step = step;
    tracked.install(decision);
    CHECK(error() <= before + 1e-6);
    before = error();
  }
  // The rows have zero mean here: the insert's own mean is 0.
  const auto squares = x.to(at::kDouble).t().matmul(x.to(at::kDouble));
  const at::Tensor variances = std::get<0>(at::linalg_eigh(squares));
  const double least = variances.narrow(0, 0, 7).sum().item<double>();
  CHECK(before == Approx(least / variances.sum().item<double>()).epsilon(0.01).margin(1e-6));
  const at::Tensor basis = encoder.tensors()[0].to(at::kDouble);
  CHECK(basis.matmul(basis.t()).allclose(at::eye(3, at::kDouble), 0, 2e-3));
  CHECK(encoder.tensors()[kBasisMean].abs().max().item<float>() == 0);
}

struct Images {
  at::Tensor images = values({8, 3, 34, 34});
  std::vector<std::int64_t> labels = std::vector<std::int64_t>(8);

  BatchView view() const {
    const TensorSpec spec{DType::f32, images.sizes().vec(), MemoryOrder::contiguous};
    const TensorSpec target{DType::i64, {8}, MemoryOrder::contiguous};
    return {{{static_cast<const std::byte*>(images.const_data_ptr()), spec},
             {reinterpret_cast<const std::byte*>(labels.data()), target}}};
  }
};

// Fits all inserts to the batch, and measures their errors on it.
std::vector<InsertError> fit(InsertTrainer& trainer, const StageOptions& options,
                             const BatchView& batch) {
  InsertInputs tensors(options, trainer.cuts(), {});
  for (std::size_t level = 0; level < trainer.levels(); ++level) {
    tensors.forEach(batch, 1, [&](std::uint32_t cut, const at::Tensor& x, const MicroBatch&) {
      trainer.observe(level, cut, x);
    });
    trainer.solve(level);
  }
  tensors.forEach(batch, 1, [&](std::uint32_t cut, const at::Tensor& x, const MicroBatch&) {
    trainer.measure(cut, x);
  });
  return trainer.errors();
}

StageOptions smallMobileNet() {
  StageOptions options = mobileNet(34);
  options.model.parameters = {{"width", "0.25"}};
  options.microBatches = 2;
  return options;
}

TEST_CASE("inserts are fitted to the tensors of training, and nothing else changes") {
  StageOptions options = smallMobileNet();
  const Images images;
  const BatchView batch = images.view();
  const auto initial = weightsOf(WholeStage(options).set());
  // In the other order than the model's.
  options.inserts = {conv(1, 40, 1), conv(0, 12, 4)};
  InsertTrainer trainer(options, {});
  CHECK_FALSE(trainer.needsTraining(0));
  const std::vector<InsertError> errors = fit(trainer, options, batch);
  REQUIRE(errors.size() == 2);
  CHECK(errors[0].own == Approx(trainer.components()[0].error(40)).margin(1e-4));
  CHECK(errors[0].atCut == errors[0].own);
  CHECK(trainer.components()[1].variances.size(0) == 8 * 16);
  const std::vector<NamedTensor> weights = trainer.weights();
  CHECK(weights.size() == initial.size() + 8);
  for (const NamedTensor& before : initial) {
    const auto after = std::find_if(weights.begin(), weights.end(), [&](const NamedTensor& each) {
      return each.name == before.name;
    });
    REQUIRE(after != weights.end());
    CHECK(after->tensor.equal(before.tensor));
  }
}

TEST_CASE("a second insert is fitted to what the first one at its cut puts out") {
  StageOptions options = smallMobileNet();
  const Images images;
  options.inserts = {conv(0, 12, 4), linear(1, 16), conv(0, 6, 1), linear(1, 6)};
  InsertTrainer trainer(options, {});
  REQUIRE(trainer.levels() == 2);
  CHECK(trainer.cuts() == std::set<std::uint32_t>{0, 1});
  const std::vector<InsertError> errors = fit(trainer, options, images.view());
  REQUIRE(errors.size() == 4);
  CHECK(trainer.components()[2].variances.size(0) == 12);
  CHECK(trainer.components()[3].variances.size(0) == 16);
  for (const std::size_t inner : {0U, 1U}) {
    CAPTURE(inner);
    const InsertError &first = errors[inner], &second = errors[inner + 2];
    CHECK(first.own == first.atCut);
    CHECK(second.own > 1e-4);
    // What the second one loses is orthogonal to what the first one does.
    CHECK(second.atCut == Approx(first.own + (1 - first.own) * second.own).epsilon(0.02));
  }
  // Two sets of principal components are one with fewer channels.
  StageOptions one = options;
  one.inserts = {conv(0, 6, 4), linear(1, 6)};
  InsertTrainer single(one, {});
  const std::vector<InsertError> errorsOfOne = fit(single, one, images.view());
  CHECK(errors[2].atCut == Approx(errorsOfOne[0].own).epsilon(0.01));
  CHECK(errors[3].atCut == Approx(errorsOfOne[1].own).epsilon(0.01));
}

// ---- Correction ----

TEST_CASE("a correction adds the insert's error to the gradient of its input, in training") {
  InsertSpec insert = linear(0, 2);
  insert.parameters["correction"] = 0.5;
  std::vector<BlockSpec> blocks = passing({5});
  addInserts(blocks, {insert}, {1}, 0);
  const ParameterSet encoder(blocks, 0, 1, 1);
  // The decoder's copies are not part of the saved weights.
  CHECK(encoder.parameters().size() == 2);
  CHECK(encoder.constants().size() == 2);
  const at::Tensor input = values({3, 5});
  input.set_requires_grad(true);
  const at::Tensor x = input.mul(2);  // as computed by a part of the model
  BlockContext context;
  context.at.batch = {2, 10};  // the batch has more samples than the micro-batch
  const at::Tensor z = blocks[0].forward({x}, encoder.tensors(), context).front();
  CHECK(z.equal(x.narrow(1, 0, 2)));
  z.sum().backward();
  // The initial insert is the identity of two features, and sends nothing of the others.
  CHECK(input.grad().narrow(1, 0, 2).equal(at::full({3, 2}, 2.0F)));
  const at::Tensor expected = x.detach().narrow(1, 2, 3).mul(2 * 0.5 / 10);
  CHECK(input.grad().narrow(1, 2, 3).allclose(expected));
  const at::NoGradGuard noGrad;
  CHECK(blocks[0].forward({x}, encoder.tensors(), context).front().equal(z));
}

TEST_CASE("integer tensors that cross the cut are not encoded") {
  std::vector<BlockSpec> blocks = passing({3, 6});
  for (BlockSpec& block : blocks) {
    block.outputs.insert(block.outputs.begin(), {{3}, {"mask", false}, DType::i64});
  }
  CHECK(encodedTensor(blocks[0].outputs) == 1);
  addInserts(blocks, {linear(0, 2)}, {1}, 0);
  CHECK(blocks[0].outputs[0].shape == Shape{3});
  CHECK(blocks[0].outputs[1].shape == Shape{3, 2});
  const at::NoGradGuard noGrad;
  const ParameterSet encoder(blocks, 0, 1, 1), decoder(blocks, 1, 2, 1);
  const at::Tensor mask = values({5, 3}), x = values({5, 3, 6});
  const TensorList encoded = blocks[0].forward({mask, x}, encoder.tensors(), {});
  REQUIRE(encoded.size() == 2);
  CHECK(encoded[0].equal(mask));
  CHECK(encoded[1].equal(x.narrow(2, 0, 2)));
  const TensorList decoded = blocks[1].forward(encoded, decoder.tensors(), {});
  CHECK(decoded[0].equal(mask));
  CHECK(decoded[1].sizes() == x.sizes());
}

TEST_CASE("an insert's initial values depend on the seed and the cut only") {
  StageOptions options = mobileNet(64);
  options.inserts = {conv(1, 320, 1)};
  const auto weight = [](const StageOptions& stage, const std::string& name) {
    const WholeStage whole(stage);
    for (const NamedTensor& each : whole.set().parameters()) {
      if (each.name == name) return each.tensor.detach().clone();
    }
    return at::Tensor();
  };
  const std::string name = "insert.1.encoder.weight";
  const at::Tensor first = weight(options, name);
  options.inserts.push_back(conv(0, 20, 4));
  CHECK(weight(options, name).equal(first));
  options.seed += 1;
  CHECK_FALSE(weight(options, name).equal(first));
}

struct Refusal {
  std::string sentence, key;
};

Refusal refusalOf(StageOptions options, std::vector<InsertSpec> inserts) {
  options.inserts = std::move(inserts);
  try {
    blocksFor(options);
  } catch (const UsageError& error) {
    CHECK(error.code() == "bad-insert");
    CHECK_FALSE(error.hint().empty());
    return {error.what(), error.key()};
  }
  return {"accepted", ""};
}

TEST_CASE("inserts that do not fit their cut are refused") {
  const auto refused = [](const StageOptions& options, const std::vector<InsertSpec>& inserts,
                          const std::string& text, const std::string& key) {
    const Refusal refusal = refusalOf(options, inserts);
    CHECK_THAT(refusal.sentence, Catch::Contains(text));
    CHECK(refusal.key == key);
  };
  refused(mobileNet(), {linear(2, 4)}, "at cut 2: there is no such cut", "insert[0].cut");
  refused(mobileNet(), {linear(1, 4), linear(1, 4), linear(0, 4), linear(1, 4)}, "has 2 inserts",
          "insert[3].cut");
  refused(mobileNet(), {linear(1, 4), linear(1, 5)}, "more than the 4 features", "insert[1].rank");
  refused(mobileNet(), {conv(0, 4, 4), conv(0, 2, 64)}, "images of 28 x 28", "insert[1].kernel");
  refused(mobileNet(), {pca(0, 4, 1), linear(0, 2)}, "follows an insert of kind pca",
          "insert[1].cut");
  CHECK(refusalOf(mobileNet(), {linear(0, 8), pca(0, 4, 1)}).sentence == "accepted");
  refused(mobileNet(), {{0, "lineer", {{"rank", 4}}}}, "'lineer'", "insert[0].kind");
  refused(mobileNet(), {linear(0, 33)}, "more than the 32 features", "insert[0].rank");
  refused(mobileNet(), {linear(0, 0)}, "rank is 0", "insert[0].rank");
  refused(mobileNet(), {{0, "linear", {}}}, "needs rank", "insert[0].kind");
  refused(mobileNet(), {{0, "linear", {{"rank", 4}, {"kernel", 2}}}}, "no 'kernel'",
          "insert[0].kernel");
  refused(mobileNet(), {conv(0, 32 * 16 + 1, 4)}, "larger than the tensor", "insert[0].channels");
  refused(mobileNet(), {conv(1, 8, 8)}, "images of 7 x 7", "insert[0].kernel");
  refused(mlp(), {conv(1, 2, 1)}, "[6]", "insert[0].kind");
  const auto decaying = [](const std::string& name, double value) {
    InsertSpec insert{0, "decaying", {{"rank", 4}, {"every_steps", 100}}};
    insert.parameters[name] = value;
    return insert;
  };
  const double kNaN = std::numeric_limits<double>::quiet_NaN();
  const double kInfinity = std::numeric_limits<double>::infinity();
  refused(mlp(), {{0, "decaying", {{"rank", 4}}}}, "needs every_steps", "insert[0].kind");
  refused(mlp(), {decaying("every_steps", 0)}, "every_steps is 0", "insert[0].every_steps");
  refused(mlp(), {decaying("every_steps", 2.5)}, "every_steps is 2.5", "insert[0].every_steps");
  refused(mlp(), {decaying("every_steps", 1e18)}, "every_steps is 1e+18", "insert[0].every_steps");
  refused(mlp(), {decaying("decay", 1.5)}, "decay is 1.5", "insert[0].decay");
  refused(mlp(), {decaying("decay", kNaN)}, "decay is nan", "insert[0].decay");
  refused(mlp(), {decaying("l1", -0.1)}, "l1 is -0.1", "insert[0].l1");
  refused(mlp(), {decaying("l1", kInfinity)}, "l1 is inf", "insert[0].l1");
  refused(mlp(), {decaying("rank", kNaN)}, "rank is nan", "insert[0].rank");
  refused(mlp(), {decaying("rank", 7)}, "more than the 6 features", "insert[0].rank");
  refused(mlp(), {decaying("min_rank", 5)}, "min_rank of 5 is more than the rank of 4",
          "insert[0].min_rank");
  StageOptions frozen = mlp();
  frozen.freeze = {"insert.0.decoder.weight"};
  refused(frozen, {decaying("l1", 0.5)}, "insert.0.decoder.weight is frozen", "insert");
  CHECK(refusalOf(mlp(), {decaying("l1", 0.5)}).sentence == "accepted");
  InsertSpec corrected = linear(0, 2);
  corrected.parameters["correction"] = 1e-4;
  refused(mlp(), {corrected}, "insert.0.decoder.weight is trained", "insert");
  frozen.freeze = {"insert.*"};
  CHECK(refusalOf(frozen, {corrected}).sentence == "accepted");
  corrected.parameters["correction"] = -1;
  refused(frozen, {corrected}, "correction is -1", "insert[0].correction");
  refused(mlp(), {decaying("correction", 1e-4)}, "no 'correction'", "insert[0].correction");
  CHECK(refusalOf(mlp(), {linear(0, 6), linear(1, 1)}).sentence == "accepted");
  refused(mlp(), {pca(0, 7, 1)}, "a basis of 7 x 6 values", "insert[0].channels");
  refused(mlp(), {pca(0, 2, 2)}, "a kernel needs a tensor of images", "insert[0].kernel");
  refused(mobileNet(), {pca(1, 320, 1)}, "a basis of 320 x 1280 values", "insert[0].channels");
  CHECK(refusalOf(mobileNet(), {pca(0, 48, 4)}).sentence == "accepted");
  for (const auto member : {&StageOptions::staleness, &StageOptions::replicas}) {
    StageOptions options = mlp();
    options.*member = 2;
    refused(options, {pca(0, 2, 1)}, "kind pca", "insert");
  }

  std::vector<BlockSpec> blocks = passing({4, 8});
  const auto code = [&] { return errorCode([&] { addInserts(blocks, {linear(0, 2)}, {1}, 0); }); };
  blocks[0].outputs.push_back({{4, 8}});
  CHECK(code() == "bad-insert");
  blocks[0].outputs.pop_back();
  blocks[0].outputs.front().dtype = DType::i64;
  CHECK(code() == "bad-insert");
  blocks[0].outputs.front().dtype = DType::f32;
  blocks[0].tensors = {{.name = "insert.0.encoder.weight", .shape = {1}}};
  CHECK(code() == "bad-insert");
  blocks[0].tensors.clear();
  CHECK(code().empty());
}

TEST_CASE("a weights file may lack the inserts, but not give them another shape") {
  StageOptions options = mlp();
  const std::vector<NamedTensor> plain = weightsOf(WholeStage(options).set());
  options.inserts = {linear(0, 2)};
  const std::vector<BlockSpec> blocks = blocksFor(options);
  CHECK_NOTHROW(checkWeights(plain, blocks, {}, "file"));
  CHECK_NOTHROW(checkWeights(weightsOf(WholeStage(options).set()), blocks, {}, "file"));
  options.inserts = {linear(0, 3)};
  const auto other = weightsOf(WholeStage(options).set());
  CHECK(errorCode([&] { checkWeights(other, blocks, {}, "file"); }) == "bad-weights");
}

}  // namespace
}  // namespace cleave::test
