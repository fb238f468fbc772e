#include "common/model/graph/operator_preconditions.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/TypeProperties.h>
#include <ATen/ops/scalar_tensor.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <limits>
#include <map>
#include <string_view>
#include <vector>

#include "common/model/graph/operator_checks.h"

namespace cleave {
namespace {

using Sizes = std::vector<std::int64_t>;

// ---- Reading arguments ----

// Null if the operator does not have the argument.
const c10::IValue* find(const OperatorCall& call, std::string_view name) {
  const auto position = call.schema.argumentIndexWithName(name);
  return position ? &call.arguments.at(static_cast<std::size_t>(*position)) : nullptr;
}

const c10::IValue& get(const OperatorCall& call, std::string_view name) {
  const c10::IValue* const value = find(call, name);
  if (value == nullptr) refuseOperator(call.node, fmt::format("has no argument '{}'", name));
  return *value;
}

// Undefined if the argument is not given.
at::Tensor tensorOf(const OperatorCall& call, std::string_view name) {
  const c10::IValue& value = get(call, name);
  return value.isTensor() ? value.toTensor() : at::Tensor();
}

bool isSet(const OperatorCall& call, std::string_view name) {
  const c10::IValue& value = get(call, name);
  return value.isBool() && value.toBool();
}

void require(const OperatorCall& call, bool holds, const std::string& sentence) {
  if (!holds) refuseOperator(call.node, sentence);
}

// ---- Preconditions of all operators ----

// Integers, by their argument's name.
struct RangeRow {
  std::string_view argument;
  std::int64_t min, max;
};
constexpr std::int64_t kMaxWindow = 1 << 15;  // products of two are far from overflows
constexpr RangeRow kRanges[] = {{"dilation", 0, kMaxWindow},
                                {"downscale_factor", 1, kMaxWindow},
                                {"interpolation_mode", 0, 2},
                                {"kernel_size", 0, kMaxWindow},
                                {"output_padding", 0, kMaxWindow},
                                {"padding", -kMaxWindow, kMaxWindow},
                                {"padding_mode", 0, 2},
                                {"reduction", 0, 2},
                                {"stride", 0, kMaxWindow},
                                {"upscale_factor", 1, kMaxWindow}};

// LibTorch's operators take minutes for tensors of thousands of dimensions.
constexpr std::size_t kMaxDimensions = 64;
constexpr std::string_view kShapes[] = {"dims", "normalized_shape", "repeats", "shape", "size"};

void checkRange(const OperatorCall& call, std::size_t argument, std::int64_t min,
                std::int64_t max) {
  const c10::IValue& value = call.arguments.at(argument);
  Sizes integers;
  if (value.isInt()) integers = {value.toInt()};
  if (value.isIntList()) integers = value.toIntVector();
  for (const std::int64_t integer : integers) {
    if (integer >= min && integer <= max) continue;
    refuseOperator(call.node, fmt::format("has {} as '{}', which must be from {} to {}", integer,
                                          call.schema.arguments()[argument].name(), min, max));
  }
}

// ---- Preconditions of single operators ----

// The integer division of the smallest integer by -1 overflows, which ends the process.
void checkDivision(const OperatorCall& call) {
  const c10::IValue* const rounding = find(call, "rounding_mode");
  const bool isRounded = rounding != nullptr && !rounding->isNone();
  if (call.schema.name().starts_with("aten::div") && !isRounded) return;
  const auto asTensor = [](const c10::IValue& value) {
    return value.isTensor() ? value.toTensor() : at::scalar_tensor(value.toScalar(), at::kLong);
  };
  const c10::IValue& first = call.arguments.at(0);
  const c10::IValue& second = call.arguments.at(1);
  const auto isInteger = [](const c10::IValue& value) {
    return value.isTensor() ? at::isIntegralType(value.toTensor().scalar_type(), false)
                            : value.isInt();
  };
  if (!isInteger(first) || !isInteger(second)) return;
  const at::Tensor dividend = asTensor(first), divisor = asTensor(second);
  if (!dividend.is_cpu() || !divisor.is_cpu() || dividend.numel() == 0) return;
  if (!divisor.eq(-1).any().item<bool>()) return;
  const at::ScalarType type = at::native::result_type(dividend, divisor);
  const std::int64_t least = type == at::kLong  ? std::numeric_limits<std::int64_t>::min()
                             : type == at::kInt ? std::numeric_limits<std::int32_t>::min()
                                                : 1;
  const std::int64_t min = dividend.min().item<std::int64_t>();
  require(call, min != std::numeric_limits<std::int64_t>::min() && min != least,
          "divides the smallest integer by -1");
}

// A step that rounds to 0 would be divided by.
void checkSteps(const OperatorCall& call) {
  const c10::IValue* const step = find(call, "step");
  const c10::IValue& dtype = get(call, "dtype");
  if (step == nullptr || !dtype.isInt()) return;
  const auto type = static_cast<at::ScalarType>(dtype.toInt());
  require(
      call,
      !at::isIntegralType(type, /*includeBool=*/true) || std::abs(step->toScalar().toDouble()) >= 1,
      "has a step of 0");
}

// The mean of nothing is memory that nobody has written.
void checkNotEmpty(const OperatorCall& call) {
  require(call, call.arguments.at(0).toTensor().numel() > 0, "has a tensor without values");
}

// LibTorch computes with the sizes of both, which need not be equal.
void checkTarget(const OperatorCall& call) {
  require(call, tensorOf(call, "self").sizes() == tensorOf(call, "target").sizes(),
          "has a target of another size");
}

// LibTorch negates it.
void checkPower(const OperatorCall& call) {
  constexpr std::int64_t kMaxPower = std::int64_t{1} << 31;
  const std::int64_t power = get(call, "n").toInt();
  require(call, power >= -kMaxPower && power <= kMaxPower, "has a power that is too large");
}

// `g` has one norm for each position along `dim` of `v`.
void checkWeightNorm(const OperatorCall& call) {
  const at::Tensor v = tensorOf(call, "v"), g = tensorOf(call, "g");
  const std::int64_t dim = get(call, "dim").toInt();
  bool fits = v.numel() > 0 && dim >= -1 && dim < v.dim() && g.scalar_type() == v.scalar_type() &&
              g.device() == v.device();
  Sizes expected(static_cast<std::size_t>(v.dim()), 1);
  if (fits && dim >= 0) expected[static_cast<std::size_t>(dim)] = v.size(dim);
  fits = fits && (dim == -1 ? g.numel() == 1 : g.sizes() == at::IntArrayRef(expected));
  require(call, fits, "has a 'g' that does not fit its 'v'");
}

// Positions in the input become integers, with which the gradient is written.
void checkGrid(const OperatorCall& call) {
  constexpr double kMaxPosition = 0x1p30;
  const at::Tensor input = tensorOf(call, "input"), grid = tensorOf(call, "grid");
  if (!grid.is_cpu() || grid.numel() == 0 || !grid.is_floating_point() || input.dim() < 3) return;
  const at::IntArrayRef sizes = input.sizes().slice(2);
  const auto largest = static_cast<double>(*std::ranges::max_element(sizes));
  // Not true for NaN.
  if (grid.detach().abs().max().item<double>() * largest < kMaxPosition) return;
  throw RunError("non-finite",
                 fmt::format("the operator {} samples its input at positions that are not finite, "
                             "or too far outside",
                             nodeText(call.node)),
                 "lower train.learning_rate.peak, or lengthen its warm-up");
}

bool isBroadcastable(std::int64_t size, std::int64_t to) { return size == to || size == 1; }

void checkAttention(const OperatorCall& call) {
  const at::Tensor query = tensorOf(call, "query"), key = tensorOf(call, "key"),
                   value = tensorOf(call, "value");
  const std::int64_t rank = query.dim();
  bool fits = rank >= 2 && key.dim() == rank && value.dim() == rank &&
              query.size(-1) == key.size(-1) && key.size(-2) == value.size(-2) &&
              query.numel() > 0 && key.numel() > 0 && value.numel() > 0;
  const bool isGrouped = isSet(call, "enable_gqa");
  fits = fits && (!isGrouped || rank >= 3);
  for (std::int64_t d = 0; fits && d < rank - 2; ++d) {
    const std::int64_t q = query.size(d), k = key.size(d), v = value.size(d);
    if (isGrouped && d == rank - 3) {
      fits = q % k == 0 && q % v == 0;
    } else {
      const std::int64_t size = std::max({q, k, v});
      fits = isBroadcastable(q, size) && isBroadcastable(k, size) && isBroadcastable(v, size);
    }
  }
  require(call, fits, "has a query, a key and a value that do not fit each other");
}

// Circular padding that removes values leaves some of the result unwritten.
void checkPadding(const OperatorCall& call) {
  const c10::IValue& mode = get(call, "mode");
  if (!mode.isString() || mode.toStringRef() != "circular") return;
  for (const std::int64_t each : get(call, "pad").toIntVector()) {
    require(call, each >= 0, "has a negative circular padding");
  }
}

// Each window must contain an element: otherwise, its index, with which the gradient is written,
// is outside of the input.
void checkMaxPool(const OperatorCall& call, std::int64_t dimensions) {
  const at::Tensor input = call.arguments.at(0).toTensor();
  require(call, input.dim() > dimensions, "has an input with too few dimensions");
  const auto along = [&](const Sizes& list, std::int64_t d, std::int64_t otherwise) {
    if (list.empty()) return otherwise;
    return list.size() == 1 ? list[0] : list.at(static_cast<std::size_t>(d));
  };
  const auto integers = [&](std::string_view name) {
    Sizes list = get(call, name).toIntVector();
    const bool fits = list.size() <= 1 || list.size() == static_cast<std::size_t>(dimensions);
    require(call, fits, fmt::format("has another number of dimensions in '{}'", name));
    return list;
  };
  const Sizes kernels = integers("kernel_size"), strides = integers("stride"),
              paddings = integers("padding"), dilations = integers("dilation");
  for (std::int64_t d = 0; d < dimensions; ++d) {
    const std::int64_t size = input.size(d - dimensions), kernel = along(kernels, d, 0);
    const std::int64_t stride = along(strides, d, kernel), padding = along(paddings, d, 0);
    const std::int64_t dilation = along(dilations, d, 1);
    require(call, kernel > 0 && stride > 0 && padding >= 0 && dilation > 0,
            "has a kernel, a stride or a dilation of 0");
    // As LibTorch does: with ceil_mode, the last window may begin within the input only.
    const bool isCeil = isSet(call, "ceil_mode");
    const std::int64_t room = size + 2 * padding - (kernel - 1) * dilation - 1;
    std::int64_t windows = (room + (isCeil ? stride - 1 : 0)) / stride + 1;
    if (isCeil && (windows - 1) * stride >= size + padding) --windows;
    for (std::int64_t w = 0; w < windows; ++w) {
      const std::int64_t begin = w * stride - padding;
      const std::int64_t skipped = begin < 0 ? (-begin + dilation - 1) / dilation : 0;
      require(call, skipped < kernel && begin + skipped * dilation < size,
              "has a window without an element of its input");
    }
  }
}

void checkMaxPool1d(const OperatorCall& call) { checkMaxPool(call, 1); }
void checkMaxPool2d(const OperatorCall& call) { checkMaxPool(call, 2); }
void checkMaxPool3d(const OperatorCall& call) { checkMaxPool(call, 3); }

// Rows of the gates' weights per row of the state.
std::int64_t gatesOf(std::string_view op) {
  if (op.starts_with("aten.lstm")) return 4;
  return op.starts_with("aten.gru") ? 3 : 1;
}

// Compares the shapes and types of a recurrent operator's tensors.
class RecurrentTensors {
 public:
  RecurrentTensors(const OperatorCall& call, at::Tensor input)
      : call_(call), input_(std::move(input)) {
    require(call, at::isFloatingType(input_.scalar_type()) && input_.numel() > 0,
            "has an input without values, or with integers");
  }
  void expect(const at::Tensor& tensor, const Sizes& shape) const {
    require(call_,
            tensor.defined() && tensor.sizes() == at::IntArrayRef(shape) && hasType(tensor) &&
                tensor.device() == input_.device(),
            "does not have the tensors of its layers");
  }

