#include "client/commands/train_summary.h"

#include <spdlog/fmt/fmt.h>
#include <unistd.h>

#include <filesystem>
#include <iostream>
#include <sstream>

#include "client/planning/advice.h"
#include "client/planning/auto_codec.h"
#include "client/train/adapter_file.h"
#include "client/train/run_trace.h"
#include "common/core/metric_titles.h"
#include "common/core/terminal.h"
#include "common/core/units.h"

namespace cleave {
namespace {

// Reasons why a run has no bound.
constexpr const char* kTooFewSteps = "at least 3 training steps are needed";
constexpr const char* kOverlap = "the steps overlap (train.staleness)";
constexpr const char* kCohort = "the costs of the other members of the cohort are not known here";
constexpr const char* kTooFewBytes =
    "at least 1 MB must cross the link each way to measure its rate";

std::string valueText(const std::string& metric, double value) {
  return metricTitle(metric).isShare ? fmt::format("{:.2f} %", 100 * value)
                                     : fmt::format("{:.4f}", value);
}

std::string evaluationText(const std::string& main, const nlohmann::json& eval) {
  const auto value = [&](const std::string& name) {
    return eval.contains(name) ? std::optional(eval.at(name).get<double>()) : std::nullopt;
  };
  const auto last = value(main), best = value("best_" + main);
  const double loss = value("loss").value_or(0);
  if (!last || !best || main == "loss") return fmt::format("evaluation  loss {:.4f}\n", loss);
  const std::string most = fmt::format("best {} in epoch {}", valueText(main, *best),
                                       eval.at("best_epoch").get<std::uint64_t>());
  if (main == "top1") {
    return fmt::format("accuracy    {} top-1 ({}), loss {:.4f}\n", valueText(main, *last), most,
                       loss);
  }
  return fmt::format("evaluation  {} {} ({}), loss {:.4f}\n", main, valueText(main, *last), most,
                     loss);
}

std::string qualityText(const nlohmann::json& quality) {
  std::string text = "quality     " + countText(quality.at("checks").get<std::uint64_t>(), "check");
  if (const auto& increase = quality.at("highest_loss_increase"); !increase.is_null()) {
    text += fmt::format("; the codecs changed the loss by {:+.1f} % at most",
                        100 * increase.get<double>());
  }
  for (const auto& each : quality.at("fallbacks")) {
    text += fmt::format("; {} from step {}", each.at("codec").get<std::string>(),
                        each.at("step").get<std::uint64_t>());
  }
  return text + "\n";
}

std::string targetText(const nlohmann::json& target) {
  const std::string metric = target.at("metric");
  const std::string what = metric + " " + valueText(metric, target.at("value").get<double>());
  if (!target.contains("steps")) return what + " was not reached";
  return fmt::format(
      "{} in epoch {}, after {} steps, {} and {}", what, target.at("epoch").get<std::uint64_t>(),
      target.at("steps").get<std::uint64_t>(), durationText(target.at("seconds").get<double>()),
      bytesText(target.at("bytes").get<double>()));
}

}  // namespace

nlohmann::json summariseTraining(const PreparedRun& run, const TrainResult& result,
                                 const RunSpent& spent, bool hasModel) {
  const LinkTotals& totals = spent.totals;
  const double seconds = spent.seconds;
  nlohmann::json summary;
  summary["run"] = run.hello.run_id();
  summary["folder"] = run.folder;
  summary["steps"] = result.steps;
  summary["codec"] = run.settings.codecs;
  summary["seconds"] = seconds;
  // A member whose turns have all been lost has trained nothing.
  summary["images_per_second"] =
      result.samples == 0 ? 0 : static_cast<double>(result.samples) / result.trainSeconds;
  if (!result.lastEval.empty()) {
    const auto& values = result.lastEval;
    const auto names = run.settings.scores.names();
    for (std::size_t index = 0; index < names.size(); ++index) {
      if (values[index]) summary["eval"][names[index]] = *values[index];
      const bool hasOwn = index < result.lastOwnEval.size() && result.lastOwnEval[index];
      if (hasOwn) summary["own_eval"][names[index]] = *result.lastOwnEval[index];
    }
    const std::string main = run.settings.mainMetric();
    summary["main_metric"] = main;
    if (result.best) {
      summary["eval"]["best_" + main] = result.best->value;
      summary["eval"]["best_epoch"] = result.best->epoch;
    }
    if (result.kept) {
      const std::string& metric = run.settings.bestMetric;
      summary["eval"]["best_" + metric] = result.kept->value;
      const std::string file = run.folder + "/model.best.safetensors";
      if (std::filesystem::exists(file)) {
        summary["kept"] = {{"metric", metric},
                           {"value", result.kept->value},
                           {"epoch", result.kept->epoch},
                           {"model", file}};
      }
    }
  }
  if (const Target& target = run.settings.target; !target.metric.empty()) {
    summary["target"] = {{"metric", target.metric}, {"value", target.value}};
    if (const auto& reached = result.target) {
      summary["target"].update({{"epoch", reached->epoch},
                                {"steps", reached->steps},
                                {"seconds", reached->seconds},
                                {"bytes", reached->bytes}});
    }
  }
  const double wire = static_cast<double>(totals.wireUp + totals.wireDown);
  summary["bytes_up"] = totals.up();
  summary["bytes_down"] = totals.down();
  summary["tensor_bytes_up"] = totals.wireUp;
  summary["tensor_bytes_down"] = totals.wireDown;
  summary["model_bytes_up"] = totals.blobUp;
  summary["model_bytes_down"] = totals.blobDown;
  summary["ratio"] = wire / static_cast<double>(totals.rawUp + totals.rawDown);
  summary["mean_up_bytes_per_second"] = static_cast<double>(totals.wireUp) / seconds;
  summary["mean_down_bytes_per_second"] = static_cast<double>(totals.wireDown) / seconds;
  summary["peak_up_bytes_per_second"] = totals.peakUp;
  summary["peak_down_bytes_per_second"] = totals.peakDown;
  summary["client_memory_bytes"] = result.clientMemory;
  summary["body_memory_bytes"] = result.bodyMemory;
  summary["reconnects"] = totals.reconnects;
  summary["offline_seconds"] = totals.offlineSeconds;
  summary["resumes"] = result.resumed.resumes;
  summary["steps_redone"] = result.resumed.stepsRedone;
  summary["steps_skipped"] = result.stepsSkipped;
  if (!result.quality.is_null()) summary["quality"] = result.quality;
  if (!result.cohort.is_null()) summary["cohort"] = result.cohort;
  if (result.stoppedAfter) summary["stopped_after_epoch"] = *result.stoppedAfter;
  if (run.plan.spec.averageDecay > 0) summary["ema"] = run.plan.spec.averageDecay;
  const BoundedSteps& bounded = result.bounded;
  if (bounded.bounds > 0 && result.costs && result.costs->hasRates()) {
    const Bottleneck bottleneck = bounded.bottleneck();
    const std::optional<double> spread = stepSpread(bounded.wholeBatches);
    const BodyCosts link = result.costs->slowestLink();
    const MeasuredSteps steps{*result.costs,
                              bottleneck,
                              bounded.seconds / static_cast<double>(bounded.steps),
                              spread,
                              run.data.train->size() % run.settings.batch,
                              bounded.wholeBatches.size()};
    summary["bound"] = {
        {"seconds_per_step", bounded.bounds / static_cast<double>(bounded.steps)},
        {"over_bound", bounded.seconds / bounded.bounds},
        {"bottleneck", bottleneckName(bottleneck)},
        {"rate_up", link.rateUp},
        {"rate_down", link.rateDown},
        {"latency_seconds", link.latency},
        {"step_spread", spread ? nlohmann::json(*spread) : nlohmann::json()},
        {"advice", toJson(adviseOn(steps, run.plan, run.plansOfBodies(), run.settings))}};
  } else {
    summary["bound_unknown"] = run.settings.cohort.exists() ? kCohort
                               : run.settings.staleness > 0 ? kOverlap
                               : result.costs               ? kTooFewBytes
                                                            : kTooFewSteps;
  }
  if (hasModel && run.settings.lora.rank > 0 && fitsPeft(run.plan.blocks)) {
    summary["adapter"] = run.folder + "/adapter";
  }
  if (run.settings.tensorBoard) summary["tensorboard"] = run.folder + "/tensorboard";
  summary["model"] =
      hasModel ? nlohmann::json(run.folder + "/model.safetensors") : nlohmann::json();
  return summary;
}

std::string bandwidthText(const nlohmann::json& summary) {
  const auto rate = [&](const char* name) { return summary.at(name).get<double>(); };
  const double meanUp = rate("mean_up_bytes_per_second");
  const double meanDown = rate("mean_down_bytes_per_second");
  const double peakUp = rate("peak_up_bytes_per_second");
  const double peakDown = rate("peak_down_bytes_per_second");
  std::string text = fmt::format("bandwidth   tensors: mean {}/s up, {}/s down", bytesText(meanUp),
                                 bytesText(meanDown));
  if (peakUp >= meanUp && peakDown >= meanDown) {
    text += fmt::format("; connection: peak {}/s up, {}/s down", bytesText(peakUp),
                        bytesText(peakDown));
  }
  return text + "\n";
}

void printSummary(const nlohmann::json& summary) {
  const auto number = [&](const char* key) { return summary.at(key).get<double>(); };
  std::ostringstream text;
  text << "\n";
  if (summary.contains("eval")) {
    const auto& eval = summary.at("eval");
    text << evaluationText(summary.at("main_metric"), eval);
  }
  if (summary.contains("target"))
    text << "target      " << targetText(summary.at("target")) << "\n";
  if (summary.contains("stopped_after_epoch")) {
    text << fmt::format("stopped     early, after epoch {} (train.stop)\n",
                        summary.at("stopped_after_epoch").get<std::uint64_t>());
  }
  if (summary.contains("ema")) {
    text << fmt::format("weights     their moving average with decay {} (train.ema)\n",
                        summary.at("ema").get<double>());
  }
  if (summary.contains("kept")) {
    const auto& kept = summary.at("kept");
    const std::string metric = kept.at("metric");
    text << fmt::format("kept        epoch {} with {} {}: model.best.safetensors\n",
                        kept.at("epoch").get<std::uint64_t>(), metric,
                        valueText(metric, kept.at("value").get<double>()));
  }
  text << fmt::format("time        {} for {} steps, {:.0f} samples/s\n",
                      durationText(number("seconds")), summary.at("steps").get<std::uint64_t>(),
                      number("images_per_second"));
  text << "codec       " << codecMapText(summary.at("codec")) << "\n";
  if (summary.contains("quality")) text << qualityText(summary.at("quality"));
  text << fmt::format("bytes       {} up, {} down; {:.4f} times the raw tensor size",
                      bytesText(number("bytes_up")), bytesText(number("bytes_down")),
                      number("ratio"));
  const double model = number("model_bytes_up") + number("model_bytes_down");
  text << (model > 0 ? fmt::format("; {} of them for the model\n", bytesText(model)) : "\n");
  text << bandwidthText(summary);
  text << fmt::format("memory      peak: client {}, body {}\n",
                      bytesText(number("client_memory_bytes")),
                      bytesText(number("body_memory_bytes")));
  if (const auto reconnects = summary.at("reconnects").get<std::uint64_t>(); reconnects > 0) {
    text << fmt::format("reconnects  {}; {:.1f} s without a connection\n", reconnects,
                        number("offline_seconds"));
  }
  if (const auto resumes = summary.at("resumes").get<std::uint64_t>(); resumes > 0) {
    text << fmt::format("resumes     {}; {} steps redone\n", resumes,
                        summary.at("steps_redone").get<std::uint64_t>());
  }
  if (const auto skipped = summary.at("steps_skipped").get<std::uint64_t>(); skipped > 0) {
    text << fmt::format("skipped     {} steps, because their gradients overflowed in fp16\n",
                        skipped);
  }
  if (summary.contains("probe")) {
    text << "link        " << summary.at("probe").at("sentence").get<std::string>() << "\n";
  }
  if (summary.contains("bound")) {
    const auto& bound = summary.at("bound");
    text << fmt::format("bound       a step took {:.2f} times the estimated minimum of {:.1f} ms\n",
                        bound.at("over_bound").get<double>(),
                        1e3 * bound.at("seconds_per_step").get<double>())
         << "bottleneck  " << bound.at("bottleneck").get<std::string>() << "\n"
         << "advice      " << bound.at("advice").at("sentence").get<std::string>() << "\n";
  } else {
    text << "bound       unknown: " << summary.at("bound_unknown").get<std::string>() << "\n";
  }
  if (summary.contains("trace")) {
    text << "trace       " << sentenceOfTrace(summary.at("trace")) << "\n";
  }
  text << "files       " << summary.at("folder").get<std::string>()
       << ": transfers.csv, steps.csv, epochs.csv, summary.json, config.yaml, "
          "environment.json, log.txt"
       << (summary.contains("probe") ? ", probe.csv" : "")
       << (summary.at("model").is_null() ? "" : ", model.safetensors")
       << (summary.contains("kept") ? ", model.best.safetensors" : "")
       << (summary.contains("adapter") ? ", adapter" : "")
       << (summary.contains("tensorboard") ? ", tensorboard" : "") << "\n"
       << "charts      cleave-client report " << summary.at("folder").get<std::string>() << "\n";
  constexpr std::size_t kIndent = 12;  // width of the label column
  std::cout << wrappedFor(STDOUT_FILENO, text.str(), kIndent) << std::flush;
}

}  // namespace cleave
