// Models, their blocks, and the tensors at their cuts.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>

#include <array>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <set>
#include <span>
#include <sstream>
#include <utility>

#include "common/core/random.h"
#include "common/model/blocks.h"
#include "common/model/model.h"
#include "common/model/stage/stage.h"
#include "common/model/torch_tensor.h"
#include "common/resources/buffer.h"

namespace cleave::test {
namespace {

using Parameters = std::map<std::string, std::string>;

ModelSpec spec(const std::string& name, Shape sampleShape = {1, 28, 28},
               Parameters parameters = {}) {
  return {name, std::move(parameters), std::move(sampleShape), 10};
}

std::vector<BlockSpec> blocksOf(const ModelSpec& model) {
  return findModel(model.name).blocks(model);
}

ParameterSet setOf(const std::vector<BlockSpec>& blocks, std::uint64_t seed = 1) {
  return ParameterSet(blocks, 0, static_cast<int>(blocks.size()), seed);
}

at::Tensor randomTensor(const Shape& shape) {
  at::Tensor tensor = at::empty(shape);
  fillNormal(randomKey(5, "input"),
             {tensor.mutable_data_ptr<float>(), static_cast<std::size_t>(tensor.numel())});
  return tensor;
}

std::vector<std::string> namesOf(const std::vector<NamedTensor>& tensors) {
  std::vector<std::string> names;
  for (const NamedTensor& named : tensors) names.push_back(named.name);
  return names;
}

bool sameBits(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type()) return false;
  return std::memcmp(a.contiguous().const_data_ptr(), b.contiguous().const_data_ptr(),
                     a.nbytes()) == 0;
}

template <typename Call>
UsageError usageError(const Call& call) {
  try {
    call();
  } catch (const UsageError& error) {
    return error;
  }
  FAIL("nothing was thrown");
  throw std::logic_error("unreachable");
}

constexpr BlockContext kTraining{1, {Phase::train, 3, 2, {4, 32}}};

std::vector<ModelSpec> someSpecs() {
  return {
      spec("mlp"),
      spec("mlp", {7}, {{"width", "5"}, {"depth", "1"}}),
      spec("mlp", {2, 3, 4, 5}, {{"width", "16"}, {"depth", "3"}, {"dropout", "0.5"}}),
      spec("small_cnn"),
      spec("small_cnn", {3, 17, 9}, {{"width", "4"}, {"dropout", "0"}}),
      spec("mobilenet_v2", {3, 40, 33}, {{"width", "0.25"}}),
      spec("mobilenet_v2", {1, 128, 128}, {{"width", "0.1"}, {"tail", "prototype"}}),
  };
}

TEST_CASE("block specs match the blocks' outputs and tensors") {
  for (const ModelSpec& model : someSpecs()) {
    const std::vector<BlockSpec> blocks = blocksOf(model);
    Shape shape = model.sampleShape;
    shape.insert(shape.begin(), 3);
    at::Tensor x = canonical(randomTensor(shape), cutOrder(shape.size()));
    std::set<std::string> names;
    for (const BlockSpec& row : blocks) {
      INFO(model.name << " block " << row.name);
      CHECK(names.insert(row.name).second);
      const ParameterSet set({row}, 0, 1, 1);
      std::vector<NormStatistics> statistics;
      BlockContext context = kTraining;
      context.statistics = &statistics;
      x = row.forward({x}, set.tensors(), context).front();
      Shape expected = row.outputShape();
      expected.insert(expected.begin(), 3);
      CHECK(x.sizes().vec() == expected);
      CHECK(3 * statistics.size() == set.buffers().size());
      REQUIRE(set.tensors().size() == row.tensors.size());
      for (std::size_t t = 0; t < row.tensors.size(); ++t) {
        const ParameterSpec& tensor = row.tensors[t];
        CHECK(tensor.name.starts_with(row.name + "."));
        CHECK(set.tensors()[t].sizes().vec() == tensor.shape);
        CHECK(set.tensors()[t].scalar_type() == tensor.type);
        CHECK(set.tensors()[t].requires_grad() == !tensor.isBuffer);
      }
      CHECK((!row.norms.empty()) == (bufferCount({row}, 0, 1) > 0));
    }
    CHECK(blocks.back().outputShape() == Shape{model.classes});
  }
}

TEST_CASE("default cuts are valid for their models") {
  for (const ModelSpec& model : someSpecs()) {
    const auto [cut0, cut1] = findModel(model.name).defaultCuts(model);
    CHECK_NOTHROW(checkCuts(blocksOf(model), {cut0, cut1}));
  }
}

TEST_CASE("parameters have the names of published weights") {
  const ParameterSet mlp = setOf(blocksOf(spec("mlp", {1, 28, 28}, {{"dropout", "0.1"}})));
  CHECK(namesOf(mlp.parameters()) == std::vector<std::string>{"fc1.weight", "fc1.bias",
                                                              "fc2.weight", "fc2.bias",
                                                              "fc_out.weight", "fc_out.bias"});
  CHECK(mlp.buffers().empty());
  const ParameterSet cnn = setOf(blocksOf(spec("small_cnn")));
  CHECK(namesOf(cnn.parameters()) ==
        std::vector<std::string>{"conv1.weight", "conv1.bias", "bn1.weight", "bn1.bias",
                                 "conv2.weight", "conv2.bias", "bn2.weight", "bn2.bias",
                                 "conv3.weight", "conv3.bias", "bn3.weight", "bn3.bias",
                                 "fc.weight", "fc.bias"});
  CHECK(namesOf(cnn.buffers()).at(0) == "bn1.running_mean");
  CHECK(namesOf(cnn.buffers()).at(1) == "bn1.running_var");
  CHECK(namesOf(cnn.buffers()).at(2) == "bn1.num_batches_tracked");
}

// The lines of tests/data/NAME, each split at spaces.
std::vector<std::vector<std::string>> dataLines(const std::string& name) {
  std::ifstream file(std::string(CLEAVE_SOURCE_DIR) + "/tests/data/" + name);
  REQUIRE(file);
  std::vector<std::vector<std::string>> lines;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    lines.emplace_back(std::istream_iterator<std::string>(words),
                       std::istream_iterator<std::string>());
  }
  return lines;
}

