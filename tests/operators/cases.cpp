#include "tests/operators/cases.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <optional>
#include <random>
#include <span>
#include <string_view>

#include "common/graph/operators.h"
#include "common/model/graph/graph_program.h"
#include "common/model/split_backward.h"
#include "tests/operators/forms.h"

namespace cleave::test {
namespace {

using c10::TypeKind;

struct DtypeRow {
  std::string_view name;
  at::ScalarType type;
};
constexpr std::array kDtypes = std::to_array<DtypeRow>({{"f32", at::kFloat},
                                                        {"i64", at::kLong},
                                                        {"bool", at::kBool},
                                                        {"f64", at::kDouble},
                                                        {"bf16", at::kBFloat16},
                                                        {"f16", at::kHalf},
                                                        {"i32", at::kInt},
                                                        {"u8", at::kByte}});
constexpr std::int64_t kMin = std::numeric_limits<std::int64_t>::min();
constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();

// Texts that operators take.
constexpr std::string_view kTexts[] = {
    "none",      "tanh",         "trunc", "floor",        "constant",  "reflect",
    "replicate", "circular",     "same",  "valid",        "sum",       "prod",
    "mean",      "amax",         "amin",  "add",          "ij",        "xy",
    "left",      "right",        "fro",   "nuc",          "ij,jk->ik", "ij->ji",
    "i,i->",     "bij,bjk->bik", "ii->i", "...ij->...ij", "ij->ij",    "multiply"};

class Maker {
 public:
  Maker(const std::string& op, std::uint64_t seed) : op_(op), random_(seed) {
    const auto dot = op.rfind('.');
    const std::string overload = op.substr(dot + 1);
    const auto handle = c10::Dispatcher::singleton().findSchema(
        {"aten::" + op.substr(0, dot), overload == "default" ? "" : overload});
    schema_ = &handle->schema();
  }

  OperatorCase make() {
    case_.phase = chance(0.85) ? Phase::train : Phase::eval;
    addTensor({2, 3}, kDtypes[0]);  // its first dimension is the number of samples
    const std::span<const OperatorForm> forms = formsOf(op_);
    const OperatorForm* const form =
        forms.empty() || chance(0.2) ? nullptr : &forms[below(forms.size())];
    wire::Node& node = *case_.graph.add_nodes();
    node.set_op("aten." + op_);
    node.set_name("node");
    case_.text = op_;
    for (const c10::Argument& argument : schema_->arguments()) {
      const std::optional<std::string> given =
          form == nullptr ? std::nullopt : form->argument(argument.name());
      wire::Argument made;
      made.set_name(argument.name());
      case_.text += " " + argument.name() + "=";
      const bool isMade = given ? fromForm(*given, made) : fromType(argument, made);
      if (isMade) *node.add_arguments() = made;
      if (!isMade) case_.text += "default";
    }
    addOutputs(node);
    return std::move(case_);
  }

 private:
  std::uint64_t below(std::uint64_t count) { return random_() % count; }
  bool chance(double p) { return static_cast<double>(random_() >> 11) * 0x1p-53 < p; }
  template <typename List>
  auto oneOf(const List& list) {
    return std::data(list)[below(std::size(list))];
  }

  // ---- Tensors ----

  std::vector<std::int64_t> randomShape() {
    static constexpr std::int64_t kSizes[] = {0, 1, 1, 2, 2, 3, 4, 5, 8, 16};
    static constexpr std::size_t kRanks[] = {0, 1, 1, 2, 2, 3, 3, 4, 4, 5};
    std::vector<std::int64_t> shape(oneOf(kRanks));
    for (std::int64_t& size : shape) size = oneOf(kSizes);
    return shape;
  }

  void damage(std::vector<std::int64_t>& shape) {
    static constexpr std::int64_t kSizes[] = {0, 1, 1, 2, 3, 5, 8, 33, 64, 257};
    const std::uint64_t how = below(8);
    if (how == 0) {
      shape.insert(shape.begin() + static_cast<std::ptrdiff_t>(below(shape.size() + 1)),
                   oneOf(kSizes));
    } else if (how == 1 && !shape.empty()) {
      shape.erase(shape.begin() + static_cast<std::ptrdiff_t>(below(shape.size())));
    } else if (!shape.empty()) {
      shape[below(shape.size())] = oneOf(kSizes);
    }
  }

  template <typename T>
  void fill(at::Tensor& tensor, const std::function<T()>& value) {
    T* const data = tensor.mutable_data_ptr<T>();
    for (std::int64_t n = 0; n < tensor.numel(); ++n) data[n] = value();
  }

