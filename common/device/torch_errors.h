// Converts LibTorch's errors, which contain a stack trace, to errors with a sentence and a hint.
#pragma once

#include <c10/util/Exception.h>

#include <string>

#include "common/core/error.h"

namespace cleave {

// Returns the result of `function`. For LibTorch's exceptions, throws RunError "out-of-memory" or
// "compute-failed", and UsageError "bad-index" or, of a DeterministicScope, "not-deterministic".
template <typename Function>
auto withTorchErrors(const Function& function) {
  try {
    return function();
  } catch (const c10::OutOfMemoryError&) {
    throw RunError(
        "out-of-memory", "the GPU's memory is full",
        "use a smaller batch, more micro-batches with fewer in flight, or a smaller model "
        "on that machine");
  } catch (const c10::IndexError&) {
    throw UsageError(
        "bad-index",
        "an index in the data is beyond the end of one of the model's tables, such as a "
        "token id beyond the vocabulary",
        "prepare the data with the tokenizer that belongs to the model, with no more "
        "tokens per sample than the model has positions");
  } catch (const c10::Error& error) {
    const std::string text = error.what_without_backtrace();
    const auto end = text.find(" does not have a deterministic implementation");
    if (end != std::string::npos) {
      throw UsageError(
          "not-deterministic",
          "LibTorch has no deterministic implementation of " + text.substr(0, end) + " on this GPU",
          "set device_bits: fast, which gives other bits in every run, or compute on "
          "the CPU")
          .about("device_bits");
    }
    throw RunError("compute-failed", "LibTorch cannot compute: " + text.substr(0, text.find('\n')),
                   "if memory is short, use a smaller batch or more micro-batches; check that the "
                   "driver and LibTorch are compatible");
  }
}

}  // namespace cleave
