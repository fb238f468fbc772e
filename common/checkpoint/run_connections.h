// Who may continue a run. Each connection of a run has a random id. The client lists the ids of its
// own connections in its Hello, and the server stores the id of the run's last connection. It lets
// a client continue the run only if the last connection was one of that client's. So if two copies
// of a run's folder exist, only the one that continues the run first can continue it again.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace cleave {

// Generations are below this, which leaves room for raising them.
inline constexpr std::uint64_t kMaxGeneration = std::uint64_t{1} << 63;
// A client keeps the ids of its newest connections only.
inline constexpr std::size_t kMaxConnectionIds = 1024;

struct RunConnections {
  // Number of the run's newest attempt to connect that this side knows; 0: there was none.
  std::uint64_t generation = 0;
  // Not 0. On the client: of its own connections, newest first. On the server: of the run's last
  // connection.
  std::vector<std::uint64_t> ids;

  bool operator==(const RunConnections&) const = default;
};

// Adds an attempt of the client to connect: a higher generation, and a new id if `isNew`. Attempts
// share an id until the server accepts one of them, so that failed attempts do not fill the list.
void addAttempt(RunConnections& own, bool isNew);

// The content of the file RUN/connections: the generation, then the ids.
std::string toText(const RunConnections& connections);
// Returns nothing if the text is damaged.
std::optional<RunConnections> parseConnections(std::string_view text);

}  // namespace cleave
