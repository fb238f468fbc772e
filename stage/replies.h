// What the server makes of the replies of a stage's process. The process runs the client's code, so
// a reply may contain anything.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>

#include "common/codec/tensor.h"
#include "proto/stage.pb.h"

namespace cleave {

// Throws the error that a reply reports, if it reports one. Its texts are printable, it ends the
// run, and what the process calls its code is one; else it is RunError "internal-error".
void throwFailure(const wire::StageReply& reply);

// ", in the operator NAME", for an error's message, from the memory in which the process notes the
// operator that it computes; empty if there is no name.
std::string notedOperator(std::span<const std::byte> note);

// Inputs that the process may read, until a reply releases them.
class GivenInputs {
 public:
  // `offset`: in the shared memory. No other input has it.
  void add(std::uint64_t offset, Payload input);
  // Returns false if the reply releases an input that the process does not have.
  bool release(const wire::StageReply& reply);

 private:
  std::map<std::uint64_t, Payload> inputs_;
};

}  // namespace cleave
