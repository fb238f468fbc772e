#include "common/model/stage/insert_trainer.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <utility>

#include "common/model/blocks.h"
#include "common/model/inserts.h"
#include "common/model/optimizer.h"
#include "common/model/stage/labeled_batch.h"

namespace cleave {
namespace {

// Blocks [first, last) of the model without inserts.
struct Segment {
  Segment(const std::vector<BlockSpec>& blocks, int first, int last, const StageOptions& stage,
          const std::vector<NamedTensor>& weights)
      : part(blocks, first, last),
        set(blocks, first, last, stage.seed),
        encoded(encodedTensor(blocks[static_cast<std::size_t>(last) - 1].outputs)) {
    loadWeights(set, selectWeights(weights, blocks, first, last));
  }

  ModelPart part;
  ParameterSet set;
  std::size_t encoded;  // the tensor that the insert after the last block encodes
};

// The two halves of an insert.
struct Coder {
  Coder(const std::vector<BlockSpec>& blocks, InsertLayers insertLayers, std::string namePrefix,
        const StageOptions& stage, const std::vector<NamedTensor>& weights)
      : layers(std::move(insertLayers)),
        prefix(std::move(namePrefix)),
        part(blocks, 0, 2),
        set(blocks, 0, 2, stage.seed),
        statistics(layers.kernel, widthOf(layers)) {
    loadWeights(set, selectWeights(weights, blocks, 0, 2));
    OptimizerSpec spec = stage.optimizer;
    spec.groups.clear();
    optimizer = makeOptimizer(spec, set.parameters());
  }

  // Of a row that the encoder's first weight multiplies.
  static std::int64_t widthOf(const InsertLayers& layers) {
    const Shape& weight = layers.encoder.tensors.front().shape;
    return elementCount(weight) / weight.front();
  }
  // Besides weight and bias, or a tracked basis.
  bool hasMoreTensors() const { return layers.momentum == 0 && layers.encoder.tensors.size() > 2; }

  InsertLayers layers;
  std::string prefix;  // of the parameters' names
  ModelPart part;
  ParameterSet set;
  std::unique_ptr<Optimizer> optimizer;
  InsertStatistics statistics;
  PrincipalComponents components;
  double squaredErrors = 0, squares = 0;
};

// Two blocks that pass on a tensor, with the insert between them.
std::vector<BlockSpec> blocksOf(const InsertSpec& insert, const BlockOutput& output) {
  BlockSpec block;
  block.outputs = {output};
  block.forward = [](const TensorList& x, std::span<const at::Tensor>, const BlockContext&) {
    return x;
  };
  std::vector<BlockSpec> blocks = {block, block};
  addInserts(blocks, {insert}, {1}, static_cast<int>(insert.cut));
  return blocks;
}

TensorList inputsOf(const BatchView& batch) {
  TensorList inputs;
  for (std::size_t n = 0; n + 1 < batch.arrays.size(); ++n) {
    inputs.push_back(borrowedArray(batch.arrays[n]).clone());
  }
  return inputs;
}

}  // namespace

struct InsertTrainer::State {
  StageOptions options;
  std::vector<NamedTensor> initial;
  // By position in options.inserts: the coders, and the order in which the model computes
  // their tensors. segments[n] ends at the cut of the insert order[n].
  std::vector<Coder> coders;
  std::vector<std::size_t> order;
  std::vector<Segment> segments;

