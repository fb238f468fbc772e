#include "common/model/graph/operator_checks.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/logical_or.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>
#include <new>

namespace cleave {
namespace {

using torch::jit::Stack;

// Each tensor object of a list takes memory that no limit counts. Returns how many the operator
// will make; operators that are not named here make as many as their arguments have.
std::int64_t listLength(const std::string& op, const Stack& stack, std::int64_t expected) {
  const auto sizeAlong = [&](std::size_t dimension) {
    return stack.at(0).toTensor().size(stack.at(dimension).toInt());
  };
  if (op == "aten.unbind.int") return sizeAlong(1);
  if (op == "aten.split.Tensor" || op == "aten.unsafe_split.Tensor") {
    const std::int64_t each = stack.at(1).toInt();
    if (each <= 0) return expected;
    return std::max<std::int64_t>(1, sizeAlong(2) / each + (sizeAlong(2) % each != 0 ? 1 : 0));
  }
  if (op == "aten.tensor_split.sections" || op == "aten.hsplit.int" || op == "aten.vsplit.int" ||
      op == "aten.dsplit.int") {
    return stack.at(1).toInt();
  }
  if (op == "aten.split_with_sizes.default" || op == "aten.unsafe_split_with_sizes.default") {
    return static_cast<std::int64_t>(stack.at(1).toIntVector().size());
  }
  const bool isChunk = op == "aten.chunk.default" || op == "aten.unsafe_chunk.default";
  return isChunk && stack.at(1).toInt() > 2 * expected ? -1 : expected;
}

// As in Python: an integer if both are integers and the exponent is not negative.
c10::IValue power(const wire::Node& node, const c10::IValue& a, const c10::IValue& b) {
  if (!a.isInt() || !b.isInt() || b.toInt() < 0) {
    return std::pow(a.toScalar().toDouble(), b.toScalar().toDouble());
  }
  constexpr std::int64_t kMaxExponent = 62;
  std::int64_t result = 1;
  bool overflows = b.toInt() > kMaxExponent;
  for (std::int64_t n = 0; n < b.toInt() && !overflows; ++n) {
    overflows = __builtin_mul_overflow(result, a.toInt(), &result);
  }
  if (overflows) refuseOperator(node, "computes a size that is too large");
  return result;
}

double calculateNumber(const wire::Node& node, double a, double b) {
  const std::string& op = node.op();
  if (op == "size.neg") return -a;
  if (op == "size.add") return a + b;
  if (op == "size.sub") return a - b;
  if (op == "size.mul") return a * b;
  if (op == "size.div") return std::floor(a / b);
  if (op == "size.min") return std::min(a, b);
  if (op == "size.max") return std::max(a, b);
  if (op == "size.truediv") return a / b;
  refuseOperator(node, "cannot compute with numbers that are not integers");
}

std::int64_t calculateInteger(const wire::Node& node, std::int64_t a, std::int64_t b) {
  const std::string& op = node.op();
  if (op == "size.min") return std::min(a, b);
  if (op == "size.max") return std::max(a, b);
  std::int64_t result = 0;
  bool overflows = false;
  if (op == "size.neg") overflows = __builtin_sub_overflow(std::int64_t{0}, a, &result);
  if (op == "size.add") overflows = __builtin_add_overflow(a, b, &result);
  if (op == "size.sub") overflows = __builtin_sub_overflow(a, b, &result);
  if (op == "size.mul") overflows = __builtin_mul_overflow(a, b, &result);
  if (op == "size.div" || op == "size.mod") {
    if (b <= 0 || a < 0)
      refuseOperator(node, "has a negative dividend, or a divisor that is not positive");
    result = op == "size.div" ? a / b : a % b;
  }
  if (overflows) refuseOperator(node, "computes a size that is too large");
  return result;
}

bool isEmbedding(const std::string& op) {
  return op == "aten.embedding.default" || op == "aten.embedding_bag.padding_idx";
}

}  // namespace

void refuseOperator(const wire::Node& node, const std::string& sentence) {
  throw UsageError(
      "bad-graph", fmt::format("the operator {} {}", nodeText(node), sentence),
      "export the model again with cleave_split.export, with the PyTorch of this version "
      "of Cleave")
      .about("model.file");
}

bool isOfLibrary(const std::exception& error) {
  return dynamic_cast<const Error*>(&error) == nullptr &&
         dynamic_cast<const c10::Error*>(&error) == nullptr &&
         dynamic_cast<const std::bad_alloc*>(&error) == nullptr;
}

void checkListLength(const wire::Node& node, const Stack& stack) {
  const std::int64_t expected = node.outputs_size();
  if (listLength(node.op(), stack, expected) == expected) return;
  refuseOperator(node, "does not return as many tensors as the graph says");
}

c10::IValue calculateSize(const wire::Node& node, const c10::IValue& a, const c10::IValue& b) {
  const std::string& op = node.op();
  const bool isUnary = op == "size.neg" || op == "size.float";
  if (op == "size.float") return a.toScalar().toDouble();
  if (op == "size.pow") return power(node, a, b);
  if (op != "size.truediv" && a.isInt() && (isUnary || b.isInt())) {
    return calculateInteger(node, a.toInt(), isUnary ? 0 : b.toInt());
  }
  return calculateNumber(node, a.toScalar().toDouble(), isUnary ? 0 : b.toScalar().toDouble());
}

void throwIndexError(const wire::Node& node, const Stack& stack, const std::string& place,
                     const std::string& reason) {
  // LibTorch reports dimensions that a tensor does not have in the same way.
  if (reason.starts_with("Dimension")) {
    refuseOperator(node, "names a dimension that its tensor does not have");
  }
  const std::string hint =
      "prepare the data with the tokenizer that belongs to the model, with no more tokens per "
      "sample than the model has positions";
  const std::string beyond = "is beyond the end of one of the model's tables";
  if (isEmbedding(node.op()) && stack.at(1).toTensor().numel() > 0) {
    const std::int64_t rows = stack.at(0).toTensor().size(0);
    const at::Tensor& indices = stack.at(1).toTensor();
    const at::Tensor wrong = at::logical_or(indices.lt(0), indices.ge(rows)).flatten().nonzero();
    if (wrong.numel() > 0) {
      const auto position = wrong[0][0].item<std::int64_t>();
      const std::int64_t perSample = indices.numel() / std::max<std::int64_t>(1, indices.size(0));
      throw UsageError("bad-index",
                       fmt::format("the id {} of sample {} in {} {}: {} has {} rows",
                                   indices.flatten()[position].item<std::int64_t>(),
                                   position / perSample, place, beyond, nodeText(node), rows),
                       hint);
    }
  }
  throw UsageError("bad-index",
                   fmt::format("an index of {} in {} {}", nodeText(node), place, beyond), hint);
}

}  // namespace cleave