TEST_CASE("mobilenet_v2 has torchvision's 314 names and shapes") {
  ModelSpec model = spec("mobilenet_v2", {3, 224, 224});
  model.classes = 1000;
  std::map<std::string, Shape> ours;
  for (const BlockSpec& block : blocksOf(model)) {
    for (const ParameterSpec& tensor : block.tensors) ours[tensor.name] = tensor.shape;
  }
  std::map<std::string, Shape> published;
  for (const auto& line : dataLines("mobilenet_v2_tensors.txt")) {
    Shape& shape = published[line.at(0)];
    for (std::size_t d = 1; d < line.size(); ++d) shape.push_back(std::stoll(line[d]));
  }
  CHECK(published.size() == 314);
  CHECK(ours == published);
}

TEST_CASE("the tensors at mobilenet_v2's default cuts have the documented shapes") {
  const std::vector<BlockSpec> blocks = blocksOf(spec("mobilenet_v2", {3, 224, 224}));
  const auto [cut0, cut1] = findModel("mobilenet_v2").defaultCuts(spec("mobilenet_v2"));
  CHECK(blocks.at(static_cast<std::size_t>(cut0 - 1)).name == "features.0.1");
  CHECK(blocks.at(static_cast<std::size_t>(cut0 - 1)).outputShape() == Shape{32, 112, 112});
  CHECK(blocks.at(static_cast<std::size_t>(cut1 - 1)).name == "features.18");
  CHECK(blocks.at(static_cast<std::size_t>(cut1 - 1)).outputShape() == Shape{1280, 7, 7});
  const auto prototype =
      blocksOf(spec("mobilenet_v2", {3, 224, 224}, {{"tail", "prototype"}, {"width", "1.4"}}));
  CHECK(prototype.at(prototype.size() - 3).outputShape() == Shape{1792, 1, 1});
  // 4 x 4 values are too many for a 2 x 2 pooling.
  CHECK_THROWS_AS(blocksOf(spec("mobilenet_v2", {3, 56, 56}, {{"tail", "prototype"}})), UsageError);
}

