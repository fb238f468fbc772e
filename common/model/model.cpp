#include "common/model/model.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_lerp.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <utility>

#include "common/core/names.h"
#include "common/core/random.h"
#include "common/model/blocks.h"
#include "common/model/torch_tensor.h"

namespace cleave {

// Each function is defined in the model's own file.
ModelRow smallCnnModel();
ModelRow mlpModel();
ModelRow mobilenetV2Model();
ModelRow graphModel();
ModelRow sleepModel();

namespace {

template <typename Number>
std::optional<Number> parsed(const std::string& text) {
  Number value{};
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end) return std::nullopt;
  return value;
}

std::string shortNumber(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", value);
  return text;
}

UsageError badParameter(const ModelSpec& spec, const std::string& key, const std::string& range) {
  return UsageError(
             "bad-model-parameter",
             "model " + spec.name + ": " + key + "=" + spec.parameters.at(key) + " is not " + range,
             "set " + key + " to " + range)
      .about("model." + key);
}

// Sums in fp64, in eight partial sums that compilers can vectorize. The order does not depend on
// the number of threads.
double squareSum(const at::Tensor& gradient) {
  const at::Tensor dense = gradient.contiguous(gradient.suggest_memory_format());
  const std::span<const float> values(dense.const_data_ptr<float>(),
                                      static_cast<std::size_t>(dense.numel()));
  constexpr std::size_t kLanes = 8;
  std::array<double, kLanes> sums{};
  std::size_t j = 0;
  for (; j + kLanes <= values.size(); j += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      const double value = values[j + lane];
      sums[lane] += value * value;
    }
  }
  for (; j < values.size(); ++j) sums[0] += double{values[j]} * double{values[j]};
  return std::accumulate(sums.begin(), sums.end(), 0.0);
}

// The sum of squares of each gradient, in fp64; 0 for a parameter without one.
std::vector<double> squareSums(const std::vector<NamedTensor>& parameters) {
  std::vector<double> sums(parameters.size());
  std::vector<at::Tensor> onDevice;  // copied together: one wait for the device, not one per copy
  std::vector<std::size_t> positions;
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    const at::Tensor& gradient = parameters[p].tensor.grad();
    if (!gradient.defined()) continue;
    if (gradient.is_cpu()) {
      sums[p] = squareSum(gradient);
    } else {
      onDevice.push_back(gradient.to(at::kDouble).square_().sum());
      positions.push_back(p);
    }
  }
  if (onDevice.empty()) return sums;
  const at::Tensor values = at::stack(onDevice).cpu();
  for (std::size_t n = 0; n < positions.size(); ++n) {
    sums[positions[n]] = values.const_data_ptr<double>()[n];
  }
  return sums;
}

// The sum of the bit patterns: it changes if a single value does.
std::uint64_t bitSum(const at::Tensor& tensor) {
  const at::Tensor dense = tensor.contiguous(tensor.suggest_memory_format());
  const std::span<const float> values(dense.const_data_ptr<float>(),
                                      static_cast<std::size_t>(dense.numel()));
  std::uint64_t sum = 0;
  for (const float value : values) sum += std::bit_cast<std::uint32_t>(value);
  return sum;
}

// Values are drawn in logical order, so that they do not depend on the tensor's memory order.
at::Tensor initialTensor(const ParameterSpec& row, std::uint64_t seed) {
  if (row.isIdentity) {
    const at::Tensor values = at::zeros(row.shape);
    values.flatten(1).fill_diagonal_(1);
    return canonical(values, cutOrder(row.shape.size()));
  }
  if (!row.bound) return at::full(row.shape, row.initial, row.type);
  at::Tensor values = at::empty(row.shape);
  const std::span<float> out(values.mutable_data_ptr<float>(),
                             static_cast<std::size_t>(values.numel()));
  fillUniform(randomKey(seed, row.name), out);
  const float scale = static_cast<float>(*row.bound);
  for (float& value : out) value = (2 * value - 1) * scale;
  return canonical(values, cutOrder(row.shape.size()));
}

