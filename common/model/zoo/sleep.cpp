// A model that sleeps instead of computing, to measure links and schedules independently of the
// processors. It is another model, divided at some cuts, with one block between two of them, so
// that tensors at cuts, weights and memory have the sizes of that model. A part for which a time is
// given sleeps; all others compute.
//
// A part that sleeps returns tensors with meaningless values, whose distribution suits codecs and
// optimizers: activations as after ReLU6, half of them zeros; small gradients. Its weights have no
// gradients.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <map>
#include <thread>
#include <tuple>
#include <utility>

#include "common/core/random.h"
#include "common/model/blocks.h"
#include "common/model/model.h"
#include "common/model/split_backward.h"
#include "common/model/stage/stage.h"

namespace cleave {
namespace {

using Clock = std::chrono::steady_clock;
using torch::autograd::Node;
using torch::autograd::variable_list;

// Milliseconds per micro-batch.
struct Times {
  double forward = 0;
  double backward = 0;  // without that of the weights
  double weights = 0;   // the part of the backward that the schedule `zb` defers
};

Clock::time_point after(double milliseconds) {
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(
                            std::chrono::duration<double, std::milli>(milliseconds));
}

// Tensors of a block that sleeps. Each micro-batch has its own, allocated once, because computed
// tensors also have separate memory. Only the latest shape is kept.
class Placeholders {
 public:
  explicit Placeholders(std::string name) : name_(std::move(name)) {}

  at::Tensor activation(std::size_t output, std::uint32_t i, const TensorSpec& spec,
                        at::Device device) {
    at::Tensor& tensor = tensors_[{true, output, i}];
    if (!tensor.defined() || tensor.sizes() != spec.shape) {
      const auto format = spec.order == MemoryOrder::channelsLast ? at::MemoryFormat::ChannelsLast
                                                                  : at::MemoryFormat::Contiguous;
      tensor = at::empty(spec.shape, at::TensorOptions(at::kFloat), format);
      fill(tensor, i);
      tensor = tensor.clamp_(0, 6).to(device);
    }
    return tensor.detach();
  }

  at::Tensor gradient(std::size_t input, std::uint32_t i, const at::Tensor& of) {
    constexpr double kRms = 1e-5;
    at::Tensor& tensor = tensors_[{false, input, i}];
    if (!tensor.defined() || tensor.sizes() != of.sizes()) {
      tensor = at::empty_strided(of.sizes(), of.strides(), at::TensorOptions(at::kFloat));
      fill(tensor, i);
      tensor = tensor.mul_(kRms).to(of.device());
    }
    return tensor.detach();  // not a reference: autograd would copy a tensor that has other owners
  }

 private:
  void fill(const at::Tensor& tensor, std::uint32_t i) const {
    fillNormal(randomKey(0, name_, {i}),
               {tensor.mutable_data_ptr<float>(), static_cast<std::size_t>(tensor.numel())});
  }

  const std::string name_;
  // By whether it is an activation, its number among outputs or inputs, and micro-batch.
  using Which = std::tuple<bool, std::size_t, std::uint32_t>;
  std::map<Which, at::Tensor> tensors_;
};

// Autograd calls it once, or, if the backward is split (split_backward.h), once for the inputs and
// once for the weights.
class SleepBackward : public Node {
 public:
  SleepBackward(torch::autograd::edge_list edges, const TensorList& inputs, Times times,
                std::shared_ptr<Placeholders> placeholders, std::uint32_t i)
      : Node(std::move(edges)), times_(times), placeholders_(std::move(placeholders)), i_(i) {
    for (const at::Tensor& input : inputs) inputs_.push_back(input.detach());
  }

  std::string name() const override { return std::string(kSleepBackward); }

 protected:
  variable_list apply(variable_list&& /*gradients*/) override {
    const std::size_t edges = num_outputs();
    bool ofInputs = false, ofWeights = false, hasInputs = false;
    for (std::size_t e = 0; e < edges; ++e) {
      const bool isInput = e < inputs_.size();
      hasInputs = hasInputs || (isInput && next_edge(e).is_valid());
      (isInput ? ofInputs : ofWeights) |= task_should_compute_output(e);
    }
    const bool isFirst = ofInputs || !hasInputs;
    const auto end = after((isFirst ? times_.backward : 0) + (ofWeights ? times_.weights : 0));
    variable_list gradients(edges);
    for (std::size_t e = 0; e < inputs_.size(); ++e) {
      if (task_should_compute_output(e)) gradients[e] = placeholders_->gradient(e, i_, inputs_[e]);
    }
    std::this_thread::sleep_until(end);
    return gradients;
  }

