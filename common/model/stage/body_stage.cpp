#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cassert>
#include <functional>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include "common/model/stage/deterministic_scope.h"
#include "common/model/stage/owner_gradients.h"
#include "common/model/stage/stage.h"
#include "common/model/stage/stage_cut.h"
#include "common/model/stage/trained_part.h"

namespace cleave {
namespace {

// Kept from a micro-batch's forward until its backward.
struct Saved {
  TensorList inputs;   // inputs: leaves of autograd's graph
  TensorList outputs;  // outputs, with autograd's graph from the inputs
};

}  // namespace

struct BodyStage::State {
  State(const StageOptions& stageOptions, ComputeDevice& on)
      : options(stageOptions),
        device(on),
        blocks(blocksFor(options)),
        part(options, blocks, options.cuts.cut0, options.cuts.cut1, device.device()),
        first(options, blocks, options.cuts.number0, device),
        last(options, blocks, options.cuts.number1, device),
        splits(bodySplits(options, blocks)) {}

  StageOptions options;
  ComputeDevice& device;
  std::vector<BlockSpec> blocks;
  TrainedPart part;
  StageCut first, last;
  const bool splits;
  // By step and micro-batch.
  using Which = std::pair<std::uint64_t, std::uint32_t>;
  std::map<Which, Saved> saved;
  std::map<Which, SplitBackward> weights;          // until backwardWeights()
  std::map<std::uint64_t, OwnerGradients> owners;  // of members, by step, until it is complete

  // Runs a backward of this micro-batch.
  void accumulate(const MicroBatch& at, const std::function<void()>& backward);
  // Call when the last backward of the step, or of the oldest one, is done.
  void sumOwners(std::optional<std::uint64_t> step);
};

void BodyStage::State::accumulate(const MicroBatch& at, const std::function<void()>& backward) {
  if (at.batch.members.empty() || !options.cohort.isByMember()) return backward();
  auto found = owners.find(at.step);
  if (found == owners.end()) {
    found = owners.emplace(at.step, OwnerGradients::ofBody(part.leavesFor(at), at.batch)).first;
  }
  found->second.begin(at.i);
  backward();
  found->second.end(at.i);
}

void BodyStage::State::sumOwners(std::optional<std::uint64_t> step) {
  const auto found = step ? owners.find(*step) : owners.begin();
  if (found == owners.end()) return;
  found->second.sum();
  owners.erase(found);
}

BodyStage::BodyStage(const StageOptions& options, ComputeDevice& device)
    : state_(std::make_unique<State>(options, device)) {}
BodyStage::~BodyStage() = default;

TensorBundle BodyStage::forward(const MicroBatch& at, TensorBundle activations0) {
  const DeterministicScope deterministic(state_->options, state_->device.device());
  const bool training = at.phase == Phase::train && state_->last.hasGradients();
  // Autograd is enabled also with `recompute`, since some operators give other results without
  // autograd.
  const at::AutoGradMode recordGraph(training);
  TensorList inputs = state_->first.enter(at, std::move(activations0), training);
  TensorList outputs = state_->part.forward(inputs, {}, at);
  TensorBundle leaving = state_->last.leave(at, outputs);
  if (!training) return leaving;
  if (state_->options.recompute) outputs.clear();
  if (!state_->saved
           .emplace(State::Which(at.step, at.i), Saved{std::move(inputs), std::move(outputs)})
           .second) {
    throw std::logic_error("micro-batch " + std::to_string(at.i) + " went forward twice");
  }
  return leaving;
}

TensorBundle BodyStage::backward(const MicroBatch& at, TensorBundle gradients1) {
  const DeterministicScope deterministic(state_->options, state_->device.device());
  const auto node = state_->saved.extract({at.step, at.i});
  if (node.empty()) {
    throw std::logic_error("micro-batch " + std::to_string(at.i) + " goes backward, not forward");
  }
  const TensorList outputs = state_->options.recompute
                                 ? state_->part.recompute(node.mapped().inputs, {}, at)
                                 : node.mapped().outputs;
  if (state_->splits) {
    std::optional<SplitBackward> split;
    state_->accumulate(at, [&] {
      split = state_->last.splitBackward(at, outputs, std::move(gradients1), node.mapped().inputs);
    });
    if (!state_->weights.emplace(State::Which(at.step, at.i), *std::move(split)).second) {
      throw std::logic_error("micro-batch " + std::to_string(at.i) + " went backward twice");
    }
  } else {
    state_->accumulate(at, [&] { state_->last.backward(at, outputs, std::move(gradients1)); });
  }
  return state_->first.leaveGradients(at, node.mapped().inputs);
}

void BodyStage::backwardWeights(const MicroBatch& at) {
  const DeterministicScope deterministic(state_->options, state_->device.device());
  auto node = state_->weights.extract({at.step, at.i});
  if (node.empty()) {
    throw std::logic_error("micro-batch " + std::to_string(at.i) + " has no split backward");
  }
  state_->accumulate(at, [&] { node.mapped().finish(); });
}

GradientReport BodyStage::report(std::uint64_t step) {
  state_->sumOwners(step == 0 ? std::nullopt : std::optional(step));
  GradientReport report =
      step == 0 ? state_->part.gradientReport() : state_->part.gradientReport(step);
  report.bases = state_->part.nextBases();
  return report;
}

std::size_t BodyStage::shareSize() { return state_->part.shareSize(); }

void BodyStage::writeShare(std::uint64_t step, std::span<float> share) {
  state_->sumOwners(step);
  state_->part.writeShare(step, share);
}

void BodyStage::readSum(std::uint64_t step, std::span<const float> sum) {
  state_->part.readSum(step, sum);
}

void BodyStage::update(const StepDecision& decision) {
  // All of the step has gone backward, so autograd holds nothing of it.
  [[maybe_unused]] const auto isOfStep = [&](const auto& kept) {
    return kept.first.first == decision.step;
  };
  assert(std::ranges::none_of(state_->saved, isOfStep));
  assert(std::ranges::none_of(state_->weights, isOfStep));
  assert(!state_->owners.contains(decision.step));
  state_->part.refuseOtherBases(decision);
  state_->part.update(decision);
}

std::uint64_t BodyStage::weightsDigest() {
  return digestOfTrained(state_->part.set().parameters());
}

TensorFile BodyStage::weightsFile() const {
  return TensorFile(weightsOf(state_->part.evaluatedSet()));
}

TensorFile BodyStage::gradientsFile() {
  state_->part.collectGradients();
  return TensorFile(gradientsOf(state_->part.set()));
}

std::vector<std::byte> BodyStage::exportWeights() { return weightsFile().readAll(); }

std::vector<std::byte> BodyStage::exportGradients() { return gradientsFile().readAll(); }

void BodyStage::importWeights(std::span<const std::byte> file) {
  state_->part.load(fromSafetensors(file, "weights/body"));
}

std::vector<std::byte> BodyStage::saveFile() { return stateFile().readAll(); }

void BodyStage::restoreFile(std::span<const std::byte> file) {
  restore(fromSafetensors(file, "the checkpoint"));
}

std::vector<NamedTensor> BodyStage::save() const { return state_->part.save(); }

void BodyStage::restore(const std::vector<NamedTensor>& saved) {
  std::vector<NamedTensor> rest = saved;
  state_->part.restore(rest);
  checkAllTaken(rest);
}

}  // namespace cleave