// Equals pattern() in tests/oracle/mobilenet_v2.py.
at::Tensor pattern(const std::string& name, const Shape& shape) {
  std::int64_t key = 0;
  for (std::size_t k = 0; k < name.size(); ++k) key += static_cast<std::int64_t>(k + 1) * name[k];
  at::Tensor tensor = at::empty(shape);
  float* out = tensor.mutable_data_ptr<float>();
  for (std::int64_t j = 0; j < tensor.numel(); ++j) {
    out[j] = static_cast<float>(static_cast<double>((j * 7919 + key * 104729) % 2003) / 2003);
  }
  return tensor;
}

TEST_CASE("mobilenet_v2 computes the same as torchvision's") {
  const std::vector<BlockSpec> blocks = blocksOf(spec("mobilenet_v2", {3, 72, 56}));
  const ParameterSet set = setOf(blocks);
  const at::NoGradGuard noGrad;
  for (const NamedTensor& named : weightsOf(set)) {
    if (named.tensor.scalar_type() == at::kLong) continue;
    const Shape shape = named.tensor.sizes().vec();
    at::Tensor value = pattern(named.name, shape);
    if (shape.size() > 1) {
      const double fanIn = static_cast<double>(elementCount(shape) / shape[0]);
      value = value.sub(0.5).mul(4 / std::sqrt(fanIn));
    } else if (named.name.ends_with(".running_var") || named.name.ends_with(".weight")) {
      value = value.add(0.5);
    } else {
      value = value.sub(0.5);
    }
    at::Tensor(named.tensor).copy_(value);
  }
  const at::Tensor input = pattern("input", {2, 3, 72, 56}).sub(0.5).mul(4);
  const ModelPart part(blocks, 0, static_cast<int>(blocks.size()));
  const at::Tensor logits = part.forward({}, {canonical(input, MemoryOrder::channelsLast)}, set,
                                         {1, {Phase::eval, 1, 0, {1, 2}}})
                                .front();
  const auto published = dataLines("mobilenet_v2_logits.txt");
  REQUIRE(published.size() == 2);
  for (std::size_t sample = 0; sample < 2; ++sample) {
    REQUIRE(published[sample].size() == 10);
    for (std::size_t c = 0; c < 10; ++c) {
      const float ours = logits.const_data_ptr<float>()[sample * 10 + c];
      CHECK(ours == Approx(std::stod(published[sample][c])).margin(1e-4));
    }
  }
}

TEST_CASE("initial weights are uniform within 1 / sqrt(inputs)") {
  const ParameterSet set = setOf(blocksOf(spec("mlp")));
  const at::Tensor& weight = set.parameters()[0].tensor;
  const double bound = 1 / std::sqrt(784.0);
  const double max = weight.abs().max().item<double>();
  CHECK(max <= bound);
  CHECK(max > 0.99 * bound);
  CHECK(weight.mean().item<double>() == Approx(0).margin(0.01 * bound));
  CHECK(weight.std().item<double>() == Approx(bound / std::sqrt(3.0)).epsilon(0.01));
  const at::Tensor& bias = set.parameters()[1].tensor;
  CHECK(bias.abs().max().item<double>() <= bound);
  CHECK(bias.std().item<double>() > 0.4 * bound);
}

TEST_CASE("initial values depend on seed and name, not on which blocks are built") {
  const std::vector<BlockSpec> blocks = blocksOf(spec("small_cnn"));
  const ParameterSet whole = setOf(blocks, 7);
  const ParameterSet body(blocks, 4, 13, 7);
  const ParameterSet other(blocks, 4, 13, 8);
  std::map<std::string, at::Tensor> byName;
  for (const NamedTensor& named : whole.parameters()) byName[named.name] = named.tensor;
  for (const NamedTensor& named : body.parameters()) {
    INFO(named.name);
    CHECK(sameBits(named.tensor, byName.at(named.name)));
  }
  CHECK_FALSE(sameBits(body.parameters()[0].tensor, other.parameters()[0].tensor));
}

