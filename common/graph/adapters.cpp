#include "common/graph/adapters.h"

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <set>

#include "common/core/names.h"

namespace cleave {
namespace {

constexpr std::string_view kA = ".lora_A.weight", kB = ".lora_B.weight", kWeight = ".weight";

// A linear operator with a parameter as its weight.
struct Linear {
  std::string module;
  std::uint32_t input = 0;
  std::int64_t inputs = 0, outputs = 0;  // features
  bool inputsFirst = false;              // in the weight's shape
};

const wire::Argument* tensorArgument(const wire::Node& node, std::string_view name) {
  const wire::Argument* const argument = findArgument(node, name);
  const bool isTensor = argument != nullptr && argument->value_case() == wire::Argument::kTensor;
  return isTensor ? argument : nullptr;
}

std::optional<Linear> linearOf(const wire::Graph& graph, const wire::Node& node) {
  const bool isLinear = node.op() == "aten.linear.default";
  if (!isLinear && node.op() != "aten.addmm.default") return std::nullopt;
  const auto* const input = tensorArgument(node, isLinear ? "input" : "mat1");
  const auto* const weight = tensorArgument(node, isLinear ? "weight" : "mat2");
  if (input == nullptr || weight == nullptr) return std::nullopt;
  const wire::Value& value = graph.values(static_cast<int>(weight->tensor()));
  const std::string& name = value.name();
  if (value.kind() != wire::Value::PARAMETER || !name.ends_with(kWeight)) return std::nullopt;
  if (value.shape_size() != 2 || value.dtype() != "f32") return std::nullopt;
  // aten.linear multiplies by the transpose of the weight.
  return Linear{name.substr(0, name.size() - kWeight.size()), input->tensor(),
                value.shape(isLinear ? 1 : 0), value.shape(isLinear ? 0 : 1), !isLinear};
}

// Appends values and nodes to a graph.
class Builder {
 public:
  Builder(wire::Graph& graph, const LoraSpec& spec) : graph_(graph), spec_(spec) {}

  // Appends the nodes of an adapter after `base`, and returns the value that replaces the result of
  // `base`.
  std::uint32_t append(const Linear& linear, const wire::Node& base) {
    const wire::Value result = graph_.values(static_cast<int>(base.outputs(0)));
    wire::Value narrow = result;
    narrow.set_shape(narrow.shape_size() - 1, spec_.rank);
    wire::Value input = graph_.values(static_cast<int>(linear.input));
    // With dropout, the adapter's input is the dropout's result.
    input.set_kind(wire::Value::RESULT);
    input.clear_name();
    std::uint32_t x = linear.input;
    if (spec_.dropout > 0) {
      wire::Node& node = add("aten.dropout.default", "dropout", base);
      tensor(node, "input", x);
      argument(node, "p").set_number(spec_.dropout);
      argument(node, "train").set_flag(true);
      x = output(node, input);
    }
    wire::Node& down = add("aten.linear.default", "a", base);
    tensor(down, "input", x);
    tensor(down, "weight", parameter(linear.module, kA, {spec_.rank, linear.inputs}));
    x = output(down, narrow);
    wire::Node& up = add("aten.linear.default", "b", base);
    tensor(up, "input", x);
    tensor(up, "weight", parameter(linear.module, kB, {linear.outputs, spec_.rank}));
    x = output(up, result);
    wire::Node& scaled = add("aten.mul.Tensor", "scaled", base);
    tensor(scaled, "self", x);
    argument(scaled, "other").set_number(spec_.scale());
    x = output(scaled, result);
    wire::Node& sum = add("aten.add.Tensor", "sum", base);
    tensor(sum, "self", base.outputs(0));
    tensor(sum, "other", x);
    return output(sum, result);
  }

