#include "common/graph/export_reader.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "common/core/printable.h"
#include "common/graph/operators.h"

namespace cleave {
namespace {

using Json = nlohmann::json;

constexpr int kSchemaMajor = 8;
constexpr std::string_view kOperatorPrefix = "torch.ops.";

constexpr const char* kExportAgain = "export the model again with cleave_split.export";

UsageError badFile(const std::string& source, const std::string& sentence,
                   const std::string& hint = kExportAgain) {
  return UsageError("bad-model-file", source + ": " + sentence, hint);
}

Json parse(std::string_view text, const std::string& source) {
  try {
    return Json::parse(text);
  } catch (const Json::exception&) {
    throw badFile(source, "one of its JSON files cannot be parsed");
  }
}

// Converts a dtype number of torch.export's schema, which differs from LibTorch's numbers.
std::string dtypeOf(const Json& number) {
  static const std::map<int, std::string> kNames = {
      {1, "u8"},  {2, "i8"},  {3, "i16"}, {4, "i32"},   {5, "i64"},
      {6, "f16"}, {7, "f32"}, {8, "f64"}, {12, "bool"}, {13, "bf16"}};
  const auto found = kNames.find(number.get<int>());
  return found == kNames.end() ? "dtype " + std::to_string(number.get<int>()) : found->second;
}

bool isComplex(const Json& number) {
  constexpr int kComplexHalf = 9, kComplexDouble = 11;
  const int dtype = number.get<int>();
  return dtype >= kComplexHalf && dtype <= kComplexDouble;
}

std::string memoryFormatOf(const Json& number) {
  constexpr std::array kNames = {"", "contiguous", "channels_last", "channels_last_3d", "preserve"};
  return kNames.at(number.get<std::size_t>());
}

// The file stores infinity and NaN as strings.
double numberOf(const Json& value) {
  if (!value.is_string()) return value.get<double>();
  const auto text = value.get<std::string>();
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  return text == "Infinity"    ? kInfinity
         : text == "-Infinity" ? -kInfinity
                               : std::numeric_limits<double>::quiet_NaN();
}

// The only member of an object such as {"as_tensor": {…}}.
std::pair<std::string, const Json&> onlyMember(const Json& object) {
  if (object.size() != 1) throw std::out_of_range("not one member");
  return {object.begin().key(), object.begin().value()};
}

// The innermost module of "L__self__,,Model;L__self___conv,conv,Conv2d": "conv".
std::string moduleOf(const Json& node) {
  const std::string stack = node.at("metadata").value("nn_module_stack", "");
  const std::string last = stack.substr(stack.rfind(';') + 1);
  const auto first = last.find(',');
  if (first == std::string::npos) return "";
  const auto second = last.find(',', first + 1);
  return last.substr(first + 1, second - first - 1);
}

// The last line of a trace: for 'File "/home/a/net.py", line 7, in forward\n    return x.T',
// returns 'net.py:7: return x.T'.
std::string lineOf(const std::string& trace) {
  constexpr std::string_view kFile = "File \"", kLine = "\", line ";
  const std::size_t file = trace.rfind(kFile);
  const std::size_t line = file == std::string::npos ? file : trace.find(kLine, file);
  if (line == std::string::npos) return "";
  const std::string path = trace.substr(file + kFile.size(), line - file - kFile.size());
  const std::size_t number = line + kLine.size();
  const std::string digits =
      trace.substr(number, trace.find_first_not_of("0123456789", number) - number);
  std::size_t code = trace.find('\n', number);
  code = code == std::string::npos ? code : trace.find_first_not_of(" \n", code);
  const std::string text =
      code == std::string::npos ? "" : ": " + trace.substr(code, trace.find('\n', code) - code);
  return path.substr(path.rfind('/') + 1) + ":" + digits + text;
}

void checkWithHint(const wire::Graph& graph, const std::string& source) {
  try {
    checkGraph(graph, source);
  } catch (const UsageError& error) {
    if (!error.hint().empty()) throw;
    throw UsageError(error, error.what(), kExportAgain);
  }
}

class Reader {
 public:
  Reader(const Json& file, const std::string& source) : file_(file), source_(source) {}