  // `max`: of integers, which begin at 0; 0: any.
  at::Tensor valuesOf(const std::vector<std::int64_t>& shape, const DtypeRow& dtype,
                      std::int64_t max) {
    const bool isFloat = at::isFloatingType(dtype.type);
    at::Tensor values = at::empty(shape, at::TensorOptions(isFloat ? at::kDouble : at::kLong));
    const std::uint64_t kind = below(20);
    if (isFloat) {
      static constexpr double kOdd[] = {0, 1e30, -1e30, std::numeric_limits<double>::quiet_NaN(),
                                        std::numeric_limits<double>::infinity()};
      const double odd = oneOf(kOdd);
      fill<double>(values,
                   [&] { return kind == 0 ? odd : static_cast<double>(below(6001)) / 1000 - 3; });
    } else {
      static constexpr std::int64_t kOdd[] = {kMin, kMax, -1, 1000, std::int64_t{1} << 31};
      const std::int64_t odd = oneOf(kOdd);
      const bool hasNegative = max == 0 && kind < 6;
      const std::uint64_t count = max > 0 ? static_cast<std::uint64_t>(max) : 5;
      fill<std::int64_t>(values, [&] {
        if (kind == 0 || (kind == 1 && below(4) == 0)) return odd;
        return static_cast<std::int64_t>(below(count)) - (hasNegative ? 2 : 0);
      });
    }
    return values.to(dtype.type);
  }

  std::uint32_t addTensor(std::vector<std::int64_t> shape, const DtypeRow& dtype,
                          std::int64_t max = 0) {
    at::Tensor tensor = valuesOf(shape, dtype, max);
    if (tensor.dim() > 1 && chance(0.15))
      tensor = tensor.transpose(0, -1).contiguous().transpose(0, -1);
    if (tensor.dim() > 0 && tensor.numel() > 0 && chance(0.08)) {
      tensor = tensor.narrow(-1, 0, 1).expand_as(tensor);
    }
    if (tensor.dim() > 0 && tensor.size(0) > 2 && chance(0.05)) tensor = tensor.slice(0, 1);
    if (at::isFloatingType(dtype.type) && chance(0.7)) tensor.set_requires_grad(true);
    return keep(tensor, dtype);
  }

  std::uint32_t keep(const at::Tensor& tensor, const DtypeRow& dtype) {
    const auto id = static_cast<std::uint32_t>(case_.graph.values_size());
    wire::Value& value = *case_.graph.add_values();
    value.set_dtype(std::string(dtype.name));
    value.add_shape(-1);
    case_.graph.add_inputs(id);
    case_.inputs.push_back(tensor);
    case_.text += fmt::format("{}({}){}{}", dtype.name, fmt::join(tensor.sizes(), ","),
                              tensor.requires_grad() ? "g" : "", tensor.is_contiguous() ? "" : "s");
    return id;
  }

  const DtypeRow& randomDtype() {
    if (chance(0.65)) return kDtypes[0];
    return kDtypes[chance(0.6) ? 1 : below(kDtypes.size())];
  }

  std::uint32_t anyTensor() {
    const std::size_t count = case_.inputs.size();
    if (count > 1 && chance(0.2)) {
      const std::uint64_t id = 1 + below(count - 1);
      case_.text += fmt::format("#{}", id);
      return static_cast<std::uint32_t>(id);
    }
    std::vector<std::int64_t> shape = randomShape();
    if (count > 1 && chance(0.6)) shape = case_.inputs[1 + below(count - 1)].sizes().vec();
    if (chance(0.35)) damage(shape);
    return addTensor(shape, randomDtype());
  }

  // ---- Arguments from a form ----

  // "N,4H": letters are sizes of this case.
  std::int64_t sizeNamed(std::string_view text) {
    std::int64_t size = 1;
    std::size_t at = 0;
    bool hasNumber = false;
    for (; at < text.size() && text[at] >= '0' && text[at] <= '9'; ++at) {
      size = (hasNumber ? size * 10 : 0) + (text[at] - '0');
      hasNumber = true;
    }
    for (; at < text.size(); ++at) {
      std::int64_t& letter = letters_[text[at]];
      static constexpr std::int64_t kSizes[] = {1, 1, 2, 2, 3, 4, 5, 6, 8, 16};
      if (letter == 0) letter = oneOf(kSizes);
      size *= letter;
    }
    return size;
  }

  static std::vector<std::string_view> parts(std::string_view text, char separator) {
    std::vector<std::string_view> result;
    if (text.empty()) return result;
    for (;;) {
      const auto end = text.find(separator);
      result.push_back(text.substr(0, end));
      if (end == std::string_view::npos) return result;
      text.remove_prefix(end + 1);
    }
  }

