#include "common/model/graph/graph_program.h"

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros_like.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "common/core/printable.h"
#include "common/core/random.h"
#include "common/model/graph/operator_checks.h"
#include "common/model/graph/operator_note.h"
#include "common/model/graph/prepared_graph.h"

namespace cleave {
namespace {

using c10::IValue;

// The start of the memory that a tensor shares with its views; null: it has none.
const void* memoryOf(const at::Tensor& tensor) {
  return tensor.defined() && tensor.has_storage() ? tensor.storage().data() : nullptr;
}

// The memory of weights and inputs, which no operator may write to. checkGraph() finds such writes
// by the table of operators; this finds them by the tensors themselves.
class ProtectedMemory {
 public:
  ProtectedMemory(std::span<const at::Tensor> weights, const TensorList& inputs) {
    for (const at::Tensor& weight : weights) memory_.push_back(memoryOf(weight));
    for (const at::Tensor& input : inputs) memory_.push_back(memoryOf(input));
    std::ranges::sort(memory_);
  }
  void checkWrite(const wire::Node& node, const at::Tensor& tensor) const {
    const void* const memory = memoryOf(tensor);
    if (memory == nullptr || !std::ranges::binary_search(memory_, memory)) return;
    refuseOperator(node, "changes a weight or an input of the graph");
  }

