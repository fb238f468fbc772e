// Who may continue a run. Each Hello of a run has a new random id. The client keeps the ids that it
// has sent, and lists them in its next Hello; the server stores the id of the Hello that it
// accepted last. It lets a client continue the run only if that id is one of the client's. So if
// two copies of a run's folder exist, only the one that continues the run first can continue it
// again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace cleave {

// Generations are below this, which leaves room for raising them.
inline constexpr std::uint64_t kMaxGeneration = std::uint64_t{1} << 63;
// Maximum number of ids that a client keeps per server, of each kind.
inline constexpr std::size_t kMaxConnectionIds = 512;

// The ids that a client has sent to one server. Ids are not 0.
struct ConnectionIds {
  // Newest first. The first one is needed; the others serve if the server's store was restored from
  // a backup.
  std::vector<std::uint64_t> accepted;
  // Those sent since then, newest first. The server may have accepted one of them, if its answer
  // was lost.
  std::vector<std::uint64_t> sent;

  // Both, newest first.
  std::vector<std::uint64_t> all() const;
  bool operator==(const ConnectionIds&) const = default;
};

// The content of the file RUN/connections.
struct RunConnections {
  // On the client, the number of Hellos that it has sent; on the server, of those that it has
  // accepted, or more. 0: none.
  std::uint64_t generation = 0;
  // On the client, by number of the server. On the server, one entry, with one accepted id.
  std::vector<ConnectionIds> servers;

  bool operator==(const RunConnections&) const = default;
};

// The client is about to send a Hello to this server: adds a new id, and raises the generation.
void addHello(RunConnections& own, std::size_t server);
// The server has accepted the newest Hello.
void acceptHello(RunConnections& own, std::size_t server);

std::string toText(const RunConnections& connections);
// Returns nothing if the text is damaged.
std::optional<RunConnections> parseConnections(std::string_view text);

}  // namespace cleave
