#include "common/graph/graph.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "common/core/printable.h"
#include "common/graph/operators.h"

namespace cleave {
namespace {

constexpr int kMaxNodes = 1 << 17;
constexpr int kMaxValues = 1 << 18;
constexpr int kMaxRankOfValue = 12;
constexpr int kMaxRankAtCut = 8;
constexpr int kMaxAtCut = 64;                  // tensors
constexpr double kMaxWeightElements = 0x1p36;  // in all weights together
constexpr std::size_t kMaxNameBytes = 512;
constexpr std::int64_t kMaxDimension = std::int64_t{1} << 40;

struct DtypeRow {
  std::string_view name;
  std::size_t bytes;
  bool isFloat;
};
constexpr std::array kDtypes = std::to_array<DtypeRow>({{"bf16", 2, true},
                                                        {"bool", 1, false},
                                                        {"f16", 2, true},
                                                        {"f32", 4, true},
                                                        {"f64", 8, true},
                                                        {"i16", 2, false},
                                                        {"i32", 4, false},
                                                        {"i64", 8, false},
                                                        {"i8", 1, false},
                                                        {"u8", 1, false}});

constexpr std::array<std::string_view, 4> kMemoryFormats = {"contiguous", "channels_last",
                                                            "channels_last_3d", "preserve"};

const DtypeRow* findDtype(std::string_view name) {
  const auto* const row = std::ranges::find(kDtypes, name, &DtypeRow::name);
  return row == kDtypes.end() ? nullptr : row;
}

// Checks one graph from front to back.
class Check {
 public:
  Check(const wire::Graph& graph, const std::string& source) : graph_(graph), source_(source) {}

  void run() {
    if (graph_.nodes_size() > kMaxNodes || graph_.values_size() > kMaxValues) {
      refuse(
          fmt::format("it has {} nodes and {} values", graph_.nodes_size(), graph_.values_size()));
    }
    isDefined_.assign(static_cast<std::size_t>(graph_.values_size()), false);
    for (std::uint32_t id = 0; id < isDefined_.size(); ++id) checkValue(id);
    if (graph_.inputs_size() == 0 || graph_.inputs_size() > kMaxAtCut) {
      refuse(fmt::format("it has {} inputs", graph_.inputs_size()));
    }
    for (const std::uint32_t input : graph_.inputs()) {
      define(input, "an input");
      checkCrosses(input, "an input");
    }
    owners_ = memoryOwners(graph_);
    for (const wire::Node& node : graph_.nodes()) checkNode(node);
    if (graph_.outputs_size() == 0 || graph_.outputs_size() > kMaxAtCut) {
      refuse(fmt::format("it has {} outputs", graph_.outputs_size()));
    }
    std::set<std::uint32_t> outputs;
    for (const std::uint32_t output : graph_.outputs()) {
      requireDefined(output, "an output");
      if (!outputs.insert(output).second) refuse("it has the same output twice");
      checkCrosses(output, "an output");
    }
  }

 private:
  [[noreturn]] void refuse(const std::string& sentence, const std::string& hint = "") const {
    throw UsageError("bad-graph", source_ + ": " + sentence, hint);
  }

  const wire::Value& value(std::uint32_t id) const { return graph_.values(static_cast<int>(id)); }

  void checkValue(std::uint32_t id) {
    const wire::Value& value = this->value(id);
    if (!wire::Value::Kind_IsValid(value.kind())) refuse("a value is of an unknown kind");
    if (value.kind() == wire::Value::SIZE) return;
    if (value.name().size() > kMaxNameBytes) refuse("a name is longer than 512 bytes");
    if (findDtype(value.dtype()) == nullptr) {
      refuse(printable(value.name()) + " has the unknown dtype " + printable(value.dtype()));
    }
    if (value.shape_size() > kMaxRankOfValue) {
      refuse(fmt::format("{} has {} dimensions", printable(value.name()), value.shape_size()));
    }
    for (const std::int64_t size : value.shape()) {
      const bool isKnown = !isWeight(value) || size >= 0;
      if (!isKnown || size < -kMaxDimension || size > kMaxDimension) {
        refuse(fmt::format("{} has a dimension of {}", printable(value.name()), size));
      }
    }
    if (!isWeight(value)) return;
    if (!names_.insert(value.name()).second) {
      refuse("it has " + printable(value.name()) + " twice");
    }
    weightElements_ += elementsPerSample(value);
    if (weightElements_ > kMaxWeightElements) refuse("its weights are too large");
    isDefined_[id] = true;
  }

