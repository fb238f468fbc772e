#include "common/run/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <filesystem>
#include <map>
#include <utility>

#include "common/core/log.h"
#include "common/core/process.h"
#include "common/files/environment.h"
#include "common/http/http_server.h"
#include "common/run/metrics_table.h"

namespace cleave {
namespace {

using prometheus::Counter;
using prometheus::Histogram;

// Bucket boundaries in half decades: bandwidths from slow mobile links to data centers, latencies
// from loopback to the delay of a lost packet, and step times from toy models to large ones.
const Histogram::BucketBoundaries kBandwidths = {1e4, 3e4, 1e5, 3e5, 1e6, 3e6, 1e7,
                                                 3e7, 1e8, 3e8, 1e9, 3e9, 1e10};
const Histogram::BucketBoundaries kLatencies = {1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2,
                                                0.1,  0.3,  1,    3,    10,   30};
const Histogram::BucketBoundaries kStepTimes = {1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3,
                                                1,    3,    10,   30,   100};

constexpr std::array<const char*, 2> kDirections = {"down", "up"};

// The actions of one side. The client's rows of steps.csv also contain the server's actions.
const std::vector<ActionKind>& ownActions(Role role) {
  using enum ActionKind;
  static const std::vector<ActionKind> client = {headForward, tailStep, headBackward, decide,
                                                 update};
  static const std::vector<ActionKind> server = {bodyForward, bodyBackward, bodyWeights, report,
                                                 update};
  return role == Role::client ? client : server;
}

Samples processSamples() {
  return {{"process_resident_memory_bytes", static_cast<double>(residentBytes()), ""},
          {"process_cpu_seconds_total", cpuSeconds(), ""},
          {"process_open_fds", static_cast<double>(openDescriptors()), ""},
          {"process_start_time_seconds", startedAt(), ""}};
}

prometheus::MetricFamily emptyFamily(const MetricRow& row, Role role) {
  prometheus::MetricFamily family;
  family.name = metricName(row, role);
  family.help = row.help;
  family.type = row.kind == MetricKind::counter ? prometheus::MetricType::Counter
                                                : prometheus::MetricType::Gauge;
  return family;
}

// One family per name, in order of appearance.
void append(std::vector<prometheus::MetricFamily>& families, const Samples& samples, Role role) {
  for (const Sample& sample : samples) {
    const MetricRow& row = metricRow(sample.name);
    const std::string name = metricName(row, role);
    if (families.empty() || families.back().name != name) {
      families.push_back(emptyFamily(row, role));
    }
    prometheus::ClientMetric metric;
    if (!row.labels.empty()) metric.label.push_back({row.labels.front(), sample.label});
    (row.kind == MetricKind::counter ? metric.counter.value : metric.gauge.value) = sample.value;
    families.back().metric.push_back(std::move(metric));
  }
}

}  // namespace

// Metrics that are updated as events occur. Created once, so that recording needs no lookup.
struct Metrics::Families {
  explicit Families(Role role) : role_(role) {
    for (const Phase phase : {Phase::train, Phase::eval}) {
      const prometheus::Labels labels = {{"phase", std::string(phaseName(phase))}};
      const auto index = static_cast<std::size_t>(phase);
      steps[index] = &counter("steps_total", labels);
      samples[index] = &counter("samples_total", labels);
      stepSeconds[index] = &histogram("step_seconds", labels, kStepTimes);
    }
    for (const ActionKind kind : ownActions(role)) {
      actions.emplace_back(
          kind, &counter("action_seconds_total", {{"action", std::string(actionName(kind))}}));
    }
    encode = &counter("codec_seconds_total", {{"work", "encode"}});
    decode = &counter("codec_seconds_total", {{"work", "decode"}});
    for (const bool up : {true, false}) {
      const char* const direction = kDirections[up];
      for (const Flow flow : Place{}.flows()) {
        if (Place{}.isUp(flow) == up) addFlow(flow, up);
      }
      addFlow(kWeightsBody, up);
      control[up] = &counter("control_bytes_total", {{"direction", direction}});
      bandwidth[up] =
          &histogram("transfer_bytes_per_second", {{"direction", direction}}, kBandwidths);
      latency[up] = &histogram("transfer_seconds", {{"direction", direction}}, kLatencies);
    }
    const MetricRow& info = metricRow("build_info");
    prometheus::BuildGauge()
        .Name(metricName(info, role))
        .Help(std::string(info.help))
        .Register(registry)
        .Add({{"version", softwareVersion().substr(std::string_view("cleave ").size())},
              {"revision", softwareRevision()}})
        .Set(1);
  }

  void addFlow(Flow flow, bool up) {
    const prometheus::Labels labels = {{"flow", flowName(flow)}, {"direction", kDirections[up]}};
    flows[flow].raw[up] = &counter("transfer_raw_bytes_total", labels);
    flows[flow].wire[up] = &counter("transfer_wire_bytes_total", labels);
  }

  Counter& counter(std::string_view name, const prometheus::Labels& labels) {
    const MetricRow& row = metricRow(name);
    return prometheus::BuildCounter()
        .Name(metricName(row, role_))
        .Help(std::string(row.help))
        .Register(registry)
        .Add(labels);
  }
  Histogram& histogram(std::string_view name, const prometheus::Labels& labels,
                       const Histogram::BucketBoundaries& buckets) {
    const MetricRow& row = metricRow(name);
    return prometheus::BuildHistogram()
        .Name(metricName(row, role_))
        .Help(std::string(row.help))
        .Register(registry)
        .Add(labels, buckets);
  }

