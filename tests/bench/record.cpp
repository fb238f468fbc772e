// Measures the cost of recording: of writing a step's rows to files, in turns with and without
// Prometheus counters, and of one Prometheus response. The cost is processor time, which other
// programs hardly affect: that of the recording threads, and that of all threads including the
// recorder's. Prints JSON, in seconds.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <ctime>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/core/process.h"
#include "common/run/metrics.h"

namespace cleave {
namespace {

struct Options {
  std::string folder;
  std::uint32_t microBatches = 8;
  std::uint64_t steps = 2000;
  int rounds = 5;
};

struct Cost {
  double caller = 0;  // processor time of the recording threads, per step
  double all = 0;
};

double threadSeconds() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

TransferRecord transferOf(Flow flow, std::uint64_t step, std::uint32_t i) {
  TransferRecord record;
  record.sent = Place{}.isUp(flow);
  record.key = {Phase::train, step, i, flow};
  record.codec = "block:bits=8";
  record.spec = {DType::f32, {8, 96, 14, 14}, MemoryOrder::channelsLast};
  record.rawBytes = 602112;
  record.wireBytes = 160000 + step % 1000;
  record.encodeSeconds = 1.234567e-4 + 1e-9 * static_cast<double>(step);
  record.queueSeconds = 2.345678e-5;
  record.wireSeconds = 3.456789e-3;
  record.decodeSeconds = 4.567891e-4;
  record.link = LinkInfo{1.23456789e8, 1.0234e-2, 3};
  return record;
}

// The client's row of a training step, with all cells.
StepRow stepOf(std::uint64_t step, std::uint32_t microBatches) {
  StepRow row;
  row.phase = "train";
  row.step = step;
  row.epoch = 1;
  row.at = MicroBatch{Phase::train, step, 0, {microBatches, 64}};
  row.learningRate = row.gradientNorm = 0.0123456789;
  row.seconds = 0.123456789;
  row.between = 1.23456e-3;
  row.actions.fill(0.0123456789);
  row.costs = StepCosts{};
  row.bound = StepBound{};
  row.bound->seconds = 0.1;
  row.metrics = {1.23456789, 0.5, 0.9};
  return row;
}

Cost record(const Options& options, const std::string& folder, std::shared_ptr<Metrics> metrics) {
  std::filesystem::create_directories(folder);
  double before = 0, caller = 0;
  {
    Recorder recorder;
    RunFiles files(recorder, folder, {"run-20260131-123456-abcd", 1}, {"loss", "top1", "top5"});
    files.observe(std::move(metrics));
    LinkTotals totals;
    before = cpuSeconds();
    const double start = threadSeconds();
    for (std::uint64_t step = 1; step <= options.steps; ++step) {
      for (const Flow flow : Place{}.flows()) {
        for (std::uint32_t i = 0; i < options.microBatches; ++i) {
          files.transfer(transferOf(flow, step, i));
        }
      }
      totals.wireUp += 1234567;
      totals.controlUp += 789;
      totals.encodeSeconds += 0.0123;
      files.step(stepOf(step, options.microBatches), totals);
    }
    caller = threadSeconds() - start;
    recorder.flush();
  }
  const double all = cpuSeconds() - before;
  std::filesystem::remove_all(folder);
  const auto steps = static_cast<double>(options.steps);
  return {caller / steps, all / steps};
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

nlohmann::json jsonOf(const std::vector<Cost>& costs) {
  std::vector<double> caller, all;
  for (const Cost& cost : costs) {
    caller.push_back(cost.caller);
    all.push_back(cost.all);
  }
  return {{"caller", median(caller)}, {"all", median(all)}};
}

void measure(const Options& options) {
  const auto metrics = std::make_shared<Metrics>(Role::client);
  std::vector<Cost> without, with;
  std::vector<double> answers;
  for (int round = 0; round < options.rounds; ++round) {
    const std::string folder = options.folder + "/" + std::to_string(round);
    without.push_back(record(options, folder + "a", nullptr));
    with.push_back(record(options, folder + "b", metrics));
    constexpr int kAnswers = 100;
    const double start = threadSeconds();
    for (int i = 0; i < kAnswers; ++i) metrics->text();
    answers.push_back((threadSeconds() - start) / kAnswers);
  }
  std::cout << nlohmann::json{{"files", jsonOf(without)},
                              {"files_and_metrics", jsonOf(with)},
                              {"answer", median(answers)}}
                   .dump(2)
            << std::endl;
}

}  // namespace
}  // namespace cleave

int main(int argc, char** argv) {
  cleave::Options options;
  CLI::App app{"Measures the cost of recording per step"};
  app.add_option("--folder", options.folder, "folder for the rows")->required();
  app.add_option("--micro-batches", options.microBatches)->capture_default_str();
  app.add_option("--steps", options.steps, "steps per round")->capture_default_str();
  app.add_option("--rounds", options.rounds)->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  cleave::measure(options);
  return 0;
}
