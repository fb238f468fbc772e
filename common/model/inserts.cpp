#include "common/model/inserts.h"

#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/conv_transpose2d.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/relu.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "common/codec/spec.h"
#include "common/core/names.h"
#include "common/model/blocks.h"
#include "common/model/insert_pca.h"

namespace cleave {

UsageError badInsert(const std::string& sentence, const std::string& hint, const std::string& key) {
  return UsageError("bad-insert", sentence, hint).about(key);
}

namespace {

std::int64_t wholeNumber(const InsertParameters& parameters, const std::string& name) {
  return static_cast<std::int64_t>(parameters.at(name));
}

// Bound of a uniform distribution with which a sum of `inputs` products keeps the variance of its
// inputs.
double boundFor(std::int64_t inputs) { return std::sqrt(3.0 / static_cast<double>(inputs)); }

// ---- conv ----

// Conv2d and ConvTranspose2d with kernel = stride = k: each window of k x k positions becomes one
// position. If k does not divide height or width, the encoder appends zeros and the decoder removes
// these positions again.
InsertLayers convLayers(const Shape& shape, const InsertParameters& parameters) {
  const std::int64_t channels = wholeNumber(parameters, "channels");
  const std::int64_t kernel = wholeNumber(parameters, "kernel");
  if (shape.size() != 3) {
    throw badInsert("conv needs a tensor of images [channels, height, width], but this one is " +
                        toString(shape),
                    "use kind: linear", "kind");
  }
  const std::int64_t height = shape[1], width = shape[2];
  if (kernel > std::min(height, width)) {
    throw badInsert("a kernel of " + std::to_string(kernel) + " is larger than the images of " +
                        std::to_string(height) + " x " + std::to_string(width),
                    "set kernel to at most " + std::to_string(std::min(height, width)), "kernel");
  }
  const Shape encoded = {channels, (height + kernel - 1) / kernel, (width + kernel - 1) / kernel};
  const std::int64_t below = encoded[1] * kernel - height, right = encoded[2] * kernel - width;
  const Shape weight = {channels, shape[0], kernel, kernel};

  InsertLayers layers;
  layers.kernel = kernel;
  layers.encoder.tensors = {
      {.name = "weight", .shape = weight, .bound = boundFor(shape[0] * kernel * kernel)},
      {.name = "bias", .shape = {channels}}};
  layers.encoder.output = encoded;
  layers.encoder.savedPerSample = elementCount(encoded);
  const std::int64_t padded = shape[0] * encoded[1] * encoded[2] * kernel * kernel;
  if (below + right > 0) layers.encoder.savedPerSample += padded;
  layers.encoder.forward = [=](const at::Tensor& x, std::span<const at::Tensor> tensors) {
    const at::Tensor whole =
        below + right > 0 ? at::constant_pad_nd(x, {0, right, 0, below}, 0) : x;
    return at::conv2d(whole, tensors[0], tensors[1], kernel);
  };
  layers.decoder.tensors = {{.name = "weight", .shape = weight, .bound = boundFor(channels)},
                            {.name = "bias", .shape = {shape[0]}}};
  layers.decoder.output = shape;
  layers.decoder.savedPerSample = padded;
  layers.decoder.forward = [=](const at::Tensor& x, std::span<const at::Tensor> tensors) {
    const at::Tensor whole = at::conv_transpose2d(x, tensors[0], tensors[1], kernel);
    return below + right > 0 ? whole.narrow(2, 0, height).narrow(3, 0, width) : whole;
  };
  return layers;
}

// ---- linear, decaying, residual ----

// A linear layer over the channels of images [channels, height, width], as a 1 x 1 convolution, or
// over the last dimension of other tensors.
at::Tensor project(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  return weight.dim() == 4 ? at::conv2d(x, weight, bias) : at::linear(x, weight, bias);
}

struct Features {
  Shape shape;  // of the tensor at the cut
  std::int64_t rank = 0;

