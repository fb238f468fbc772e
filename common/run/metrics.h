// A program's metrics for Prometheus. Recording costs a few atomic additions; other values are
// looked up when the metrics are read. Runs and clients are not labels: each would create a time
// series, and clients choose their names.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/config/config.h"
#include "common/engine/schedule.h"
#include "common/files/record.h"
#include "common/http/http_settings.h"
#include "common/net/streams/tls.h"
#include "common/record/run_files.h"
#include "common/resources/buffer.h"

namespace cleave {

class HttpServer;

// A looked-up value of the metric `name` in the table.
struct Sample {
  std::string_view name;
  double value = 0;
  std::string label;  // value of the metric's label; empty if it has none
};
using Samples = std::vector<Sample>;

class Metrics : public RunObserver {
 public:
  explicit Metrics(Role role);
  ~Metrics() override;

  // Any thread.
  void transfer(const TransferRecord& record) override;
  void step(const StepRow& row, const LinkTotals& before, const LinkTotals& after) override;

  // Sets the function that each text() calls for samples; empty: none. When this returns, the
  // previous function is no longer running. `sampler` may wait for other threads, but not for the
  // thread that calls sampleWith().
  void sampleWith(std::function<Samples()> sampler);
  // All metrics in Prometheus's text format. Any thread.
  std::string text();

 private:
  struct Families;
  const Role role_;
  const std::unique_ptr<Families> families_;
  std::mutex mutex_;
  std::function<Samples()> sampler_;
};

// Samples that client and server share, except those of the process itself. `tls` may be null.
// `deviceBytes`: size of the GPU's memory; 0: no GPU.
Samples sharedSamples(const Recorder& recorder, const BufferPool& pool, const TlsContext* tls,
                      std::size_t deviceBytes);

// Reads metrics.listen and metrics.anywhere; nullopt if metrics are not served. Throws UsageError.
std::optional<HttpSettings> readMetricsSettings(Config& config);

// Serves the metrics at /metrics and logs the address. Throws the errors of HttpServer.
std::unique_ptr<HttpServer> serveMetrics(const HttpSettings& settings,
                                         std::shared_ptr<Metrics> metrics);

}  // namespace cleave
