#include "common/model/defences.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "common/core/names.h"
#include "common/core/random.h"
#include "common/model/blocks.h"
#include "common/model/torch_tensor.h"

namespace cleave {
namespace {

// Standard normal values in the order of the tensor's memory, so that they do not depend on the
// device.
at::Tensor normalLike(const at::Tensor& x, const DefenceContext& context) {
  at::Tensor values = at::empty_like(x, at::TensorOptions().device(at::kCPU).dtype(at::kFloat));
  const MicroBatch& at = context.block.at;
  const std::string stream = std::string(context.name) + " " + std::string(phaseName(at.phase)) +
                             " " + std::to_string(at.step) + " " + std::to_string(at.i);
  fillNormal(context.key(stream),
             {values.mutable_data_ptr<float>(), static_cast<std::size_t>(values.numel())});
  return values.to(x.device());
}

at::Tensor dense(const at::Tensor& x) {
  return canonical(x.to(at::kFloat), cutOrder(static_cast<std::size_t>(x.dim())));
}

// One value per sample, in a shape that multiplies x.
at::Tensor perSample(const at::Tensor& values, const at::Tensor& x) {
  std::vector<std::int64_t> shape(static_cast<std::size_t>(x.dim()), 1);
  shape.front() = x.size(0);
  return values.reshape(shape);
}

at::Tensor normsOf(const at::Tensor& x) { return x.flatten(1).norm(2, 1); }

// ---- The kinds ----

at::Tensor addNoise(const at::Tensor& given, const at::Tensor&, const DefenceContext& context) {
  at::Tensor x = dense(given);
  const double clip = context.parameters.at("clip");
  if (clip > 0)
    x = x.mul(perSample(normsOf(x).clamp_min(1e-12).reciprocal().mul(clip).clamp_max(1), x));
  return x.add(normalLike(x, context), context.parameters.at("deviation"));
}

// A hook acts when autograd has added up the gradient, in the split model as in the whole one.
at::Tensor withGradient(const at::Tensor& x, std::function<at::Tensor(const at::Tensor&)> change) {
  if (at::GradMode::is_enabled() && x.requires_grad()) x.register_hook(std::move(change));
  return x;
}

// The hook keeps copies of what the context borrows.
template <typename Function>
at::Tensor withNoisyGradient(const at::Tensor& x, const DefenceContext& context, Function noise) {
  return withGradient(x, [key = context.key, name = context.name, block = context.block,
                          parameters = context.parameters, noise](const at::Tensor& gradient) {
    const at::NoGradGuard noGrad;
    const DefenceContext kept{parameters, key, name, block};
    return noise(dense(gradient), kept);
  });
}

// Each sample's gradient g becomes g (1 + f N), with f so that its length is that of the longest
// one on average: the length no longer tells the classes apart (Li et al., ICLR 2022).
at::Tensor hideNorms(const at::Tensor& x, const at::Tensor&, const DefenceContext& context) {
  return withNoisyGradient(x, context, [](const at::Tensor& g, const DefenceContext& kept) {
    const at::Tensor wide = g.to(at::kDouble);  // lengths may differ by any factor
    const at::Tensor norms = normsOf(wide), squares = norms.square();
    const at::Tensor length = squares.max().sub(squares).clamp_min(0).sqrt();
    // A sample without a gradient keeps none.
    const at::Tensor factor = at::where(norms.gt(0), length.div(norms), at::zeros_like(norms))
                                  .mul(normalLike(norms, kept));
    return g.add(wide.mul(perSample(factor, wide)).to(at::kFloat));
  });
}

// Noise whose length is `deviation` times that of the longest gradient, on average.
at::Tensor addGradientNoise(const at::Tensor& x, const at::Tensor&, const DefenceContext& context) {
  return withNoisyGradient(x, context, [](const at::Tensor& g, const DefenceContext& kept) {
    const auto values = static_cast<double>(g.numel() / g.size(0));
    const at::Tensor scale =
        normsOf(g).max().mul(kept.parameters.at("deviation") / std::sqrt(values));
    return g.add(normalLike(g, kept).mul(scale));
  });
}

// Adds weight x distance correlation between inputs and activations to the loss (Vepakomma et al.,
// NoPeek, 2020), by its gradient.
at::Tensor decorrelate(const at::Tensor& x, const at::Tensor& input,
                       const DefenceContext& context) {
  const BlockContext& block = context.block;
  if (!at::GradMode::is_enabled() || !x.requires_grad() || x.size(0) < 2) return x;
  const double share = static_cast<double>(x.size(0)) / block.at.batch.samples;
  at::Tensor leaf = dense(x.detach()).clone().requires_grad_();
  distanceCorrelation(input, leaf).mul(context.parameters.at("weight") * share).backward();
  const at::Tensor added = leaf.grad();
  return withGradient(x, [added](const at::Tensor& gradient) {
    const at::NoGradGuard noGrad;
    return gradient.add(added.to(gradient.scalar_type()));
  });
}

// ---- The table ----

constexpr double kMaxDefence = 1e6;

constexpr ParameterRow kNoise[] = {
    {"deviation", 0, kMaxDefence, std::nullopt, "standard deviation of the noise on each value",
     false},
    {"clip", 0, kMaxDefence, 0,
     "maximum length of a sample's activations, which longer ones are scaled to; 0: no limit, and "
     "no epsilon",
     false},
};
constexpr ParameterRow kGradientNoise[] = {
    {"deviation", 0, kMaxDefence, std::nullopt,
     "length of the noise, relative to the longest gradient of the micro-batch", false},
};
constexpr ParameterRow kDistanceCorrelation[] = {
    {"weight", 0, kMaxDefence, std::nullopt,
     "weight of the squared distance correlation in the loss", false},
};

constexpr DefenceRow kDefences[] = {
    {"noise", "Gaussian noise on the activations at the first cut", kNoise, true, true, addNoise},
    {"distance_correlation", "trains the head so that its activations depend less on the inputs",
     kDistanceCorrelation, true, false, decorrelate},
    {"max_norm", "hides the lengths of the gradients at the last cut", {}, false, true, hideNorms},
    {"gradient_noise", "Gaussian noise on the gradients at the last cut", kGradientNoise, false,
     true, addGradientNoise},
};

UsageError badDefence(const std::string& sentence, const std::string& hint) {
  return UsageError("bad-defence", sentence, hint).about("privacy.defence");
}

// Positions of the only tensor of fp32 that crosses the cut.
std::size_t defendedTensor(const std::vector<BlockOutput>& tensors) {
  try {
    return encodedTensor(tensors);
  } catch (const UsageError&) {
    throw badDefence("a defence needs a cut that one tensor of floats crosses",
                     "choose another cut: model.cuts");
  }
}

}  // namespace

std::span<const DefenceRow> defenceTable() { return kDefences; }

const DefenceRow& findDefence(std::string_view name) {
  return findByName(defenceTable(), name, "bad-defence", "a kind of defence");
}

namespace {

void addDefence(std::vector<BlockSpec>& blocks, const DefenceSpec& defence,
                const Defences& defences, int cut0, int cut1) {
  const DefenceRow& row = findDefence(defence.kind);
  const int cut = row.isAtFirstCut ? cut0 : cut1;
  const std::vector<BlockOutput>& crossing = blocks[static_cast<std::size_t>(cut - 1)].outputs;
  const std::size_t t = defendedTensor(crossing);
  const std::int64_t values = 2 * elementCount(crossing[t].shape);
  BlockSpec& block = blocks[static_cast<std::size_t>(row.isAtFirstCut ? cut - 1 : cut)];
  block.savedPerSample += values;
  if (row.isAtFirstCut) block.batchInputs.push_back(0);
  block.forward = [t, &row, parameters = defence.parameters, key = defences.key,
                   inner = std::move(block.forward)](TensorList x,
                                                     std::span<const at::Tensor> tensors,
                                                     const BlockContext& context) {
    const DefenceContext at{parameters, key, row.name, context};
    if (!row.isAtFirstCut) {
      x[t] = row.apply(x[t], {}, at);
      return inner(x, tensors, context);
    }
    const at::Tensor input = std::move(x.back());
    x.pop_back();
    TensorList outputs = inner(x, tensors, context);
    outputs[t] = row.apply(outputs[t], input, at);
    return outputs;
  };
}

}  // namespace

void addDefences(std::vector<BlockSpec>& blocks, const Defences& defences, int cut0, int cut1) {
  std::vector<const DefenceSpec*> order;
  for (const DefenceSpec& each : defences.list) {
    for (const DefenceSpec* const other : order) {
      if (other->kind != each.kind) continue;
      throw badDefence("privacy.defence lists '" + each.kind + "' twice", "remove one of them");
    }
    order.push_back(&each);
  }
  // At the last cut, the one that is added last changes the gradient first.
  std::ranges::stable_partition(
      order, [](const DefenceSpec* each) { return findDefence(each->kind).isAtFirstCut; });
  std::reverse(
      std::ranges::find_if(
          order, [](const DefenceSpec* each) { return !findDefence(each->kind).isAtFirstCut; }),
      order.end());
  for (const DefenceSpec* const each : order) addDefence(blocks, *each, defences, cut0, cut1);
}

// In fp64: autocast would compute the product in half precision, and distances of near samples are
// differences of large numbers.
at::Tensor distanceCorrelation(const at::Tensor& x, const at::Tensor& y) {
  const auto centred = [](const at::Tensor& samples) {
    constexpr double kMinSquare = 1e-10;  // the square root has no derivative at 0
    const at::Tensor rows = samples.to(at::kDouble).flatten(1);
    const at::Tensor squares = rows.square().sum(1, true);
    const at::Tensor distances =
        squares.add(squares.t()).sub(rows.mm(rows.t()), 2).clamp_min(kMinSquare).sqrt();
    return distances.sub(distances.mean(0, true))
        .sub(distances.mean(1, true))
        .add(distances.mean());
  };
  constexpr double kMinVariance = 1e-20;
  const at::Tensor a = centred(x), b = centred(y);
  return a.mul(b).mean().div(
      a.square().mean().mul(b.square().mean()).clamp_min(kMinVariance).sqrt());
}

double epsilonOf(double deviation, double clip, std::uint64_t times, double delta) {
  if (deviation <= 0 || clip <= 0) return std::numeric_limits<double>::infinity();
  const double rho = static_cast<double>(times) * std::pow(2 * clip / deviation, 2) / 2;
  return rho + 2 * std::sqrt(rho * std::log(1 / delta));
}

}  // namespace cleave