 private:
  std::vector<const void*> memory_;
};

struct Batch {
  std::int64_t samples = 0;
  bool asExported = false;  // false: evaluates a graph that was exported for training
  at::Device device = at::kCPU;
  std::optional<ProtectedMemory> memory;  // if an operator writes to its tensor
};

IValue calculate(const GraphStep& step, const std::vector<IValue>& values) {
  const auto operand = [&](std::size_t n) {
    if (n >= step.operands.size()) return IValue();
    const Operand& each = step.operands[n];
    return each.kind == Operand::Kind::value ? values[each.ids[0] - 1] : each.constant;
  };
  return calculateSize(*step.node, operand(0), operand(1));
}

IValue valueOf(const Operand& operand, const std::vector<IValue>& values, const Batch& batch) {
  const auto sizes = [&] {
    c10::List<std::int64_t> list;
    for (std::size_t n = 0; n < operand.ids.size(); ++n) {
      list.push_back(operand.ids[n] == 0 ? operand.integers[n]
                                         : values[operand.ids[n] - 1].toInt());
    }
    return list;
  };
  switch (operand.kind) {
    case Operand::Kind::constant:
      return batch.asExported ? operand.constant : operand.inEvaluation;
    case Operand::Kind::value:
      return values[operand.ids[0] - 1];
    case Operand::Kind::wrappedSize:
      return wrapped(values[operand.ids[0] - 1].toScalar());
    case Operand::Kind::device:
      return batch.device;
    case Operand::Kind::sizes:
      return sizes();
    case Operand::Kind::tensors: {
      c10::List<at::Tensor> list;
      for (const std::uint32_t id : operand.ids) list.push_back(values[id - 1].toTensor());
      return list;
    }
    case Operand::Kind::optionalTensors: {
      c10::List<std::optional<at::Tensor>> list;
      for (const std::uint32_t id : operand.ids) {
        list.push_back(id == 0 ? std::optional<at::Tensor>() : values[id - 1].toTensor());
      }
      return list;
    }
  }
  return {};
}

// Random operators draw from the generator of their device, which all threads share, so it is this
// thread's until the returned lock ends.
[[nodiscard]] std::unique_lock<std::mutex> seedGenerator(const GraphStep& step,
                                                         const BlockContext& context,
                                                         const Batch& batch) {
  static std::mutex drawing;
  std::unique_lock lock(drawing);
  at::Generator generator = at::globalContext().defaultGenerator(batch.device);
  const std::lock_guard lockOfLibrary(generator.mutex());
  const RandomKey key =
      randomKey(context.seed, step.node->name(),
                {context.at.step, context.at.i, context.at.phase == Phase::train ? 0U : 1U});
  generator.set_current_seed(std::uint64_t{key.high} << 32 | key.low);
  return lock;
}

// A view can have more elements than fit into memory, and operators on it would take hours.
void checkSize(const GraphStep& step, const at::Tensor& tensor) {
  constexpr std::int64_t kMaxElements = std::int64_t{1} << 32;
  if (!tensor.defined() || tensor.numel() <= kMaxElements) return;
  refuseOperator(*step.node, fmt::format("returns {} values", tensor.numel()));
}

void keepResults(const GraphStep& step, torch::jit::Stack& stack, std::vector<IValue>& values) {
  const auto& outputs = step.node->outputs();
  if (step.node->is_list()) {
    const std::vector<at::Tensor> list = stack.at(0).toTensorVector();
    if (list.size() != static_cast<std::size_t>(outputs.size())) {
      refuseOperator(*step.node,
                     fmt::format("returned {} tensors, not {}", list.size(), outputs.size()));
    }
    for (int o = 0; o < outputs.size(); ++o) values[outputs[o]] = list[static_cast<std::size_t>(o)];
    return;
  }
  if (stack.size() < static_cast<std::size_t>(outputs.size())) {
    refuseOperator(*step.node,
                   fmt::format("returned {} values, not {}", stack.size(), outputs.size()));
  }
  for (int o = 0; o < outputs.size(); ++o) {
    IValue& result = stack[static_cast<std::size_t>(o)];
    if (result.isTensor()) checkSize(step, result.toTensor());
    values[outputs[o]] = std::move(result);
  }
}

void perform(const GraphStep& step, std::vector<IValue>& values, const BlockContext& context,
             const Batch& batch) {
  torch::jit::Stack stack;
  stack.reserve(step.operands.size());
  for (const Operand& operand : step.operands) stack.push_back(valueOf(operand, values, batch));
  NormStatistics statistics;
  const bool isTraining = context.at.phase == Phase::train;
  if (step.kind == NodeKind::batchNorm && batch.asExported) {
    // With a momentum of 1, the statistics that LibTorch updates become those of this
    // micro-batch.
    statistics = {at::zeros_like(stack[3].toTensor()), at::zeros_like(stack[4].toTensor())};
    stack[3] = statistics.mean;
    stack[4] = statistics.variance;
    stack[6] = 1.0;
  }
  if (step.kind == NodeKind::maskOfMean && !batch.asExported) {
    values[step.node->outputs(0)] = stack[0].toTensor().fill_(stack[1].toDouble());
    return;
  }
  if (step.node->is_list()) checkListLength(*step.node, stack);
  step.preconditions->check({*step.node, step.op->schema(), stack});
  if (step.isInPlace) batch.memory->checkWrite(*step.node, stack.at(0).toTensor());
  std::unique_lock<std::mutex> drawing;
  if (step.isRandom) drawing = seedGenerator(step, context, batch);
  try {
    step.op->callBoxed(stack);
  } catch (const c10::IndexError& error) {
    // The call may have moved the arguments.
    torch::jit::Stack again;
    for (const Operand& operand : step.operands) again.push_back(valueOf(operand, values, batch));
    throwIndexError(*step.node, again,
                    fmt::format("micro-batch {} of step {}", context.at.i, context.at.step),
                    error.what_without_backtrace());
  } catch (const std::exception& error) {
    if (!isOfLibrary(error)) throw;
    refuseOperator(*step.node, fmt::format("cannot be computed: {}", printable(error.what())));
  }
  if (step.kind == NodeKind::batchNorm && isTraining && context.statistics != nullptr) {
    context.statistics->push_back(std::move(statistics));
  }
  keepResults(step, stack, values);
}

void runOperation(const GraphStep& step, std::vector<IValue>& values, const BlockContext& context,
                  const Batch& batch) {
  const at::AutoGradMode recordGraph(at::GradMode::is_enabled() && !step.node->no_grad());
  const at::DeviceType device = batch.device.type();
  const bool suspends = step.node->no_autocast() && at::autocast::is_autocast_enabled(device);
  if (suspends) at::autocast::set_autocast_enabled(device, false);
  perform(step, values, context, batch);
  if (suspends) at::autocast::set_autocast_enabled(device, true);
}

std::int64_t sizeAlong(const wire::Node& node, const at::Tensor& tensor, std::int64_t dimension) {
  if (dimension >= -tensor.dim() && dimension < tensor.dim()) return tensor.size(dimension);
  refuseOperator(node, fmt::format("is the size of dimension {} of a tensor with {} dimensions",
                                   dimension, tensor.dim()));
}

void run(const GraphStep& step, std::vector<IValue>& values, const BlockContext& context,
         const Batch& batch) {
  switch (step.kind) {
    case NodeKind::samples:
      values[step.node->outputs(0)] = batch.samples;
      break;
    case NodeKind::arithmetic:
      values[step.node->outputs(0)] = calculate(step, values);
      break;
    case NodeKind::sizeOf: {
      const at::Tensor& tensor = values[step.operands[0].ids.at(0) - 1].toTensor();
      values[step.node->outputs(0)] =
          step.operands.size() == 1
              ? tensor.numel()
              : sizeAlong(*step.node, tensor, step.operands[1].constant.toInt());
      break;
    }
    case NodeKind::operation:
    case NodeKind::batchNorm:
    case NodeKind::maskOfMean:
      runOperation(step, values, context, batch);
  }
  for (const std::uint32_t id : step.last) values[id] = IValue();
}

TensorList run(const PreparedGraph& prepared, const TensorList& inputs,
               std::span<const at::Tensor> tensors, const BlockContext& context, bool asExported) {
  const wire::Graph& graph = prepared.graph;
  std::vector<IValue> values(static_cast<std::size_t>(graph.values_size()));
  for (std::size_t w = 0; w < tensors.size(); ++w) values[prepared.weightIds.at(w)] = tensors[w];
  for (std::size_t n = 0; n < inputs.size(); ++n) {
    values[graph.inputs(static_cast<int>(n))] = inputs[n];
  }
  for (const std::size_t n : prepared.changedInputs) {
    values[graph.inputs(static_cast<int>(n))] = inputs[n].clone();
  }
  Batch batch{inputs.at(0).size(0), asExported, inputs.at(0).device(), {}};
  if (std::ranges::any_of(prepared.steps, &GraphStep::isInPlace))
    batch.memory.emplace(tensors, inputs);
  for (const GraphStep& step : prepared.steps) {
    if (context.checkpoint != nullptr) (*context.checkpoint)();
    noteOperator(step.node->op());
    run(step, values, context, batch);
  }
  TensorList outputs;
  for (const std::uint32_t id : graph.outputs()) {
    const at::Tensor& output = values[id].toTensor();
    // The link may still read an output when an update changes the weights.
    const void* const memory = memoryOf(output);
    const bool isWeights =
        memory != nullptr && std::ranges::find(tensors, memory, memoryOf) != tensors.end();
    outputs.push_back(isWeights ? output.clone() : output);
  }
  return outputs;
}

}  // namespace

GraphProgram::GraphProgram(const wire::Graph& graph)
    : prepared_(std::make_unique<PreparedGraph>(graph)) {
  if (!graph.has_evaluation()) return;
  evaluation_ = std::make_unique<PreparedGraph>(graph.evaluation());
  std::map<std::string, std::size_t> positions;
  for (std::size_t w = 0; w < weights().size(); ++w) positions[weights()[w].name] = w;
  for (const ParameterSpec& weight : evaluation_->weights) {
    evaluationWeights_.push_back(positions.at(weight.name));
  }
}
GraphProgram::~GraphProgram() = default;

const std::vector<ParameterSpec>& GraphProgram::weights() const { return prepared_->weights; }
const std::vector<NormRow>& GraphProgram::norms() const { return prepared_->norms; }

std::vector<std::string> GraphProgram::drawnInEvaluation() const {
  std::vector<std::string> nodes;
  if (evaluation_) return nodes;
  for (const GraphStep& step : prepared_->steps) {
    if (step.isRandom && step.kind == NodeKind::operation && !step.isOffInEvaluation) {
      nodes.push_back(nodeText(*step.node));
    }
  }
  return nodes;
}

TensorList GraphProgram::run(const TensorList& inputs, std::span<const at::Tensor> weights,
                             const BlockContext& context) const {
  const bool isTraining = context.at.phase == Phase::train;
  if (isTraining || !evaluation_)
    return cleave::run(*prepared_, inputs, weights, context, isTraining);
  TensorList chosen;
  for (const std::size_t position : evaluationWeights_) chosen.push_back(weights[position]);
  return cleave::run(*evaluation_, inputs, chosen, context, /*asExported=*/true);
}

}  // namespace cleave