template <typename Counts>
std::int64_t elementCountOf(const std::vector<BlockSpec>& blocks, int first, int last,
                            Counts counts) {
  std::int64_t count = 0;
  for (int b = first; b < last; ++b) {
    for (const ParameterSpec& tensor : blocks[static_cast<std::size_t>(b)].tensors) {
      if (counts(tensor)) count += elementCount(tensor.shape);
    }
  }
  return count;
}

}  // namespace

std::int64_t parameterCount(const std::vector<BlockSpec>& blocks, int first, int last) {
  return elementCountOf(blocks, first, last,
                        [](const ParameterSpec& tensor) { return !tensor.isBuffer; });
}

std::int64_t bufferCount(const std::vector<BlockSpec>& blocks, int first, int last) {
  return elementCountOf(blocks, first, last,
                        [](const ParameterSpec& tensor) { return tensor.isBuffer; });
}

std::int64_t trainedCount(const std::vector<BlockSpec>& blocks, int first, int last) {
  return elementCountOf(blocks, first, last, [](const ParameterSpec& tensor) {
    return !tensor.isBuffer && tensor.isTrainable;
  });
}

namespace {

struct PrecisionRow {
  Precision precision;
  std::string_view name;
};
constexpr PrecisionRow kPrecisions[] = {
    {Precision::fp32, "fp32"}, {Precision::bf16, "bf16"}, {Precision::fp16, "fp16"}};

}  // namespace

std::string_view precisionName(Precision precision) {
  return kPrecisions[static_cast<std::size_t>(precision)].name;
}

Precision precisionFromName(std::string_view name) {
  return findByName(kPrecisions, name, "bad-precision", "a precision").precision;
}

std::span<const ModelRow> modelTable() {
  static const std::array rows = {smallCnnModel(), mlpModel(), mobilenetV2Model(), sleepModel(),
                                  graphModel()};
  return rows;
}

const ModelRow& findModel(std::string_view name) {
  return findByName(modelTable(), name, "unknown-model", "a model");
}

void checkCuts(const std::vector<BlockSpec>& blocks, const Cuts& cuts) {
  const int count = static_cast<int>(blocks.size());
  if (1 <= cuts.cut0 && cuts.cut0 < cuts.cut1 && cuts.cut1 < count) return;
  std::string list;
  for (int b = 0; b < count; ++b) {
    list +=
        (b > 0 ? ", " : "") + std::to_string(b) + " " + blocks[static_cast<std::size_t>(b)].name;
  }
  throw UsageError("bad-cuts",
                   "cuts " + std::to_string(cuts.cut0) + " and " + std::to_string(cuts.cut1) +
                       " do not leave at least one block each for head, body and tail; the " +
                       std::to_string(count) + " blocks: " + list,
                   "choose 1 <= first < second < " + std::to_string(count) +
                       "; a cut is the position of the block after it")
      .about("model.cuts");
}

namespace {

bool hasEnoughValues(const NormRow& norm, std::uint32_t samples) {
  return norm.valuesPerSample * samples >= 2;
}

}  // namespace

bool fitsBatchNorm(const std::vector<BlockSpec>& blocks, std::uint32_t minSamples) {
  return std::all_of(blocks.begin(), blocks.end(), [&](const BlockSpec& block) {
    return std::all_of(block.norms.begin(), block.norms.end(),
                       [&](const NormRow& norm) { return hasEnoughValues(norm, minSamples); });
  });
}

void checkBatchNorm(const std::vector<BlockSpec>& blocks, std::uint32_t minSamples) {
  for (const BlockSpec& block : blocks) {
    for (const NormRow& norm : block.norms) {
      if (hasEnoughValues(norm, minSamples)) continue;
      const std::string& buffer = block.tensors.at(norm.mean).name;
      throw UsageError("batch-norm-too-few",
                       "batch norm " + buffer.substr(0, buffer.rfind('.')) + " would see " +
                           std::to_string(norm.valuesPerSample * minSamples) +
                           " value per channel in the smallest micro-batch, of " +
                           std::to_string(minSamples) + " sample, but needs 2",
                       "use a larger batch or fewer micro-batches")
          .about("train.micro_batches");
    }
  }
}

