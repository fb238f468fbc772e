#include "common/run/metrics_table.h"

#include <algorithm>
#include <cassert>

namespace cleave {

const std::vector<MetricRow>& metricTable() {
  using enum MetricKind;
  static const std::vector<MetricRow> table = {
      {"build_info",
       gauge,
       {"version", "revision"},
       true,
       true,
       "1; its labels say which release of Cleave this is, and of which sources"},
      {"steps_total", counter, {"phase"}, true, true, "Batches done"},
      {"samples_total", counter, {"phase"}, true, true, "Samples (images) in the batches done"},
      {"step_seconds", histogram, {"phase"}, true, true, "Time of a batch, as in steps.csv"},
      {"action_seconds_total",
       counter,
       {"action"},
       true,
       true,
       "Time that this side's actions have computed; of Report and Decide, which are short, too"},
      {"codec_seconds_total",
       counter,
       {"work"},
       true,
       true,
       "Time that codecs have worked on this side, as in steps.csv"},
      {"transfer_raw_bytes_total",
       counter,
       {"flow", "direction"},
       true,
       true,
       "Tensors that have crossed, before encoding, as in transfers.csv"},
      {"transfer_wire_bytes_total",
       counter,
       {"flow", "direction"},
       true,
       true,
       "The same as they were on the wire, with headers and metadata"},
      {"control_bytes_total",
       counter,
       {"direction"},
       true,
       true,
       "Frames that carry no tensor, as in steps.csv"},
      {"transfer_bytes_per_second",
       histogram,
       {"direction"},
       true,
       true,
       "Bandwidth of a tensor: wire bytes by wire seconds"},
      {"transfer_seconds",
       histogram,
       {"direction"},
       true,
       true,
       "Latency of a tensor: encoding, waiting, wire and decoding, without the link's own latency"},
      {"outbox_entries", gauge, {}, true, true, "Frames and tensors that wait for the socket"},
      {"mailbox_entries",
       gauge,
       {},
       true,
       true,
       "Messages that have come and wait for the device thread"},
      {"recorder_rows", gauge, {}, true, true, "Rows of CSV files that are not written yet"},
      {"buffer_pool_bytes", gauge, {}, true, true, "Buffers kept for the next use"},
      {"device_memory_bytes",
       gauge,
       {},
       true,
       true,
       "All memory of the GPU that this side computes on; absent on a CPU"},
      {"certificate_remaining_seconds",
       gauge,
       {"file"},
       true,
       true,
       "Until the certificate ends; absent without TLS"},
      {"sessions", gauge, {"kind"}, false, true, "Sessions open now"},
      {"sessions_total", counter, {"kind"}, false, true, "Sessions admitted since the start"},
      {"connections", gauge, {}, false, true, "Connections open now, with or without a session"},
      {"refusals_total",
       counter,
       {"reason"},
       false,
       true,
       "Connections and sessions refused or ended for a client's fault, by the error's code"},
      {"admitted_memory_bytes",
       gauge,
       {},
       false,
       true,
       "What the open sessions were admitted with, by estimate"},
      {"memory_limit_bytes", gauge, {}, false, true, "limits.memory_mib: the most of that"},
      {"store_room_bytes",
       gauge,
       {},
       false,
       true,
       "Free on the store's disk beyond limits.disk_reserve_mib"},
      {"process_resident_memory_bytes",
       gauge,
       {},
       true,
       true,
       "Memory of the process in RAM",
       true},
      {"process_cpu_seconds_total", counter, {}, true, true, "Processor time of the process", true},
      {"process_open_fds", gauge, {}, true, true, "Open file descriptors", true},
      {"process_start_time_seconds",
       gauge,
       {},
       true,
       true,
       "When the process started, in seconds since 1970",
       true},
  };
  return table;
}

const MetricRow& metricRow(std::string_view name) {
  const auto& table = metricTable();
  const auto row = std::find_if(table.begin(), table.end(),
                                [&](const MetricRow& one) { return one.name == name; });
  assert(row != table.end());
  return *row;
}

std::string metricName(const MetricRow& row, Role role) {
  if (row.isProcess) return std::string(row.name);
  return (role == Role::client ? "cleave_client_" : "cleave_server_") + std::string(row.name);
}

}  // namespace cleave
