// Decides whether a client may continue a run, given the run's last connection.
#pragma once

#include <spdlog/fmt/fmt.h>

#include <algorithm>

#include "common/checkpoint/run_connections.h"
#include "common/core/error.h"
#include "proto/wire.pb.h"

namespace cleave {

// The connection of a Hello that the server has accepted. Generation 0: there was none.
struct LastConnection {
  std::uint64_t generation = 0;
  std::uint64_t id = 0;
};

// The connection that a Hello asks for. Requires that `hello` has an id.
inline LastConnection connectionOf(const wire::Hello& hello) {
  return {hello.generation(), hello.connections(0)};
}

// Throws RunError "stale-generation" unless the last connection was one of this client's.
inline void checkContinues(const wire::Hello& hello, const LastConnection& last) {
  const auto& ids = hello.connections();
  if (std::find(ids.begin(), ids.end(), last.id) != ids.end()) return;
  throw RunError(
      "stale-generation", fmt::format("another client has continued the run {}", hello.run_id()),
      "use that client's folder; if that client is gone for good, or if the run's folder "
      "was restored from a backup, add --take-over");
}

}  // namespace cleave