  bool areChannels() const { return shape.size() == 3; }
  std::int64_t count() const { return areChannels() ? shape.front() : shape.back(); }
  Shape encoded() const {
    Shape result = shape;
    (areChannels() ? result.front() : result.back()) = rank;
    return result;
  }
  // The tensors of project(): [outputs, inputs] or [outputs, inputs, 1, 1], and [outputs].
  std::vector<ParameterSpec> tensors(const std::string& prefix, std::int64_t outputs,
                                     std::int64_t inputs) const {
    Shape weight = {outputs, inputs};
    if (areChannels()) weight.insert(weight.end(), {1, 1});
    return {{.name = prefix + "weight", .shape = weight},
            {.name = prefix + "bias", .shape = {outputs}}};
  }
};

Features featuresOf(const Shape& shape, const InsertParameters& parameters) {
  const Features features{shape, wholeNumber(parameters, "rank")};
  if (features.rank <= features.count()) return features;
  throw badInsert("a rank of " + std::to_string(features.rank) + " is more than the " +
                      std::to_string(features.count()) + " features of the tensor " +
                      toString(shape),
                  "set rank to at most " + std::to_string(features.count()), "rank");
}

// encoder: z = E x + e; decoder: y = D z + d. Initially E has the first rows of the identity, D is
// its transpose, and e = d = 0.
InsertLayers linearLayers(const Shape& shape, const InsertParameters& parameters) {
  const Features features = featuresOf(shape, parameters);
  const auto half = [&](std::int64_t outputs, std::int64_t inputs, Shape output) {
    InsertHalf result;
    result.tensors = features.tensors("", outputs, inputs);
    result.tensors.front().isIdentity = true;
    result.savedPerSample = elementCount(output);
    result.output = std::move(output);
    result.forward = [](const at::Tensor& x, std::span<const at::Tensor> tensors) {
      return project(x, tensors[0], tensors[1]);
    };
    return result;
  };
  return {half(features.rank, features.count(), features.encoded()),
          half(features.count(), features.rank, shape)};
}

// linear, whose last features are dropped during training: the rows of E, the elements of e and the
// columns of D that belong to them become 0. So do the features of z, and their gradients.
InsertLayers decayingLayers(const Shape& shape, const InsertParameters& parameters) {
  const RankDecay decay{.rank = wholeNumber(parameters, "rank"),
                        .minRank = wholeNumber(parameters, "min_rank"),
                        .share = parameters.at("decay"),
                        .everySteps = static_cast<std::uint64_t>(parameters.at("every_steps")),
                        .l1 = parameters.at("l1")};
  InsertLayers layers = linearLayers(shape, parameters);
  if (decay.minRank > decay.rank) {
    throw badInsert("a min_rank of " + std::to_string(decay.minRank) +
                        " is more than the rank of " + std::to_string(decay.rank),
                    "set min_rank to at most " + std::to_string(decay.rank), "min_rank");
  }
  for (ParameterSpec& tensor : layers.encoder.tensors) tensor.decaying = {decay, 0};
  layers.decoder.tensors.front().decaying = {decay, 1};
  return layers;
}

// linear plus a nonlinear correction of `rank` hidden features in each half:
//   encoder: z = E x + e + V relu(U x + u) + v    decoder: y = D z + d + V' relu(U' z + u') + v'
// Initially V, v, V' and v' are 0, so that the insert computes the same as `linear`.
InsertLayers residualLayers(const Shape& shape, const InsertParameters& parameters) {
  const Features features = featuresOf(shape, parameters);
  InsertLayers layers = linearLayers(shape, parameters);
  const std::int64_t rank = features.rank;
  const auto correct = [&](InsertHalf& half, std::int64_t outputs, std::int64_t inputs) {
    std::vector<ParameterSpec> inner = features.tensors("inner.", rank, inputs);
    inner.front().bound = boundFor(inputs);
    half.tensors.insert(half.tensors.end(), inner.begin(), inner.end());
    const std::vector<ParameterSpec> outer = features.tensors("outer.", outputs, rank);
    half.tensors.insert(half.tensors.end(), outer.begin(), outer.end());
    // The hidden features before and after the ReLU, the correction, and the sum.
    half.savedPerSample += 2 * elementCount(features.encoded()) + 2 * elementCount(half.output);
    half.forward = [](const at::Tensor& x, std::span<const at::Tensor> tensors) {
      const at::Tensor hidden = at::relu(project(x, tensors[2], tensors[3]));
      return project(x, tensors[0], tensors[1]).add(project(hidden, tensors[4], tensors[5]));
    };
  };
  correct(layers.encoder, rank, features.count());
  correct(layers.decoder, features.count(), rank);
  return layers;
}

// ---- pca ----

// Projection on orthonormal rows A that follow the principal components of the tensors at the cut
// (tracked_basis.h), around a fixed mean m: z = A (p - m), y = A^T z + m, in windows of
// kernel x kernel positions of images, or at each position of other tensors.
InsertLayers pcaLayers(const Shape& shape, const InsertParameters& parameters) {
  const std::int64_t kernel = wholeNumber(parameters, "kernel");
  const std::int64_t rank = wholeNumber(parameters, "channels");
  const bool isImage = shape.size() == 3;
  if (!isImage && kernel > 1) {
    throw badInsert("a kernel needs a tensor of images, but this one is " + toString(shape),
                    "remove kernel", "kernel");
  }
  const std::int64_t width = isImage ? shape[0] * kernel * kernel : shape.back();
  constexpr std::int64_t kMaxWidth = 4096;  // a covariance of 64 MiB
  if (width > kMaxWidth) {
    throw badInsert("a covariance of " + std::to_string(width) + " x " + std::to_string(width) +
                        " values is too large",
                    "use a smaller kernel, or kind: linear", "kind");
  }
  const auto limit = std::min<std::int64_t>(width, kMaxBasisBytes / sizeof(at::Half) / width);
  if (rank > limit) {
    throw badInsert("a basis of " + std::to_string(rank) + " x " + std::to_string(width) +
                        " values is too large",
                    "set channels to at most " + std::to_string(limit), "channels");
  }
  InsertLayers layers;
  if (isImage) {
    layers = convLayers(shape, parameters);
    layers.encoder.forward = [encode = std::move(layers.encoder.forward)](
                                 const at::Tensor& x, std::span<const at::Tensor> tensors) {
      const std::array<at::Tensor, 2> noBias = {tensors[0], at::Tensor()};
      return encode(withoutMean(x, tensors[kBasisMean]), noBias);
    };
  } else {
    const Features features{shape, rank};
    for (InsertHalf* half : {&layers.encoder, &layers.decoder}) {
      half->tensors = {{.name = "weight", .shape = {rank, width}},
                       {.name = "bias", .shape = {width}}};
      half->output = half == &layers.encoder ? features.encoded() : shape;
      half->savedPerSample = elementCount(half->output);
    }
    layers.encoder.forward = [](const at::Tensor& x, std::span<const at::Tensor> tensors) {
      return at::linear(withoutMean(x, tensors[kBasisMean]), tensors[0]);
    };
    layers.decoder.forward = [](const at::Tensor& z, std::span<const at::Tensor> tensors) {
      return at::linear(z, tensors[0].t(), tensors[1]);
    };
  }
  layers.momentum = 1 - parameters.at("decay");
  layers.encoder.tensors[kBasisMean] = {.name = "mean", .shape = {isImage ? shape[0] : width}};
  layers.encoder.tensors.push_back({.name = "covariance", .shape = {width, width}});
  // x - m, and its rows in fp64.
  layers.encoder.savedPerSample += 3 * elementCount(shape);
  const TrackedBasis basis{.everySteps = static_cast<std::uint64_t>(parameters.at("every_steps"))};
  for (InsertHalf* half : {&layers.encoder, &layers.decoder}) {
    half->tensors[0].tracked = basis;
    half->tensors[0].tracked->isOfEncoder = half == &layers.encoder;
    half->tensors[0].bound.reset();
    half->tensors[0].isIdentity = true;
    for (ParameterSpec& tensor : half->tensors) tensor.isBuffer = true;
  }
  return layers;
}

// ---- The table ----

// Upper limits, so that products of sizes received from a peer cannot overflow.
constexpr double kMaxFeatures = 1 << 16;
constexpr double kMaxKernel = 64;
constexpr double kMaxSteps = 1e9;

constexpr ParameterRow kCorrection = {"correction",
                                      0,
                                      1,
                                      0,
                                      "of a frozen insert: above 0, the gradient of its "
                                      "input x gets this times (x - x'), where x' is "
                                      "the decoder's output",
                                      false};
constexpr ParameterRow kConvParameters[] = {
    {"channels", 1, kMaxFeatures, std::nullopt, "channels that cross the cut"},
    {"kernel", 1, kMaxKernel, 1, "kernel and stride of the convolution"},
    kCorrection,
};
constexpr ParameterRow kRankParameters[] = {
    {"rank", 1, kMaxFeatures, std::nullopt, "features that cross the cut"},
    kCorrection,
};

constexpr ParameterRow kDecayParameters[] = {
    kRankParameters[0],
    {"decay", 0, 1, 0.5, "share of the features that remain after every `every_steps` steps",
     false},
    {"every_steps", 1, kMaxSteps, std::nullopt, "number of training steps between two drops"},
    {"min_rank", 1, kMaxFeatures, 1, "minimum number of features"},
    {"l1", 0, 1, 0.1, "coefficient of the L1 penalty on the features that the next drop removes",
     false},
};

constexpr ParameterRow kPcaParameters[] = {
    {"channels", 1, kMaxFeatures, std::nullopt, "channels or features that cross the cut"},
    {"kernel", 1, kMaxKernel, 1, "height and width of the windows of images"},
    {"every_steps", 1, kMaxSteps, 10, "number of training steps between two bases"},
    {"decay", 0, 1, 0.97, "factor of the covariance before the next micro-batch is added", false},
};

constexpr InsertRow kInserts[] = {
    {"conv", "a convolution whose stride is its kernel, and the transposed convolution",
     kConvParameters, convLayers},
    {"linear", "a linear bottleneck of the features, initialised as the identity", kRankParameters,
     linearLayers},
    {"decaying", "linear, with features that are dropped during training", kDecayParameters,
     decayingLayers},
    {"residual", "linear, plus a nonlinear correction in each half", kRankParameters,
     residualLayers},
    {"pca", "a projection on the tensors' principal components, which follows them in training",
     kPcaParameters, pcaLayers},
};

std::string textOf(double value, const ParameterRow& row) {
  const bool isShort = row.isWhole && value == std::floor(value) && std::abs(value) <= kMaxSteps;
  return isShort ? std::to_string(static_cast<std::int64_t>(value)) : shortestText(value);
}

InsertParameters checkedParameters(const InsertSpec& insert) {
  const InsertRow& row = findInsert(insert.kind);
  InsertParameters values;
  std::vector<std::string> known;
  for (const ParameterRow& each : row.parameters) {
    const std::string name(each.name);
    known.push_back(name);
    const auto given = insert.parameters.find(name);
    if (given == insert.parameters.end() && !each.defaultValue) {
      throw badInsert(insert.kind + " needs " + name,
                      "set " + name + ", the " + std::string(each.meaning), "kind");
    }
    values[name] = given == insert.parameters.end() ? *each.defaultValue : given->second;
    const double value = values[name];
    const bool hasType = !each.isWhole || value == std::floor(value);
    if (hasType && value >= each.min && value <= each.max) continue;
    throw badInsert(name + " is " + textOf(value, each),
                    std::string("set it to ") +
                        (each.isWhole ? "a whole number from " : "a number from ") +
                        textOf(each.min, each) + " to " + textOf(each.max, each),
                    name);
  }
  for (const auto& [name, value] : insert.parameters) {
    if (values.contains(name)) continue;
    throw badInsert(insert.kind + " has no '" + name + "'", knownNames(name, known), name);
  }
  return values;
}

}  // namespace

std::span<const InsertRow> insertTable() { return kInserts; }

const InsertRow& findInsert(std::string_view name) {
  try {
    return findByName(insertTable(), name, "bad-insert", "a kind of insert");
  } catch (UsageError& error) {
    throw std::move(error).about("kind");
  }
}

InsertLayers layersFor(const InsertSpec& insert, const std::vector<BlockOutput>& tensors) {
  const InsertRow& row = findInsert(insert.kind);
  const InsertParameters parameters = checkedParameters(insert);
  const Shape& shape = tensors[encodedTensor(tensors)].shape;
  InsertLayers layers = row.layers(shape, parameters);
  if (const auto correction = parameters.find(std::string(kCorrection.name));
      correction != parameters.end()) {
    layers.correction = correction->second;
  }
  if (elementCount(layers.encoder.output) <= elementCount(shape)) return layers;
  throw badInsert("the encoded tensor " + toString(layers.encoder.output) +
                      " is larger than the tensor " + toString(shape),
                  "set " + std::string(row.parameters.front().name) + " to a smaller number",
                  std::string(row.parameters.front().name));
}

}  // namespace cleave
