#include "common/checkpoint/run_connections.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <charconv>
#include <random>

namespace cleave {
namespace {

constexpr std::size_t kMaxServers = 64;  // in a file

std::uint64_t randomId() {
  std::random_device random;
  for (;;) {
    const std::uint64_t id = std::uint64_t{random()} << 32 | random();
    if (id != 0) return id;
  }
}

void addNewest(std::vector<std::uint64_t>& ids, std::uint64_t id) {
  ids.insert(ids.begin(), id);
  ids.resize(std::min(ids.size(), kMaxConnectionIds));
}

ConnectionIds& at(RunConnections& own, std::size_t server) {
  own.servers.resize(std::max(own.servers.size(), server + 1));
  return own.servers[server];
}

// Takes a number and the separator after it from the beginning of `text`.
std::optional<std::uint64_t> takeNumber(std::string_view& text, int base, char separator) {
  std::uint64_t number = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number, base);
  if (error != std::errc() || rest == end || *rest != separator) return std::nullopt;
  text = std::string_view(rest + 1, static_cast<std::size_t>(end - rest - 1));
  return number;
}

// Takes this word from the beginning of `text`, if it is there.
bool takeWord(std::string_view& text, std::string_view word) {
  if (!text.starts_with(word)) return false;
  text.remove_prefix(word.size());
  return true;
}

}  // namespace

std::vector<std::uint64_t> ConnectionIds::all() const {
  std::vector<std::uint64_t> ids = sent;
  ids.insert(ids.end(), accepted.begin(), accepted.end());
  return ids;
}

void addHello(RunConnections& own, std::size_t server) {
  ++own.generation;
  addNewest(at(own, server).sent, randomId());
}

void acceptHello(RunConnections& own, std::size_t server) {
  ConnectionIds& ids = at(own, server);
  if (ids.sent.empty()) return;
  addNewest(ids.accepted, ids.sent.front());
  ids.sent.clear();
}

// Each id has a line: "SERVER accepted|sent ID", with ID in hexadecimal.
std::string toText(const RunConnections& connections) {
  std::string text = fmt::format("{}\n", connections.generation);
  for (std::size_t server = 0; server < connections.servers.size(); ++server) {
    const ConnectionIds& ids = connections.servers[server];
    for (const auto id : ids.accepted) text += fmt::format("{} accepted {:016x}\n", server, id);
    for (const auto id : ids.sent) text += fmt::format("{} sent {:016x}\n", server, id);
  }
  return text;
}

std::optional<RunConnections> parseConnections(std::string_view text) {
  RunConnections connections;
  const auto generation = takeNumber(text, 10, '\n');
  if (!generation || *generation >= kMaxGeneration) return std::nullopt;
  connections.generation = *generation;
  while (!text.empty()) {
    const auto server = takeNumber(text, 10, ' ');
    if (!server || *server >= kMaxServers) return std::nullopt;
    const bool isAccepted = takeWord(text, "accepted ");
    if (!isAccepted && !takeWord(text, "sent ")) return std::nullopt;
    ConnectionIds& ids = at(connections, *server);
    std::vector<std::uint64_t>& list = isAccepted ? ids.accepted : ids.sent;
    const auto id = takeNumber(text, 16, '\n');
    if (!id || *id == 0 || list.size() == kMaxConnectionIds) return std::nullopt;
    list.push_back(*id);
  }
  return connections;
}

}  // namespace cleave
