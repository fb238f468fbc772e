#include "common/model/stage_parts.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/zeros_like.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>

#include "common/codec/checkpoint_error.h"
#include "common/codec/safetensors.h"
#include "common/model/blocks.h"
#include "common/model/torch_tensor.h"

namespace cleave {
namespace {}  // namespace

// ---- Cuts ----

StageCut::StageCut(const StageOptions& options, const std::vector<BlockSpec>& blocks, int cut,
                   ComputeDevice& device)
    : staysOnDevice_(options.staysOnDevice),
      tensors_(outputsAt(blocks, options.cuts, cut)),
      device_(device) {
  const CutTensors tensors = cutTensorsAt(blocks, options.cuts, cut);
  activations_ = activationsOf(cut, tensors);
  gradients_ = gradientsOf(cut, tensors);
}

TensorSpec StageCut::specOf(Flow flow, const MicroBatch& at) const {
  return specOfOutput(tensors_.at(flow.tensor), at.size());
}

// A graph may compute something else than it declares.
void StageCut::checkLeaving(const MicroBatch& at, const at::Tensor& tensor, Flow flow) const {
  const TensorSpec expected = specOf(flow, at);
  const bool hasMemory = tensor.layout() == at::kStrided && !tensor._is_zerotensor();
  if (hasMemory && tensor.scalar_type() == scalarTypeOf(expected.dtype) &&
      tensor.sizes() == at::IntArrayRef(expected.shape) &&
      tensor.device().type() == device_.device().type()) {
    return;
  }
  throw UsageError(
      "bad-graph",
      fmt::format("the model computed {} [{}] as {} of micro-batch {}, but declares {}",
                  c10::toString(tensor.scalar_type()), fmt::join(tensor.sizes(), ", "),
                  flowName(flow), at.i, toString(expected)),
      "export the model again with cleave.export, with the PyTorch of this version of Cleave");
}

Payload StageCut::leaving(const MicroBatch& at, const at::Tensor& tensor, Flow flow) const {
  checkLeaving(at, tensor, flow);
  const MemoryOrder order = cutOrder(static_cast<std::size_t>(tensor.dim()));
  const at::Tensor leaving = canonical(tensor.detach(), order);
  return toPayload(staysOnDevice_.get(flow) ? leaving : device_.toHost(leaving), order);
}

at::Tensor StageCut::entering(const MicroBatch& at, Payload payload, Flow flow) const {
  const TensorSpec expected = specOf(flow, at);
  if (payload.view().spec != expected) {
    throw std::logic_error("a stage got " + toString(payload.view().spec) + " instead of " +
                           toString(expected));
  }
  const bool isThere = payload.view().place == MemoryPlace::device;
  const at::Tensor tensor = toTensor(std::move(payload), device_.device());
  return isThere ? tensor : device_.toDevice(tensor);
}

TensorBundle StageCut::leave(const MicroBatch& at, const TensorList& outputs) const {
  TensorBundle bundle;
  for (const Flow flow : activations_) bundle.push_back(leaving(at, outputs.at(flow.tensor), flow));
  return bundle;
}

TensorList StageCut::enter(const MicroBatch& at, TensorBundle activations, bool training) const {
  TensorList tensors;
  for (const Flow flow : activations_) {
    tensors.push_back(entering(at, std::move(activations.at(flow.tensor)), flow));
    const bool hasGradient = tensors_[flow.tensor].tensor.hasGradient;
    if (training && hasGradient) tensors.back().set_requires_grad(true);
  }
  return tensors;
}

TensorBundle StageCut::leaveGradients(const MicroBatch& at, const TensorList& leaves) const {
  TensorBundle bundle;
  for (const Flow flow : gradients_) {
    const at::Tensor& leaf = leaves.at(flow.tensor);
    bundle.push_back(leaving(at, leaf.grad().defined() ? leaf.grad() : at::zeros_like(leaf), flow));
  }
  return bundle;
}

// The outputs that have a gradient.
Roots StageCut::rootsOf(const MicroBatch& at, const TensorList& outputs,
                        TensorBundle gradients) const {
  Roots roots;
  for (std::size_t g = 0; g < gradients_.size(); ++g) {
    const at::Tensor& output = outputs.at(gradients_[g].tensor);
    // A part without parameters in front of it, such as a flatten, needs no gradient.
    if (!output.requires_grad()) continue;
    roots.outputs.push_back(output);
    roots.gradients.push_back(entering(at, std::move(gradients.at(g)), gradients_[g]));
  }
  return roots;
}

void StageCut::backward(const MicroBatch& at, const TensorList& outputs,
                        TensorBundle gradients) const {
  cleave::backward(rootsOf(at, outputs, std::move(gradients)));
}

SplitBackward StageCut::splitBackward(const MicroBatch& at, const TensorList& outputs,
                                      TensorBundle gradients, const TensorList& leaves) const {
  return {rootsOf(at, outputs, std::move(gradients)), leaves};
}

// ---- A batch ----

at::Tensor borrowedArray(const TensorView& array) {
  const at::ScalarType type = array.spec.dtype == DType::i64 ? at::kLong : at::kFloat;
  return at::from_blob(const_cast<std::byte*>(array.data), array.spec.shape, type);
}

void LabeledBatch::begin(const BatchView& batch) {
  batch_ = batch;
  const auto& shape = batch_.target().spec.shape;
  cleave::checkLoss(scores_.loss, output_, batch_.target().spec.dtype,
                    {shape.begin() + 1, shape.end()});
  checkClasses();
  const double weight = loss_.weight(loss_.rows({}, borrowedArray(batch_.target())), scores_.loss);
  weight_ = weight > 0 ? weight : 1;  // if no target counts, all losses are 0
  metrics_ = {};
  losses_.clear();
  outputs_.clear();
}

void LabeledBatch::checkClasses() const {
  const TensorView& target = batch_.target();
  if (loss_.target == TargetKind::labels) {
    const std::span<const float> values(reinterpret_cast<const float*>(target.data),
                                        target.spec.elements());
    const auto outside = std::find_if(values.begin(), values.end(),
                                      [](float value) { return !(value >= 0 && value <= 1); });
    if (outside == values.end()) return;
    throw UsageError("bad-label",
                     "the target has the value " + std::to_string(*outside) +
                         ", but bce_with_logits needs values from 0 to 1",
                     "correct the data, or set train.loss: mse");
  }
  if (loss_.target != TargetKind::classes) return;
  const std::span<const std::int64_t> values(reinterpret_cast<const std::int64_t*>(target.data),
                                             target.spec.elements());
  const auto wrong = std::find_if(values.begin(), values.end(), [&](std::int64_t value) {
    return value != scores_.loss.ignoreIndex && (value < 0 || value >= output_.back());
  });
  if (wrong == values.end()) return;
  const std::int64_t perSample = std::ssize(values) / batch_.samples();
  throw UsageError("bad-label",
                   "label " + std::to_string(*wrong) + " of sample " +
                       std::to_string((wrong - values.begin()) / perSample) +
                       " of the batch is not one of the model's " + std::to_string(output_.back()) +
                       " classes, 0 to " + std::to_string(output_.back() - 1),
                   "correct the data or data.target, or export a model with more classes");
}

at::Tensor LabeledBatch::slice(const TensorView& array, const MicroBatch& at) const {
  return borrowedArray(array).narrow(0, at.offset(), at.size());
}

TensorList LabeledBatch::inputs(const MicroBatch& at) const {
  TensorList inputs;
  for (std::size_t n = 0; n + 1 < batch_.arrays.size(); ++n) {
    // Always copies: a head may return its input unchanged, and the link may still be sending that
    // after the caller has released the batch.
    const at::Tensor borrowed = slice(batch_.arrays[n], at);
    const MemoryOrder order = cutOrder(static_cast<std::size_t>(borrowed.dim()));
    const at::Tensor input = canonical(device_.toDevice(borrowed), order);
    inputs.push_back(input.is_same(borrowed) ? input.clone() : input);
  }
  return inputs;
}

at::Tensor LabeledBatch::loss(const at::Tensor& output, const MicroBatch& at) {
  const at::Tensor target = device_.toDevice(slice(batch_.target(), at));
  const LossRows rows = loss_.rows(output.to(at::kFloat), target);
  const at::Tensor loss = loss_.sum(rows, scores_.loss).div(weight_);
  const LossRows counted = countedRows(rows, loss_.target, scores_.loss);
  count(at, loss.item<float>(), counted);
  if (keepsOutputs_) {
    outputs_.resize(at.batch.count);
    outputs_[at.i] = output.detach().to(at::kCPU, at::kFloat);
  }
  return loss;
}

at::Tensor LabeledBatch::outputs() const { return at::cat(outputs_).contiguous(); }

void LabeledBatch::checkLoss(const MicroBatch& at, const TensorList& activations1) const {
  const float loss = losses_[at.i];
  if (std::isfinite(loss)) return;
  const bool arrived = std::any_of(
      activations1.begin(), activations1.end(),
      [](const at::Tensor& each) { return !at::isfinite(each.detach()).all().item<bool>(); });
  throw RunError(
      "non-finite",
      "the loss is " + std::string(std::isnan(loss) ? "not a number" : "infinite") + " in " +
          std::string(phaseName(at.phase)) + " step " + std::to_string(at.step) + ", micro-batch " +
          std::to_string(at.i) + ": its activation/1 " +
          (arrived ? "had non-finite values when it arrived, so head, body or a codec produced them"
                   : "was finite when it arrived, so the tail produced it"),
      "lower train.learning_rate.peak, lengthen its warm-up, or use a codec with more bits");
}

void LabeledBatch::count(const MicroBatch& at, float loss, const LossRows& rows) {
  losses_.resize(at.batch.count);
  losses_[at.i] = loss;
  metrics_.samples += at.size();
  metrics_.sums[kLossSum] += double{loss} * weight_;
  // Adds the micro-batch's share of the weight, so that the shares add up to exactly the batch's
  // weight.
  const LossRows targets = loss_.rows({}, slice(batch_.target(), at));
  metrics_.sums[kLossWeight] += loss_.weight(targets, scores_.loss);
  for (const std::string& name : scores_.metrics) {
    const BatchMetricRow& metric = findBatchMetric(name);
    const bool isCounted =
        metric.add != nullptr && (at.phase == Phase::eval || !metric.evaluationOnly);
    if (isCounted) metric.add(rows, loss_.target, metrics_.sums);
  }
}

// ---- A part in training ----

// Suffix of a saved average's name, after the name of its weight.
static constexpr const char* kAverage = ":average";
// Suffix of a saved older version of a parameter, before the number of updates.
static constexpr const char* kVersion = ":version";

TrainedPart::TrainedPart(const StageOptions& options, const std::vector<BlockSpec>& blocks,
                         int first, int last, at::Device device, std::vector<int> cutsInside,
                         TrainedPart* tied)
    : seed_(options.seed),
      staleness_(options.staleness),
      microBatches_(options.microBatches),
      checkpoint_(options.checkpoint),
      tied_(tied),
      part_(blocks, first, last, std::move(cutsInside)),
      set_(blocks, first, last, options.seed, device, tied == nullptr ? nullptr : &tied->set_),
      isTrained_(std::any_of(
          set_.parameters().begin(), set_.parameters().end(),
          [](const NamedTensor& parameter) { return parameter.tensor.requires_grad(); })),
      averageDecay_(options.averageDecay),
      optimizer_(makeOptimizer(options.optimizer, set_.parameters())) {
  for (int b = first; b < last; ++b) {
    const BlockSpec& block = blocks[static_cast<std::size_t>(b)];
    for (const NormRow& norm : block.norms) {
      normSizes_.push_back(block.tensors[norm.mean].shape.front());
    }
  }
  if (averageDecay_ > 0) {
    average_ = std::make_unique<ParameterSet>(blocks, first, last, options.seed, device,
                                              tied == nullptr ? nullptr : tied->average_.get());
  }
  std::size_t position = 0;
  for (int b = first; b < last; ++b) {
    for (const ParameterSpec& tensor : blocks[static_cast<std::size_t>(b)].tensors) {
      if (tensor.decaying) {
        decaying_.add(*tensor.decaying, set_.tensors()[position],
                      average_ ? average_->tensors()[position] : at::Tensor());
      }
      ++position;
    }
  }
}

BlockContext TrainedPart::contextOf(const MicroBatch& at) const {
  BlockContext context{seed_, at};
  if (checkpoint_) context.checkpoint = &checkpoint_;
  return context;
}

TensorList TrainedPart::forward(TensorList x, const TensorList& batch, const MicroBatch& at) {
  BlockContext context = contextOf(at);
  if (at.phase == Phase::train) {
    context.statistics = &statistics_[{keyOf(at.step), at.i}];
    context.statistics->clear();
  }
  return part_.forward(std::move(x), batch, at.phase == Phase::train ? setFor(at) : evaluatedSet(),
                       context);
}

TensorList TrainedPart::recompute(TensorList x, const TensorList& batch, const MicroBatch& at) {
  const at::AutoGradMode recordGraph(true);
  return part_.forward(std::move(x), batch, setFor(at), contextOf(at));
}

void TrainedPart::collectGradients() {
  if (staleness_ == 0) return set_.joinGradients();
  if (steps_.empty()) return;
  const ParameterSet& leaves = steps_.begin()->second;
  leaves.joinGradients();
  for (std::size_t p = 0; p < set_.parameters().size(); ++p) {
    at::Tensor& gradient = leaves.parameters()[p].tensor.mutable_grad();
    if (!gradient.defined()) continue;
    set_.parameters()[p].tensor.mutable_grad() = gradient;
    gradient.reset();
  }
}

GradientReport TrainedPart::gradientReport() {
  collectGradients();
  return part_.gradientReport(set_);
}

GradientReport TrainedPart::gradientReport(std::uint64_t step) const {
  const ParameterSet& set = leavesOf(step);
  set.joinGradients();
  return part_.gradientReport(set);
}

// Returns the parameters that have the gradients of this step.
const ParameterSet& TrainedPart::leavesOf(std::uint64_t step) const {
  const auto leaves = steps_.find(step);
  return leaves == steps_.end() ? set_ : leaves->second;
}

void TrainedPart::update(const StepDecision& decision) {
  collectGradients();
  decaying_.addPenalty(decision);
  optimizer_->update(decision);
  const auto end = staleness_ > 0 ? statistics_.lower_bound({decision.step + 1, 0})  //
                                  : statistics_.end();
  if (decision.apply) {
    for (auto each = statistics_.begin(); each != end; ++each) set_.addStatistics(each->second);
    if (average_) moveAverage(decision.step);
  }
  statistics_.erase(statistics_.begin(), end);
  set_.clearGradients();
  decaying_.drop(decision.step);
  if (staleness_ > 0) addVersion(decision.step);
}

// ---- Replicas ----

namespace {

// Consecutive floats as tensors.
class FloatReader {
 public:
  explicit FloatReader(std::span<const float> floats)
      : all_(at::from_blob(const_cast<float*>(floats.data()),
                           {static_cast<std::int64_t>(floats.size())}, at::kFloat)) {}
  // The next tensor of this shape; shares the floats' memory.
  at::Tensor next(at::IntArrayRef shape) {
    const std::int64_t size = c10::multiply_integers(shape);
    const at::Tensor tensor = all_.narrow(0, offset_, size).view(shape);
    offset_ += size;
    return tensor;
  }

