// Learned inserts: their shapes, their initial values, and what they refuse. stage_test.cpp
// compares split and whole models that have inserts.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>

#include <catch2/catch.hpp>
#include <limits>

#include "common/core/random.h"
#include "common/model/blocks.h"
#include "common/model/inserts.h"
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

struct Passed {
  at::Tensor encoded, decoded;
};

Passed pass(const at::Tensor& x, const InsertSpec& insert) {
  const Shape shape(x.sizes().begin() + 1, x.sizes().end());
  std::vector<BlockSpec> blocks = passing(shape);
  addInserts(blocks, {insert}, {1}, 0);
  const at::NoGradGuard noGrad;
  const ParameterSet encoder(blocks, 0, 1, 1), decoder(blocks, 1, 2, 1);
  Passed passed;
  passed.encoded = blocks[0].forward({x}, encoder.tensors(), {}).front();
  passed.decoded = blocks[1].forward({passed.encoded}, decoder.tensors(), {}).front();
  CHECK(passed.encoded.sizes().slice(1).vec() == blocks[0].outputShape());
  CHECK(passed.decoded.sizes() == x.sizes());
  return passed;
}

at::Tensor values(const Shape& shape) {
  const at::Tensor tensor = at::empty(shape);
  fillNormal(randomKey(5, "input"),
             {tensor.mutable_data_ptr<float>(), static_cast<std::size_t>(tensor.numel())});
  return tensor;
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
  refused(mobileNet(), {linear(1, 4), linear(1, 4)}, "two inserts", "insert[1].cut");
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
  CHECK(refusalOf(mlp(), {linear(0, 6), linear(1, 1)}).sentence == "accepted");

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