TEST_CASE("weights of convolutions are stored channels-last with unchanged logical values") {
  const ParameterSet set = setOf(blocksOf(spec("small_cnn", {2, 8, 8}, {{"width", "4"}})), 3);
  const at::Tensor& weight = set.parameters()[0].tensor;
  CHECK(weight.strides().vec() == std::vector<std::int64_t>{18, 1, 6, 2});
  std::vector<float> draws(4 * 2 * 3 * 3);
  fillUniform(randomKey(3, "conv1.weight"), draws);
  const float bound = static_cast<float>(1 / std::sqrt(18.0));
  const at::Tensor logical = weight.contiguous();
  for (std::size_t j = 0; j < draws.size(); ++j) {
    CHECK(logical.const_data_ptr<float>()[j] == (2 * draws[j] - 1) * bound);
  }
}

TEST_CASE(
    "dropout repeats its random draws for the same micro-batch, and is off outside training") {
  BlockChain chain(spec("mlp", {1000}));
  chain.dropout("drop", 0.25);
  const auto forward = [block = chain.take()[0]](const at::Tensor& x, const BlockContext& context) {
    return block.forward({x}, {}, context).front();
  };
  const at::Tensor x = at::ones({4, 1000});
  const at::Tensor first = forward(x, kTraining);
  CHECK(sameBits(first, forward(x, kTraining)));
  CHECK(first.eq(0).sum().item<double>() == Approx(1000).margin(150));
  CHECK(first.max().item<float>() == 1 / 0.75f);
  BlockContext other = kTraining;
  other.at.i += 1;
  CHECK_FALSE(sameBits(first, forward(x, other)));
  other = kTraining;
  other.at.step += 1;
  CHECK_FALSE(sameBits(first, forward(x, other)));
  other = kTraining;
  other.at.phase = Phase::eval;
  CHECK(sameBits(x, forward(x, other)));
}

TEST_CASE("batch norm keeps PyTorch's running statistics, and only in training") {
  BlockChain chain(spec("mlp", {2, 2, 2}));
  chain.batchNorm("bn");
  const std::vector<BlockSpec> blocks = chain.take();
  ParameterSet set(blocks, 0, 1, 1);
  std::vector<NormStatistics> statistics;
  BlockContext training = kTraining;
  training.statistics = &statistics;
  // Channel 0: eight values, mean 3.5, unbiased variance 6; channel 1: constant 2.
  at::Tensor x = at::full({2, 2, 2, 2}, 2.0);
  for (int j = 0; j < 8; ++j) x[j / 4][0][(j / 2) % 2][j % 2] = j;
  const at::Tensor y = blocks[0].forward({x}, set.tensors(), training).front();
  CHECK(y[0][0][0][0].item<double>() == Approx(-3.5 / std::sqrt(5.25 + 1e-5)));
  const std::vector<NamedTensor>& buffers = set.buffers();
  CHECK(buffers[0].tensor[0].item<double>() == 0);  // unchanged until the statistics are added
  REQUIRE(statistics.size() == 1);
  CHECK(statistics[0].mean[0].item<double>() == Approx(3.5));
  CHECK(statistics[0].variance[0].item<double>() == Approx(6));
  set.addStatistics(statistics);
  CHECK(buffers[0].tensor[0].item<double>() == Approx(0.35));
  CHECK(buffers[0].tensor[1].item<double>() == Approx(0.2));
  CHECK(buffers[1].tensor[0].item<double>() == Approx(0.9 + 0.6));
  CHECK(buffers[1].tensor[1].item<double>() == Approx(0.9));
  CHECK(buffers[2].tensor.item<std::int64_t>() == 1);

  BlockContext eval = kTraining;
  eval.at.phase = Phase::eval;
  const at::Tensor z = blocks[0].forward({x}, set.tensors(), eval).front();
  CHECK(z[0][0][0][0].item<double>() == Approx(-0.35 / std::sqrt(1.5 + 1e-5)));
  CHECK(buffers[2].tensor.item<std::int64_t>() == 1);
}