  ExportedGraph read() {
    const Json& module = file_.at("graph_module");
    const Json& graph = module.at("graph");
    values_ = &graph.at("tensor_values");
    sizes_ = &graph.at("sym_int_values");
    readInputs(module.at("signature").at("input_specs"));
    Scope outermost;
    for (const Json& node : graph.at("nodes")) readNode(node, "", outermost);
    readOutput(module.at("signature").at("output_specs"), graph.at("outputs"));
    result_.torchVersion = file_.value("torch_version", "");
    checkWithHint(result_.graph, source_);
    return std::move(result_);
  }

 private:
  // The context of the nodes of an inner graph.
  struct Scope {
    bool noGrad = false;
    bool noAutocast = false;
    std::map<std::string, std::uint32_t> ids;  // values by name in an inner graph
    const Json* values = nullptr;              // null: the values of the outermost graph
  };

  wire::Graph& graph() { return result_.graph; }

  // ---- Values ----

  // The batch is the first dimension of the first input.
  void readBatch(const Json& value) {
    const Json& sizes = value.at("sizes");
    const bool isDynamic = !sizes.empty() && sizes.at(0).contains("as_expr");
    if (!isDynamic) {
      throw badFile(source_, "the first dimension of its input has a fixed size",
                    "export the model with cleave_split.export, which makes the number of samples "
                    "dynamic");
    }
    const Json& expression = sizes.at(0).at("as_expr");
    batch_ = expression.at("expr_str");
    batchExample_ = expression.at("hint").at("as_int");
  }

  std::int64_t dimensionOf(const Json& size) const {
    const auto [kind, content] = onlyMember(size);
    if (kind == "as_int") return content.get<std::int64_t>();
    if (content.at("expr_str") == batch_) return -1;
    // Other expressions become a multiple of the batch, for memory estimates. A tensor with such a
    // dimension cannot cross a cut.
    const auto example = content.at("hint").at("as_int").get<std::int64_t>();
    return -std::max<std::int64_t>(2, example / std::max<std::int64_t>(1, batchExample_));
  }

  std::uint32_t add(wire::Value::Kind kind, const std::string& name, const Json* meta) {
    wire::Value& value = *graph().add_values();
    value.set_kind(kind);
    value.set_name(name);
    if (meta != nullptr) {
      value.set_dtype(dtypeOf(meta->at("dtype")));
      for (const Json& size : meta->at("sizes")) value.add_shape(dimensionOf(size));
      value.set_trainable(kind == wire::Value::PARAMETER && meta->at("requires_grad").get<bool>());
    }
    return static_cast<std::uint32_t>(graph().values_size() - 1);
  }

  std::map<std::string, std::uint32_t>& idsIn(Scope& scope) {
    return scope.values != nullptr ? scope.ids : ids_;
  }

  std::uint32_t idOf(const std::string& name, const Scope& scope) const {
    const auto found = scope.ids.find(name);
    return found != scope.ids.end() ? found->second : ids_.at(name);
  }

  void readInputs(const Json& specs) {
    for (const Json& spec : specs) {
      const auto [kind, content] = onlyMember(spec);
      if (kind == "user_input") readUserInput(content.at("arg"));
      if (kind == "parameter") {
        readWeight(content, wire::Value::PARAMETER, "parameter_name");
      } else if (kind == "buffer") {
        const bool isSaved = content.value("persistent", true);
        readWeight(content, isSaved ? wire::Value::BUFFER : wire::Value::CONSTANT, "buffer_name");
      } else if (kind == "tensor_constant") {
        readWeight(content, wire::Value::CONSTANT, "tensor_constant_name");
      } else if (kind != "user_input" && kind != "constant_input") {
        throw badFile(source_, "it has an input of the kind " + kind,
                      "export a model whose forward function takes only tensors");
      }
    }
    if (batch_.empty()) throw badFile(source_, "the model has no input");
  }

  void readUserInput(const Json& argument) {
    if (!argument.contains("as_tensor")) return;  // a constant of the example
    const std::string name = argument.at("as_tensor").at("name");
    const Json& meta = values_->at(name);
    if (batch_.empty()) readBatch(meta);
    ids_[name] = add(wire::Value::RESULT, name, &meta);
    graph().add_inputs(ids_[name]);
    result_.inputNames.push_back(name);
  }

