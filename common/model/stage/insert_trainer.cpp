#include "common/model/stage/insert_trainer.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <utility>

#include "common/model/blocks.h"
#include "common/model/inserts.h"
#include "common/model/optimizer.h"

namespace cleave {
namespace {

// A block whose tensors are those of both halves.
std::vector<BlockSpec> blocksOf(const InsertLayers& layers) {
  BlockSpec block;
  for (const InsertHalf* half : {&layers.encoder, &layers.decoder}) {
    block.tensors.insert(block.tensors.end(), half->tensors.begin(), half->tensors.end());
  }
  return {std::move(block)};
}

// Of a row that the encoder's first weight multiplies.
std::int64_t widthOf(const InsertLayers& layers) {
  const Shape& weight = layers.encoder.tensors.front().shape;
  return elementCount(weight) / weight.front();
}

double sumOfSquares(const at::Tensor& x) { return x.square().sum(at::kDouble).item<double>(); }

// An insert, and what it has been fitted to.
struct Coder {
  Coder(PlacedInsert insert, std::uint32_t ofCut, const StageOptions& stage,
        const std::vector<NamedTensor>& weights)
      : placed(std::move(insert)),
        cut(ofCut),
        set(blocksOf(placed.layers), 0, 1, stage.seed),
        statistics(placed.layers.kernel, widthOf(placed.layers)) {
    loadWeights(set, selectWeights(weights, blocksOf(placed.layers), 0, 1));
    OptimizerSpec spec = stage.optimizer;
    spec.groups.clear();
    optimizer = makeOptimizer(spec, set.parameters());
  }

  at::Tensor encode(const at::Tensor& x) const {
    return placed.layers.encoder.forward(x, set.tensors().first(encoderSize()));
  }
  at::Tensor decode(const at::Tensor& z) const {
    return placed.layers.decoder.forward(z, set.tensors().subspan(encoderSize()));
  }
  // Besides weight and bias, or a tracked basis.
  bool hasMoreTensors() const { return placed.layers.momentum == 0 && encoderSize() > 2; }

  PlacedInsert placed;
  std::uint32_t cut;
  ParameterSet set;
  std::unique_ptr<Optimizer> optimizer;
  InsertStatistics statistics;
  PrincipalComponents components;
  double squares = 0, squaredErrors = 0, squaredErrorsAtCut = 0;

 private:
  std::size_t encoderSize() const { return placed.layers.encoder.tensors.size(); }
};

}  // namespace

struct InsertTrainer::State {
  StageOptions options;
  std::vector<NamedTensor> initial;
  std::vector<Coder> coders;  // by position in options.inserts

  // The inserts at a cut, in the order in which they encode.
  std::vector<Coder*> at(std::uint32_t cut) {
    std::vector<Coder*> found;
    for (Coder& coder : coders) {
      if (coder.cut == cut) found.push_back(&coder);
    }
    return found;
  }