bool hasBatchNorm(const std::vector<BlockSpec>& blocks) {
  return std::any_of(blocks.begin(), blocks.end(),
                     [](const BlockSpec& block) { return !block.norms.empty(); });
}

std::int64_t ModelParameters::integer(const std::string& key, std::int64_t min, std::int64_t max,
                                      std::int64_t defaultValue) {
  known_.push_back(key);
  const auto found = spec_.parameters.find(key);
  if (found == spec_.parameters.end()) return defaultValue;
  const auto value = parsed<std::int64_t>(found->second);
  if (!value || *value < min || *value > max) {
    throw badParameter(spec_, key,
                       "an integer from " + std::to_string(min) + " to " + std::to_string(max));
  }
  return *value;
}

double ModelParameters::number(const std::string& key, double min, double max,
                               double defaultValue) {
  known_.push_back(key);
  const auto found = spec_.parameters.find(key);
  if (found == spec_.parameters.end()) return defaultValue;
  const auto value = parsed<double>(found->second);
  // This form of the comparison also rejects NaN.
  if (!value || !(*value >= min && *value <= max)) {
    throw badParameter(spec_, key, "a number from " + shortNumber(min) + " to " + shortNumber(max));
  }
  return *value;
}

std::string ModelParameters::choice(const std::string& key,
                                    const std::vector<std::string>& choices) {
  known_.push_back(key);
  const auto found = spec_.parameters.find(key);
  if (found == spec_.parameters.end()) return choices.front();
  if (std::find(choices.begin(), choices.end(), found->second) != choices.end()) {
    return found->second;
  }
  std::string list;
  for (const std::string& known : choices) list += (list.empty() ? "" : " or ") + known;
  throw badParameter(spec_, key, list);
}

void ModelParameters::finish() const {
  for (const auto& [key, value] : spec_.parameters) {
    if (std::find(known_.begin(), known_.end(), key) != known_.end()) continue;
    throw UsageError("bad-model-parameter",
                     "model " + spec_.name + " has no parameter '" + key + "'",
                     knownNames(key, known_))
        .about("model." + key);
  }
}

ParameterSet::ParameterSet(const std::vector<BlockSpec>& blocks, int first, int last,
                           std::uint64_t seed, at::Device device, const ParameterSet* tied) {
  std::map<std::string, at::Tensor> known;
  if (tied != nullptr) {
    for (const NamedTensor& parameter : tied->parameters())
      known.insert({parameter.name, parameter.tensor});
  }
  for (int b = first; b < last; ++b) {
    const BlockSpec& block = blocks.at(static_cast<std::size_t>(b));
    for (NormRow norm : block.norms) {
      norm.mean += tensors_.size();
      norm.variance += tensors_.size();
      if (norm.count) *norm.count += tensors_.size();
      norms_.push_back(norm);
    }
    for (const ParameterSpec& row : block.tensors) {
      const auto earlier = row.isBuffer ? known.end() : known.find(row.name);
      if (earlier != known.end()) {
        const at::Tensor& shared = earlier->second;
        tensors_.push_back(shared.detach().set_requires_grad(shared.requires_grad()));
        tied_.push_back({shared, tensors_.back()});
        continue;
      }
      const at::Tensor tensor = initialTensor(row, seed).to(device);
      if (!row.isBuffer && row.isTrainable) tensor.set_requires_grad(true);
      (!row.isSaved   ? constants_
       : row.isBuffer ? buffers_
                      : parameters_)
          .push_back({row.name, tensor});
      tensors_.push_back(tensor);
      if (!row.isBuffer) known.insert({row.name, tensor});
    }
  }
}

void ParameterSet::clearGradients() {
  for (const NamedTensor& parameter : parameters_) parameter.tensor.mutable_grad().reset();
  for (const Tied& each : tied_) each.second.mutable_grad().reset();
}