 private:
  const at::Tensor all_;
  std::int64_t offset_ = 0;
};

}  // namespace

// A slot: 1 if the micro-batch exists, then mean and variance of each batch norm.
std::size_t TrainedPart::slotSize() const {
  if (normSizes_.empty()) return 0;
  std::int64_t size = 1;
  for (const std::int64_t channels : normSizes_) size += 2 * channels;
  return static_cast<std::size_t>(size);
}

std::size_t TrainedPart::shareSize() const {
  std::size_t size = microBatches_ * slotSize();
  for (const NamedTensor& parameter : set_.parameters()) {
    if (parameter.tensor.requires_grad())
      size += static_cast<std::size_t>(parameter.tensor.numel());
  }
  return size;
}

void TrainedPart::writeShare(std::uint64_t step, std::span<float> share) const {
  std::fill(share.begin(), share.end(), 0.0F);
  FloatReader rest(share);
  const ParameterSet& set = leavesOf(step);
  set.joinGradients();
  for (const NamedTensor& parameter : set.parameters()) {
    if (!parameter.tensor.requires_grad()) continue;
    const at::Tensor target = rest.next(parameter.tensor.sizes());
    if (parameter.tensor.grad().defined()) target.copy_(parameter.tensor.grad());
  }
  if (normSizes_.empty()) return;
  for (std::uint32_t i = 0; i < microBatches_; ++i) {
    const auto statistics = statistics_.find({keyOf(step), i});
    const at::Tensor slot = rest.next({static_cast<std::int64_t>(slotSize())});
    if (statistics == statistics_.end()) continue;
    TensorList values = {at::ones({1})};
    for (const NormStatistics& norm : statistics->second) {
      values.insert(values.end(), {norm.mean.to(at::kCPU), norm.variance.to(at::kCPU)});
    }
    slot.copy_(at::cat(values));
  }
}

void TrainedPart::readSum(std::uint64_t step, std::span<const float> sum) {
  FloatReader rest(sum);
  const ParameterSet& set = leavesOf(step);
  for (const NamedTensor& parameter : set.parameters()) {
    if (!parameter.tensor.requires_grad()) continue;
    const at::Tensor values = rest.next(parameter.tensor.sizes());
    at::Tensor& gradient = parameter.tensor.mutable_grad();
    if (gradient.defined()) gradient.copy_(values);
  }
  if (normSizes_.empty()) return;
  const at::Device device = set_.buffers().front().tensor.device();
  const auto copy = [&](const at::Tensor& values) {
    return values.to(device, at::kFloat, /*non_blocking=*/false, /*copy=*/true);
  };
  for (std::uint32_t i = 0; i < microBatches_; ++i) {
    const bool exists = rest.next({1}).item<float>() != 0;
    std::vector<NormStatistics> statistics;
    for (const std::int64_t channels : normSizes_) {
      const at::Tensor mean = rest.next({channels}), variance = rest.next({channels});
      if (exists) statistics.push_back({copy(mean), copy(variance)});
    }
    if (exists) statistics_[{keyOf(step), i}] = std::move(statistics);
  }
}

ReplicaGradients::ReplicaGradients(const StageOptions& options,
                                   const std::vector<BlockSpec>& blocks, const ParameterSet& set)
    : set_(set), gradients_(options.replica.count) {
  std::size_t position = 0;
  for (int b = 0; b < options.cuts.cut1; ++b) {
    for (std::size_t t = 0; t < blocks[static_cast<std::size_t>(b)].tensors.size(); ++t) {
      const at::Tensor& tensor = set.tensors()[position++];
      if (b >= options.cuts.cut0 && tensor.requires_grad()) leaves_.push_back(tensor);
    }
  }
  for (TensorList& each : gradients_) each.resize(leaves_.size());
}

// Exchanges the gradients of the leaves with those of the replica.
void ReplicaGradients::swap(std::size_t replica) {
  for (std::size_t l = 0; l < leaves_.size(); ++l) {
    std::swap(leaves_[l].mutable_grad(), gradients_[replica][l]);
  }
}

void ReplicaGradients::begin(std::uint32_t i) { swap(i % gradients_.size()); }
void ReplicaGradients::end(std::uint32_t i) { swap(i % gradients_.size()); }

void ReplicaGradients::sum() {
  for (std::size_t r = 0; r < gradients_.size(); ++r) {
    swap(r);
    set_.joinGradients();  // each replica joins its own
    swap(r);
  }
  for (std::size_t l = 0; l < leaves_.size(); ++l) {
    at::Tensor& total = leaves_[l].mutable_grad();
    for (const TensorList& each : gradients_) {
      if (!each[l].defined()) continue;
      total = total.defined() ? total.add(each[l]) : each[l];
    }
  }
}

// ---- Versions of the parameters, with staleness ----

const ParameterSet& TrainedPart::setFor(const MicroBatch& at) {
  if (staleness_ == 0) return set_;
  const auto found = steps_.find(at.step);
  if (found != steps_.end()) return found->second;
  const ParameterSet* const tiedLeaves = tied_ == nullptr ? nullptr : &tied_->setFor(at);
  ParameterSet leaves =
      set_.leaves(valuesFor(at.step), tied_ == nullptr ? nullptr : &tied_->set_, tiedLeaves);
  return steps_.emplace(at.step, std::move(leaves)).first->second;
}

const std::vector<at::Tensor>& TrainedPart::valuesFor(std::uint64_t step) {
  const std::uint64_t version = isTrained_ ? versionFor(step, staleness_) : 0;
  if (versions_.empty()) versions_[version] = copyValues();
  return versions_.at(version);
}

std::vector<at::Tensor> TrainedPart::copyValues() const {
  std::vector<at::Tensor> values;
  for (const NamedTensor& parameter : set_.parameters()) {
    const at::Tensor value = parameter.tensor.detach();
    values.push_back(parameter.tensor.requires_grad() ? value.clone() : value);
  }
  return values;
}

// Call after the update of `step`. The new version uses the memory of one that is no longer needed.
void TrainedPart::addVersion(std::uint64_t step) {
  steps_.erase(step);
  if (versions_.empty() || !isTrained_) return;
  const std::uint64_t oldest = versionFor(step + 1, staleness_);
  if (versions_.begin()->first >= oldest) {
    versions_[step] = copyValues();
    return;
  }
  auto version = versions_.extract(versions_.begin());
  for (std::size_t p = 0; p < version.mapped().size(); ++p) {
    const NamedTensor& parameter = set_.parameters()[p];
    if (parameter.tensor.requires_grad()) version.mapped()[p].copy_(parameter.tensor.detach());
  }
  version.key() = step;
  versions_.insert(std::move(version));
}

void TrainedPart::moveAverage(std::uint64_t step) {
  const at::NoGradGuard noGrad;
  const auto n = static_cast<double>(step);
  const double decay = std::min(averageDecay_, (1 + n) / (10 + n));
  const std::vector<NamedTensor> weights = weightsOf(set_), averages = weightsOf(*average_);
  for (std::size_t w = 0; w < weights.size(); ++w) {
    at::Tensor average = averages[w].tensor;
    if (average.is_floating_point()) {
      average.lerp_(weights[w].tensor, 1 - decay);
    } else {
      average.copy_(weights[w].tensor);
    }
  }
}

void TrainedPart::load(const std::vector<NamedTensor>& weights) {
  loadWeights(set_, weights);
  if (average_) loadWeights(*average_, weights);
  versions_.clear();
}

std::vector<NamedTensor> TrainedPart::save() const {
  std::vector<NamedTensor> saved = stateOf(set_);
  if (average_) {
    for (NamedTensor& each : weightsOf(*average_)) {
      each.name += kAverage;
      saved.push_back(std::move(each));
    }
  }
  for (NamedTensor& each : optimizer_->state()) saved.push_back(std::move(each));
  // The newest version is equal to the weights.
  for (const auto& [number, values] : versions_) {
    if (number == versions_.rbegin()->first) break;
    for (std::size_t p = 0; p < values.size(); ++p) {
      const NamedTensor& parameter = set_.parameters()[p];
      if (!parameter.tensor.requires_grad()) continue;
      saved.push_back({parameter.name + kVersion + std::to_string(number), values[p]});
    }
  }
  return saved;
}

// Removes the older versions of this part's parameters from `saved`, and returns copies of them.
TrainedPart::Versions TrainedPart::takeVersions(std::vector<NamedTensor>& saved) const {
  Versions versions;
  if (staleness_ == 0) return versions;
  std::map<std::string, std::size_t> positions;
  for (std::size_t p = 0; p < set_.parameters().size(); ++p) {
    const NamedTensor& parameter = set_.parameters()[p];
    if (parameter.tensor.requires_grad()) positions[parameter.name] = p;
  }
  std::size_t taken = 0;
  std::erase_if(saved, [&](const NamedTensor& each) {
    const std::size_t suffix = each.name.rfind(kVersion);
    if (suffix == std::string::npos) return false;
    const auto position = positions.find(each.name.substr(0, suffix));
    if (position == positions.end()) return false;
    const at::Tensor target = set_.parameters()[position->second].tensor.detach();
    const std::string digits = each.name.substr(suffix + std::string_view(kVersion).size());
    std::uint64_t number = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
    if (error != std::errc() || end != digits.data() + digits.size() ||
        each.tensor.sizes() != target.sizes() ||
        each.tensor.scalar_type() != target.scalar_type()) {
      throw badCheckpoint("the saved state has a version of a weight that does not fit: " +
                          inAscii(each.name));
    }
    const auto [version, isNew] = versions.try_emplace(number);
    if (isNew) {
      for (const NamedTensor& parameter : set_.parameters()) {
        version->second.push_back(parameter.tensor.detach());
      }
    }
    version->second[position->second] = at::empty_like(target).copy_(each.tensor);
    ++taken;
    return true;
  });
  const bool areConsecutive =
      versions.empty() || versions.rbegin()->first - versions.begin()->first + 1 == versions.size();
  if (taken != versions.size() * positions.size() || !areConsecutive ||
      versions.size() > staleness_) {
    throw badCheckpoint("the saved state does not contain each version of each weight once");
  }
  return versions;
}

void TrainedPart::restore(std::vector<NamedTensor>& saved) {
  Versions older = takeVersions(saved);
  std::map<std::string, at::Tensor> own;
  for (NamedTensor& each : stateOf(set_)) own[each.name] = std::move(each.tensor);
  if (average_) {
    for (NamedTensor& each : weightsOf(*average_)) {
      own[each.name + kAverage] = std::move(each.tensor);
    }
  }
  std::vector<NamedTensor> weights, state, rest;
  for (NamedTensor& each : saved) {
    const bool isAverage = each.name.ends_with(kAverage);
    const std::string parameter = isAverage ? each.name : each.name.substr(0, each.name.rfind(':'));
    auto& group = own.count(parameter) == 0             ? rest
                  : parameter.size() < each.name.size() ? state
                                                        : weights;
    group.push_back(std::move(each));
  }
  for (const NamedTensor& each : weights) {
    const at::Tensor& target = own.at(each.name);
    if (each.tensor.sizes() == target.sizes() &&
        each.tensor.scalar_type() == target.scalar_type()) {
      continue;
    }
    throw badCheckpoint("the saved state has a " + inAscii(each.name) +
                        " of another shape or type");
  }
  std::set<std::string> names;
  for (const NamedTensor& each : weights) names.insert(each.name);
  if (names.size() != own.size() || weights.size() != own.size()) {
    throw badCheckpoint("the saved state does not contain each weight exactly once");
  }
  optimizer_->restore(state);
  std::vector<NamedTensor> averages;
  std::erase_if(weights, [&](NamedTensor& each) {
    if (!each.name.ends_with(kAverage)) return false;
    each.name.erase(each.name.size() - std::string_view(kAverage).size());
    averages.push_back(each);
    return true;
  });
  loadWeights(set_, weights);
  if (average_) loadWeights(*average_, averages);
  saved = std::move(rest);
  steps_.clear();
  versions_ = std::move(older);
  if (!versions_.empty()) versions_[versions_.rbegin()->first + 1] = copyValues();
}

void checkAllTaken(const std::vector<NamedTensor>& saved) {
  if (saved.empty()) return;
  throw badCheckpoint("the saved state has a tensor that the model does not have: " +
                      inAscii(saved.front().name));
}

}  // namespace cleave