 private:
  const Times times_;
  const std::shared_ptr<Placeholders> placeholders_;
  const std::uint32_t i_;
  TensorList inputs_;  // only their shapes count
};

// Replaces the computation of a block.
void letSleep(BlockSpec& block, Times times, const Shape& input) {
  block.norms.clear();
  block.savedPerSample = elementCount(input) + elementCount(block.outputShape());
  block.forward =
      [times, outputs = block.outputs, placeholders = std::make_shared<Placeholders>(block.name)](
          const TensorList& x, std::span<const at::Tensor> tensors, const BlockContext& context) {
        const auto end = after(times.forward);
        const auto samples = static_cast<std::uint32_t>(x.front().size(0));
        TensorList made;
        for (std::size_t o = 0; o < outputs.size(); ++o) {
          made.push_back(placeholders->activation(
              o, context.at.i, specOfOutput(outputs[o], samples), x.front().device()));
        }
        TensorList all = x;
        all.insert(all.end(), tensors.begin(), tensors.end());
        const bool hasGradients = std::any_of(
            all.begin(), all.end(), [](const at::Tensor& each) { return each.requires_grad(); });
        if (at::GradMode::is_enabled() && hasGradients) {
          const std::shared_ptr<SleepBackward> node(
              new SleepBackward(torch::autograd::collect_next_edges(all), x, times, placeholders,
                                context.at.i),
              torch::autograd::deleteNode);
          torch::autograd::set_history(made, node);
        }
        std::this_thread::sleep_until(end);
        return made;
      };
}

// ---- The model ----

// The model that is divided.
ModelSpec innerOf(const ModelSpec& spec, const std::string& name) {
  ModelSpec inner = spec;
  inner.name = name;
  for (const char* own : {"of", "at", "F1", "T3", "B1", "F2", "B2", "W2"}) {
    inner.parameters.erase(own);
  }
  return inner;
}

// The cuts in text such as "4-7-13".
std::vector<int> cutsIn(const std::string& text, int blocks) {
  std::vector<int> cuts;
  const char* at = text.data();
  const char* const end = at + text.size();
  bool isValid = true;
  while (isValid) {
    int cut = 0;
    const auto [rest, error] = std::from_chars(at, end, cut);
    isValid = error == std::errc() && cut < blocks && cut > (cuts.empty() ? 0 : cuts.back());
    cuts.push_back(cut);
    if (rest == end) break;
    isValid = isValid && *rest == '-';
    at = rest + 1;
  }
  if (isValid && cuts.size() > 1) return cuts;
  throw UsageError(
      "bad-model-parameter",
      "model sleep: at=" + text + " does not divide the " + std::to_string(blocks) +
          " blocks of its model",
      "give ascending cuts from 1 to " + std::to_string(blocks - 1) + ", such as at: 2-5")
      .about("model.at");
}

std::vector<BlockSpec> sleepBlocks(const ModelSpec& spec) {
  constexpr double kMax = 60000;
  ModelParameters parameters(spec);
  const std::string of = parameters.choice("of", {"small_cnn", "mlp", "mobilenet_v2"});
  const auto sleeps = [&](std::initializer_list<const char*> keys) {
    return std::any_of(keys.begin(), keys.end(),
                       [&](const char* key) { return spec.parameters.contains(key); });
  };
  const auto time = [&](const char* key) { return parameters.number(key, 0, kMax, 0); };
  const Times head{time("F1"), time("B1"), 0};
  const Times body{time("F2"), time("B2"), time("W2")};
  const Times tail{time("T3"), 0, 0};

  const ModelSpec inner = innerOf(spec, of);
  std::vector<BlockSpec> blocks = findModel(of).blocks(inner);
  const auto found = spec.parameters.find("at");
  std::vector<int> cuts;
  if (found != spec.parameters.end()) {
    cuts = cutsIn(found->second, static_cast<int>(blocks.size()));
  } else {
    const auto [cut0, cut1] = findModel(of).defaultCuts(inner);
    cuts = {cut0, cut1};
  }
  cuts.push_back(static_cast<int>(blocks.size()));
  std::vector<BlockSpec> joined;
  auto first = blocks.begin();
  for (const int cut : cuts) {
    const auto last = blocks.begin() + cut;
    const bool isTail = last == blocks.end();
    const std::string name = joined.empty() ? "head"
                             : isTail       ? "tail"
                                            : "body" + std::to_string(joined.size());
    joined.push_back(joinBlocks(name, {first, last}));
    const Shape input =
        joined.size() == 1 ? spec.sampleShape : std::prev(joined.end(), 2)->outputShape();
    if (name == "head" && sleeps({"F1", "B1"})) letSleep(joined.back(), head, input);
    if (name == "tail" && sleeps({"T3"})) letSleep(joined.back(), tail, input);
    if (name.starts_with("body") && sleeps({"F2", "B2", "W2"}))
      letSleep(joined.back(), body, input);
    first = last;
  }
  return joined;
}

std::pair<int, int> sleepCuts(const ModelSpec& spec) {
  return {1, static_cast<int>(sleepBlocks(spec).size()) - 1};
}

}  // namespace

ModelRow sleepModel() {
  return {"sleep",
          "another model, whose parts sleep instead of computing: for benchmarks",
          "of=small_cnn|mlp|mobilenet_v2 (small_cnn), at=CUT-CUT (its own cuts), "
          "F1=0..60000 (computes), T3=0..60000 (computes), B1=0..60000 (computes), "
          "F2=0..60000 (computes), B2=0..60000 (computes), W2=0..60000 (computes)",
          "{name: sleep, of: small_cnn, F1: 2, T3: 1, B1: 4, F2: 10, B2: 20}",
          sleepBlocks,
          sleepCuts,
          true};
}

}  // namespace cleave