TEST_CASE("blocks compute with the given parameter set") {
  const std::vector<BlockSpec> blocks = blocksOf(spec("small_cnn", {1, 8, 8}));
  const int count = static_cast<int>(blocks.size());
  const ModelPart part(blocks, 0, count);
  const ParameterSet one = setOf(blocks, 1), same = setOf(blocks, 1), two = setOf(blocks, 2);
  const at::Tensor x = canonical(randomTensor({4, 1, 8, 8}), MemoryOrder::channelsLast);
  const at::Tensor y = part.forward({}, {x}, one, kTraining).front();
  CHECK(sameBits(y, part.forward({}, {x}, same, kTraining).front()));
  CHECK_FALSE(sameBits(y, part.forward({}, {x}, two, kTraining).front()));
  y.sum().backward();
  CHECK(one.parameters()[0].tensor.grad().defined());
  CHECK_FALSE(same.parameters()[0].tensor.grad().defined());
}

TEST_CASE("gradient reports of the parts add up bit-identically to that of the whole model") {
  const std::vector<BlockSpec> blocks = blocksOf(spec("mlp", {6}, {{"width", "11"}}));
  const int count = static_cast<int>(blocks.size());
  struct Part {
    Part(const std::vector<BlockSpec>& all, int first, int last, std::vector<int> cuts = {})
        : part(all, first, last, std::move(cuts)), set(all, first, last, 1) {}
    GradientReport report() const { return part.gradientReport(set); }
    ModelPart part;
    ParameterSet set;
  };
  Part whole(blocks, 0, count, {2, 4});
  const Part head(blocks, 0, 2), body(blocks, 2, 4), tail(blocks, 4, count);
  CHECK(whole.report().squareSum == 0);
  double expected = 0;
  for (const Part* part : {&std::as_const(whole), &head, &body, &tail}) {
    for (const NamedTensor& named : part->set.parameters()) {
      const at::Tensor gradient = named.tensor.detach().clone().mul(1.1);
      if (part == &whole) expected += gradient.to(at::kDouble).square().sum().item<double>();
      named.tensor.mutable_grad() = gradient;
    }
  }
  const double parts = head.report().squareSum + body.report().squareSum + tail.report().squareSum;
  CHECK(whole.report().squareSum == parts);
  CHECK(parts == Approx(expected).epsilon(1e-12));
  CHECK(whole.report().finite);
  whole.set.parameters()[2].tensor.mutable_grad()[0][0] = std::numeric_limits<float>::infinity();
  CHECK_FALSE(whole.report().finite);
  whole.set.clearGradients();
  CHECK(whole.report().finite);
  CHECK_FALSE(whole.set.parameters()[0].tensor.grad().defined());
}

TEST_CASE("a cut inside a part converts tensor and gradient to their wire format") {
  const std::vector<std::int64_t> contiguous = {60, 20, 5, 1}, channelsLast = {60, 1, 15, 3};
  for (const bool cut : {false, true}) {
    // Two blocks that make their input contiguous record the strides of the input and of the
    // output's gradient.
    std::array<std::vector<std::int64_t>, 2> inputs, gradients;
    std::vector<BlockSpec> blocks(2);
    for (std::size_t b = 0; b < 2; ++b) {
      blocks[b].forward = [&, b](const TensorList& x, std::span<const at::Tensor>,
                                 const BlockContext&) -> TensorList {
        inputs[b] = x.front().strides().vec();
        const at::Tensor y = x.front().clone(at::MemoryFormat::Contiguous);
        y.register_hook([&, b](const at::Tensor& given) { gradients[b] = given.strides().vec(); });
        return {y};
      };
    }
    const ModelPart part(blocks, 0, 2, cut ? std::vector<int>{1} : std::vector<int>{});
    const at::Tensor x = randomTensor({2, 3, 4, 5}).set_requires_grad(true);
    part.forward({x}, {}, ParameterSet(blocks, 0, 2, 1), kTraining)
        .front()
        .backward(at::ones({2, 3, 4, 5}));
    CHECK(inputs[0] == contiguous);
    CHECK(inputs[1] == (cut ? channelsLast : contiguous));
    CHECK(gradients[0] == (cut ? channelsLast : contiguous));
  }
}

