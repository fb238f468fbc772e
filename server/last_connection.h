// Decides whether a client may continue a run, given the run's last connection.
#pragma once

#include <spdlog/fmt/fmt.h>

#include <algorithm>

#include "common/checkpoint/run_connections.h"
#include "common/core/error.h"
#include "proto/wire.pb.h"

namespace cleave {

// The connection that a Hello asks for. `hello` has at least one id.
inline RunConnections connectionOf(const wire::Hello& hello) {
  return {hello.generation(), {hello.connections(0)}};
}

// Whether the last connection was one of this client's.
inline bool isOwn(const RunConnections& last, const wire::Hello& hello) {
  const auto& ids = hello.connections();
  return std::find(ids.begin(), ids.end(), last.ids.at(0)) != ids.end();
}

// Throws RunError "stale-generation" unless the last connection was one of this client's, and
// older.
inline void checkContinues(const wire::Hello& hello, const RunConnections& last) {
  const char* hint =
      "another client continues this run; if there is none, and the run's folder was restored from "
      "a backup, add --take-over";
  if (!isOwn(last, hello)) {
    throw RunError("stale-generation",
                   fmt::format("another client has continued the run {}", hello.run_id()), hint);
  }
  if (hello.generation() <= last.generation) {
    throw RunError("stale-generation",
                   fmt::format("generation {} of the run {} is not newer than the last one, {}",
                               hello.generation(), hello.run_id(), last.generation),
                   hint);
  }
}

}  // namespace cleave
