// Checks of what an operator gets while a graph runs. A graph is a program that a client sends, and
// some of LibTorch's operators trust arguments that a hostile client could choose.
#pragma once

#include <ATen/core/stack.h>

#include <exception>
#include <string>

#include "common/core/error.h"
#include "common/graph/graph.h"

namespace cleave {

// Throws UsageError "bad-graph": "the operator aten.x (x_1) SENTENCE".
[[noreturn]] void refuseOperator(const wire::Node& node, const std::string& sentence);

// Whether an error is one of a library that LibTorch uses: neither Cleave's, nor LibTorch's, nor a
// lack of memory.
bool isOfLibrary(const std::exception& error);

// Throws UsageError "bad-graph" unless a node that returns a list will make as many tensors as the
// graph says. `stack`: the arguments, in the order of the operator's schema.
void checkListLength(const wire::Node& node, const torch::jit::Stack& stack);

// The result of an operator on sizes, such as "size.add". Sizes are integers; truediv, float and
// pow make numbers (double), as in Python. `b`: ignored by operators of one argument. Throws
// UsageError "bad-graph" on overflow.
c10::IValue calculateSize(const wire::Node& node, const c10::IValue& a, const c10::IValue& b);

// Throws the error for an operator that LibTorch refused because of an index beyond the end of a
// tensor: RunError "bad-index". If the operator is an embedding, names the index, its sample in the
// micro-batch and the table's size. `place`: "micro-batch 0 of step 3". `reason`: LibTorch's
// message; UsageError "bad-graph" if it is about a dimension.
[[noreturn]] void throwIndexError(const wire::Node& node, const torch::jit::Stack& stack,
                                  const std::string& place, const std::string& reason);

}  // namespace cleave