TEST_CASE("canonical tensors are dense in their memory order, and aligned") {
  const at::Tensor image = randomTensor({2, 3, 4, 5});
  const at::Tensor last = canonical(image, MemoryOrder::channelsLast);
  CHECK(last.strides().vec() == std::vector<std::int64_t>{60, 1, 15, 3});
  CHECK(sameBits(image, last));
  CHECK(canonical(last, MemoryOrder::channelsLast).is_same(last));
  CHECK(canonical(image, MemoryOrder::contiguous).is_same(image));

  SECTION("one channel, for which both orders are valid") {
    const at::Tensor gray = canonical(randomTensor({2, 1, 4, 5}), MemoryOrder::channelsLast);
    CHECK(gray.strides().vec() == std::vector<std::int64_t>{20, 1, 5, 1});
  }
  SECTION("not aligned to 64 bytes") {
    const at::Tensor off = randomTensor({101}).narrow(0, 1, 100);
    const at::Tensor moved = canonical(off, MemoryOrder::contiguous);
    CHECK(reinterpret_cast<std::uintptr_t>(moved.const_data_ptr()) % kAlignment == 0);
    CHECK(sameBits(off, moved));
  }
  SECTION("expanded, like the gradient of a mean") {
    const at::Tensor moved = canonical(at::ones({1}).expand({4, 4}), MemoryOrder::contiguous);
    CHECK(moved.strides().vec() == std::vector<std::int64_t>{4, 1});
  }
}

TEST_CASE("payloads share a tensor's memory and keep it alive") {
  at::Tensor back;
  const void* data = nullptr;
  {
    const at::Tensor image = canonical(randomTensor({2, 3, 4, 5}), MemoryOrder::channelsLast);
    data = image.const_data_ptr();
    Payload payload = toPayload(image, MemoryOrder::channelsLast);
    CHECK(payload.view().spec == TensorSpec{DType::f32, {2, 3, 4, 5}, MemoryOrder::channelsLast});
    back = toTensor(std::move(payload));
  }
  CHECK(back.const_data_ptr() == data);
  CHECK(back.strides().vec() == std::vector<std::int64_t>{60, 1, 15, 3});
  CHECK(sameBits(back, randomTensor({2, 3, 4, 5})));
  CHECK_FALSE(back.requires_grad());

  const at::Tensor half = at::ones({3}, at::kBFloat16);
  CHECK(toPayload(half, MemoryOrder::contiguous).view().spec.dtype == DType::bf16);
  CHECK(toTensor(toPayload(half, MemoryOrder::contiguous)).scalar_type() == at::kBFloat16);
  const at::Tensor indices = at::ones({3}, at::kLong);
  CHECK(toPayload(indices, MemoryOrder::contiguous).view().spec.dtype == DType::i64);
  const at::Tensor same = toTensor(toPayload(indices, MemoryOrder::contiguous));
  CHECK(same.scalar_type() == at::kLong);
  CHECK(same.const_data_ptr<std::int64_t>()[2] == 1);
}

TEST_CASE("a tensor that is not canonical does not become a payload") {
  const at::Tensor image = randomTensor({2, 3, 4, 5});
  CHECK_THROWS_AS(toPayload(image, MemoryOrder::channelsLast), std::logic_error);
  const at::Tensor learned = at::ones({3}).set_requires_grad(true);
  CHECK_THROWS_AS(toPayload(learned, MemoryOrder::contiguous), std::logic_error);
  CHECK_THROWS_AS(toPayload(at::ones({3}, at::kDouble), MemoryOrder::contiguous), std::logic_error);
}

TEST_CASE("an unknown model is refused with the nearest known one") {
  const UsageError error = usageError([] { findModel("small_cnm"); });
  CHECK(error.code() == "unknown-model");
  CHECK(error.what() == std::string("'small_cnm' is not a model"));
  CHECK(error.hint() ==
        "did you mean small_cnn? use one of small_cnn, mlp, mobilenet_v2, sleep, graph");
}

