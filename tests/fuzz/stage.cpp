// Fuzz target: replies of a stage's process. The first byte of an input is the number of inputs
// that the process has been given, at offsets 0, 64, 128, …; the next 64 are its note of an
// operator; the rest is a message. Only an Error is allowed, and only with texts that can be
// printed.
#include <algorithm>
#include <array>
#include <cctype>

#include "common/core/error.h"
#include "common/core/printable.h"
#include "common/net/frames/failure.h"
#include "stage/replies.h"
#include "tests/fuzz/seeds.h"

using namespace cleave;
using namespace cleave::fuzz;

namespace {

constexpr std::size_t kNoteBytes = 64;
constexpr std::uint64_t kInputBytes = 64;

void checkText(const std::string& text, std::size_t maxBytes) {
  if (text.size() > maxBytes || printable(text, maxBytes) != text) find("a text is not printable");
}

void checkFailure(const wire::StageReply& reply) {
  constexpr std::size_t kMaxCodeBytes = 40, kPrefixBytes = 100;
  try {
    throwFailure(reply);
  } catch (const Error& error) {
    checkText(error.what(), kMaxTextBytes + kPrefixBytes);
    checkText(error.hint(), kMaxTextBytes);
    const std::string& code = error.code();
    const bool isCode = std::ranges::all_of(
        code, [](char c) { return c == '-' || std::islower(static_cast<unsigned char>(c)) != 0; });
    if (!isCode || code.empty() || code.size() > kMaxCodeBytes) find("a code is not one");
    return;
  }
  if (!reply.done()) find("a failure is no error");
}

void checkRelease(const wire::StageReply& reply, std::size_t count) {
  const auto owner = std::make_shared<int>();
  const TensorView view{nullptr, {DType::f32, {0}, {}}};
  GivenInputs inputs;
  for (std::size_t n = 0; n < count; ++n) inputs.add(n * kInputBytes, Payload(view, owner));
  const bool isAccepted = inputs.release(reply);
  const auto kept = static_cast<std::size_t>(owner.use_count()) - 1;
  const auto named = static_cast<std::size_t>(reply.released_size());
  if (isAccepted && count - kept != named) find("an input was released that was not given");
  if (kept > count) find("an input was made");
}

Bytes seedOf(unsigned inputs, const std::string& note, const wire::StageReply& reply) {
  Bytes bytes(1 + kNoteBytes);
  bytes[0] = static_cast<std::byte>(inputs);
  std::ranges::copy(bytesOf(note), bytes.begin() + 1);
  std::ranges::copy(bytesOf(reply.SerializeAsString()), std::back_inserter(bytes));
  return bytes;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 1 + kNoteBytes) return 0;
  const std::span input(data, size);
  checkText(notedOperator(std::as_bytes(input.subspan(1, kNoteBytes))), kMaxTextBytes);
  wire::StageReply reply;
  const auto message = input.subspan(1 + kNoteBytes);
  if (!reply.ParseFromArray(message.data(), static_cast<int>(message.size()))) return 0;
  checkFailure(reply);
  checkRelease(reply, input[0]);
  return 0;
}

std::vector<Seed> cleave::fuzz::seeds() {
  using wire::StageReply;
  StageReply done, failed, bug, numbers;
  done.set_done(true);
  for (const std::uint64_t offset : {0, 64}) done.add_released(offset);
  *failed.mutable_failure() =
      failureOf(RunError("memory-exceeded", "the run needs more memory than was admitted for it",
                         "use a smaller batch"));
  bug.mutable_failure()->set_sentence("\x1b[2J");
  numbers.set_done(true);
  numbers.set_square_sum(2);
  numbers.set_finite(true);
  numbers.set_value(3);
  numbers.set_bytes(1 << 20);
  return {{"done", seedOf(2, "aten.mm.default", done)},
          {"failed", seedOf(0, "aten.mm.default", failed)},
          {"bug", seedOf(1, "\x1b[2J", bug)},
          {"numbers", seedOf(0, "", numbers)}};
}