  void readWeight(const Json& content, wire::Value::Kind kind, const char* nameKey) {
    const std::string name = content.at("arg").at("name");
    ids_[name] = add(kind, content.at(nameKey), &values_->at(name));
  }

  void readOutput(const Json& specs, const Json& outputs) {
    std::vector<std::string> names;
    for (std::size_t o = 0; o < specs.size(); ++o) {
      const auto [kind, content] = onlyMember(specs.at(o));
      const bool isTensor = kind == "user_output" && outputs.at(o).contains("as_tensor");
      if (isTensor) names.push_back(outputs.at(o).at("as_tensor").at("name"));
    }
    if (names.size() != 1 || specs.size() != 1) {
      throw badFile(source_,
                    fmt::format("the model returns {} values, not one tensor", specs.size()),
                    "name the one to train on: cleave_split.export(…, output=\"logits\")");
    }
    graph().add_outputs(ids_.at(names.front()));
  }

  // ---- Nodes ----

  static bool isAssertion(const std::string& op) {
    return op.find("._assert") != std::string::npos ||
           op.find(".sym_constrain_range") != std::string::npos;
  }

  void readNode(const Json& json, const std::string& prefix, Scope& scope) {
    const std::string target = json.at("target");
    constexpr std::string_view kHigherOrder = "torch.ops.higher_order.";
    if (target.starts_with(kHigherOrder)) {
      return readRegion(json, target.substr(kHigherOrder.size()), prefix, scope);
    }
    if (isAssertion(target)) return;
    wire::Node node;
    node.set_name(prefix + nameOf(json));
    node.set_module(moduleOf(json));
    node.set_no_grad(scope.noGrad);
    node.set_no_autocast(scope.noAutocast);
    const bool isSize = target.starts_with("_operator.") || target.starts_with("torch.sym_") ||
                        target.starts_with("torch.ops.aten.sym_");
    if (isSize) {
      readSizeNode(json, target, node, scope);
    } else if (target.starts_with(kOperatorPrefix)) {
      node.set_op(target.substr(kOperatorPrefix.size()));
      if (findOperator(node.op()) == nullptr) refuseForeignOperator(json, node);
      for (const Json& input : json.at("inputs")) readArgument(input, node, scope);
      if (countsBatches(node)) return;
      if (node.op() == "aten.batch_norm.default") addBatchCount(node);
    } else {
      throw badFile(source_,
                    "it calls " + printable(target) + ", which is not an operator of PyTorch");
    }
    readResults(json, node, scope);
    *graph().add_nodes() = std::move(node);
  }

  // Names the line of the model's code, which files of torch.export.save have and those of
  // cleave_split.export do not: cleave_split.export refuses such operators itself.
  void refuseForeignOperator(const Json& json, const wire::Node& node) const {
    const std::string line = lineOf(json.at("metadata").value("stack_trace", ""));
    throw UsageError(
        "bad-graph",
        fmt::format("{}: the operator {} is not allowed{}", source_, nodeText(node),
                    line.empty() ? "" : ", at " + printable(line)),
        "replace it in the model; docs/models.md lists the operators that are allowed");
  }

  static std::string nameOf(const Json& json) {
    if (json.contains("name") && json.at("name").is_string()) return json.at("name");
    const auto [kind, content] = onlyMember(json.at("outputs").at(0));
    if (kind == "as_tensors") return content.at(0).at("name").get<std::string>();
    return content.at(kind == "as_tensor" ? "name" : "as_name").get<std::string>();
  }

