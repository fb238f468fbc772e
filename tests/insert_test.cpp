// Learned inserts: their shapes, their initial values, and what they refuse. stage_test.cpp
// compares split and whole models that have inserts.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>

#include <catch2/catch.hpp>

#include "common/core/random.h"
#include "common/model/blocks.h"
#include "common/model/inserts.h"
#include "common/model/stage.h"
#include "tests/error_code.h"

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

InsertSpec conv(std::uint32_t cut, std::int64_t channels, std::int64_t kernel) {
  return {cut, "conv", {{"channels", channels}, {"kernel", kernel}}};
}

InsertSpec linear(std::uint32_t cut, std::int64_t rank) {
  return {cut, "linear", {{"rank", rank}}};
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

TEST_CASE("linear and residual begin as the identity of the first features") {
  for (const std::string kind : {"linear", "residual"}) {
    for (const auto& [shape, dimension] : {std::pair{Shape{2, 6}, 1}, std::pair{Shape{2, 5, 6}, 2},
                                           std::pair{Shape{2, 6, 3, 4}, 1}}) {
      CAPTURE(kind, shape.size());
      const at::Tensor x = values(shape);
      const Passed passed = pass(x, {0, kind, {{"rank", 4}}});
      CHECK(passed.encoded.equal(x.narrow(dimension, 0, 4)));
      CHECK(passed.decoded.narrow(dimension, 0, 4).equal(x.narrow(dimension, 0, 4)));
      CHECK(passed.decoded.narrow(dimension, 4, 2).abs().max().item<float>() == 0);
      const Passed all = pass(x, {0, kind, {{"rank", 6}}});
      CHECK(all.decoded.equal(x));
    }
  }
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
