#include "common/model/graph/operator_note.h"

#include <algorithm>
#include <cassert>
#include <cstring>

namespace cleave {
namespace {

std::span<char> place;

}  // namespace

void noteOperatorsIn(std::span<char> given) {
  assert(given.size() == kOperatorNoteBytes);
  place = given;
}

void noteOperator(std::string_view name) noexcept {
  if (place.empty()) return;
  const std::size_t size = std::min(name.size(), place.size() - 1);
  std::memcpy(place.data(), name.data(), size);
  place[size] = '\0';
}

std::string_view lastNotedOperator() {
  return place.empty() ? std::string_view() : std::string_view(place.data());
}

}  // namespace cleave