  // "N,C" with ":i" (integers), ":i5" (from 0 to 4), ":b" (bools) or nothing (floats).
  std::uint32_t tensorNamed(std::string_view text) {
    const auto colon = text.find(':');
    const std::string_view type = colon == std::string_view::npos ? "" : text.substr(colon + 1);
    std::vector<std::int64_t> shape;
    for (const std::string_view size : parts(text.substr(0, colon), ',')) {
      shape.push_back(sizeNamed(size));
    }
    if (chance(0.12)) damage(shape);
    const DtypeRow* dtype = type.empty() ? &kDtypes[0] : &kDtypes[type[0] == 'b' ? 2 : 1];
    if (chance(0.06)) dtype = &randomDtype();
    return addTensor(shape, *dtype, type.size() > 1 ? sizeNamed(type.substr(1)) : 0);
  }

  // "T:N,C" a tensor; "L:N,C;C" tensors; "S:1,2" sizes; "I:3" an integer; "F:0.5" a number;
  // "B:1" a flag; "X:text" a text; "-" the default or none.
  bool fromForm(const std::string& form, wire::Argument& made) {
    if (form == "-") return false;
    const std::string_view text = std::string_view(form).substr(2);
    switch (form[0]) {
      case 'T':
        made.set_tensor(tensorNamed(text));
        return true;
      case 'L': {
        auto& list = *made.mutable_tensors();
        for (const std::string_view each : parts(text, ';')) list.add_items(tensorNamed(each) + 1);
        if (chance(0.05)) list.add_items(anyTensor() + 1);
        if (chance(0.05) && list.items_size() > 0) list.mutable_items()->RemoveLast();
        return true;
      }
      case 'S': {
        std::vector<std::int64_t> sizes;
        for (const std::string_view each : parts(text, ',')) sizes.push_back(number(each));
        setSizes(sizes, made);
        return true;
      }
      case 'I':
        made.set_integer(number(text));
        case_.text += std::to_string(made.integer());
        return true;
      case 'F':
        made.set_number(chance(0.1) ? 1e30 : std::stod(std::string(text)));
        case_.text += std::to_string(made.number());
        return true;
      case 'B':
        made.set_flag(text == "1" ? !chance(0.15) : chance(0.15));
        case_.text += made.flag() ? "true" : "false";
        return true;
      default:
        made.set_text(std::string(text));
        case_.text += made.text();
        return true;
    }
  }

  // An integer or a size of a form, which is another one from time to time.
  std::int64_t number(std::string_view text) {
    if (chance(0.15)) return randomInteger();
    if (text.starts_with('-')) return -sizeNamed(text.substr(1));
    return sizeNamed(text);
  }

  // ---- Arguments from a type ----

  std::int64_t randomInteger() {
    static constexpr std::int64_t kSmall[] = {0, 0, 1, 1, 1, 2, 2, 3, 4, 5, -1, -1, -2, -3};
    static constexpr std::int64_t kOdd[] = {
        7,         8,         16,        31,           64,          100,
        1000,      1 << 16,   kMax,      kMin,         -1000,       (1LL << 31) - 1,
        1LL << 31, 1LL << 32, 1LL << 62, -(1LL << 31), -(1LL << 62)};
    return chance(0.8) ? oneOf(kSmall) : oneOf(kOdd);
  }

  void setSizes(const std::vector<std::int64_t>& sizes, wire::Argument& made) {
    made.mutable_sizes();
    for (const std::int64_t size : sizes) made.mutable_sizes()->add_items()->set_integer(size);
    case_.text += fmt::format("[{}]", fmt::join(sizes, ","));
  }

  // Returns whether there is an argument; otherwise, the operator has its default.
  bool fromType(const c10::Argument& argument, wire::Argument& made) {
    c10::TypePtr type = argument.real_type();
    if (type->kind() == TypeKind::OptionalType) {
      if (chance(0.45)) {
        made.set_none(true);
        case_.text += "none";
        return true;
      }
      type = type->castRaw<c10::OptionalType>()->getElementType();
    }
    if (argument.default_value() && chance(0.4)) return false;
    return fromKind(*type, argument.name(), made);
  }

