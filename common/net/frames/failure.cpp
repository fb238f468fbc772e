#include "common/net/frames/failure.h"

#include "common/core/printable.h"

namespace cleave {
namespace {

constexpr std::size_t kMaxNameBytes = 64;  // of a code or a key

// The kinds have the same numbers on the wire. An unknown one ends the run.
ErrorKind kindFrom(wire::Failure::Kind kind) {
  return wire::Failure::Kind_IsValid(kind) ? static_cast<ErrorKind>(kind) : ErrorKind::run;
}

wire::Failure::Kind toWire(ErrorKind kind) {
  return kind == ErrorKind::interrupt ? wire::Failure::RUN : static_cast<wire::Failure::Kind>(kind);
}

double checkedRetry(double seconds) {
  constexpr double kMaxSeconds = 3600;
  return seconds > 0 && seconds <= kMaxSeconds ? seconds : 0;
}

}  // namespace

wire::Failure failureOf(const Error& error) {
  wire::Failure failure;
  failure.set_code(printable(error.code(), kMaxNameBytes));
  failure.set_sentence(printable(error.what()));
  failure.set_hint(printable(error.hint()));
  failure.set_retry_seconds(error.retrySeconds());
  failure.set_kind(toWire(error.kind()));
  failure.set_key(printable(error.key(), kMaxNameBytes));
  return failure;
}

RunError errorOf(const wire::Failure& failure) {
  return RunError(kindFrom(failure.kind()), printable(failure.code(), kMaxNameBytes),
                  printable(failure.sentence()), printable(failure.hint()),
                  checkedRetry(failure.retry_seconds()))
      .about(printable(failure.key(), kMaxNameBytes));
}

}  // namespace cleave
