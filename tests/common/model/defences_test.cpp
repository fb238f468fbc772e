// Defences against the server: what they change at the cuts, and that the model stays one model.
#include "common/model/defences.h"

#include <ATen/Functions.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "common/core/error.h"
#include "common/model/stage/stage.h"
#include "common/topology/division.h"

namespace cleave::test {
namespace {

constexpr std::uint32_t kSamples = 6;

// One block before the first cut, one in the body, one after the last cut; all pass on their input.
std::vector<BlockSpec> threeBlocks(std::int64_t width) {
  std::vector<BlockSpec> blocks(3);
  for (BlockSpec& block : blocks) {
    block.outputs = {{.shape = {width}}};
    block.forward = [](const TensorList& x, std::span<const at::Tensor>, const BlockContext&) {
      return TensorList{x.front().mul(1)};
    };
  }
  blocks.front().batchInputs = {0};
  return blocks;
}

Defences defencesOf(std::vector<DefenceSpec> list, std::uint64_t seed = 1) {
  return {std::move(list), [seed](const std::string& stream) { return randomKey(seed, stream); }};
}

struct Crossing {
  at::Tensor sent;      // across the first cut
  at::Tensor gradient;  // across the last cut, from the client
  at::Tensor learnt;    // what the head's input gets
};

// `input` and `gradient`: [kSamples, width].
Crossing cross(const DefenceSpec& defence, const at::Tensor& input, const at::Tensor& gradient,
               std::uint64_t seed = 1, std::uint64_t step = 1) {
  auto blocks = threeBlocks(input.size(1));
  addDefences(blocks, defencesOf({defence}, seed), 1, 2);
  BlockContext context;
  context.at = {Phase::train, step, 0, Division::of(kSamples, 1)};
  Crossing result;
  at::Tensor x = input.clone().requires_grad_();
  TensorList inputs = {x};
  if (blocks[0].batchInputs.size() == 2) inputs.push_back(input);
  const at::Tensor sent = blocks[0].forward(inputs, {}, context).front();
  result.sent = sent.detach();
  at::Tensor received = sent.detach().requires_grad_();
  blocks[2].forward({received}, {}, context).front().backward(gradient);
  result.gradient = received.grad();
  sent.backward(result.gradient);
  result.learnt = x.grad();
  return result;
}

at::Tensor values(std::int64_t width, double factor) {
  return at::arange(kSamples * width, at::kFloat).reshape({kSamples, width}).sin().mul(factor);
}

double lengthOf(const at::Tensor& x) { return x.norm().item<double>(); }

TEST_CASE("noise is added to the activations, differs by step and seed, and is the same again") {
  const at::Tensor input = values(2000, 1), gradient = values(2000, 0.1);
  const DefenceSpec noise{"noise", {{"deviation", 0.5}, {"clip", 0}}};
  const Crossing once = cross(noise, input, gradient);
  const at::Tensor added = once.sent.sub(input);
  CHECK(added.std().item<double>() == Approx(0.5).epsilon(0.02));
  CHECK(std::abs(added.mean().item<double>()) < 0.02);
  CHECK(at::equal(once.sent, cross(noise, input, gradient).sent));
  CHECK_FALSE(at::equal(once.sent, cross(noise, input, gradient, 2).sent));
  CHECK_FALSE(at::equal(once.sent, cross(noise, input, gradient, 1, 2).sent));
  CHECK(at::equal(once.gradient, gradient));
  CHECK(at::equal(once.learnt, gradient));
}

TEST_CASE("clipped activations have at most this length") {
  const DefenceSpec clipped{"noise", {{"deviation", 0}, {"clip", 3}}};
  at::Tensor input = values(50, 1);
  input[0].mul_(0.01);  // shorter than the limit
  const at::Tensor norms = cross(clipped, input, values(50, 1)).sent.norm(2, 1);
  CHECK(norms.max().item<double>() == Approx(3));
  CHECK(norms[0].item<double>() == Approx(lengthOf(input[0])));
}

TEST_CASE(
    "max_norm makes all gradients as long as the longest one on average, in their direction") {
  at::Tensor gradient = values(40, 1);
  gradient[1].mul_(0.1);
  gradient[2].zero_();
  const double longest = gradient.norm(2, 1).max().item<double>();
  double squares = 0;
  constexpr int kDraws = 2000;
  for (int n = 1; n <= kDraws; ++n) {
    const at::Tensor sent =
        cross({"max_norm", {}}, values(40, 1), gradient, 1, static_cast<std::uint64_t>(n)).gradient;
    squares += std::pow(lengthOf(sent[1]), 2);
    CHECK(lengthOf(sent[2]) == 0);
    const double cosine =
        sent[1].dot(gradient[1]).item<double>() / lengthOf(sent[1]) / lengthOf(gradient[1]);
    CHECK(std::abs(cosine) == Approx(1).epsilon(1e-4));
  }
  CHECK(std::sqrt(squares / kDraws) == Approx(longest).epsilon(0.1));
}

TEST_CASE("gradient_noise is relative to the longest gradient") {
  const at::Tensor gradient = values(3000, 1);
  const at::Tensor sent =
      cross({"gradient_noise", {{"deviation", 2}}}, values(3000, 1), gradient).gradient;
  CHECK(lengthOf(sent.sub(gradient)[3]) ==
        Approx(2 * gradient.norm(2, 1).max().item<double>()).epsilon(0.05));
}

TEST_CASE("distance correlation is 1 for equal samples, and smaller for others") {
  const at::Tensor x = values(10, 1);
  CHECK(distanceCorrelation(x, x.mul(-3)).item<double>() == Approx(1).epsilon(1e-3));
  CHECK(distanceCorrelation(x, values(7, 5).cos()).item<double>() < 0.99);
  CHECK(distanceCorrelation(x, x.mul(-3)).scalar_type() == at::kDouble);
  CHECK(distanceCorrelation(x, at::ones({kSamples, 4})).item<double>() == Approx(0).margin(1e-3));
}

TEST_CASE("distance_correlation adds the derivative of the loss to the gradient") {
  // A head whose activations are not the inputs, so that the correlation is not at its maximum.
  auto blocks = threeBlocks(3);
  const auto head = [](const at::Tensor& x) { return x.mul(at::tensor({1., 3., -2.})).sin(); };
  blocks[0].forward = [&](const TensorList& x, std::span<const at::Tensor>, const BlockContext&) {
    return TensorList{head(x.front())};
  };
  addDefences(blocks, defencesOf({{"distance_correlation", {{"weight", 5}}}}), 1, 2);
  BlockContext context;
  context.at = {Phase::train, 1, 0, Division::of(kSamples, 1)};
  const at::Tensor input = values(3, 1);
  at::Tensor x = input.clone().requires_grad_();
  at::Tensor sent = blocks[0].forward({x, input}, {}, context).front();
  CHECK(at::equal(sent.detach(), head(input)));
  sent.retain_grad();
  sent.backward(at::zeros({kSamples, 3}));
  const auto loss = [&](double change) {
    at::Tensor moved = head(input).clone();
    moved[2][1].add_(change);
    return 5 * distanceCorrelation(input, moved).item<double>();
  };
  constexpr double kChange = 1e-3;
  const double numeric = (loss(kChange) - loss(-kChange)) / (2 * kChange);
  CHECK(std::abs(numeric) > 0.02);
  CHECK(sent.grad()[2][1].item<double>() == Approx(numeric).epsilon(0.02));
}

TEST_CASE("max_norm works for lengths that differ by any factor") {
  at::Tensor gradient = values(4, 1);
  gradient[1].mul_(1e-25);
  const at::Tensor sent = cross({"max_norm", {}}, values(4, 1), gradient).gradient;
  CHECK(at::isfinite(sent).all().item<bool>());
  CHECK(lengthOf(sent[1]) > 1e-3);
}

TEST_CASE("defences of a cut act in their order, and a kind is listed once") {
  const at::Tensor gradient = values(50, 1);
  const DefenceSpec normed{"max_norm", {}}, noisy{"gradient_noise", {{"deviation", 1}}};
  const auto sent = [&](const std::vector<DefenceSpec>& list) {
    auto blocks = threeBlocks(50);
    addDefences(blocks, defencesOf(list), 1, 2);
    BlockContext context;
    context.at = {Phase::train, 1, 0, Division::of(kSamples, 1)};
    at::Tensor x = gradient.detach().clone().requires_grad_();
    blocks[2].forward({x}, {}, context).front().backward(gradient);
    return x.grad();
  };
  // The same draws after the other defence: noise is added to what max_norm makes of the gradient.
  const at::Tensor noise = sent({noisy}).sub(gradient);
  const at::Tensor scale = sent({normed}).norm(2, 1).max().div(gradient.norm(2, 1).max());
  CHECK(at::allclose(sent({normed, noisy}), sent({normed}).add(noise.mul(scale)), 1e-4, 1e-5));
  CHECK_FALSE(at::allclose(sent({noisy, normed}), sent({normed, noisy}), 1e-2, 1e-2));
  CHECK_THROWS_AS(sent({normed, normed}), UsageError);
}

TEST_CASE("epsilon follows from noise, clip and the number of times") {
  // rho = 4 x (2 x 1 / 4)^2 / 2 = 0.5
  CHECK(epsilonOf(4, 1, 4, std::exp(-2)) == Approx(0.5 + 2));
  CHECK(epsilonOf(4, 0, 4, 1e-5) == std::numeric_limits<double>::infinity());
  CHECK(epsilonOf(0, 1, 4, 1e-5) == std::numeric_limits<double>::infinity());
}

TEST_CASE("a defence needs a cut with one tensor of floats") {
  for (const std::size_t count : {0, 2}) {
    auto blocks = threeBlocks(4);
    blocks[0].outputs.assign(std::max<std::size_t>(1, count),
                             {.shape = {4}, .dtype = count == 0 ? DType::i64 : DType::f32});
    CHECK_THROWS_AS(
        addDefences(blocks, defencesOf({{"noise", {{"deviation", 1}, {"clip", 0}}}}), 1, 2),
        UsageError);
  }
  CHECK_THROWS_AS(findDefence("nois"), UsageError);
}

}  // namespace
}  // namespace cleave::test
