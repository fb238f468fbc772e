#include "server/server_samples.h"

#include <cstddef>
#include <string>
#include <string_view>

namespace cleave {

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
  return samples;
}

}  // namespace cleave
