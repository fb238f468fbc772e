#include "common/model/stage/stage.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <limits>
#include <set>

#include "common/core/names.h"
#include "common/graph/adapters.h"
#include "common/model/blocks.h"
#include "common/model/scores.h"
#include "common/model/torch_tensor.h"

namespace cleave {

void BatchMetrics::add(const BatchMetrics& other) {
  samples += other.samples;
  for (const auto& [name, sum] : other.sums) sums[name] += sum;
}

std::vector<std::optional<double>> metricValues(const ScoreSpec& spec,
                                                const BatchMetrics& metrics) {
  std::vector<std::optional<double>> values;
  const auto weight = metrics.sums.find(kLossWeight);
  const bool isKnown = weight != metrics.sums.end() && weight->second > 0;
  values.push_back(isKnown ? std::optional(metrics.sums.at(kLossSum) / weight->second)
                           : std::nullopt);
  for (const std::string& name : spec.metrics) {
    values.push_back(findBatchMetric(name).value(metrics.sums));
  }
  return values;
}

namespace {

bool isFrozen(const ParameterSpec& parameter, const std::vector<std::string>& patterns) {
  if (isAdapter(parameter.name)) return false;
  bool frozen = false;
  for (const std::string& each : patterns) {
    const bool excepts = each.starts_with('!');
    const std::string pattern = excepts ? each.substr(1) : each;
    if (parameter.isInsert && !pattern.starts_with("insert.")) continue;
    if (matchesPattern(parameter.name, pattern)) frozen = !excepts;
  }
  return frozen;
}

void setGradients(std::vector<BlockOutput>& outputs, bool needed) {
  for (BlockOutput& output : outputs) output.tensor.hasGradient = needed && isFloat(output.dtype);
}

// Comparing a name with a pattern takes up to the product of their lengths.
void checkPatterns(const std::vector<BlockSpec>& blocks, const StageOptions& options) {
  constexpr double kMaxComparisons = 5e7;
  double names = 0, patterns = 0;
  for (const BlockSpec& block : blocks) {
    for (const ParameterSpec& tensor : block.tensors)
      names += static_cast<double>(tensor.name.size());
  }
  for (const std::string& pattern : options.freeze) patterns += static_cast<double>(pattern.size());
  for (const ParameterGroup& group : options.optimizer.groups) {
    patterns += static_cast<double>(group.match.size());
  }
  if (names * patterns <= kMaxComparisons) return;
  throw UsageError("bad-run-spec",
                   "the patterns of parameters are too long for the number of parameters",
                   "use fewer or shorter patterns in train.freeze and train.groups");
}

}  // namespace

std::vector<int> StageOptions::allCuts() const {
  std::vector<int> all = {cuts.cut0};
  all.insert(all.end(), innerCuts.begin(), innerCuts.end());
  all.push_back(cuts.cut1);
  return all;
}

std::vector<BlockSpec> blocksFor(const StageOptions& options) {
  std::vector<BlockSpec> blocks = findModel(options.model.name).blocks(options.model);
  const int cut0 = options.cuts.cut0, cut1 = options.cuts.cut1;
  const std::vector<int> cuts = options.allCuts();
  for (std::size_t c = 0; c + 1 < cuts.size(); ++c) checkCuts(blocks, {cuts[c], cuts[c + 1]});
  addInserts(blocks, options.inserts, cuts, options.cuts.number0);
  addDefences(blocks, options.defences, cut0, cut1);
  checkPatterns(blocks, options);
  std::set<std::string> copied;  // parameters of decoders that the encoders' parts copy
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    const bool isBody = static_cast<int>(b) >= cut0 && static_cast<int>(b) < cut1;
    blocks[b].precision = isBody ? options.bodyPrecision : options.clientPrecision;
    for (ParameterSpec& tensor : blocks[b].tensors) {
      if (tensor.isInsert && tensor.isBuffer) copied.insert(tensor.name);
      if (isFrozen(tensor, options.freeze)) tensor.isTrainable = false;
      if (tensor.tracked && (options.staleness > 0 || options.replicas > 1)) {
        throw badInsert(
            "an insert of kind pca tracks its basis, which asynchronous steps and "
            "replicas do not support",
            options.staleness > 0 ? "set train.staleness to 0" : "use one server for each body",
            "insert");
      }
      if (tensor.decaying && !tensor.isTrainable) {
        throw badInsert(
            "the rank of an insert shrinks, but its parameter " + tensor.name + " is frozen",
            "remove the pattern from train.freeze, or use kind: linear", "insert");
      }
      if (tensor.isTrainable && !tensor.isBuffer && copied.contains(tensor.name)) {
        throw badInsert(
            "an insert has a correction, but its parameter " + tensor.name + " is trained",
            "add insert.* to train.freeze, or set the correction to 0", "insert");
      }
    }
  }
  const bool bodyTrains = trainedCount(blocks, cut0, cut1) > 0;
  setGradients(blocks[static_cast<std::size_t>(cut0 - 1)].outputs, !options.headIsFrozen);
  setGradients(blocks[static_cast<std::size_t>(cut1 - 1)].outputs,
               !options.headIsFrozen || bodyTrains);
  return blocks;
}

