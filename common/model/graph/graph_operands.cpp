#include "common/model/graph/graph_operands.h"

#include <ATen/ScalarOps.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "common/core/printable.h"
#include "common/model/graph/operator_checks.h"

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
  throw UsageError("bad-graph", "the graph has the unknown dtype " + printable(name))
      .about("model.file");
}

at::MemoryFormat memoryFormatNamed(const std::string& name) {
  if (name == "channels_last") return at::MemoryFormat::ChannelsLast;
  if (name == "channels_last_3d") return at::MemoryFormat::ChannelsLast3d;
  if (name == "preserve") return at::MemoryFormat::Preserve;
  return at::MemoryFormat::Contiguous;
}

bool fitsList(const wire::Argument& given, const c10::Type& element) {
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

// Whether an argument has a form that the operator's schema allows. The dispatcher does not check
// all of this.
bool fits(const wire::Argument& given, const c10::Type& type, bool isOptional) {
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

Operand sizesOperand(const wire::Sizes& sizes, const c10::Type* type) {
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

Operand tensorsOperand(const wire::Tensors& tensors, const c10::Type* type) {
  const bool isOptional =
      tensors.optional() ||
      (type != nullptr && type->kind() == TypeKind::ListType &&
       type->castRaw<c10::ListType>()->getElementType()->kind() == TypeKind::OptionalType);
  Operand operand;
  operand.kind = isOptional ? Operand::Kind::optionalTensors : Operand::Kind::tensors;
  operand.ids.assign(tensors.items().begin(), tensors.items().end());
  return operand;
}

}  // namespace

at::ScalarType scalarTypeOf(const wire::Value& value) { return scalarTypeNamed(value.dtype()); }

bool isTrainFlag(const c10::Argument& argument) {
  return argument.name() == "train" || argument.name() == "training";
}

Operand operandFor(const wire::Node& node, const c10::Argument& expected,
                   const wire::Argument* given) {
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
    refuseOperator(node, "cannot take '" + printable(given->name()) + "' in this form");
  }
  if (given == nullptr) {
    if (expected.default_value()) {
      operand.constant = *expected.default_value();
    } else if (expected.name() == "cudnn_enabled") {
      operand.constant = true;
    } else {
      refuseOperator(node, "has no argument '" + expected.name() + "'");
    }
  } else {
    operand = operandOf(node, *given, type.get());
  }
  operand.inEvaluation = operand.constant;
  if (isTrainFlag(expected) && operand.constant.isBool()) operand.inEvaluation = false;
  if (expected.name() == "dropout_p") operand.inEvaluation = 0.0;
  return operand;
}

Operand operandOf(const wire::Node& node, const wire::Argument& argument, const c10::Type* type) {
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
      refuseOperator(node, "has an argument without a value");
  }
  if (expectsTensor && operand.constant.isScalar()) {
    operand.constant = wrapped(operand.constant.toScalar());
  }
  return operand;
}

at::Tensor wrapped(const at::Scalar& number) {
  at::Tensor tensor = c10::scalar_to_tensor(number);
  tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  return tensor;
}

}  // namespace cleave
