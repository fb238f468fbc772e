// bench_whole: trains the unsplit model of a client configuration in one process, and prints its
// images/s as JSON. scripts/bench.sh split uses it as the baseline.

#include <CLI/CLI.hpp>
#include <iostream>
#include <nlohmann/json.hpp>

#include "client/config/settings.h"
#include "client/data/samples/loader.h"
#include "client/train/trainer.h"
#include "common/files/environment.h"
#include "common/program/program.h"
#include "common/run/plan.h"

namespace cleave {
namespace {

int run(const CommonOptions& options, int threads) {
  Config config = loadConfig(options);
  const ClientSettings settings = readClientSettings(config);
  const Datasets data = openDatasets(settings.data);
  const RunPlan plan = planRun(makeRunSpec(settings, data));
  setComputeThreads(threads);
  WholeStage whole(plan.stage);
  Loader::Options loaderOptions;
  loaderOptions.batch = settings.batch;
  loaderOptions.order = shuffledOrder(data.train->size(), settings.seed, 1);
  loaderOptions.epoch = 1;
  Loader loader(data.train, std::make_shared<BufferPool>(), loaderOptions);

  std::uint64_t samples = 0;
  std::uint64_t steps = 0;
  const std::uint64_t total = totalSteps(settings, data.train->size());
  const std::vector<double> rates(settings.groupRates.size() + 1, settings.learningRate.peak);
  const SteadyTime start = now();
  while (steps < total) {
    const auto batch = loader.next();
    if (!batch) break;
    whole.runBatch(Phase::train, ++steps, settings.microBatches, viewOf(*batch));
    whole.update({steps, true, rates, 1, 1, false, {}});
    samples += batch->samples();
  }
  const double seconds = secondsSince(start);
  const nlohmann::json result = {{"steps", steps},
                                 {"seconds", seconds},
                                 {"images_per_second", static_cast<double>(samples) / seconds}};
  std::cout << result.dump() << std::endl;
  return 0;
}

}  // namespace
}  // namespace cleave

int main(int argc, char** argv) {
  cleave::prepareProcess(argv);
  CLI::App app{"Trains an unsplit model, and prints its images/s", "bench_whole"};
  cleave::CommonOptions options;
  int threads = cleave::usableCores();
  cleave::addCommonOptions(app, options, true);
  app.add_option("--threads", threads, "Threads to compute with (all cores)");
  return cleave::runProgram(app, argc, argv, [&] { return cleave::run(options, threads); });
}