 private:
  // Autocast converts all tensors to the same type.
  bool hasType(const at::Tensor& tensor) const {
    const at::ScalarType type = tensor.scalar_type();
    return type == input_.scalar_type() ||
           (at::autocast::is_autocast_enabled(input_.device().type()) &&
            (type == at::kFloat || type == at::kBFloat16 || type == at::kHalf));
  }

  const OperatorCall& call_;
  const at::Tensor input_;
};

void checkRecurrent(const OperatorCall& call) {
  constexpr std::int64_t kMaxLayers = 1 << 16;
  const std::string sentence = "does not have the tensors of its layers";
  const at::Tensor input = tensorOf(call, "input");
  const std::vector<at::Tensor> parameters = get(call, "params").toTensorVector();
  const c10::IValue& hx = get(call, "hx");
  std::vector<at::Tensor> states;
  if (hx.isTensor()) states = {hx.toTensor()};
  if (hx.isTensorList()) states = hx.toTensorVector();
  const std::int64_t gates = gatesOf(call.node.op());
  const bool isLstm = gates == 4;
  const bool hasBiases = isSet(call, "has_biases"), isBatchFirst = isSet(call, "batch_first");
  const std::int64_t directions = isSet(call, "bidirectional") ? 2 : 1;
  const std::int64_t layers = get(call, "num_layers").toInt();
  require(
      call,
      input.dim() == 3 && layers > 0 && layers < kMaxLayers && states.size() == (isLstm ? 2U : 1U),
      sentence);
  for (const at::Tensor& state : states) require(call, state.dim() == 3, sentence);
  const std::int64_t batch = input.size(isBatchFirst ? 0 : 1);
  // `output`: size of a layer's result, which is smaller than its state if it is projected.
  const std::int64_t output = states[0].size(2), hidden = states.back().size(2);
  const std::size_t each = (hasBiases ? 4 : 2) + (isLstm && output != hidden ? 1 : 0);
  require(call,
          parameters.size() == each * static_cast<std::size_t>(layers * directions) && hidden > 0 &&
              output > 0,
          sentence);
  const RecurrentTensors tensors(call, input);
  tensors.expect(states[0], {layers * directions, batch, output});
  tensors.expect(states.back(), {layers * directions, batch, hidden});
  for (std::size_t n = 0; n < parameters.size(); n += each) {
    const bool isFirst = n < each * static_cast<std::size_t>(directions);
    const std::int64_t rows = gates * hidden;
    tensors.expect(parameters[n], {rows, isFirst ? input.size(2) : output * directions});
    tensors.expect(parameters[n + 1], {rows, output});
    if (hasBiases) {
      tensors.expect(parameters[n + 2], {rows});
      tensors.expect(parameters[n + 3], {rows});
    }
    if (isLstm && output != hidden) tensors.expect(parameters[n + each - 1], {output, hidden});
  }
}

// One step of a recurrent layer.
void checkCell(const OperatorCall& call) {
  const at::Tensor input = tensorOf(call, "input");
  const c10::IValue& hx = get(call, "hx");
  const std::vector<at::Tensor> states =
      hx.isTensor() ? std::vector{hx.toTensor()} : hx.toTensorVector();
  const std::int64_t gates = gatesOf(call.node.op());
  require(call, input.dim() == 2 && states.size() == (gates == 4 ? 2U : 1U) && states[0].dim() == 2,
          "does not have the tensors of its layers");
  const std::int64_t hidden = states[0].size(1);
  const RecurrentTensors tensors(call, input);
  for (const at::Tensor& state : states) tensors.expect(state, {input.size(0), hidden});
  tensors.expect(tensorOf(call, "w_ih"), {gates * hidden, input.size(1)});
  tensors.expect(tensorOf(call, "w_hh"), {gates * hidden, hidden});
  for (const char* const name : {"b_ih", "b_hh"}) {
    const at::Tensor bias = tensorOf(call, name);
    if (bias.defined()) tensors.expect(bias, {gates * hidden});
  }
}

// The offsets say where each bag begins in the list of indices.
void checkBags(const OperatorCall& call) {
  constexpr std::int64_t kModes = 3;
  const at::Tensor indices = tensorOf(call, "indices"), offsets = tensorOf(call, "offsets");
  const at::Tensor weights = tensorOf(call, "per_sample_weights");
  const std::int64_t mode = get(call, "mode").toInt();
  require(call,
          tensorOf(call, "weight").dim() == 2 && offsets.dim() == 1 && indices.dim() == 1 &&
              mode >= 0 && mode < kModes && at::isIntegralType(offsets.scalar_type(), false) &&
              at::isIntegralType(indices.scalar_type(), false),
          "has no list of indices, or no list of offsets");
  require(call,
          !weights.defined() || (weights.sizes() == indices.sizes() &&
                                 weights.scalar_type() == tensorOf(call, "weight").scalar_type()),
          "does not have a weight for each index");
  const std::int64_t ends = isSet(call, "include_last_offset") ? 1 : 0;
  require(call, offsets.numel() > ends, "has no offset of a bag");
  if (!offsets.device().is_cpu()) return;
  const at::Tensor list = offsets.to(at::kLong).contiguous();
  const std::int64_t* const begin = list.const_data_ptr<std::int64_t>();
  const std::int64_t* const end = begin + list.numel();
  const bool endsWithin = ends == 1 ? end[-1] == indices.numel() : end[-1] <= indices.numel();
  require(call, *begin == 0 && endsWithin && std::is_sorted(begin, end),
          "has offsets that are not ascending positions in its indices");
}

// LibTorch computes the number of indices without a check for overflow.
void checkTriangle(const OperatorCall& call) {
  constexpr std::int64_t kMax = std::int64_t{1} << 30;
  for (std::size_t n = 0; n < 3; ++n) {
    const std::int64_t value = call.arguments.at(n).toInt();
    require(call, value >= -kMax && value <= kMax, "has sizes that are too large");
  }
}

struct PreconditionRow {
  std::string_view operators;  // names without overloads, with spaces
  void (*check)(const OperatorCall& call);
};
// After a change, let tests/operators/operator_fuzz.cpp try the operators.
constexpr PreconditionRow kPreconditions[] = {
    {"_weight_norm", checkWeightNorm},
    {"arange", checkSteps},
    {"binary_cross_entropy", checkTarget},
    {"div div_ divide divide_ floor_divide floor_divide_ fmod fmod_ remainder remainder_",
     checkDivision},
    {"embedding_bag", checkBags},
    {"grid_sampler", checkGrid},
    {"gru lstm rnn_relu rnn_tanh", checkRecurrent},
    {"gru_cell lstm_cell rnn_relu_cell rnn_tanh_cell", checkCell},
    {"linalg_matrix_power matrix_power", checkPower},
    {"max_pool1d max_pool1d_with_indices", checkMaxPool1d},
    {"max_pool2d max_pool2d_with_indices", checkMaxPool2d},
    {"max_pool3d max_pool3d_with_indices", checkMaxPool3d},
    {"multi_margin_loss multilabel_margin_loss", checkNotEmpty},
    {"pad", checkPadding},
    {"scaled_dot_product_attention", checkAttention},
    {"tril_indices triu_indices", checkTriangle}};

using Checks = std::map<std::string, void (*)(const OperatorCall&), std::less<>>;

Checks checksByName() {
  Checks checks;
  for (const PreconditionRow& row : kPreconditions) {
    for (std::size_t begin = 0; begin < row.operators.size();) {
      const std::size_t end = std::min(row.operators.find(' ', begin), row.operators.size());
      checks.emplace("aten::" + std::string(row.operators.substr(begin, end - begin)), row.check);
      begin = end + 1;
    }
  }
  return checks;
}

}  // namespace

Preconditions::Preconditions(const c10::FunctionSchema& schema) {
  static const Checks kChecks = checksByName();
  const auto check = kChecks.find(schema.name());
  if (check != kChecks.end()) check_ = check->second;
  for (std::size_t n = 0; n < schema.arguments().size(); ++n) {
    const std::string& name = schema.arguments()[n].name();
    if (std::ranges::find(kShapes, name) != std::end(kShapes)) shapes_.push_back(n);
    const auto* const row = std::ranges::find(kRanges, name, &RangeRow::argument);
    if (row != std::end(kRanges)) ranges_.push_back({n, row->min, row->max});
  }
}

void Preconditions::check(const OperatorCall& call) const {
  for (const Range& range : ranges_) checkRange(call, range.argument, range.min, range.max);
  for (const std::size_t shape : shapes_) {
    const c10::IValue& value = call.arguments.at(shape);
    if (value.isIntList() && value.toIntList().size() > kMaxDimensions) {
      refuseOperator(call.node, fmt::format("has more than {} dimensions", kMaxDimensions));
    }
  }
  if (check_ != nullptr) check_(call);
}

}  // namespace cleave
