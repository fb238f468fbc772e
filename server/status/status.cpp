#include "server/status/status.h"

#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "common/files/environment.h"
#include "common/files/record.h"

namespace cleave {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kMaxSessionsShown = 256;

// Adds the values of the latest batches to a session's JSON.
void addThroughput(Json& json, const SessionStatus& session) {
  if (!session.pace) return;
  const Throughput& pace = *session.pace;
  json["phase"] = phaseName(pace.phase);
  json["step"] = pace.step;
  if (session.epoch > 0) json["epoch"] = session.epoch;
  json["images_per_second"] = pace.samplesPerSecond;
  json["up_bytes_per_second"] = pace.up;
  json["down_bytes_per_second"] = pace.down;
  json["bottleneck"] = bottleneckOf(pace.shares);
  json["busy_shares"] = {{"server_compute", pace.shares.compute},
                         {"codec", pace.shares.codec},
                         {"uplink", pace.shares.up},
                         {"downlink", pace.shares.down}};
  json["idle_seconds"] = pace.idleSeconds;
}

Json sessionJson(const SessionStatus& session) {
  Json json = {{"session", session.number},
               {"identity", session.identity},
               {"from", session.peer},
               {"seconds", session.seconds},
               {"kind", session.kind}};
  if (session.run.empty()) return json;
  json["run"] = session.run;
  if (session.model.empty()) return json;  // an edge
  if (!session.cohort.empty()) {
    json["cohort"] = session.cohort;
    json["member"] = session.member;
    json["samples"] = session.samples;
    json["up_bytes"] = session.bytesUp;
    json["down_bytes"] = session.bytesDown;
    json["late_seconds"] = session.lateSeconds;
    json["waits_for"] = session.waitsFor;
  }
  json["model"] = session.model;
  json["memory_bytes"] = session.memoryBytes;
  if (session.residentBytes > 0) json["resident_bytes"] = session.residentBytes;
  addThroughput(json, session);
  return json;
}

}  // namespace

std::string statusJson(ServerStatus status) {
  std::sort(status.sessions.begin(), status.sessions.end(),
            [](const auto& a, const auto& b) { return a.number < b.number; });
  Json json = {{"time", utcNow()},
               {"software", softwareVersion()},
               {"pid", ::getpid()},
               {"address", status.address},
               {"tls", status.hasTls},
               {"device", status.device},
               {"unconfined", status.unconfined},
               {"uptime_seconds", status.seconds},
               {"shutting_down", status.isShuttingDown},
               {"connections", status.connections},
               {"max_sessions", status.maxSessions},
               {"memory",
                {{"admitted_bytes", status.admittedBytes},
                 {"max_bytes", status.maxBytes},
                 {"resident_bytes", status.residentBytes}}},
               {"refusals", status.refusals}};
  const std::size_t shown = std::min(status.sessions.size(), kMaxSessionsShown);
  json["sessions"] = Json::array();
  for (std::size_t j = 0; j < shown; ++j) {
    json["sessions"].push_back(sessionJson(status.sessions[j]));
  }
  json["sessions_left_out"] = status.sessions.size() - shown;
  return json.dump() + "\n";
}

}  // namespace cleave
