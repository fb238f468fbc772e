#include "common/model/stage/insert_inputs.h"

#include <ATen/core/grad_mode.h>

#include <utility>

#include "common/model/blocks.h"
#include "common/model/inserts.h"
#include "common/model/stage/labeled_batch.h"
#include "common/model/torch_tensor.h"

namespace cleave {
namespace {

// Blocks [first, last), up to a cut.
struct Segment {
  Segment(const std::vector<BlockSpec>& blocks, int first, int last, std::uint32_t cutNumber,
          const StageOptions& stage, const std::vector<NamedTensor>& weights)
      : part(blocks, first, last, stage.allCuts()),
        set(blocks, first, last, stage.seed),
        cut(cutNumber),
        encoded(encodedTensor(blocks[static_cast<std::size_t>(last) - 1].outputs)) {
    loadWeights(set, selectWeights(weights, blocks, first, last));
  }

  ModelPart part;
  ParameterSet set;
  std::uint32_t cut;
  std::size_t encoded;  // the tensor that an insert encodes
};

// In the memory order of inputs, and of tensors that cross a cut: the bits are those of a model
// whose parts are apart.
TensorList crossing(TensorList tensors) {
  for (at::Tensor& each : tensors) {
    each = canonical(each, cutOrder(static_cast<std::size_t>(each.dim())));
  }
  return tensors;
}

TensorList inputsOf(const BatchView& batch) {
  TensorList inputs;
  for (std::size_t n = 0; n + 1 < batch.arrays.size(); ++n) {
    inputs.push_back(borrowedArray(batch.arrays[n]).clone());
  }
  return inputs;
}

}  // namespace

struct InsertInputs::State {
  StageOptions options;
  std::vector<Segment> segments;
};

InsertInputs::InsertInputs(const StageOptions& options, const std::set<std::uint32_t>& cuts,
                           const std::vector<NamedTensor>& initial)
    : state_(std::make_unique<State>(State{options, {}})) {
  state_->options.inserts.clear();
  const std::vector<BlockSpec> blocks = blocksFor(state_->options);
  const std::vector<int> positions = options.allCuts();
  int first = 0;
  for (const std::uint32_t cut : cuts) {
    const int last = positions.at(cut);
    state_->segments.emplace_back(blocks, first, last, cut, state_->options, initial);
    first = last;
  }
}

InsertInputs::~InsertInputs() = default;

void InsertInputs::forEach(const BatchView& batch, std::uint64_t step, const UseInsertInput& use) {
  const TensorList inputs = inputsOf(batch);
  const StageOptions& options = state_->options;
  BlockContext context;
  context.seed = options.seed;
  context.at = {Phase::train, step, 0, Division::of(batch.samples(), options.microBatches)};
  for (MicroBatch& at = context.at; at.i < at.batch.count; ++at.i) {
    TensorList slices, x;
    for (const at::Tensor& input : inputs) {
      slices.push_back(input.narrow(0, at.offset(), at.size()));
    }
    slices = crossing(std::move(slices));
    for (const Segment& segment : state_->segments) {
      {
        const at::NoGradGuard noGrad;
        x = segment.part.forward(std::move(x), slices, segment.set, context);
        x = crossing(std::move(x));
      }
      use(segment.cut, x[segment.encoded], at);
    }
  }
}

}  // namespace cleave
