#include "common/model/graph_program.h"

#include <ATen/Context.h>
#include <ATen/ScalarOps.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros_like.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "common/core/printable.h"
#include "common/core/random.h"
#include "common/graph/adapters.h"
#include "common/graph/operators.h"
#include "common/model/operator_checks.h"
#include "common/model/operator_note.h"
#include "common/model/operator_preconditions.h"

namespace cleave {
namespace {

using c10::IValue;
using c10::TypeKind;

constexpr std::array<std::pair<std::string_view, at::ScalarType>, 10> kScalarTypes = {
    {{"bf16", at::kBFloat16},
     {"bool", at::kBool},
     {"f16", at::kHalf},
     {"f32", at::kFloat},
     {"f64", at::kDouble},
     {"i16", at::kShort},
     {"i32", at::kInt},
     {"i64", at::kLong},
     {"i8", at::kChar},
     {"u8", at::kByte}}};

at::ScalarType scalarTypeNamed(std::string_view name) {
  for (const auto& [known, type] : kScalarTypes) {
    if (known == name) return type;
  }
  throw UsageError("bad-graph", "the graph has the unknown dtype " + printable(name));
}

at::MemoryFormat memoryFormatNamed(const std::string& name) {
  if (name == "channels_last") return at::MemoryFormat::ChannelsLast;
  if (name == "channels_last_3d") return at::MemoryFormat::ChannelsLast3d;
  if (name == "preserve") return at::MemoryFormat::Preserve;
  return at::MemoryFormat::Contiguous;
}

enum class NodeKind : std::uint8_t {
  operation,
  batchNorm,
  maskOfMean,
  samples,
  sizeOf,
  arithmetic
};

// An argument of an operator, as far as it is known before the graph runs.
struct Operand {
  enum class Kind : std::uint8_t {
    constant,
    value,
    wrappedSize,  // a size for an operator that takes a tensor
    sizes,
    tensors,
    optionalTensors,
    device
  };
  Kind kind = Kind::constant;
  IValue constant;
  IValue inEvaluation;  // the constant's value in evaluation
  GraphIds ids;  // numbers of values, plus 1; 0: the size is in `integers`, or no tensor is given
  std::vector<std::int64_t> integers;
};

struct Step {
  NodeKind kind = NodeKind::operation;
  const wire::Node* node = nullptr;
  std::optional<c10::OperatorHandle> op;
  std::optional<Preconditions> preconditions;
  std::vector<Operand> operands;
  bool isRandom = false;
  bool isInPlace = false;
  bool isOffInEvaluation = false;  // has a flag or a probability that switches it off
  GraphIds last;                   // values that are no longer needed after this node
};

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

}  // namespace

at::ScalarType scalarTypeOf(const wire::Value& value) { return scalarTypeNamed(value.dtype()); }

struct GraphProgram::State {
  explicit State(const wire::Graph& given) : graph(given) {
    for (int id = 0; id < graph.values_size(); ++id) {
      const wire::Value& value = graph.values(id);
      if (isWeight(value)) addWeight(static_cast<std::uint32_t>(id), value);
    }
    for (const wire::Node& node : graph.nodes()) steps.push_back(prepare(node));
    findLastUses();
    findChangedInputs();
  }

  [[noreturn]] static void refuse(const wire::Node& node, const std::string& sentence) {
    refuseOperator(node, sentence);
  }

