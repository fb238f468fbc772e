// What LibTorch's operators require of their arguments and do not check themselves: sizes that must
// agree, modes that must exist, integers that overflow. Without them, an operator reads or writes
// other memory, returns memory that nobody has written, or ends the process.
#pragma once

#include <ATen/core/function_schema.h>
#include <ATen/core/stack.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/graph/graph.h"

namespace cleave {

// A call of an operator.
struct OperatorCall {
  const wire::Node& node;
  const c10::FunctionSchema& schema;
  const torch::jit::Stack& arguments;  // in the order of the schema
};

// The preconditions of one operator.
class Preconditions {
 public:
  explicit Preconditions(const c10::FunctionSchema& schema);

  // Throws UsageError "bad-graph" if a precondition does not hold. Reads the values of tensors only
  // on the CPU: kernels on a GPU do not end the process for them.
  void check(const OperatorCall& call) const;

 private:
  struct Range {
    std::size_t argument;
    std::int64_t min, max;
  };
  std::vector<Range> ranges_;
  std::vector<std::size_t> shapes_;  // positions of arguments that are shapes
  void (*check_)(const OperatorCall& call) = nullptr;
};

}  // namespace cleave