  // The insert of this level at the cut, and what it encodes of x; null: there is none.
  std::pair<Coder*, at::Tensor> inputOf(std::size_t level, std::uint32_t cut, at::Tensor x) {
    const std::vector<Coder*> nested = at(cut);
    if (level >= nested.size()) return {nullptr, {}};
    const at::NoGradGuard noGrad;
    for (std::size_t inner = 0; inner < level; ++inner) x = nested[inner]->encode(x);
    return {nested[level], std::move(x)};
  }
};

InsertTrainer::InsertTrainer(const StageOptions& options, const std::vector<NamedTensor>& initial)
    : state_(std::make_unique<State>(State{options, initial, {}})) {
  StageOptions plain = options;
  const std::vector<InsertSpec> inserts = std::exchange(plain.inserts, {});
  if (inserts.empty()) {
    throw UsageError("bad-insert", "the configuration has no inserts",
                     "add one, such as --set 'insert={cut: 0, kind: linear, rank: 8}'")
        .about("insert");
  }
  std::vector<PlacedInsert> placed =
      placeInserts(blocksFor(plain), inserts, plain.allCuts(), plain.cuts.number0);
  for (std::size_t n = 0; n < inserts.size(); ++n) {
    state_->coders.emplace_back(std::move(placed[n]), inserts[n].cut, plain, initial);
  }
}

InsertTrainer::~InsertTrainer() = default;

std::size_t InsertTrainer::levels() const {
  std::size_t levels = 0;
  for (const Coder& coder : state_->coders) levels = std::max(levels, coder.placed.level + 1);
  return levels;
}

std::set<std::uint32_t> InsertTrainer::cuts() const {
  std::set<std::uint32_t> cuts;
  for (const Coder& coder : state_->coders) cuts.insert(coder.cut);
  return cuts;
}

void InsertTrainer::observe(std::size_t level, std::uint32_t cut, const at::Tensor& x) {
  const auto [coder, input] = state_->inputOf(level, cut, x);
  if (coder != nullptr) coder->statistics.add(input);
}

void InsertTrainer::solve(std::size_t level) {
  for (Coder& coder : state_->coders) {
    if (coder.placed.level != level) continue;
    coder.components = coder.statistics.components();
    loadWeights(coder.set, coder.components.weights(coder.placed.layers, coder.placed.prefix));
  }
}

bool InsertTrainer::needsTraining(std::size_t level) const {
  return std::ranges::any_of(state_->coders, [&](const Coder& coder) {
    return coder.placed.level == level && coder.hasMoreTensors();
  });
}

void InsertTrainer::addGradients(std::size_t level, std::uint32_t cut, const at::Tensor& x,
                                 std::uint32_t microBatches) {
  const auto [coder, input] = state_->inputOf(level, cut, x);
  if (coder == nullptr || !coder->hasMoreTensors()) return;
  const at::AutoGradMode recordGraph(true);
  const at::Tensor decoded = coder->decode(coder->encode(input));
  decoded.sub(input).square().mean().div(microBatches).backward();
}

void InsertTrainer::update(std::size_t level, std::uint64_t step, double learningRate) {
  StepDecision decision;
  decision.step = step;
  decision.learningRates = {learningRate};
  for (Coder& coder : state_->coders) {
    if (coder.placed.level != level || !coder.hasMoreTensors()) continue;
    coder.optimizer->update(decision);
    coder.set.clearGradients();
  }
}

void InsertTrainer::measure(std::uint32_t cut, const at::Tensor& x) {
  const at::NoGradGuard noGrad;
  const std::vector<Coder*> nested = state_->at(cut);
  at::Tensor input = x;
  for (std::size_t level = 0; level < nested.size(); ++level) {
    Coder& coder = *nested[level];
    const at::Tensor encoded = coder.encode(input);
    at::Tensor decoded = coder.decode(encoded);
    coder.squaredErrors += sumOfSquares(decoded.sub(input));
    coder.squares += sumOfSquares(withoutMean(input, coder.components.mean));
    for (std::size_t inner = level; inner-- > 0;) decoded = nested[inner]->decode(decoded);
    coder.squaredErrorsAtCut += sumOfSquares(decoded.sub(x));
    input = encoded;
  }
}

std::vector<InsertError> InsertTrainer::errors() const {
  const auto share = [](double part, double all) { return all > 0 ? part / all : 0; };
  std::vector<InsertError> errors;
  for (const Coder& coder : state_->coders) {
    const double atCut = state_->at(coder.cut).front()->squares;
    errors.push_back(
        {share(coder.squaredErrors, coder.squares), share(coder.squaredErrorsAtCut, atCut)});
  }
  return errors;
}

std::vector<PrincipalComponents> InsertTrainer::components() const {
  std::vector<PrincipalComponents> all;
  for (const Coder& coder : state_->coders) all.push_back(coder.components);
  return all;
}

std::vector<NamedTensor> InsertTrainer::weights() const {
  const std::vector<BlockSpec> blocks = blocksFor(state_->options);
  const ParameterSet whole(blocks, 0, static_cast<int>(blocks.size()), state_->options.seed);
  loadWeights(whole, state_->initial);
  for (const Coder& coder : state_->coders) loadWeights(whole, weightsOf(coder.set));
  return weightsOf(whole);
}

}  // namespace cleave