  void checkCrosses(std::uint32_t id, const char* what) const {
    const wire::Value& value = this->value(id);
    const bool isTensor =
        value.kind() == wire::Value::RESULT && value.shape_size() <= kMaxRankAtCut;
    if (isTensor && isBatch(value)) return;
    refuse(fmt::format("{} is {}, not a tensor whose first dimension is the batch", what,
                       shapeText(value)));
  }

  void requireDefined(std::uint32_t id, const std::string& where) const {
    if (id < isDefined_.size() && isDefined_[id]) return;
    refuse(where + " uses a value that is not defined there");
  }

  void define(std::uint32_t id, const std::string& where) {
    const bool isNew = id < isDefined_.size() && !isDefined_[id] && !isWeight(value(id));
    if (!isNew) refuse(where + " redefines a value, or defines one that does not exist");
    isDefined_[id] = true;
  }

  static bool isSizeOperator(const std::string& op) {
    static const std::set<std::string> kNames = {
        "size.samples", "size.of",  "size.add",   "size.sub",     "size.mul",
        "size.div",     "size.mod", "size.neg",   "size.truediv", "size.pow",
        "size.min",     "size.max", "size.float", "size.numel"};
    return kNames.contains(op);
  }

  void checkNode(const wire::Node& node) {
    const std::string where = nodeText(node);
    if (node.name().size() > kMaxNameBytes || node.op().size() > kMaxNameBytes ||
        node.module().size() > kMaxNameBytes) {
      refuse("a name is longer than 512 bytes");
    }
    if (!nodeNames_.insert(node.name()).second) refuse("two nodes have the name " + where);
    const OperatorRow* const row = findOperator(node.op());
    if (row == nullptr && !isSizeOperator(node.op())) {
      refuse("the operator " + where + " is not allowed",
             "replace it in the model; docs/models.md lists the operators that are allowed");
    }
    for (const wire::Argument& argument : node.arguments()) checkArgument(argument, where);
    if (changesInPlace(node)) checkInPlace(node, where);
    for (const char* const name : {"sparse", "sparse_grad"}) {
      const wire::Argument* const sparse = findArgument(node, name);
      if (sparse == nullptr || !sparse->flag()) continue;
      refuse(where + " has sparse gradients", fmt::format("set {}=False in the model", name));
    }
    const bool makesSize = row == nullptr;
    for (const std::uint32_t id : node.outputs()) {
      define(id, where);
      if ((value(id).kind() == wire::Value::SIZE) != makesSize) {
        refuse(where + " makes a value of the wrong kind");
      }
    }
    if (node.outputs().empty()) refuse(where + " has no result");
  }

  void checkArgument(const wire::Argument& argument, const std::string& where) const {
    if (argument.name().size() > kMaxNameBytes) refuse("a name is longer than 512 bytes");
    const auto requireKind = [&](std::uint32_t id, bool isSize) {
      requireDefined(id, where);
      if ((value(id).kind() == wire::Value::SIZE) == isSize) return;
      refuse(where + " uses a size as a tensor, or a tensor as a size");
    };
    switch (argument.value_case()) {
      case wire::Argument::kTensor:
        requireKind(argument.tensor(), false);
        break;
      case wire::Argument::kSize:
        requireKind(argument.size(), true);
        break;
      case wire::Argument::kTensors:
        for (const std::uint32_t item : argument.tensors().items()) {
          if (item > 0) requireKind(item - 1, false);
        }
        break;
      case wire::Argument::kSizes:
        for (const wire::Size& item : argument.sizes().items()) {
          if (item.value_case() == wire::Size::kSize) requireKind(item.size(), true);
        }
        break;
      case wire::Argument::kDtype:
        if (findDtype(argument.dtype()) == nullptr) refuse(where + " has an unknown dtype");
        break;
      case wire::Argument::kMemoryFormat:
        if (std::ranges::find(kMemoryFormats, argument.memory_format()) == kMemoryFormats.end()) {
          refuse(where + " has an unknown memory format");
        }
        break;
      case wire::Argument::VALUE_NOT_SET:
        refuse(where + " has an argument without a value");
      default:
        break;
    }
  }

  // Weights may change only in an update. Operators may change inputs in place: GraphProgram copies
  // those inputs first.
  void checkInPlace(const wire::Node& node, const std::string& where) const {
    const wire::Argument* const self = node.arguments().empty() ? nullptr : &node.arguments(0);
    if (self == nullptr || self->value_case() != wire::Argument::kTensor) {
      refuse(where + " has no tensor to change");
    }
    const wire::Value& owner = value(owners_[self->tensor()]);
    if (!isWeight(owner)) return;
    refuse(
        fmt::format("{} changes {} in the forward pass", where, printable(owner.name())),
        "only batch norms may change a buffer: change the model so that this is computed again in "
        "each forward pass");
  }

