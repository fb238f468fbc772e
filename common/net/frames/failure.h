// Errors as messages, to a peer and from a stage's process.
#pragma once

#include "common/core/error.h"
#include "proto/wire.pb.h"

namespace cleave {

// Its texts are printable and short enough for a handshake frame.
wire::Failure failureOf(const Error& error);
// The texts of the result are printable.
RunError errorOf(const wire::Failure& failure);

}  // namespace cleave