  bool fromKind(const c10::Type& type, const std::string& name, wire::Argument& made) {
    switch (type.kind()) {
      case TypeKind::TensorType:
        made.set_tensor(anyTensor());
        return true;
      case TypeKind::IntType:
      case TypeKind::SymIntType:
        made.set_integer(randomInteger());
        case_.text += std::to_string(made.integer());
        return true;
      case TypeKind::FloatType:
      case TypeKind::NumberType:
        setNumber(type.kind() == TypeKind::NumberType, made);
        return true;
      case TypeKind::BoolType:
        made.set_flag(name != "sparse" && name != "sparse_grad" && chance(0.5));
        case_.text += made.flag() ? "true" : "false";
        return true;
      case TypeKind::StringType:
        made.set_text(std::string(oneOf(kTexts)));
        case_.text += made.text();
        return true;
      case TypeKind::ScalarTypeType:
        made.set_dtype(std::string(oneOf(kDtypes).name));
        case_.text += made.dtype();
        return true;
      case TypeKind::MemoryFormatType: {
        static constexpr std::string_view kFormats[] = {"contiguous", "channels_last",
                                                        "channels_last_3d", "preserve"};
        made.set_memory_format(std::string(oneOf(kFormats)));
        case_.text += made.memory_format();
        return true;
      }
      case TypeKind::ListType:
        return fromList(*type.castRaw<c10::ListType>()->getElementType(), made);
      default:
        made.set_none(true);
        return true;
    }
  }

  void setNumber(bool mayBeInteger, wire::Argument& made) {
    static constexpr double kNumbers[] = {0,
                                          0.5,
                                          1,
                                          -1,
                                          1e-5,
                                          2,
                                          3,
                                          -0.5,
                                          1e30,
                                          std::numeric_limits<double>::quiet_NaN(),
                                          std::numeric_limits<double>::infinity()};
    if (mayBeInteger && chance(0.4)) {
      made.set_integer(randomInteger());
      case_.text += std::to_string(made.integer());
    } else {
      made.set_number(oneOf(kNumbers));
      case_.text += std::to_string(made.number());
    }
  }

  bool fromList(const c10::Type& element, wire::Argument& made) {
    const std::uint64_t count = below(5);
    switch (element.kind()) {
      case TypeKind::TensorType:
      case TypeKind::OptionalType:
        made.mutable_tensors()->set_optional(element.kind() == TypeKind::OptionalType);
        for (std::uint64_t n = 0; n < std::max<std::uint64_t>(1, count); ++n) {
          const bool isNone = element.kind() == TypeKind::OptionalType && chance(0.2);
          made.mutable_tensors()->add_items(isNone ? 0 : anyTensor() + 1);
        }
        return true;
      case TypeKind::FloatType:
        for (std::uint64_t n = 0; n < count; ++n) {
          static constexpr double kScales[] = {0.5, 1, 2, 3, -1, 1e-9, 1e5, 1e30};
          made.mutable_numbers()->add_items(oneOf(kScales));
        }
        made.mutable_numbers();
        case_.text += fmt::format("[{}]", fmt::join(made.numbers().items(), ","));
        return true;
      case TypeKind::BoolType:
        made.mutable_flags()->add_items(chance(0.5));
        return true;
      default: {
        std::vector<std::int64_t> sizes(count);
        for (std::int64_t& size : sizes) size = randomInteger();
        setSizes(sizes, made);
        return true;
      }
    }
  }

  void addOutputs(wire::Node& node) {
    const auto& returns = schema_->returns();
    const bool isList = returns.size() == 1 && returns.front().type()->kind() == TypeKind::ListType;
    node.set_is_list(isList);
    const std::size_t count = isList ? 1 + below(4) : returns.size();
    for (std::size_t n = 0; n < count; ++n) {
      const auto id = static_cast<std::uint32_t>(case_.graph.values_size());
      wire::Value& value = *case_.graph.add_values();
      value.set_dtype("f32");
      value.add_shape(-1);
      node.add_outputs(id);
      case_.graph.add_outputs(id);
    }
  }

  const std::string op_;
  std::mt19937_64 random_;
  const c10::FunctionSchema* schema_ = nullptr;
  OperatorCase case_;
  std::map<char, std::int64_t> letters_;
};

}  // namespace

OperatorCase makeCase(const std::string& op, std::uint64_t seed) { return Maker(op, seed).make(); }

TensorList runCase(const OperatorCase& given) {
  checkGraph(given.graph, "graph");
  const GraphProgram program(given.graph);
  const BlockContext context{7, {given.phase, 1, 0, 1, 2}, nullptr};
  for (const at::Tensor& input : given.inputs) input.mutable_grad().reset();
  TensorList results = program.run(given.inputs, {}, context);
  Roots roots;
  for (const at::Tensor& output : results) {
    if (!output.defined() || !output.requires_grad() || output.numel() > 1 << 20) continue;
    roots.outputs.push_back(output);
    roots.gradients.push_back(at::empty_like(output).fill_(0.5));
  }
  if (!roots.outputs.empty()) backward(roots);
  for (const at::Tensor& input : given.inputs) results.push_back(input.grad());
  return results;
}

}  // namespace cleave::test