  const wire::Graph& graph_;
  const std::string& source_;
  std::vector<bool> isDefined_;
  double weightElements_ = 0;
  std::set<std::string> names_;  // names of weights
  std::set<std::string> nodeNames_;
  GraphIds owners_;
};

bool isAlike(const wire::Value& a, const wire::Value& b) {
  return a.dtype() == b.dtype() && std::ranges::equal(a.shape(), b.shape());
}

void checkEvaluation(const wire::Graph& graph, const std::string& source) {
  const wire::Graph& evaluation = graph.evaluation();
  const std::string own = source + " in evaluation mode";
  if (evaluation.has_evaluation()) {
    throw UsageError("bad-graph", own + ": it has an evaluation graph of its own");
  }
  Check(evaluation, own).run();
  const auto areAlike = [&](const auto& ids, const auto& others) {
    return std::ranges::equal(ids, others, [&](std::uint32_t id, std::uint32_t other) {
      return isAlike(graph.values(static_cast<int>(id)),
                     evaluation.values(static_cast<int>(other)));
    });
  };
  if (!areAlike(graph.inputs(), evaluation.inputs()) ||
      !areAlike(graph.outputs(), evaluation.outputs())) {
    throw UsageError("bad-graph",
                     own + ": its inputs or outputs have other shapes than in training mode");
  }
  std::map<std::string_view, const wire::Value*> weights;
  for (const wire::Value& value : graph.values()) {
    if (isWeight(value)) weights.emplace(value.name(), &value);
  }
  for (const wire::Value& value : evaluation.values()) {
    if (!isWeight(value)) continue;
    const auto found = weights.find(value.name());
    if (found != weights.end() && found->second->kind() == value.kind() &&
        isAlike(*found->second, value)) {
      continue;
    }
    throw UsageError("bad-graph", own + ": " + printable(value.name()) +
                                      " is missing in training mode, or has another shape");
  }
}

}  // namespace

void checkGraph(const wire::Graph& graph, const std::string& source) {
  Check(graph, source).run();
  if (graph.has_evaluation()) checkEvaluation(graph, source);
}

GraphIds valuesReadBy(const wire::Node& node) {
  GraphIds ids;
  for (const wire::Argument& argument : node.arguments()) {
    switch (argument.value_case()) {
      case wire::Argument::kTensor:
        ids.push_back(argument.tensor());
        break;
      case wire::Argument::kSize:
        ids.push_back(argument.size());
        break;
      case wire::Argument::kTensors:
        for (const std::uint32_t item : argument.tensors().items()) {
          if (item > 0) ids.push_back(item - 1);
        }
        break;
      case wire::Argument::kSizes:
        for (const wire::Size& item : argument.sizes().items()) {
          if (item.value_case() == wire::Size::kSize) ids.push_back(item.size());
        }
        break;
      default:
        break;
    }
  }
  return ids;
}

void renumber(wire::Node& node, const std::function<std::uint32_t(std::uint32_t)>& newNumber) {
  for (wire::Argument& argument : *node.mutable_arguments()) {
    switch (argument.value_case()) {
      case wire::Argument::kTensor:
        argument.set_tensor(newNumber(argument.tensor()));
        break;
      case wire::Argument::kSize:
        argument.set_size(newNumber(argument.size()));
        break;
      case wire::Argument::kTensors:
        for (std::uint32_t& item : *argument.mutable_tensors()->mutable_items()) {
          if (item > 0) item = newNumber(item - 1) + 1;
        }
        break;
      case wire::Argument::kSizes:
        for (wire::Size& item : *argument.mutable_sizes()->mutable_items()) {
          if (item.value_case() == wire::Size::kSize) item.set_size(newNumber(item.size()));
        }
        break;
      default:
        break;
    }
  }
  for (std::uint32_t& output : *node.mutable_outputs()) output = newNumber(output);
}

void removeValues(wire::Graph& graph, const std::set<std::uint32_t>& ids) {
  GraphIds numbers;
  google::protobuf::RepeatedPtrField<wire::Value> kept;
  for (int id = 0; id < graph.values_size(); ++id) {
    numbers.push_back(static_cast<std::uint32_t>(kept.size()));
    if (!ids.contains(static_cast<std::uint32_t>(id))) *kept.Add() = graph.values(id);
  }
  graph.mutable_values()->Swap(&kept);
  const auto newNumber = [&](std::uint32_t id) { return numbers.at(id); };
  for (wire::Node& node : *graph.mutable_nodes()) renumber(node, newNumber);
  for (std::uint32_t& id : *graph.mutable_inputs()) id = newNumber(id);
  for (std::uint32_t& id : *graph.mutable_outputs()) id = newNumber(id);
}

void setEvaluation(wire::Graph& graph, wire::Graph evaluation) {
  std::set<std::string> names;
  for (const wire::Value& value : graph.values()) {
    if (isWeight(value)) names.insert(value.name());
  }
  for (const wire::Value& value : evaluation.values()) {
    if (isWeight(value) && !names.contains(value.name())) *graph.add_values() = value;
  }
  *graph.mutable_evaluation() = std::move(evaluation);
}

GraphIds weightsReadBetween(const wire::Graph& graph, std::size_t first, std::size_t last) {
  std::set<std::uint32_t> weights;
  for (std::size_t n = first; n < last; ++n) {
    for (const std::uint32_t id : valuesReadBy(graph.nodes(static_cast<int>(n)))) {
      if (isWeight(graph.values(static_cast<int>(id)))) weights.insert(id);
    }
  }
  return {weights.begin(), weights.end()};
}

bool changesInPlace(const wire::Node& node) {
  const OperatorRow* const row = findOperator(node.op());
  return row != nullptr && row->memory == ResultMemory::inPlace;
}

std::string nodeText(const wire::Node& node) {
  const std::string module =
      node.module().empty() ? "" : fmt::format(", in module '{}'", printable(node.module()));
  return fmt::format("{} ({}{})", printable(node.op()), printable(node.name()), module);
}

const wire::Argument* findArgument(const wire::Node& node, std::string_view name) {
  for (const wire::Argument& argument : node.arguments()) {
    if (argument.name() == name) return &argument;
  }
  return nullptr;
}

bool isWeight(const wire::Value& value) {
  return value.kind() == wire::Value::PARAMETER || value.kind() == wire::Value::BUFFER ||
         value.kind() == wire::Value::CONSTANT;
}

bool isFloatDtype(std::string_view dtype) {
  const DtypeRow* const row = findDtype(dtype);
  return row != nullptr && row->isFloat;
}

std::size_t graphDtypeBytes(std::string_view dtype) {
  const DtypeRow* const row = findDtype(dtype);
  return row == nullptr ? 0 : row->bytes;
}

double elementsPerSample(const wire::Value& value) {
  double elements = 1;
  for (const std::int64_t size : value.shape()) elements *= std::abs(static_cast<double>(size));
  return elements;
}

double bytesPerSample(const wire::Value& value) {
  return elementsPerSample(value) * static_cast<double>(graphDtypeBytes(value.dtype()));
}

bool isBatch(const wire::Value& value) {
  return value.shape_size() > 0 && value.shape(0) == -1 &&
         std::all_of(value.shape().begin() + 1, value.shape().end(),
                     [](std::int64_t size) { return size > 0; });
}

namespace {

// The argument whose memory the node's results may have; null: they have memory of their own.
const wire::Argument* sharedArgument(const wire::Node& node) {
  const OperatorRow* const row = findOperator(node.op());
  if (row == nullptr || node.arguments().empty()) return nullptr;
  if (row->memory != ResultMemory::own) return &node.arguments(0);
  // With one tensor, such as 'ij->ji', einsum returns a view.
  if (node.op() != "aten.einsum.default") return nullptr;
  const wire::Argument* const tensors = findArgument(node, "tensors");
  return tensors != nullptr && tensors->tensors().items_size() == 1 ? tensors : nullptr;
}

}  // namespace

GraphIds memoryOwners(const wire::Graph& graph) {
  GraphIds owners(static_cast<std::size_t>(graph.values_size()));
  for (std::uint32_t id = 0; id < owners.size(); ++id) owners[id] = id;
  for (const wire::Node& node : graph.nodes()) {
    const wire::Argument* const shared = sharedArgument(node);
    if (shared == nullptr) continue;
    for (int n = 0; n < node.outputs_size(); ++n) {
      // The results of an operator on a list, such as broadcast_tensors, share the list's memory.
      std::uint32_t owner = shared->tensor();
      if (shared->value_case() == wire::Argument::kTensors && n < shared->tensors().items_size()) {
        owner = shared->tensors().items(n) - 1;
      } else if (shared->value_case() != wire::Argument::kTensor) {
        continue;
      }
      const std::uint32_t output = node.outputs(n);
      if (output < owners.size() && owner < owners.size()) owners[output] = owners[owner];
    }
  }
  return owners;
}

std::string shapeText(const wire::Value& value) {
  std::string text;
  for (const std::int64_t size : value.shape()) {
    text += text.empty() ? "[" : ", ";
    text += size == -1 ? "samples"
            : size < 0 ? fmt::format("{} x samples", -size)
                       : std::to_string(size);
  }
  return text.empty() ? "a number" : text + "]";
}

}  // namespace cleave