ParameterSet ParameterSet::leaves(const std::vector<at::Tensor>& values, const ParameterSet* tied,
                                  const ParameterSet* tiedLeaves) const {
  ParameterSet set;
  std::map<const at::TensorImpl*, at::Tensor> leaves;  // by this set's tensor
  const auto addLeaf = [&](const at::Tensor& own, const at::Tensor& value) {
    const at::Tensor leaf = value.detach().set_requires_grad(own.requires_grad());
    return leaves[own.unsafeGetTensorImpl()] = leaf;
  };
  for (std::size_t p = 0; p < parameters_.size(); ++p) {
    set.parameters_.push_back({parameters_[p].name, addLeaf(parameters_[p].tensor, values.at(p))});
  }
  if (tied != nullptr) {
    for (std::size_t p = 0; p < tied->parameters_.size(); ++p) {
      leaves[tied->parameters_[p].tensor.unsafeGetTensorImpl()] =
          tiedLeaves->parameters_.at(p).tensor;
    }
  }
  for (const auto& [first, second] : tied_) {
    const at::Tensor& shared = leaves.at(first.unsafeGetTensorImpl());
    set.tied_.push_back({shared, addLeaf(second, shared)});
  }
  for (const at::Tensor& tensor : tensors_) {
    const auto leaf = leaves.find(tensor.unsafeGetTensorImpl());
    set.tensors_.push_back(leaf == leaves.end() ? tensor : leaf->second);
  }
  set.buffers_ = buffers_;
  set.constants_ = constants_;
  set.norms_ = norms_;
  return set;
}

bool ParameterSet::has(const std::string& parameter) const {
  return std::any_of(parameters_.begin(), parameters_.end(),
                     [&](const NamedTensor& each) { return each.name == parameter; });
}

void ParameterSet::joinGradients() const {
  for (const auto& [first, second] : tied_) {
    at::Tensor& added = second.mutable_grad();
    if (!added.defined()) continue;
    at::Tensor& sum = first.mutable_grad();
    sum = sum.defined() ? sum.add(added) : added;
    added.reset();
  }
}

void ParameterSet::addStatistics(const std::vector<NormStatistics>& statistics) {
  if (statistics.size() != norms_.size()) {
    throw std::logic_error("the statistics belong to other blocks");
  }
  // Updates all batch norms with the same momentum together, which on a GPU takes one kernel
  // instead of one per batch norm.
  struct Group {
    std::vector<at::Tensor> running, added;
  };
  std::map<double, Group> groups;  // by momentum
  std::vector<at::Tensor> counts;
  for (std::size_t n = 0; n < norms_.size(); ++n) {
    const NormRow& norm = norms_[n];
    Group& group = groups[norm.momentum];
    group.running.insert(group.running.end(), {tensors_[norm.mean], tensors_[norm.variance]});
    group.added.insert(group.added.end(), {statistics[n].mean, statistics[n].variance});
    if (norm.count) counts.push_back(tensors_[*norm.count]);
  }
  const at::NoGradGuard noGrad;
  for (const auto& [momentum, group] : groups) {
    at::_foreach_lerp_(group.running, group.added, momentum);
  }
  if (!counts.empty()) at::_foreach_add_(counts, 1);
}

ModelPart::ModelPart(const std::vector<BlockSpec>& blocks, int first, int last,
                     std::vector<int> cutsInside)
    : first_(first), cutsInside_(std::move(cutsInside)) {
  std::size_t parameters = 0;
  for (int b = first; b < last; ++b) {
    if (isCutInside(b)) cutParameters_.push_back(parameters);
    const BlockSpec& block = blocks_.emplace_back(blocks.at(static_cast<std::size_t>(b)));
    for (const ParameterSpec& tensor : block.tensors) parameters += tensor.isBuffer ? 0 : 1;
  }
}

bool ModelPart::isCutInside(int position) const {
  return position != first_ &&
         std::find(cutsInside_.begin(), cutsInside_.end(), position) != cutsInside_.end();
}