  prometheus::Registry registry;
  std::array<Counter*, kPhases> steps{}, samples{};
  std::array<Histogram*, kPhases> stepSeconds{};
  std::vector<std::pair<ActionKind, Counter*>> actions;
  Counter *encode = nullptr, *decode = nullptr;
  // By flow and by direction (down, up); null for a direction that the flow does not cross.
  struct FlowCounters {
    std::array<Counter*, 2> raw{}, wire{};
  };
  FlowMap<FlowCounters> flows;
  std::array<Counter*, 2> control{};
  std::array<Histogram*, 2> bandwidth{}, latency{};

 private:
  const Role role_;
};

Metrics::Metrics(Role role) : role_(role), families_(std::make_unique<Families>(role)) {}
Metrics::~Metrics() = default;

void Metrics::transfer(const TransferRecord& record) {
  const bool up = record.sent == (role_ == Role::client);
  const auto* const counters = std::as_const(families_->flows).find(record.key.flow);
  if (counters == nullptr || counters->wire[up] == nullptr) return;
  counters->raw[up]->Increment(static_cast<double>(record.rawBytes));
  counters->wire[up]->Increment(static_cast<double>(record.wireBytes));
  if (!record.wireSeconds) return;  // the tensor was not acknowledged
  if (*record.wireSeconds > 0) {
    families_->bandwidth[up]->Observe(static_cast<double>(record.wireBytes) / *record.wireSeconds);
  }
  families_->latency[up]->Observe(record.encodeSeconds.value_or(0) +
                                  record.queueSeconds.value_or(0) + *record.wireSeconds +
                                  record.decodeSeconds.value_or(0));
}

void Metrics::step(const StepRow& row, const LinkTotals& before, const LinkTotals& after) {
  families_->encode->Increment(after.encodeSeconds - before.encodeSeconds);
  families_->decode->Increment(after.decodeSeconds - before.decodeSeconds);
  families_->control[true]->Increment(static_cast<double>(after.controlUp - before.controlUp));
  families_->control[false]->Increment(static_cast<double>(after.controlDown - before.controlDown));
  if (!row.at) return;  // rows of handshake and bye
  const auto phase = static_cast<std::size_t>(row.at->phase);
  families_->steps[phase]->Increment();
  families_->samples[phase]->Increment(row.at->batch.samples);
  if (row.seconds) families_->stepSeconds[phase]->Observe(*row.seconds);
  for (const auto& [kind, seconds] : families_->actions) {
    seconds->Increment(row.actions[indexOf(kind)]);
  }
}

void Metrics::sampleWith(std::function<Samples()> sampler) {
  const std::lock_guard lock(mutex_);
  sampler_ = std::move(sampler);
}

std::string Metrics::text() {
  auto families = families_->registry.Collect();
  {
    const std::lock_guard lock(mutex_);
    if (sampler_) append(families, sampler_(), role_);
  }
  append(families, processSamples(), role_);
  return prometheus::TextSerializer().Serialize(families);
}

Samples sharedSamples(const Recorder& recorder, const BufferPool& pool, const TlsContext* tls,
                      std::size_t deviceBytes) {
  Samples samples = {{"recorder_rows", static_cast<double>(recorder.waitingRows()), ""},
                     {"buffer_pool_bytes", static_cast<double>(pool.retainedBytes()), ""}};
  if (deviceBytes > 0) {
    samples.push_back({"device_memory_bytes", static_cast<double>(deviceBytes), ""});
  }
  if (tls == nullptr) return samples;
  // A file may contain several certificates; the one that expires first counts.
  std::map<std::string, std::time_t> ends;
  for (const auto& [end, file] : tls->ends()) {
    const std::string name = std::filesystem::path(file).filename().string();
    ends[name] = ends.contains(name) ? std::min(ends[name], end) : end;
  }
  const std::time_t now = std::time(nullptr);
  for (const auto& [file, end] : ends) {
    samples.push_back({"certificate_remaining_seconds", std::difftime(end, now), file});
  }
  return samples;
}

std::optional<HttpSettings> readMetricsSettings(Config& config) {
  HttpSettings settings;
  settings.listen.text = config.text("metrics.listen", "");
  settings.listen.place = config.where("metrics.listen") + ": metrics.listen";
  settings.option = "--set metrics.listen=";
  settings.anywhere = config.boolean("metrics.anywhere", settings.anywhere);
  settings.anywhereOption = "--set metrics.anywhere=true";
  if (settings.listen.text.empty()) return std::nullopt;
  endpointOf(settings);  // checks it early
  return settings;
}

std::unique_ptr<HttpServer> serveMetrics(const HttpSettings& settings,
                                         std::shared_ptr<Metrics> metrics) {
  HttpHandlers handlers;
  handlers["/metrics"] = [metrics = std::move(metrics)](const HttpRequest&) {
    return HttpAnswer{200, "text/plain; version=0.0.4; charset=utf-8", metrics->text()};
  };
  auto server = std::make_unique<HttpServer>(settings, std::move(handlers));
  processLog()->info("metrics at {}/metrics", server->url());
  return server;
}

}  // namespace cleave