bool bodySplits(const StageOptions& options, const std::vector<BlockSpec>& blocks) {
  const Place place = placeOfBody(blocks, options.cuts);
  return options.splitsBackward && place.contains(gradientAt(place.firstCut));
}

std::size_t maxShareSize(const StageOptions& options, const std::vector<BlockSpec>& blocks) {
  const int first = options.cuts.cut0, last = options.cuts.cut1;
  std::int64_t slot = 0;   // statistics of a micro-batch
  std::int64_t flags = 0;  // of the trained parameters
  for (int b = first; b < last; ++b) {
    const BlockSpec& block = blocks[static_cast<std::size_t>(b)];
    for (const NormRow& norm : block.norms) slot += 2 * block.tensors[norm.mean].shape.front();
    flags += std::ranges::count_if(block.tensors, [](const ParameterSpec& tensor) {
      return !tensor.isBuffer && tensor.isTrainable;
    });
  }
  if (slot > 0) ++slot;
  return static_cast<std::size_t>(trainedCount(blocks, first, last) + flags +
                                  options.microBatches * slot);
}

namespace {

// Values that exist while an operator that uses the weight runs: the next gradient before it is
// added, and for convolutions copies in the order that oneDNN computes in (measured: four in each
// thread, for 512 x 512 x 3 x 3 values).
double scratchOf(const ParameterSpec& weight, int threads) {
  constexpr std::size_t kRankOfConvolutions = 3;
  constexpr double kCopies = 4;
  if (weight.isBuffer) return 0;
  const auto values = static_cast<double>(elementCount(weight.shape));
  const double gradient = weight.isTrainable ? values : 0;
  if (weight.shape.size() < kRankOfConvolutions) return gradient;
  return gradient + (weight.isTrainable ? kCopies * threads : 1) * values;
}

}  // namespace

