#include "common/model/graph/prepared_graph.h"

#include <ATen/core/enum_tag.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <utility>

#include "common/core/printable.h"
#include "common/graph/adapters.h"
#include "common/graph/operators.h"
#include "common/model/graph/operator_checks.h"

namespace cleave {
namespace {

using c10::IValue;
using c10::TypeKind;

using Cases = std::vector<wire::Argument::ValueCase>;

// Requires one argument of one of the given forms at each position.
void checkCases(const wire::Node& node, const std::vector<Cases>& expected) {
  if (static_cast<std::size_t>(node.arguments_size()) != expected.size()) {
    refuseOperator(node, "has the wrong number of arguments");
  }
  for (std::size_t n = 0; n < expected.size(); ++n) {
    const auto given = node.arguments(static_cast<int>(n)).value_case();
    if (std::find(expected[n].begin(), expected[n].end(), given) == expected[n].end()) {
      refuseOperator(node, "has an argument of the wrong type");
    }
  }
}

// Returns the operator to run instead. Views are replaced because they rely on the strides of the
// exporter's machine, operators that return uninitialised memory because it could contain another
// run's data, and sgn because its gradient has no memory; all numbers are real.
std::string replacementOf(const std::string& op) {
  static const std::map<std::string, std::string> kReplacements = {
      {"aten.view.default", "aten.reshape.default"},
      {"aten.empty.memory_format", "aten.zeros.default"},
      {"aten.empty_like.default", "aten.zeros_like.default"},
      {"aten.new_empty.default", "aten.new_zeros.default"},
      {"aten.sgn.default", "aten.sign.default"},
      {"aten.sgn_.default", "aten.sign_.default"}};
  const auto found = kReplacements.find(op);
  return found == kReplacements.end() ? op : found->second;
}

// Without this check, an argument that the operator does not have would be ignored, and
// checkGraph(), which identifies changed tensors by position, would check the wrong argument.
void checkNames(const wire::Node& node, const c10::FunctionSchema& schema) {
  const auto& expected = schema.arguments();
  for (const wire::Argument& argument : node.arguments()) {
    const bool isKnown =
        std::any_of(expected.begin(), expected.end(),
                    [&](const c10::Argument& each) { return each.name() == argument.name(); }) ||
        (node.op() == "aten.view.default" && argument.name() == "size") ||
        (node.op() == "aten.empty.memory_format" && argument.name() == "memory_format") ||
        (node.op() == "aten.batch_norm.default" && argument.name() == "num_batches_tracked");
    if (!isKnown) refuseOperator(node, "has no argument '" + printable(argument.name()) + "'");
  }
  const OperatorRow* const row = findOperator(node.op());
  if (row == nullptr || row->memory == ResultMemory::own) return;
  if (node.arguments().empty() || node.arguments(0).name() != expected.at(0).name()) {
    refuseOperator(node, "does not have its tensor as its first argument");
  }
}

// An operator may write only to the tensor that the table of operators says.
void checkWrites(const wire::Node& node, const c10::FunctionSchema& schema) {
  for (std::size_t n = 0; n < schema.arguments().size(); ++n) {
    const c10::AliasInfo* const alias = schema.arguments()[n].alias_info();
    if (alias == nullptr || !alias->isWrite() || (n == 0 && changesInPlace(node))) continue;
    refuseOperator(node, "changes '" + schema.arguments()[n].name() + "'");
  }
}

// An instance norm may use running statistics, but not change them.
void checkInstanceNorm(const wire::Node& node) {
  const wire::Argument* const mean = findArgument(node, "running_mean");
  const wire::Argument* const own = findArgument(node, "use_input_stats");
  if (mean == nullptr || mean->value_case() == wire::Argument::kNone) return;
  if (own != nullptr && own->value_case() == wire::Argument::kFlag && !own->flag()) return;
  throw UsageError(
      "bad-graph",
      fmt::format("the operator {} trains running statistics, which only batch norms may do",
                  nodeText(node)),
      "set track_running_stats=False in the model's instance norms, and export it again")
      .about("model.file");
}

}  // namespace

PreparedGraph::PreparedGraph(const wire::Graph& given) : graph(given) {
  for (int id = 0; id < graph.values_size(); ++id) {
    const wire::Value& value = graph.values(id);
    if (isWeight(value)) addWeight(static_cast<std::uint32_t>(id), value);
  }
  for (const wire::Node& node : graph.nodes()) steps.push_back(prepare(node));
  findLastUses();
  findChangedInputs();
}

void PreparedGraph::addWeight(std::uint32_t id, const wire::Value& value) {
  weightIds.push_back(id);
  ParameterSpec row;
  row.name = value.name();
  row.shape.assign(value.shape().begin(), value.shape().end());
  row.isBuffer = value.kind() != wire::Value::PARAMETER;
  row.isSaved = value.kind() != wire::Value::CONSTANT;
  row.isTrainable = value.trainable();
  if (isAdapterA(row.name) && row.isTrainable && row.shape.size() == 2) {
    row.bound = 1 / std::sqrt(static_cast<double>(std::max<std::int64_t>(1, row.shape[1])));
  }
  row.type = scalarTypeOf(value);
  if (row.isTrainable && row.type != at::kFloat) {
    throw UsageError("bad-graph",
                     printable(value.name()) + " is a trained parameter in " + value.dtype(),
                     "export the model in fp32: cleave_split.export(model.float(), …)")
        .about("model.file");
  }
  weights.push_back(std::move(row));
}

GraphStep PreparedGraph::prepare(const wire::Node& node) {
  GraphStep step;
  step.node = &node;
  if (node.op() == "size.samples") {
    step.kind = NodeKind::samples;
    checkCases(node, {});
  } else if (node.op() == "size.of") {
    step.kind = NodeKind::sizeOf;
    checkCases(node, {{wire::Argument::kTensor}, {wire::Argument::kInteger}});
  } else if (node.op() == "size.numel") {
    step.kind = NodeKind::sizeOf;
    checkCases(node, {{wire::Argument::kTensor}});
  } else if (node.op().starts_with("size.")) {
    step.kind = NodeKind::arithmetic;
    const Cases size = {wire::Argument::kInteger, wire::Argument::kNumber, wire::Argument::kSize};
    const bool isUnary = node.op() == "size.neg" || node.op() == "size.float";
    checkCases(node, std::vector<Cases>(isUnary ? 1 : 2, size));
  } else {
    prepareOperation(node, step);
    return step;
  }
  for (const wire::Argument& argument : node.arguments()) {
    step.operands.push_back(operandOf(node, argument, nullptr));
  }
  return step;
}

void PreparedGraph::prepareOperation(const wire::Node& node, GraphStep& step) {
  const bool isView = node.op() == "aten.view.default";
  const std::string op = replacementOf(node.op());
  const auto dot = op.rfind('.');
  const std::string overload = op.substr(dot + 1);
  step.op = c10::Dispatcher::singleton().findSchema(
      {"aten::" + op.substr(5, dot - 5), overload == "default" ? "" : overload});
  if (!step.op) refuseOperator(node, "is not in this version of LibTorch");
  checkNames(node, step.op->schema());
  checkWrites(node, step.op->schema());
  step.preconditions.emplace(step.op->schema());
  const auto& returns = step.op->schema().returns();
  const bool isList = returns.size() == 1 && returns.front().type()->kind() == TypeKind::ListType;
  if (node.is_list() != isList)
    refuseOperator(node, isList ? "returns a list" : "does not return a list");
  step.isInPlace = changesInPlace(node);
  step.isRandom = step.op->hasTag(at::Tag::nondeterministic_seeded);
  for (const c10::Argument& expected : step.op->schema().arguments()) {
    step.isOffInEvaluation |= isTrainFlag(expected) || expected.name() == "dropout_p";
    const bool isShape = isView && expected.name() == "shape";
    const wire::Argument* const given = findArgument(node, isShape ? "size" : expected.name());
    step.operands.push_back(operandFor(node, expected, given));
    const bool isProbability = expected.name() == "dropout_p" ||
                               (expected.name() == "p" && node.op() == "aten.dropout.default");
    const IValue& value = step.operands.back().constant;
    // Does not draw, so that seeding would only take time.
    if (isProbability && value.isDouble() && value.toDouble() == 0) step.isRandom = false;
  }
  if (node.op() == "aten.bernoulli_.float") step.kind = NodeKind::maskOfMean;
  if (node.op() == "aten.batch_norm.default") prepareNorm(node, step);
  if (node.op() == "aten.instance_norm.default") checkInstanceNorm(node);
}

// Prepares a batch norm that trains: its statistics are recorded instead of being written to the
// buffers.
void PreparedGraph::prepareNorm(const wire::Node& node, GraphStep& step) {
  constexpr std::size_t kMean = 3, kVariance = 4, kTraining = 5, kMomentum = 6;
  const auto isBuffer = [&](std::size_t operand) {
    return step.operands[operand].kind == Operand::Kind::value;
  };
  const IValue& training = step.operands[kTraining].constant;
  if (!training.isBool()) refuseOperator(node, "has no constant argument 'training'");
  if (isBuffer(kMean) != isBuffer(kVariance))
    refuseOperator(node, "has only one of its statistics");
  // Without running statistics, evaluation also uses the statistics of the batch.
  if (!isBuffer(kMean)) step.operands[kTraining].inEvaluation = training;
  if (!training.toBool() || !isBuffer(kMean)) return;
  if (step.operands[0].kind != Operand::Kind::value) refuseOperator(node, "has no input");
  const IValue& momentum = step.operands[kMomentum].constant;
  if (!momentum.isDouble()) refuseOperator(node, "has no momentum");
  step.kind = NodeKind::batchNorm;
  NormRow row;
  row.mean = weightOf(node, step.operands[kMean].ids.at(0));
  row.variance = weightOf(node, step.operands[kVariance].ids.at(0));
  row.momentum = momentum.toDouble();
  if (const wire::Argument* const count = findArgument(node, "num_batches_tracked")) {
    if (count->value_case() != wire::Argument::kTensor)
      refuseOperator(node, "has no counter of batches");
    row.count = weightOf(node, count->tensor() + 1);
  }
  const wire::Value& input = graph.values(static_cast<int>(step.operands[0].ids.at(0) - 1));
  const double channels =
      input.shape_size() > 1 ? std::max(1.0, static_cast<double>(input.shape(1))) : 1;
  row.valuesPerSample =
      static_cast<std::int64_t>(std::min(0x1p40, elementsPerSample(input) / channels));
  norms.push_back(row);
}

std::size_t PreparedGraph::weightOf(const wire::Node& node, std::uint32_t idPlus1) const {
  // Weights are numbered in the order of their values.
  const auto found = std::lower_bound(weightIds.begin(), weightIds.end(), idPlus1 - 1);
  if (found == weightIds.end() || *found != idPlus1 - 1) {
    refuseOperator(node, "has statistics that are not buffers");
  }
  return static_cast<std::size_t>(found - weightIds.begin());
}

void PreparedGraph::findLastUses() {
  std::map<std::uint32_t, std::size_t> last;
  for (std::size_t s = 0; s < steps.size(); ++s) {
    for (const std::uint32_t id : valuesReadBy(*steps[s].node)) last[id] = s;
    for (const std::uint32_t id : steps[s].node->outputs()) last[id] = s;
  }
  for (const std::uint32_t id : graph.outputs()) last.erase(id);
  for (const auto& [id, step] : last) steps[step].last.push_back(id);
}

// Finds the inputs that must be copied because an operator changes their memory: inputs may be
// leaves of autograd's graph, or belong to the batch.
void PreparedGraph::findChangedInputs() {
  const GraphIds owners = memoryOwners(graph);
  for (const wire::Node& node : graph.nodes()) {
    if (!changesInPlace(node)) continue;
    const std::uint32_t owner = owners[node.outputs(0)];
    const auto input = std::find(graph.inputs().begin(), graph.inputs().end(), owner);
    if (input == graph.inputs().end()) continue;
    changedInputs.push_back(static_cast<std::size_t>(input - graph.inputs().begin()));
  }
}

}  // namespace cleave