TEST_CASE("invalid model parameters are refused with their range") {
  const auto errorOf = [](const std::string& key, const std::string& value) {
    return usageError([&] { blocksOf(spec("mlp", {4}, {{key, value}})); });
  };
  CHECK(errorOf("width", "0").what() ==
        std::string("model mlp: width=0 is not an integer from 1 to 65536"));
  CHECK(errorOf("width", "65537").code() == "bad-model-parameter");
  CHECK(errorOf("width", "12x").code() == "bad-model-parameter");
  CHECK(errorOf("width", "").code() == "bad-model-parameter");
  CHECK(errorOf("width", "99999999999999999999").code() == "bad-model-parameter");
  CHECK(errorOf("dropout", "0.95").what() ==
        std::string("model mlp: dropout=0.95 is not a number from 0 to 0.9"));
  CHECK(errorOf("dropout", "nan").code() == "bad-model-parameter");
  CHECK(errorOf("widht", "5").what() == std::string("model mlp has no parameter 'widht'"));
  CHECK(errorOf("widht", "5").hint() == "did you mean width? use one of width, depth, dropout");
  CHECK(usageError([] {
          blocksOf(spec("small_cnn", {1, 8, 8}, {{"width", "3"}}));
        }).code() == "bad-model-parameter");
}

TEST_CASE("cuts that leave a part empty are refused with the list of blocks") {
  const std::vector<BlockSpec> blocks = blocksOf(spec("mlp", {4}, {{"depth", "1"}}));
  for (const Cuts& cuts : {Cuts{0, 2}, Cuts{2, 2}, Cuts{3, 2}, Cuts{1, 4}, Cuts{-1, 9}}) {
    CHECK(usageError([&] { checkCuts(blocks, cuts); }).code() == "bad-cuts");
  }
  CHECK(usageError([&] {
          checkCuts(blocks, {2, 2});
        }).what() == std::string("cuts 2 and 2 do not leave at least one block each for head, body "
                                 "and tail; the 4 blocks: "
                                 "0 flatten, 1 fc1, 2 relu1, 3 fc_out"));
  CHECK_NOTHROW(checkCuts(blocks, {1, 2}));
  CHECK_NOTHROW(checkCuts(blocks, {2, 3}));
}

TEST_CASE("a batch norm over a single value per channel is refused") {
  // 8 x 8 pixels leave only one pixel for bn3.
  const std::vector<BlockSpec> blocks = blocksOf(spec("small_cnn", {1, 8, 8}));
  CHECK_NOTHROW(checkBatchNorm(blocks, 2));
  CHECK(fitsBatchNorm(blocks, 2));
  CHECK_FALSE(fitsBatchNorm(blocks, 1));
  const UsageError error = usageError([&] { checkBatchNorm(blocks, 1); });
  CHECK(error.code() == "batch-norm-too-few");
  CHECK(error.what() == std::string("batch norm bn3 would see 1 value per channel in the smallest "
                                    "micro-batch, of 1 sample, but needs 2"));
  CHECK_NOTHROW(checkBatchNorm(blocksOf(spec("small_cnn")), 1));
}

TEST_CASE("inputs that do not fit a model are refused") {
  const auto errorOf = [](const std::string& name, const Shape& shape) {
    return usageError([&] { blocksOf(spec(name, shape)); });
  };
  CHECK(errorOf("small_cnn", {784}).what() ==
        std::string(
            "block conv1 requires images [channels, height, width], but gets [784] per sample"));
  CHECK(errorOf("small_cnn", {1, 2, 28}).what() ==
        std::string("block pool2 is too large for [32, 1, 14]: it pools 2 x 2 values into one"));
  CHECK(errorOf("mlp", {}).code() == "bad-sample-shape");
  CHECK(errorOf("mlp", {1, 1, 1, 1, 1, 1, 1, 1}).code() == "bad-sample-shape");
  CHECK(errorOf("mlp", {0}).code() == "bad-sample-shape");
  CHECK(errorOf("mlp", {-1, 4}).code() == "bad-sample-shape");
  CHECK(errorOf("mlp", {std::int64_t{1} << 40, std::int64_t{1} << 40}).code() ==
        "bad-sample-shape");
  ModelSpec one = spec("mlp");
  one.classes = 1;
  CHECK(usageError([&] { blocksOf(one); }).code() == "bad-classes");
}

}  // namespace
}  // namespace cleave::test
