#include "server/sessions/server_samples.h"

#include <cstddef>
#include <map>
#include <string>
#include <string_view>

namespace cleave {
namespace {

// Identities that the access file does not list share the label "other", so that certificates
// cannot create any number of time series.
void addIdentities(const RunResources& resources, const SessionContext& context,
                   const SessionTable& sessions, Samples& samples) {
  struct Figures {
    double sessions = 0, disk = 0;
    Usage usage;
  };
  std::map<std::string, Figures> all;
  const auto of = [&](const std::string& identity) -> Figures& {
    return all[context.access.lists(identity) ? identity : "other"];
  };
  sessions.forEach([&](const Session& session) {
    if (session.wasAdmitted()) ++of(session.identity()).sessions;
  });
  for (const auto& [identity, bytes] : resources.store.usedBytes()) {
    of(identity).disk += static_cast<double>(bytes);
  }
  for (const auto& [identity, usage] : resources.store.usage().totals())
    of(identity).usage += usage;
  const auto add = [&](std::string_view name, auto figure) {
    for (const auto& [label, figures] : all) {
      samples.push_back({name, static_cast<double>(figure(figures)), label});
    }
  };
  add("identity_sessions", [](const Figures& f) { return f.sessions; });
  add("identity_sessions_total", [](const Figures& f) { return f.usage.sessions; });
  add("identity_steps_total", [](const Figures& f) { return f.usage.steps; });
  add("identity_device_seconds_total", [](const Figures& f) { return f.usage.deviceSeconds; });
  add("identity_up_bytes_total", [](const Figures& f) { return f.usage.bytesUp; });
  add("identity_down_bytes_total", [](const Figures& f) { return f.usage.bytesDown; });
  add("identity_store_bytes", [](const Figures& f) { return f.disk; });
}

}  // namespace

Samples serverSamples(const RunResources& resources, const SessionContext& context,
                      const SessionTable& sessions) {
  Samples samples =
      sharedSamples(resources.store.recorder(), *resources.pool, context.certificates.tls().get(),
                    resources.compute.memoryBytes());
  const auto add = [&](std::string_view name, auto value, const std::string& label = "") {
    samples.push_back({name, static_cast<double>(value), label});
  };
  std::size_t outbox = 0, mailbox = 0;
  sessions.forEach([&](const Session& session) {
    outbox += session.outboxEntries();
    mailbox += session.mailboxEntries();
  });
  add("outbox_entries", outbox);
  add("mailbox_entries", mailbox);
  // Uses two loops, because the samples of a metric must be consecutive.
  const auto counts = sessions.counts();
  for (const auto& [kind, count] : counts) add("sessions", count.open, kind);
  for (const auto& [kind, count] : counts) add("sessions_total", count.total, kind);
  add("connections", sessions.size());
  for (const auto& [reason, count] : context.refusals.counts()) {
    add("refusals_total", count, reason);
  }
  add("admitted_memory_bytes", context.admission.admittedBytes());
  add("memory_limit_bytes", context.settings.memoryBytes);
  add("store_room_bytes", resources.store.roomBytes());
  if (context.settings.labelIdentities) addIdentities(resources, context, sessions, samples);
  return samples;
}

}  // namespace cleave
