#include "common/model/stage/insert_trainer.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <utility>

#include "common/model/inserts.h"
#include "common/model/stage/labeled_batch.h"
#include "common/model/optimizer.h"

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
  Coder(const std::vector<BlockSpec>& blocks, const StageOptions& stage,
        const std::vector<NamedTensor>& weights)
      : part(blocks, 0, 2), set(blocks, 0, 2, stage.seed) {
    loadWeights(set, selectWeights(weights, blocks, 0, 2));
    OptimizerSpec spec = stage.optimizer;
    spec.groups.clear();
    optimizer = makeOptimizer(spec, set.parameters());
  }

  ModelPart part;
  ParameterSet set;
  std::unique_ptr<Optimizer> optimizer;
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
};

InsertTrainer::InsertTrainer(const StageOptions& options, const std::vector<NamedTensor>& initial)
    : state_(std::make_unique<State>(State{options, initial, {}, {}, {}})) {
  StageOptions plain = options;
  const std::vector<InsertSpec> inserts = std::exchange(plain.inserts, {});
  if (inserts.empty()) {
    throw UsageError("bad-insert", "the configuration has no inserts",
                     "add one, such as --set 'insert={cut: 0, kind: linear, rank: 8}'");
  }
  const std::vector<BlockSpec> blocks = blocksFor(plain);
  const std::vector<int> cuts = plain.allCuts();
  for (std::size_t n = 0; n < inserts.size(); ++n) {
    const auto before = static_cast<std::size_t>(cuts[inserts[n].cut] - 1);
    const std::vector<BlockOutput>& outputs = blocks[before].outputs;
    state_->coders.emplace_back(blocksOf(inserts[n], outputs[encodedTensor(outputs)]), plain,
                                state_->initial);
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

void InsertTrainer::step(const BatchView& batch, std::uint64_t step, double learningRate) {
  BlockContext context;
  context.seed = state_->options.seed;
  context.at = {Phase::eval, step, 0, {1, batch.samples()}};
  const TensorList inputs = inputsOf(batch);
  TensorList x;
  for (std::size_t n = 0; n < state_->order.size(); ++n) {
    const Segment& segment = state_->segments[n];
    Coder& coder = state_->coders[state_->order[n]];
    {
      const at::NoGradGuard noGrad;
      x = segment.part.forward(std::move(x), inputs, segment.set, context);
    }
    const at::Tensor& exact = x[segment.encoded];
    const at::Tensor decoded = coder.part.forward({exact}, {}, coder.set, context).front();
    const at::Tensor error = decoded.sub(exact).square();
    error.mean().backward();
    StepDecision decision;
    decision.step = step;
    decision.learningRates = {learningRate};
    coder.optimizer->update(decision);
    coder.set.clearGradients();
    coder.squaredErrors += error.sum(at::kDouble).item<double>();
    coder.squares += exact.square().sum(at::kDouble).item<double>();
  }
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