  // The nodes of torch.no_grad() and of a disabled torch.autocast(), which are inner graphs.
  void readRegion(const Json& json, const std::string& kind, const std::string& prefix,
                  Scope& outer) {
    const bool isGrad = kind == "wrap_with_set_grad_enabled";
    if (!isGrad && kind != "wrap_with_autocast") {
      throw badFile(source_, "it has the higher-order operator " + printable(kind),
                    "remove the call that makes it, such as torch.cond or torch.utils.checkpoint, "
                    "from the model");
    }
    const Json& inputs = json.at("inputs");
    const bool isEnabled = inputs.at(isGrad ? 0 : 2).at("arg").at("as_bool");
    if (isEnabled && !isGrad) {
      throw badFile(source_, "its forward function uses torch.autocast",
                    "remove it from the model, and set precision.client instead");
    }
    const std::size_t graphAt = isGrad ? 1 : 4;
    const Json& inner = inputs.at(graphAt).at("arg").at("as_graph").at("graph");
    Scope scope;
    scope.noGrad = isGrad ? !isEnabled : outer.noGrad;
    scope.noAutocast = outer.noAutocast || !isGrad;
    scope.values = &inner.at("tensor_values");
    for (std::size_t i = 0; i < inner.at("inputs").size(); ++i) {
      const auto& [innerKind, name] = onlyMember(inner.at("inputs").at(i));
      const auto& [outerKind, value] = onlyMember(inputs.at(graphAt + 1 + i).at("arg"));
      if (innerKind != "as_tensor") continue;
      scope.ids[name.at("name")] = idOf(value.at("name"), outer);
    }
    const std::string innerPrefix = prefix + nameOf(json) + ".";
    for (const Json& node : inner.at("nodes")) readNode(node, innerPrefix, scope);
    const Json& outputs = json.at("outputs");
    std::vector<std::string> names;
    for (const Json& output : outputs) {
      const auto& [outputKind, value] = onlyMember(output);
      if (outputKind == "as_tensors") {
        for (const Json& each : value) names.push_back(each.at("name"));
      } else {
        names.push_back(value.at("name"));
      }
    }
    for (std::size_t o = 0; o < names.size(); ++o) {
      const std::string result = inner.at("outputs").at(o).at("as_tensor").at("name");
      idsIn(outer)[names[o]] = idOf(result, scope);
    }
  }

  void readSizeNode(const Json& json, const std::string& target, wire::Node& node,
                    const Scope& scope) {
    static const std::map<std::string, std::string> kNames = {
        {"_operator.add", "size.add"},
        {"_operator.sub", "size.sub"},
        {"_operator.mul", "size.mul"},
        {"_operator.floordiv", "size.div"},
        {"_operator.mod", "size.mod"},
        {"_operator.neg", "size.neg"},
        {"_operator.truediv", "size.truediv"},
        {"_operator.pow", "size.pow"},
        {"torch.sym_min", "size.min"},
        {"torch.sym_max", "size.max"},
        {"torch.sym_float", "size.float"},
        {"torch.ops.aten.sym_numel.default", "size.numel"},
        {"torch.ops.aten.sym_size.int", "size.of"}};
    const auto found = kNames.find(target);
    if (found == kNames.end()) {
      throw badFile(source_, "it calls " + printable(target) + " on a size",
                    "remove the condition on a tensor's size from the model");
    }
    const auto [kind, name] = onlyMember(json.at("outputs").at(0));
    if (kind == "as_sym_int" && sizes_->contains(name.value("as_name", ""))) {
      const Json& size = sizes_->at(name.at("as_name").get<std::string>());
      if (size.contains("as_expr") && size.at("as_expr").at("expr_str") == batch_) {
        node.set_op("size.samples");
        return;
      }
    }
    node.set_op(found->second);
    for (const Json& input : json.at("inputs")) readArgument(input, node, scope);
  }

  // Whether the node counts the batches of a batch norm. Such nodes are left out, because Update
  // counts them (addBatchCount()).
  bool countsBatches(const wire::Node& node) {
    if (node.op() != "aten.add_.Tensor") return false;
    if (node.arguments().empty() || node.arguments(0).value_case() != wire::Argument::kTensor) {
      return false;
    }
    const wire::Value& value = graph().values(static_cast<int>(node.arguments(0).tensor()));
    return isWeight(value) && value.name().ends_with("num_batches_tracked");
  }

  // Adds the buffer that counts batches to a batch norm's arguments.
  void addBatchCount(wire::Node& node) {
    const wire::Argument* const mean = findArgument(node, "running_mean");
    if (mean == nullptr || mean->value_case() != wire::Argument::kTensor) return;
    constexpr std::string_view kSuffix = "running_mean";
    std::string name = graph().values(static_cast<int>(mean->tensor())).name();
    if (!name.ends_with(kSuffix)) return;
    name.replace(name.size() - kSuffix.size(), kSuffix.size(), "num_batches_tracked");
    for (int id = 0; id < graph().values_size(); ++id) {
      const wire::Value& value = graph().values(id);
      if (!isWeight(value) || value.name() != name) continue;
      wire::Argument& argument = *node.add_arguments();
      argument.set_name("num_batches_tracked");
      argument.set_tensor(static_cast<std::uint32_t>(id));
    }
  }

