#include "common/checkpoint/run_connections.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <charconv>
#include <random>

namespace cleave {
namespace {

std::uint64_t randomId() {
  std::random_device random;
  for (;;) {
    const std::uint64_t id = std::uint64_t{random()} << 32 | random();
    if (id != 0) return id;
  }
}

// Reads a number and the line break after it from the beginning of `text`.
std::optional<std::uint64_t> takeLine(std::string_view& text, int base) {
  std::uint64_t number = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number, base);
  if (error != std::errc() || rest == end || *rest != '\n') return std::nullopt;
  text = std::string_view(rest + 1, static_cast<std::size_t>(end - rest - 1));
  return number;
}

}  // namespace

void addAttempt(RunConnections& own, bool isNew) {
  ++own.generation;
  if (!isNew && !own.ids.empty()) return;
  own.ids.insert(own.ids.begin(), randomId());
  own.ids.resize(std::min(own.ids.size(), kMaxConnectionIds));
}

std::string toText(const RunConnections& connections) {
  std::string text = fmt::format("{}\n", connections.generation);
  for (const std::uint64_t id : connections.ids) text += fmt::format("{:016x}\n", id);
  return text;
}

std::optional<RunConnections> parseConnections(std::string_view text) {
  RunConnections connections;
  const auto generation = takeLine(text, 10);
  if (!generation) return std::nullopt;
  connections.generation = *generation;
  while (!text.empty()) {
    const auto id = takeLine(text, 16);
    if (!id || *id == 0 || connections.ids.size() == kMaxConnectionIds) return std::nullopt;
    connections.ids.push_back(*id);
  }
  return connections;
}

}  // namespace cleave