std::size_t partBytes(const StageOptions& options, const std::vector<BlockSpec>& blocks, int first,
                      int last, std::uint32_t microBatches, std::uint32_t inFlight,
                      const PartLoad& load) {
  // In fp64, since sizes from a peer's numbers may overflow an integer.
  const auto parameters = static_cast<double>(parameterCount(blocks, first, last));
  const auto trained = static_cast<double>(trainedCount(blocks, first, last));
  const auto buffers = static_cast<double>(bufferCount(blocks, first, last));
  double saved = 0;
  double training = 0, inference = 0;  // of the block with the most PassValues
  double scratch = 0;                  // of the weights that need the most
  // A micro-batch's statistics have the buffers' shapes. LibTorch's objects for a tensor take up to
  // half a KiB, which is more than the values of a small one.
  constexpr double kTensorObjects = 512;
  double statistics = buffers * sizeof(float);
  for (int b = first; b < last; ++b) {
    const BlockSpec& block = blocks[static_cast<std::size_t>(b)];
    for (const ParameterSpec& tensor : block.tensors) {
      if (tensor.isBuffer) statistics += kTensorObjects;
      scratch = std::max(scratch, scratchOf(tensor, load.threads));
    }
    const auto values = static_cast<double>(block.savedPerSample);
    saved += values;
    double inputs = 0;
    if (b > 0) {
      for (const BlockOutput& output : blocks[static_cast<std::size_t>(b) - 1].outputs) {
        inputs += static_cast<double>(elementCount(output.shape));
      }
    }
    const double twice = 2 * (values + inputs);
    training = std::max(training, block.passes ? double(block.passes->training) : twice);
    inference = std::max(inference, block.passes ? double(block.passes->inference) : twice);
  }
  const double trainedBytes =
      sizeof(float) + static_cast<double>(optimizerStateBytes(options.optimizer));
  const bool isBody = first == options.cuts.cut0 && last == options.cuts.cut1;
  const bool splits = isBody && bodySplits(options, blocks);
  // A split backward keeps the graph of a recomputed forward.
  const double kept = options.recompute && !splits ? 1 : inFlight;
  // It also keeps the gradients of operators' outputs.
  if (splits) saved *= 2;
  // Autocast saves a cast copy of each weight with each micro-batch.
  constexpr double kCastBytes = 2;
  double casts = 0;
  for (int b = first; b < last; ++b) {
    if (blocks[static_cast<std::size_t>(b)].precision == Precision::fp32) continue;
    casts += kCastBytes * static_cast<double>(parameterCount(blocks, b, b + 1));
  }
  const double copies = options.averageDecay > 0 ? 2 : 1;  // copies of parameters and buffers
  // With staleness D, D + 1 versions of the trained parameters, and gradients of D more steps.
  const double stale = options.staleness == 0 ? 0 : 2.0 * options.staleness + 1;
  const double inTraining = (saved * kept + training) * load.training;
  const double inEvaluation = inference * load.evaluation;
  const double bytes = copies * parameters * sizeof(float) + trained * trainedBytes +
                       stale * trained * sizeof(float) + copies * buffers * sizeof(float) +
                       statistics * microBatches * (options.staleness + 1) +
                       casts * (kept + load.smaller + 1) +
                       sizeof(float) * (scratch + std::max(inTraining, inEvaluation));
  constexpr auto kMax = std::numeric_limits<std::size_t>::max();
  return bytes < static_cast<double>(kMax) ? static_cast<std::size_t>(bytes) : kMax;
}

const std::vector<BlockOutput>& outputsAt(const std::vector<BlockSpec>& blocks, const Cuts& cuts,
                                          int cut) {
  const int position = cut == cuts.number0 ? cuts.cut0 : cuts.cut1;
  return blocks.at(static_cast<std::size_t>(position - 1)).outputs;
}

CutTensors cutTensorsAt(const std::vector<BlockSpec>& blocks, const Cuts& cuts, int cut) {
  CutTensors tensors;
  for (const BlockOutput& output : outputsAt(blocks, cuts, cut)) tensors.push_back(output.tensor);
  return tensors;
}

Place placeOfBody(const std::vector<BlockSpec>& blocks, const Cuts& cuts) {
  return {cuts.number0, cuts.number1, cutTensorsAt(blocks, cuts, cuts.number0),
          cutTensorsAt(blocks, cuts, cuts.number1)};
}

TensorSpec flowSpec(const std::vector<BlockSpec>& blocks, const Cuts& cuts, Flow flow,
                    std::uint32_t samples) {
  return specOfOutput(outputsAt(blocks, cuts, flow.cut).at(flow.tensor), samples);
}

TensorSpec specOfOutput(const BlockOutput& output, std::uint32_t samples) {
  TensorSpec spec;
  spec.dtype = output.dtype;
  spec.shape = {samples};
  spec.shape.insert(spec.shape.end(), output.shape.begin(), output.shape.end());
  spec.order = cutOrder(spec.shape.size());
  return spec;
}

void setComputeThreads(int threads) {
  // Querying the number also initializes the setting of a thread that has not computed yet.
  if (at::get_num_threads() != threads) at::set_num_threads(threads);
}

}  // namespace cleave