  void addWeight(std::uint32_t id, const wire::Value& value) {
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
                       "export the model in fp32: cleave.export(model.float(), …)");
    }
    weights.push_back(std::move(row));
  }

  // ---- Preparation ----

  Step prepare(const wire::Node& node) {
    Step step;
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

  using Cases = std::vector<wire::Argument::ValueCase>;

  // Requires one argument of one of the given forms at each position.
  static void checkCases(const wire::Node& node, const std::vector<Cases>& expected) {
    if (static_cast<std::size_t>(node.arguments_size()) != expected.size()) {
      refuse(node, "has the wrong number of arguments");
    }
    for (std::size_t n = 0; n < expected.size(); ++n) {
      const auto given = node.arguments(static_cast<int>(n)).value_case();
      if (std::find(expected[n].begin(), expected[n].end(), given) == expected[n].end()) {
        refuse(node, "has an argument of the wrong type");
      }
    }
  }

  // Returns the operator to run instead. Views are replaced because they rely on the strides of the
  // exporter's machine, operators that return uninitialised memory because it could contain another
  // run's data, and sgn because its gradient has no memory; all numbers are real.
  static std::string replacementOf(const std::string& op) {
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
  static void checkNames(const wire::Node& node, const c10::FunctionSchema& schema) {
    const auto& expected = schema.arguments();
    for (const wire::Argument& argument : node.arguments()) {
      const bool isKnown =
          std::any_of(expected.begin(), expected.end(),
                      [&](const c10::Argument& each) { return each.name() == argument.name(); }) ||
          (node.op() == "aten.view.default" && argument.name() == "size") ||
          (node.op() == "aten.empty.memory_format" && argument.name() == "memory_format") ||
          (node.op() == "aten.batch_norm.default" && argument.name() == "num_batches_tracked");
      if (!isKnown) refuse(node, "has no argument '" + printable(argument.name()) + "'");
    }
    const OperatorRow* const row = findOperator(node.op());
    if (row == nullptr || row->memory == ResultMemory::own) return;
    if (node.arguments().empty() || node.arguments(0).name() != expected.at(0).name()) {
      refuse(node, "does not have its tensor as its first argument");
    }
  }

  // An operator may write only to the tensor that the table of operators says.
  static void checkWrites(const wire::Node& node, const c10::FunctionSchema& schema) {
    for (std::size_t n = 0; n < schema.arguments().size(); ++n) {
      const c10::AliasInfo* const alias = schema.arguments()[n].alias_info();
      if (alias == nullptr || !alias->isWrite() || (n == 0 && changesInPlace(node))) continue;
      refuse(node, "changes '" + schema.arguments()[n].name() + "'");
    }
  }

  void prepareOperation(const wire::Node& node, Step& step) {
    const bool isView = node.op() == "aten.view.default";
    const std::string op = replacementOf(node.op());
    const auto dot = op.rfind('.');
    const std::string overload = op.substr(dot + 1);
    step.op = c10::Dispatcher::singleton().findSchema(
        {"aten::" + op.substr(5, dot - 5), overload == "default" ? "" : overload});
    if (!step.op) refuse(node, "is not in this version of LibTorch");
    checkNames(node, step.op->schema());
    checkWrites(node, step.op->schema());
    step.preconditions.emplace(step.op->schema());
    const auto& returns = step.op->schema().returns();
    const bool isList = returns.size() == 1 && returns.front().type()->kind() == TypeKind::ListType;
    if (node.is_list() != isList)
      refuse(node, isList ? "returns a list" : "does not return a list");
    step.isInPlace = changesInPlace(node);
    step.isRandom = step.op->hasTag(at::Tag::nondeterministic_seeded);
    for (const c10::Argument& expected : step.op->schema().arguments()) {
      step.isOffInEvaluation |= isTrainFlag(expected) || expected.name() == "dropout_p";
      const bool isShape = isView && expected.name() == "shape";
      const wire::Argument* const given = findArgument(node, isShape ? "size" : expected.name());
      step.operands.push_back(operandFor(node, expected, given));
    }
    if (node.op() == "aten.bernoulli_.float") step.kind = NodeKind::maskOfMean;
    if (node.op() == "aten.batch_norm.default") prepareNorm(node, step);
    if (node.op() == "aten.instance_norm.default") checkInstanceNorm(node);
  }

  // An instance norm may use running statistics, but not change them.
  static void checkInstanceNorm(const wire::Node& node) {
    const wire::Argument* const mean = findArgument(node, "running_mean");
    const wire::Argument* const own = findArgument(node, "use_input_stats");
    if (mean == nullptr || mean->value_case() == wire::Argument::kNone) return;
    if (own != nullptr && own->value_case() == wire::Argument::kFlag && !own->flag()) return;
    throw UsageError(
        "bad-graph",
        fmt::format("the operator {} trains running statistics, which only batch norms may do",
                    nodeText(node)),
        "set track_running_stats=False in the model's instance norms, and export it again");
  }

  // Prepares a batch norm that trains: its statistics are recorded instead of being written to the
  // buffers.
  void prepareNorm(const wire::Node& node, Step& step) {
    constexpr std::size_t kMean = 3, kVariance = 4, kTraining = 5, kMomentum = 6;
    const auto isBuffer = [&](std::size_t operand) {
      return step.operands[operand].kind == Operand::Kind::value;
    };
    const IValue& training = step.operands[kTraining].constant;
    if (!training.isBool()) refuse(node, "has no constant argument 'training'");
    if (isBuffer(kMean) != isBuffer(kVariance)) refuse(node, "has only one of its statistics");
    // Without running statistics, evaluation also uses the statistics of the batch.
    if (!isBuffer(kMean)) step.operands[kTraining].inEvaluation = training;
    if (!training.toBool() || !isBuffer(kMean)) return;
    if (step.operands[0].kind != Operand::Kind::value) refuse(node, "has no input");
    const IValue& momentum = step.operands[kMomentum].constant;
    if (!momentum.isDouble()) refuse(node, "has no momentum");
    step.kind = NodeKind::batchNorm;
    NormRow row;
    row.mean = weightOf(node, step.operands[kMean].ids.at(0));
    row.variance = weightOf(node, step.operands[kVariance].ids.at(0));
    row.momentum = momentum.toDouble();
    if (const wire::Argument* const count = findArgument(node, "num_batches_tracked")) {
      if (count->value_case() != wire::Argument::kTensor) refuse(node, "has no counter of batches");
      row.count = weightOf(node, count->tensor() + 1);
    }
    const wire::Value& input = graph.values(static_cast<int>(step.operands[0].ids.at(0) - 1));
    const double channels =
        input.shape_size() > 1 ? std::max(1.0, static_cast<double>(input.shape(1))) : 1;
    row.valuesPerSample =
        static_cast<std::int64_t>(std::min(0x1p40, elementsPerSample(input) / channels));
    norms.push_back(row);
  }

  std::size_t weightOf(const wire::Node& node, std::uint32_t idPlus1) const {
    // Weights are numbered in the order of their values.
    const auto found = std::lower_bound(weightIds.begin(), weightIds.end(), idPlus1 - 1);
    if (found == weightIds.end() || *found != idPlus1 - 1) {
      refuse(node, "has statistics that are not buffers");
    }
    return static_cast<std::size_t>(found - weightIds.begin());
  }

  static bool isTrainFlag(const c10::Argument& argument) {
    return argument.name() == "train" || argument.name() == "training";
  }

  // `given`: null if the graph has the default.
  Operand operandFor(const wire::Node& node, const c10::Argument& expected,
                     const wire::Argument* given) const {
    c10::TypePtr type = expected.real_type();
    const bool isOptional = type->kind() == TypeKind::OptionalType;
    if (isOptional) type = type->castRaw<c10::OptionalType>()->getElementType();
    if (type->kind() == TypeKind::DeviceObjType) {
      Operand operand;
      operand.kind = Operand::Kind::device;
      return operand;
    }
    Operand operand;
    if (expected.name() == "pin_memory") return operand;
    if (given != nullptr && !fits(*given, *type, isOptional)) {
      refuse(node, "cannot take '" + printable(given->name()) + "' in this form");
    }
    if (given == nullptr) {
      if (expected.default_value()) {
        operand.constant = *expected.default_value();
      } else if (expected.name() == "cudnn_enabled") {
        operand.constant = true;
      } else {
        refuse(node, "has no argument '" + expected.name() + "'");
      }
    } else {
      operand = operandOf(node, *given, type.get());
    }
    operand.inEvaluation = operand.constant;
    if (isTrainFlag(expected) && operand.constant.isBool()) operand.inEvaluation = false;
    if (expected.name() == "dropout_p") operand.inEvaluation = 0.0;
    return operand;
  }

  // Whether an argument has a form that the operator's schema allows. The dispatcher does not check
  // all of this.
  static bool fits(const wire::Argument& given, const c10::Type& type, bool isOptional) {
    const auto form = given.value_case();
    const auto isOneOf = [&](std::initializer_list<wire::Argument::ValueCase> forms) {
      return std::find(forms.begin(), forms.end(), form) != forms.end();
    };
    if (form == wire::Argument::kNone) return isOptional;
    switch (type.kind()) {
      case TypeKind::TensorType:
        return isOneOf({wire::Argument::kTensor, wire::Argument::kInteger, wire::Argument::kNumber,
                        wire::Argument::kSize});
      case TypeKind::IntType:
      case TypeKind::SymIntType:
        return isOneOf({wire::Argument::kInteger, wire::Argument::kSize});
      case TypeKind::FloatType:
        return isOneOf({wire::Argument::kNumber, wire::Argument::kInteger});
      case TypeKind::NumberType:
        return isOneOf({wire::Argument::kInteger, wire::Argument::kNumber, wire::Argument::kFlag,
                        wire::Argument::kSize});
      case TypeKind::BoolType:
        return form == wire::Argument::kFlag;
      case TypeKind::StringType:
        return form == wire::Argument::kText;
      case TypeKind::ScalarTypeType:
        return form == wire::Argument::kDtype;
      case TypeKind::MemoryFormatType:
        return form == wire::Argument::kMemoryFormat;
      case TypeKind::ListType:
        return fitsList(given, *type.castRaw<c10::ListType>()->getElementType());
      default:
        return false;
    }
  }

  static bool fitsList(const wire::Argument& given, const c10::Type& element) {
    switch (element.kind()) {
      case TypeKind::IntType:
      case TypeKind::SymIntType:
        return given.value_case() == wire::Argument::kSizes;
      case TypeKind::FloatType:
        return given.value_case() == wire::Argument::kNumbers ||
               given.value_case() == wire::Argument::kSizes;
      case TypeKind::BoolType:
        return given.value_case() == wire::Argument::kFlags;
      case TypeKind::OptionalType:
        return given.value_case() == wire::Argument::kTensors;
      case TypeKind::TensorType: {
        const auto& items = given.tensors().items();
        return given.value_case() == wire::Argument::kTensors &&
               std::find(items.begin(), items.end(), 0U) == items.end();
      }
      default:
        return false;
    }
  }

  // `type`: what the operator expects; null for the operators on sizes.
  Operand operandOf(const wire::Node& node, const wire::Argument& argument,
                    const c10::Type* type) const {
    Operand operand;
    const bool expectsDouble = type != nullptr && type->kind() == TypeKind::FloatType;
    const bool expectsTensor = type != nullptr && type->kind() == TypeKind::TensorType;
    switch (argument.value_case()) {
      case wire::Argument::kNone:
        break;
      case wire::Argument::kInteger:
        operand.constant = expectsDouble ? IValue(static_cast<double>(argument.integer()))
                                         : IValue(std::int64_t{argument.integer()});
        break;
      case wire::Argument::kNumber:
        operand.constant = argument.number();
        break;
      case wire::Argument::kFlag:
        operand.constant = argument.flag();
        break;
      case wire::Argument::kText:
        operand.constant = argument.text();
        break;
      case wire::Argument::kNumbers:
        operand.constant = c10::List<double>(std::vector<double>(argument.numbers().items().begin(),
                                                                 argument.numbers().items().end()));
        break;
      case wire::Argument::kFlags: {
        c10::List<bool> flags;
        for (const bool flag : argument.flags().items()) flags.push_back(flag);
        operand.constant = flags;
        break;
      }
      case wire::Argument::kDtype:
        operand.constant = static_cast<std::int64_t>(scalarTypeNamed(argument.dtype()));
        break;
      case wire::Argument::kMemoryFormat:
        operand.constant = static_cast<std::int64_t>(memoryFormatNamed(argument.memory_format()));
        break;
      case wire::Argument::kTensor:
        operand.kind = Operand::Kind::value;
        operand.ids = {argument.tensor() + 1};
        break;
      case wire::Argument::kSize:
        operand.kind = expectsTensor ? Operand::Kind::wrappedSize : Operand::Kind::value;
        operand.ids = {argument.size() + 1};
        break;
      case wire::Argument::kSizes:
        return sizesOperand(argument.sizes(), type);
      case wire::Argument::kTensors:
        return tensorsOperand(argument.tensors(), type);
      case wire::Argument::VALUE_NOT_SET:
        refuse(node, "has an argument without a value");
    }
    if (expectsTensor && operand.constant.isScalar()) {
      operand.constant = wrapped(operand.constant.toScalar());
    }
    return operand;
  }

  // A number as a tensor, as in Python's x + 1: LibTorch chooses the result's dtype differently for
  // numbers than for tensors.
  static at::Tensor wrapped(const at::Scalar& number) {
    at::Tensor tensor = c10::scalar_to_tensor(number);
    tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
    return tensor;
  }

  static Operand sizesOperand(const wire::Sizes& sizes, const c10::Type* type) {
    Operand operand;
    bool isConstant = true;
    for (const wire::Size& size : sizes.items()) {
      const bool isValue = size.value_case() == wire::Size::kSize;
      isConstant = isConstant && !isValue;
      operand.ids.push_back(isValue ? size.size() + 1 : 0);
      operand.integers.push_back(isValue ? 0 : size.integer());
    }
    const bool expectsDoubles =
        type != nullptr && type->kind() == TypeKind::ListType &&
        type->castRaw<c10::ListType>()->getElementType()->kind() == TypeKind::FloatType;
    if (expectsDoubles) {
      operand.constant =
          c10::List<double>(std::vector<double>(operand.integers.begin(), operand.integers.end()));
    } else if (isConstant) {
      operand.constant = c10::List<std::int64_t>(operand.integers);
    } else {
      operand.kind = Operand::Kind::sizes;
    }
    return operand;
  }

  static Operand tensorsOperand(const wire::Tensors& tensors, const c10::Type* type) {
    const bool isOptional =
        tensors.optional() ||
        (type != nullptr && type->kind() == TypeKind::ListType &&
         type->castRaw<c10::ListType>()->getElementType()->kind() == TypeKind::OptionalType);
    Operand operand;
    operand.kind = isOptional ? Operand::Kind::optionalTensors : Operand::Kind::tensors;
    operand.ids.assign(tensors.items().begin(), tensors.items().end());
    return operand;
  }

  void findLastUses() {
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
  void findChangedInputs() {
    const GraphIds owners = memoryOwners(graph);
    for (const wire::Node& node : graph.nodes()) {
      if (!changesInPlace(node)) continue;
      const std::uint32_t owner = owners[node.outputs(0)];
      const auto input = std::find(graph.inputs().begin(), graph.inputs().end(), owner);
      if (input == graph.inputs().end()) continue;
      changedInputs.push_back(static_cast<std::size_t>(input - graph.inputs().begin()));
    }
  }

  // ---- Running ----

  static IValue calculate(const Step& step, const std::vector<IValue>& values) {
    const auto operand = [&](std::size_t n) {
      if (n >= step.operands.size()) return IValue();
      const Operand& each = step.operands[n];
      return each.kind == Operand::Kind::value ? values[each.ids[0] - 1] : each.constant;
    };
    return calculateSize(*step.node, operand(0), operand(1));
  }

  static IValue valueOf(const Operand& operand, const std::vector<IValue>& values,
                        const Batch& batch) {
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

  static void seedGenerators(const Step& step, const BlockContext& context, const Batch& batch) {
    at::Generator generator = at::globalContext().defaultGenerator(batch.device);
    const std::lock_guard lock(generator.mutex());
    const RandomKey key =
        randomKey(context.seed, step.node->name(),
                  {context.at.step, context.at.i, context.at.phase == Phase::train ? 0U : 1U});
    generator.set_current_seed(std::uint64_t{key.high} << 32 | key.low);
  }

  void perform(const Step& step, std::vector<IValue>& values, const BlockContext& context,
               const Batch& batch) const {
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
    if (step.isRandom) seedGenerators(step, context, batch);
    if (step.node->is_list()) checkListLength(*step.node, stack);
    step.preconditions->check({*step.node, step.op->schema(), stack});
    if (step.isInPlace) batch.memory->checkWrite(*step.node, stack.at(0).toTensor());
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
      refuse(*step.node, fmt::format("cannot be computed: {}", printable(error.what())));
    }
    if (step.kind == NodeKind::batchNorm && isTraining && context.statistics != nullptr) {
      context.statistics->push_back(std::move(statistics));
    }
    keepResults(step, stack, values);
  }

  // A view can have more elements than fit into memory, and operators on it would take hours.
  static void checkSize(const Step& step, const at::Tensor& tensor) {
    constexpr std::int64_t kMaxElements = std::int64_t{1} << 32;
    if (!tensor.defined() || tensor.numel() <= kMaxElements) return;
    refuse(*step.node, fmt::format("returns {} values", tensor.numel()));
  }

  static void keepResults(const Step& step, torch::jit::Stack& stack, std::vector<IValue>& values) {
    const auto& outputs = step.node->outputs();
    if (step.node->is_list()) {
      const std::vector<at::Tensor> list = stack.at(0).toTensorVector();
      if (list.size() != static_cast<std::size_t>(outputs.size())) {
        refuse(*step.node, fmt::format("returned {} tensors, not {}", list.size(), outputs.size()));
      }
      for (int o = 0; o < outputs.size(); ++o)
        values[outputs[o]] = list[static_cast<std::size_t>(o)];
      return;
    }
    if (stack.size() < static_cast<std::size_t>(outputs.size())) {
      refuse(*step.node, fmt::format("returned {} values, not {}", stack.size(), outputs.size()));
    }
    for (int o = 0; o < outputs.size(); ++o) {
      IValue& result = stack[static_cast<std::size_t>(o)];
      if (result.isTensor()) checkSize(step, result.toTensor());
      values[outputs[o]] = std::move(result);
    }
  }

  void runOperation(const Step& step, std::vector<IValue>& values, const BlockContext& context,
                    const Batch& batch) const {
    const at::AutoGradMode recordGraph(at::GradMode::is_enabled() && !step.node->no_grad());
    const at::DeviceType device = batch.device.type();
    const bool suspends = step.node->no_autocast() && at::autocast::is_autocast_enabled(device);
    if (suspends) at::autocast::set_autocast_enabled(device, false);
    perform(step, values, context, batch);
    if (suspends) at::autocast::set_autocast_enabled(device, true);
  }

  static std::int64_t sizeAlong(const wire::Node& node, const at::Tensor& tensor,
                                std::int64_t dimension) {
    if (dimension >= -tensor.dim() && dimension < tensor.dim()) return tensor.size(dimension);
    refuse(node, fmt::format("is the size of dimension {} of a tensor with {} dimensions",
                             dimension, tensor.dim()));
  }

  void run(const Step& step, std::vector<IValue>& values, const BlockContext& context,
           const Batch& batch) const {
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

  TensorList run(const TensorList& inputs, std::span<const at::Tensor> tensors,
                 const BlockContext& context, bool asExported) const {
    std::vector<IValue> values(static_cast<std::size_t>(graph.values_size()));
    for (std::size_t w = 0; w < tensors.size(); ++w) values[weightIds.at(w)] = tensors[w];
    for (std::size_t n = 0; n < inputs.size(); ++n) {
      values[graph.inputs(static_cast<int>(n))] = inputs[n];
    }
    for (const std::size_t n : changedInputs) {
      values[graph.inputs(static_cast<int>(n))] = inputs[n].clone();
    }
    Batch batch{inputs.at(0).size(0), asExported, inputs.at(0).device(), {}};
    if (std::ranges::any_of(steps, &Step::isInPlace)) batch.memory.emplace(tensors, inputs);
    for (const Step& step : steps) {
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

  const wire::Graph graph;
  GraphIds weightIds;
  std::vector<ParameterSpec> weights;
  std::vector<NormRow> norms;
  std::vector<Step> steps;
  std::vector<std::size_t> changedInputs;
};

GraphProgram::GraphProgram(const wire::Graph& graph) : state_(std::make_unique<State>(graph)) {
  if (!graph.has_evaluation()) return;
  evaluation_ = std::make_unique<State>(graph.evaluation());
  std::map<std::string, std::size_t> positions;
  for (std::size_t w = 0; w < weights().size(); ++w) positions[weights()[w].name] = w;
  for (const ParameterSpec& weight : evaluation_->weights) {
    evaluationWeights_.push_back(positions.at(weight.name));
  }
}
GraphProgram::~GraphProgram() = default;

const std::vector<ParameterSpec>& GraphProgram::weights() const { return state_->weights; }
const std::vector<NormRow>& GraphProgram::norms() const { return state_->norms; }

std::vector<std::string> GraphProgram::drawnInEvaluation() const {
  std::vector<std::string> nodes;
  if (evaluation_) return nodes;
  for (const Step& step : state_->steps) {
    if (step.isRandom && step.kind == NodeKind::operation && !step.isOffInEvaluation) {
      nodes.push_back(nodeText(*step.node));
    }
  }
  return nodes;
}

TensorList GraphProgram::run(const TensorList& inputs, std::span<const at::Tensor> weights,
                             const BlockContext& context) const {
  const bool isTraining = context.at.phase == Phase::train;
  if (isTraining || !evaluation_) return state_->run(inputs, weights, context, isTraining);
  TensorList chosen;
  for (const std::size_t position : evaluationWeights_) chosen.push_back(weights[position]);
  return evaluation_->run(inputs, chosen, context, /*asExported=*/true);
}

}  // namespace cleave