  void readResults(const Json& json, wire::Node& node, Scope& scope) {
    const auto make = [&](const std::string& name, bool isSize) {
      const Json& values = scope.values != nullptr ? *scope.values : *values_;
      if (!isSize) checkResult(node, values.at(name));
      const std::uint32_t id = isSize ? add(wire::Value::SIZE, "", nullptr)
                                      : add(wire::Value::RESULT, "", &values.at(name));
      idsIn(scope)[name] = id;
      node.add_outputs(id);
    };
    for (const Json& output : json.at("outputs")) {
      const auto [kind, content] = onlyMember(output);
      if (kind == "as_tensor") {
        make(content.at("name"), false);
      } else if (kind == "as_tensors") {
        node.set_is_list(true);
        for (const Json& each : content) make(each.at("name"), false);
      } else if (kind == "as_sym_int" ||
                 (kind == "as_sym_float" && node.op().starts_with("size."))) {
        make(content.at("as_name"), true);
      } else {
        throw badFile(source_, nodeText(node) + " reads the value of a tensor",
                      "remove calls such as .item(), and conditions on tensors, from the model");
      }
    }
  }

  void checkResult(const wire::Node& node, const Json& meta) const {
    if (isComplex(meta.at("dtype"))) {
      throw badFile(source_, nodeText(node) + " makes complex numbers, which are not supported",
                    "compute with the real and the imaginary part as separate tensors");
    }
    for (const Json& size : meta.at("sizes")) {
      if (!size.contains("as_expr") || !size.at("as_expr").at("hint").is_null()) continue;
      throw badFile(source_, nodeText(node) + " makes a tensor whose size depends on values",
                    "replace it in the model, for example by a product with a mask");
    }
  }

  // ---- Arguments ----

  void readArgument(const Json& input, wire::Node& node, const Scope& scope) {
    const auto [kind, content] = onlyMember(input.at("arg"));
    // Device and layout are chosen on this machine, not by the exporter.
    if (kind == "as_device" || kind == "as_layout" || input.at("name") == "pin_memory" ||
        input.at("name") == "cudnn_enabled") {
      return;
    }
    wire::Argument& argument = *node.add_arguments();
    argument.set_name(input.at("name"));
    // The table of an embedding gets the same gradient, dense: updates, codecs and checkpoints are
    // of dense tensors.
    if (argument.name() == "sparse") return argument.set_flag(false);
    if (!readSingle(kind, content, argument, scope) && !readList(kind, content, argument, scope)) {
      throw badFile(source_, fmt::format("{} ({}) has an argument of the kind {}",
                                         printable(node.op()), printable(node.name()), kind));
    }
  }

  bool readSingle(const std::string& kind, const Json& content, wire::Argument& argument,
                  const Scope& scope) {
    if (kind == "as_none") {
      argument.set_none(true);
    } else if (kind == "as_int") {
      argument.set_integer(content.get<std::int64_t>());
    } else if (kind == "as_float") {
      argument.set_number(numberOf(content));
    } else if (kind == "as_bool") {
      argument.set_flag(content.get<bool>());
    } else if (kind == "as_string") {
      argument.set_text(content.get<std::string>());
    } else if (kind == "as_scalar_type") {
      argument.set_dtype(dtypeOf(content));
    } else if (kind == "as_memory_format") {
      argument.set_memory_format(memoryFormatOf(content));
    } else if (kind == "as_tensor") {
      argument.set_tensor(idOf(content.at("name"), scope));
    } else if (kind == "as_optional_tensor") {
      if (content.contains("as_tensor")) {
        argument.set_tensor(idOf(content.at("as_tensor").at("name"), scope));
      } else {
        argument.set_none(true);
      }
    } else if (kind == "as_sym_int" || kind == "as_sym_float") {
      if (content.contains("as_name")) {
        argument.set_size(idOf(content.at("as_name"), scope));
      } else if (content.contains("as_float")) {
        argument.set_number(numberOf(content.at("as_float")));
      } else {
        argument.set_integer(content.at("as_int").get<std::int64_t>());
      }
    } else {
      return false;
    }
    return true;
  }

