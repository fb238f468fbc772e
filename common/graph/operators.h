// The operators that a graph may use. A graph is a program that a client sends to a server, so an
// allowed operator can affect only its arguments and results. It cannot read files, memory outside
// of its tensors, or uninitialised memory.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace cleave {

// How an operator's result relates to its first tensor.
enum class ResultMemory : std::uint8_t {
  own,       // the result has memory of its own
  mayShare,  // it may be a view of the tensor
  inPlace,   // the tensor itself is changed, and is the result
};

struct OperatorRow {
  std::string_view name;  // without "aten.": "conv2d.default"
  ResultMemory memory = ResultMemory::own;
};

// Null if the operator is not allowed. `op`: as in Node.op, such as "aten.conv2d.default".
const OperatorRow* findOperator(std::string_view op);
// All allowed operators, sorted by name.
std::span<const OperatorRow> operatorTable();

}  // namespace cleave
