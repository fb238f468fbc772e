#include "stage/replies.h"

#include <algorithm>
#include <cassert>
#include <cctype>
#include <cstring>
#include <utility>

#include "common/core/error.h"
#include "common/net/frames/failure.h"

namespace cleave {

void throwFailure(const wire::StageReply& reply) {
  constexpr std::size_t kMaxCodeBytes = 40;
  if (reply.done()) return;
  const RunError error = errorOf(reply.failure());
  const std::string& code = error.code();
  const bool isCode = !code.empty() && code.size() <= kMaxCodeBytes &&
                      std::all_of(code.begin(), code.end(),
                                  [](char c) { return c == '-' || (c >= 'a' && c <= 'z'); });
  if (!isCode) {
    throw RunError("internal-error",
                   std::string("the process of the run's body failed: ") + error.what());
  }
  const bool isUsage = error.kind() == ErrorKind::usage;
  throw RunError(isUsage ? ErrorKind::usage : ErrorKind::run, code, error.what(), error.hint())
      .about(error.key());
}

std::string notedOperator(std::span<const std::byte> note) {
  std::string name(note.size(), '\0');  // a copy: the process may change the note at any time
  if (!note.empty()) std::memcpy(name.data(), note.data(), note.size());
  const auto end = std::ranges::find_if_not(name, [](char c) {
    return c == '.' || c == ':' || c == '_' || std::isalnum(static_cast<unsigned char>(c)) != 0;
  });
  name.erase(end, name.end());
  return name.empty() ? "" : ", in the operator " + name;
}

void GivenInputs::add(std::uint64_t offset, Payload input) {
  const bool isNew = inputs_.emplace(offset, std::move(input)).second;
  assert(isNew);
  static_cast<void>(isNew);
}

bool GivenInputs::release(const wire::StageReply& reply) {
  return std::ranges::all_of(reply.released(),
                             [this](std::uint64_t offset) { return inputs_.erase(offset) > 0; });
}

}  // namespace cleave