  bool readList(const std::string& kind, const Json& content, wire::Argument& argument,
                const Scope& scope) {
    if (kind == "as_ints" || kind == "as_sym_ints") {
      wire::Sizes& sizes = *argument.mutable_sizes();
      for (const Json& each : content) {
        wire::Size& size = *sizes.add_items();
        if (each.is_number()) {
          size.set_integer(each.get<std::int64_t>());
        } else if (each.contains("as_name")) {
          size.set_size(idOf(each.at("as_name"), scope));
        } else {
          size.set_integer(each.at("as_int").get<std::int64_t>());
        }
      }
    } else if (kind == "as_floats") {
      wire::Numbers& numbers = *argument.mutable_numbers();
      for (const Json& each : content) numbers.add_items(numberOf(each));
    } else if (kind == "as_bools") {
      wire::Flags& flags = *argument.mutable_flags();
      for (const Json& each : content) flags.add_items(each.get<bool>());
    } else if (kind == "as_tensors") {
      wire::Tensors& tensors = *argument.mutable_tensors();
      for (const Json& each : content) tensors.add_items(idOf(each.at("name"), scope) + 1);
    } else if (kind == "as_optional_tensors") {
      wire::Tensors& tensors = *argument.mutable_tensors();
      tensors.set_optional(true);
      for (const Json& each : content) {
        tensors.add_items(
            each.contains("as_tensor") ? idOf(each.at("as_tensor").at("name"), scope) + 1 : 0);
      }
    } else {
      return false;
    }
    return true;
  }

  const Json& file_;
  const std::string& source_;
  ExportedGraph result_;
  const Json* values_ = nullptr;
  const Json* sizes_ = nullptr;
  std::string batch_;  // the expression of the batch's size
  std::int64_t batchExample_ = 1;
  std::map<std::string, std::uint32_t> ids_;  // by name in the outermost graph
};

// Calls `read`. If the file does not have the expected structure, throws an error that names it.
template <typename Read>
auto withFile(const std::string& source, Read read) {
  try {
    return read();
  } catch (const Json::exception& error) {
    throw badFile(source,
                  std::string("its content is not what torch.export writes: ") + error.what());
  } catch (const std::out_of_range&) {
    throw badFile(source, "its content is not what torch.export writes");
  }
}

}  // namespace

ExportedGraph readExportedGraph(std::string_view text, const std::string& source) {
  const Json file = parse(text, source);
  return withFile(source, [&] {
    const auto major = file.at("schema_version").at("major").get<int>();
    if (major != kSchemaMajor) {
      throw badFile(source, fmt::format("its schema version is {}, not {}", major, kSchemaMajor),
                    "export it with PyTorch 2.9 or later");
    }
    return Reader(file, source).read();
  });
}

void addEvaluation(ExportedGraph& exported, ExportedGraph evaluation, const std::string& source) {
  if (exported.inputNames != evaluation.inputNames) {
    throw badFile(source, "its evaluation graph has other inputs");
  }
  setEvaluation(exported.graph, std::move(evaluation.graph));
  checkWithHint(exported.graph, source);
}

std::map<std::string, ExportedWeight> readExportedWeights(std::string_view text,
                                                          const std::string& folder,
                                                          const std::string& source) {
  const Json file = parse(text, source);
  return withFile(source, [&] {
    std::map<std::string, ExportedWeight> weights;
    for (const auto& [name, entry] : file.at("config").items()) {
      if (entry.at("use_pickle").get<bool>()) {
        throw badFile(source,
                      "the weight " + printable(name) + " is pickled, and pickles are not read",
                      "replace it in the model with an ordinary tensor");
      }
      const Json& meta = entry.at("tensor_meta");
      ExportedWeight& weight = weights[name];
      weight.record = folder + "/" + entry.at("path_name").get<std::string>();
      weight.dtype = dtypeOf(meta.at("dtype"));
      for (const Json& size : meta.at("sizes")) weight.shape.push_back(size.at("as_int"));
      for (const Json& stride : meta.at("strides")) weight.strides.push_back(stride.at("as_int"));
      weight.offset = meta.at("storage_offset").at("as_int");
    }
    return weights;
  });
}

}  // namespace cleave
