// What a daemon counts for Prometheus. Recording is a handful of atomic additions; the rest is
// looked up when somebody asks. Nothing is counted by run or client: their names would make as many
// time series as there are runs, and clients could choose them.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/core/buffer.h"
#include "common/core/config.h"
#include "common/core/record.h"
#include "common/http/http_settings.h"
#include "common/net/tls.h"
#include "common/pipeline/run_files.h"
#include "common/pipeline/schedule.h"

namespace cleave {

class HttpServer;

// A value that was looked up: of the metric `name` in the table.
struct Sample {
  std::string_view name;
  double value = 0;
  std::string label;  // the value of its label; empty where it has none
};
using Samples = std::vector<Sample>;

class Metrics : public RunObserver {
 public:
  explicit Metrics(Role role);
  ~Metrics() override;

  // Any thread.
  void transfer(const TransferRecord& record) override;
  void step(const StepRow& row, const LinkTotals& before, const LinkTotals& after) override;

  // Who is asked at each text(); empty: nobody. Once this returns, nobody else is being asked. It
  // may wait for other threads, but not for the caller of this.
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

// Samples that both daemons have, beside those of the process itself. `tls` may be null.
// `deviceBytes`: of a GPU's memory; 0: none.
Samples sharedSamples(const Recorder& recorder, const BufferPool& pool, const TlsContext* tls,
                      std::size_t deviceBytes);

// Where metrics.listen and metrics.anywhere of the configuration say to offer them, if anywhere.
// Throws UsageError.
std::optional<HttpSettings> readMetricsSettings(Config& config);

// Offers them at /metrics, and says so in the log. Throws UsageError as HttpServer does.
std::unique_ptr<HttpServer> serveMetrics(const HttpSettings& settings,
                                         std::shared_ptr<Metrics> metrics);

}  // namespace cleave