  // Computes the tensors at the cuts of each micro-batch, and calls use(coder, tensor, context).
  template <typename Use>
  void forEachTensor(const BatchView& batch, std::uint64_t step, const Use& use) {
    const TensorList inputs = inputsOf(batch);
    BlockContext context;
    context.seed = options.seed;
    context.at = {Phase::train, step, 0, Division::of(batch.samples(), options.microBatches)};
    for (MicroBatch& at = context.at; at.i < at.batch.count; ++at.i) {
      TensorList slices, x;
      for (const at::Tensor& input : inputs) {
        slices.push_back(input.narrow(0, at.offset(), at.size()));
      }
      for (std::size_t n = 0; n < order.size(); ++n) {
        {
          const at::NoGradGuard noGrad;
          x = segments[n].part.forward(std::move(x), slices, segments[n].set, context);
        }
        use(coders[order[n]], x[segments[n].encoded], context);
      }
    }
  }
};

InsertTrainer::InsertTrainer(const StageOptions& options, const std::vector<NamedTensor>& initial)
    : state_(std::make_unique<State>(State{options, initial, {}, {}, {}})) {
  StageOptions plain = options;
  const std::vector<InsertSpec> inserts = std::exchange(plain.inserts, {});
  if (inserts.empty()) {
    throw UsageError("bad-insert", "the configuration has no inserts",
                     "add one, such as --set 'insert={cut: 0, kind: linear, rank: 8}'")
        .about("insert");
  }
  const std::vector<BlockSpec> blocks = blocksFor(plain);
  const std::vector<int> cuts = plain.allCuts();
  for (std::size_t n = 0; n < inserts.size(); ++n) {
    const auto before = static_cast<std::size_t>(cuts[inserts[n].cut] - 1);
    const std::vector<BlockOutput>& outputs = blocks[before].outputs;
    state_->coders.emplace_back(
        blocksOf(inserts[n], outputs[encodedTensor(outputs)]), layersFor(inserts[n], outputs),
        "insert." + std::to_string(inserts[n].cut) + ".", plain, state_->initial);
    state_->order.push_back(n);
  }
  std::sort(state_->order.begin(), state_->order.end(),
            [&](std::size_t a, std::size_t b) { return inserts[a].cut < inserts[b].cut; });
  int first = 0;
  for (const std::size_t n : state_->order) {
    const int last = cuts[inserts[n].cut];
    state_->segments.emplace_back(blocks, first, last, plain, state_->initial);
    first = last;
  }
}

InsertTrainer::~InsertTrainer() = default;

void InsertTrainer::observe(const BatchView& batch, std::uint64_t step) {
  state_->forEachTensor(batch, step, [](Coder& coder, const at::Tensor& x, const BlockContext&) {
    coder.statistics.add(x);
  });
}

void InsertTrainer::solve() {
  for (Coder& coder : state_->coders) {
    coder.components = coder.statistics.components();
    loadWeights(coder.set, coder.components.weights(coder.layers, coder.prefix));
  }
}

std::vector<PrincipalComponents> InsertTrainer::components() const {
  std::vector<PrincipalComponents> all;
  for (const Coder& coder : state_->coders) all.push_back(coder.components);
  return all;
}

bool InsertTrainer::needsTraining() const {
  return std::any_of(state_->coders.begin(), state_->coders.end(),
                     [](const Coder& coder) { return coder.hasMoreTensors(); });
}

void InsertTrainer::train(const BatchView& batch, std::uint64_t step, double learningRate) {
  state_->forEachTensor(
      batch, step, [](Coder& coder, const at::Tensor& x, const BlockContext& context) {
        if (!coder.hasMoreTensors()) return;
        const at::Tensor decoded = coder.part.forward({x}, {}, coder.set, context).front();
        decoded.sub(x).square().mean().div(context.at.batch.count).backward();
      });
  StepDecision decision;
  decision.step = step;
  decision.learningRates = {learningRate};
  for (Coder& coder : state_->coders) {
    if (!coder.hasMoreTensors()) continue;
    coder.optimizer->update(decision);
    coder.set.clearGradients();
  }
}

void InsertTrainer::measure(const BatchView& batch, std::uint64_t step) {
  const at::NoGradGuard noGrad;
  state_->forEachTensor(
      batch, step, [](Coder& coder, const at::Tensor& x, const BlockContext& context) {
        const at::Tensor decoded = coder.part.forward({x}, {}, coder.set, context).front();
        const at::Tensor centered = withoutMean(x, coder.components.mean);
        coder.squaredErrors += decoded.sub(x).square().sum(at::kDouble).item<double>();
        coder.squares += centered.square().sum(at::kDouble).item<double>();
      });
}

std::vector<double> InsertTrainer::takeErrors() {
  std::vector<double> errors;
  for (Coder& coder : state_->coders) {
    errors.push_back(coder.squares > 0 ? coder.squaredErrors / coder.squares : 0);
    coder.squaredErrors = coder.squares = 0;
  }
  return errors;
}

std::vector<NamedTensor> InsertTrainer::weights() const {
  const std::vector<BlockSpec> blocks = blocksFor(state_->options);
  const ParameterSet whole(blocks, 0, static_cast<int>(blocks.size()), state_->options.seed);
  loadWeights(whole, state_->initial);
  for (const Coder& coder : state_->coders) loadWeights(whole, weightsOf(coder.set));
  return weightsOf(whole);
}

}  // namespace cleave