 private:
  wire::Node& add(const std::string& op, const std::string& suffix, const wire::Node& base) {
    wire::Node& node = *graph_.add_nodes();
    node.set_op(op);
    node.set_name(base.name() + ".lora_" + suffix);
    node.set_module(base.module());
    node.set_no_grad(base.no_grad());
    node.set_no_autocast(base.no_autocast());
    return node;
  }
  static wire::Argument& argument(wire::Node& node, const std::string& name) {
    wire::Argument& argument = *node.add_arguments();
    argument.set_name(name);
    return argument;
  }
  static void tensor(wire::Node& node, const std::string& name, std::uint32_t id) {
    argument(node, name).set_tensor(id);
  }
  std::uint32_t output(wire::Node& node, const wire::Value& like) {
    const auto id = static_cast<std::uint32_t>(graph_.values_size());
    *graph_.add_values() = like;
    node.add_outputs(id);
    return id;
  }
  // Returns the module's parameter, and adds it at the first call for that module.
  std::uint32_t parameter(const std::string& module, std::string_view suffix,
                          const std::vector<std::int64_t>& shape) {
    const std::string name = module + std::string(suffix);
    const auto [entry, isNew] = parameters_.try_emplace(name, graph_.values_size());
    if (isNew) {
      wire::Value& value = *graph_.add_values();
      value.set_kind(wire::Value::PARAMETER);
      value.set_name(name);
      value.set_dtype("f32");
      value.mutable_shape()->Add(shape.begin(), shape.end());
      value.set_trainable(true);
    }
    return entry->second;
  }

  wire::Graph& graph_;
  const LoraSpec& spec_;
  std::map<std::string, std::uint32_t> parameters_;
};

// Adds adapters to the linear operators of modules for which `adapts` is true.
std::vector<std::string> addAdaptersTo(wire::Graph& graph, const LoraSpec& spec,
                                       const std::function<bool(const std::string&)>& adapts) {
  const wire::Graph before = graph;
  graph.clear_nodes();
  graph.clear_outputs();
  Builder builder(graph, spec);
  // Maps a result to the value that later nodes read instead.
  std::map<std::uint32_t, std::uint32_t> replaced;
  const auto current = [&](std::uint32_t id) {
    const auto found = replaced.find(id);
    return found == replaced.end() ? id : found->second;
  };
  std::vector<std::string> adapted;
  for (const wire::Node& old : before.nodes()) {
    wire::Node node = old;
    renumber(node, current);
    *graph.add_nodes() = node;
    auto linear = linearOf(graph, node);
    if (!linear || !adapts(linear->module)) continue;
    replaced[old.outputs(0)] = builder.append(*linear, node);
    if (std::find(adapted.begin(), adapted.end(), linear->module) == adapted.end()) {
      adapted.push_back(linear->module);
    }
  }
  for (const std::uint32_t id : before.outputs()) graph.add_outputs(current(id));
  return adapted;
}

}  // namespace

bool isAdapterA(std::string_view parameter) { return parameter.ends_with(kA); }

bool isAdapter(std::string_view parameter) {
  return isAdapterA(parameter) || parameter.ends_with(kB);
}

bool isTarget(const LoraSpec& spec, std::string_view module) {
  return std::any_of(spec.targets.begin(), spec.targets.end(), [&](const std::string& target) {
    return matchesPattern(module, target) || matchesPattern(module, "*." + target);
  });
}

std::vector<LinearModule> linearModules(const wire::Graph& graph) {
  std::vector<LinearModule> modules;
  for (const wire::Node& node : graph.nodes()) {
    const auto linear = linearOf(graph, node);
    if (!linear) continue;
    const bool isKnown = std::any_of(modules.begin(), modules.end(),
                                     [&](const auto& each) { return each.name == linear->module; });
    if (!isKnown) modules.push_back({linear->module, linear->inputsFirst});
  }
  return modules;
}

std::set<std::string> modulesReadOtherwise(const wire::Graph& graph) {
  std::set<std::string> modules;
  for (const wire::Node& node : graph.nodes()) {
    if (linearOf(graph, node)) continue;
    wire::Node copy = node;
    renumber(copy, [&](std::uint32_t id) {
      const std::string& name = graph.values(static_cast<int>(id)).name();
      if (name.ends_with(kWeight)) modules.insert(name.substr(0, name.size() - kWeight.size()));
      return id;
    });
  }
  if (graph.has_evaluation()) modules.merge(modulesReadOtherwise(graph.evaluation()));
  return modules;
}

std::vector<std::string> addAdapters(wire::Graph& graph, const LoraSpec& spec) {
  std::vector<std::string> adapted =
      addAdaptersTo(graph, spec, [&](const std::string& module) { return isTarget(spec, module); });
  if (!graph.has_evaluation()) return adapted;
  LoraSpec inEvaluation = spec;
  inEvaluation.dropout = 0;
  addAdaptersTo(*graph.mutable_evaluation(), inEvaluation, [&](const std::string& module) {
    return std::ranges::find(adapted, module) != adapted.end();
  });
  return adapted;
}

}  // namespace cleave