namespace {

// Makes operators run in a precision until this object is destroyed.
class AutocastScope {
 public:
  AutocastScope(Precision precision, at::DeviceType device)
      : device_(device), isOn_(precision != Precision::fp32) {
    if (!isOn_) return;
    at::autocast::set_autocast_dtype(device_,
                                     precision == Precision::bf16 ? at::kBFloat16 : at::kHalf);
    at::autocast::set_autocast_enabled(device_, true);
    // The cache keeps casts of leaves, and the input of a part is a leaf only if the model is
    // split.
    at::autocast::set_autocast_cache_enabled(false);
  }
  ~AutocastScope() {
    if (!isOn_) return;
    at::autocast::set_autocast_enabled(device_, false);
    at::autocast::set_autocast_cache_enabled(true);
  }
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;

 private:
  const at::DeviceType device_;
  const bool isOn_;
};

at::Tensor inFullPrecision(const at::Tensor& x) {
  return x.is_floating_point() ? x.to(at::kFloat) : x;
}

}  // namespace

TensorList ModelPart::forward(TensorList x, const TensorList& batch, const ParameterSet& set,
                              const BlockContext& context) const {
  std::span<const at::Tensor> rest = set.tensors();
  int position = first_;
  const int last = first_ + static_cast<int>(blocks_.size());
  for (const BlockSpec& block : blocks_) {
    if (isCutInside(position)) std::transform(x.begin(), x.end(), x.begin(), crossCut);
    for (const std::size_t input : block.batchInputs) x.push_back(batch.at(input));
    {
      const AutocastScope scope(block.precision, x.at(0).device().type());
      x = block.forward(x, rest.first(block.tensors.size()), context);
    }
    rest = rest.subspan(block.tensors.size());
    ++position;
    if (position == last || isCutInside(position)) {
      std::transform(x.begin(), x.end(), x.begin(), inFullPrecision);
    }
  }
  return x;
}

at::Tensor ModelPart::crossCut(const at::Tensor& x) {
  const MemoryOrder order = cutOrder(static_cast<std::size_t>(x.dim()));
  at::Tensor crossed = canonical(x, order);
  if (crossed.requires_grad()) {
    // The copy matters: a stage holds the gradient that it receives until its backward is done. If
    // autograd held the only reference, it would add other gradients in place. Sums in place and
    // others may have different strides (in dimensions of size 1), for which LibTorch may choose
    // different kernels.
    crossed.register_hook(
        [order, held = std::make_shared<at::Tensor>()](const at::Tensor& gradient) {
          return *held = canonical(gradient, order);
        });
  }
  return crossed;
}

std::uint64_t digestOfTrained(const std::vector<NamedTensor>& parameters) {
  constexpr std::uint64_t kOdd = 0x9E3779B97F4A7C15;
  std::uint64_t digest = 0;
  const auto add = [&](std::uint64_t sum) { digest = digest * kOdd + sum; };
  std::vector<at::Tensor> onDevice;  // copied together: one wait for the device, not one per copy
  for (const NamedTensor& parameter : parameters) {
    if (!parameter.tensor.requires_grad()) continue;
    const at::Tensor values = parameter.tensor.detach();
    if (values.is_cpu()) {
      add(bitSum(values));
    } else {
      onDevice.push_back(values.view(at::kInt).sum(at::kLong));
    }
  }
  if (onDevice.empty()) return digest;
  const at::Tensor sums = at::stack(onDevice).cpu();
  for (std::size_t n = 0; n < onDevice.size(); ++n) {
    add(static_cast<std::uint64_t>(sums.const_data_ptr<std::int64_t>()[n]));
  }
  return digest;
}

GradientReport ModelPart::gradientReport(const ParameterSet& set) const {
  GradientReport report;
  const std::vector<double> sums = squareSums(set.parameters());
  std::size_t begin = 0;
  // Adds one sum per segment between cuts: the same order in which the client adds the reports of
  // head, body and tail.
  for (std::size_t cut = 0; cut <= cutParameters_.size(); ++cut) {
    const std::size_t end = cut < cutParameters_.size() ? cutParameters_[cut] : sums.size();
    double sum = 0;
    for (std::size_t p = begin; p < end; ++p) sum += sums[p];
    report.squareSum += sum;
    begin = end;
  }
  // Squares of finite floats do not overflow a double.
  report.finite = std::isfinite(report.squareSum);
  return report;
}

}  // namespace cleave
