#include "client/sweep/results.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>

#include "client/report/records/csv_reader.h"
#include "client/report/records/run_reader.h"
#include "common/config/config.h"
#include "common/core/yaml.h"
#include "common/topology/key.h"

namespace cleave {
namespace {

using Json = nlohmann::ordered_json;

constexpr SweepMetric kMetrics[] = {
    {"top1", "0 … 1", "/eval/top1"},
    {"best_top1", "0 … 1", "/eval/best_top1"},
    {"best_matthews", "-1 … 1", "/eval/best_matthews"},
    {"metric", ""},  // the main metric if it is not top1
    {"best_metric", ""},
    {"target_steps", "", "/target/steps"},
    {"target_seconds", "s", "/target/seconds"},
    {"target_bytes", "bytes", "/target/bytes"},
    {"loss", "nats", "/eval/loss"},
    {"images_per_second", "1/s", "/images_per_second"},
    {"run_seconds", "s", "/seconds"},
    {"step_seconds", "s"},
    {"client_seconds", "s"},
    {"server_seconds", "s"},
    {"codec_seconds", "s"},
    {"bound_seconds", "s", "/bound/seconds_per_step"},
    {"over_bound", "", "/bound/over_bound"},
    {"ratio", "", "/ratio"},
    {"total_up_bytes", "bytes", "/bytes_up"},
    {"total_down_bytes", "bytes", "/bytes_down"},
    {"total_bytes", "bytes"},
    {"model_bytes", "bytes"},
    {"step_up_bytes", "bytes"},
    {"step_down_bytes", "bytes"},
    {"client_memory_bytes", "bytes", "/client_memory_bytes"},
    {"body_memory_bytes", "bytes", "/body_memory_bytes"},
    {"average_up", "bytes/s"},
    {"average_down", "bytes/s"},
    {"peak_up", "bytes/s", "/peak_up_bytes_per_second"},
    {"peak_down", "bytes/s", "/peak_down_bytes_per_second"},
    {"tensor_peak_up", "bytes/s"},
    {"tensor_peak_down", "bytes/s"},
};

// ---- steps.csv ----

// The same means over the training steps as in the reports and figures of the run.
void measureSteps(const std::string& runFolder, MetricValues& metrics) {
  BucketAxes axes(1);  // no charts are drawn
  RunReader run({runFolder, {}}, axes);
  run.read();
  const auto& means = run.training().means;
  if (means.seconds.isEmpty()) return;
  const double seconds = means.seconds.value();
  metrics["step_seconds"] = seconds;
  metrics["client_seconds"] = means.client.value();
  metrics["server_seconds"] = means.server.value();
  metrics["codec_seconds"] = means.codec.value();
  metrics["step_up_bytes"] = means.up.value();
  metrics["step_down_bytes"] = means.down.value();
  if (seconds <= 0) return;
  metrics["average_up"] = means.up.value() / seconds;
  metrics["average_down"] = means.down.value() / seconds;
}

// ---- transfers.csv ----

constexpr double kClassesPerOctave = 4;

// Computes the figures of the transfers. Only tensors of training steps are included.
void measureTransfers(const std::string& runFolder, Measured& measured) {
  struct Sum {
    std::uint64_t transfers = 0;
    double bytes = 0, seconds = 0;
  };
  std::map<std::pair<std::string, int>, Sum> sums;  // by flow and class
  double peakUp = 0, peakDown = 0;
  CsvReader transfers(runFolder, "transfers");
  const std::size_t phaseColumn = transfers.column("phase"), flowColumn = transfers.column("flow"),
                    bytesColumn = transfers.column("wire_bytes"),
                    secondsColumn = transfers.column("wire_seconds"),
                    roleColumn = transfers.column("role");
  transfers.read([&](const CsvRow& row) {
    const double bytes = row.number(bytesColumn).value_or(0);
    const double seconds = row.number(secondsColumn).value_or(0);
    const auto flow = flowFromName(row.text(flowColumn));
    const bool isTensor = flow && !isBlob(*flow);
    if (row.isGarbled() || row.text(phaseColumn) != "train" || !isTensor) return;
    if (bytes <= 0 || seconds <= 0) return;  // the tensor was never acknowledged
    const int number = static_cast<int>(std::floor(kClassesPerOctave * std::log2(bytes)));
    Sum& sum = sums[{flowName(*flow), number}];
    ++sum.transfers;
    sum.bytes += bytes;
    sum.seconds += seconds;
    double& peak = row.text(roleColumn) == "send" ? peakUp : peakDown;
    peak = std::max(peak, bytes / seconds);
  });
  if (peakUp > 0) measured.metrics["tensor_peak_up"] = peakUp;
  if (peakDown > 0) measured.metrics["tensor_peak_down"] = peakDown;
  for (const auto& [key, sum] : sums) {
    measured.classes.push_back({key.first, sum.transfers,
                                sum.bytes / static_cast<double>(sum.transfers),
                                sum.bytes / sum.seconds});
  }
}

// ---- Speed-up ----

std::vector<std::pair<std::string, std::string>> parseReference(
    const std::vector<SweepAxis>& axes, const std::vector<std::string>& reference) {
  std::vector<std::pair<std::string, std::string>> values;
  for (const std::string& option : reference) {
    const std::size_t equals = std::min(option.find('='), option.size());
    const std::string key = option.substr(0, equals);
    const std::string value = equals < option.size() ? option.substr(equals + 1) : "";
    const auto axis = std::find_if(axes.begin(), axes.end(),
                                   [&](const SweepAxis& one) { return one.key == key; });
    const bool known = axis != axes.end() && std::find(axis->values.begin(), axis->values.end(),
                                                       value) != axis->values.end();
    if (!known) {
      throw UsageError("bad-reference", "--reference " + option + ": the grid has no such value",
                       axis == axes.end()
                           ? std::string("give a key and value from --grid")
                           : fmt::format("give a value from --grid: {}={}", key,
                                         fmt::join(axis->values, fmt::format(", {}=", key))));
    }
    values.emplace_back(key, value);
  }
  return values;
}

}  // namespace

std::span<const SweepMetric> sweepMetrics() { return kMetrics; }

Measured measureRun(const Json& summary, const std::string& runFolder) {
  Measured measured;
  for (const SweepMetric& metric : kMetrics) {
    if (metric.inSummary == nullptr) continue;
    const Json::json_pointer pointer(metric.inSummary);
    if (summary.contains(pointer) && summary.at(pointer).is_number()) {
      measured.metrics[std::string(metric.name)] = summary.at(pointer).get<double>();
    }
  }
  const std::string main = summary.value("main_metric", "top1");
  if (main != "top1" && summary.contains("eval")) {
    const Json& eval = summary.at("eval");
    if (eval.contains(main)) measured.metrics["metric"] = eval.at(main).get<double>();
    if (eval.contains("best_" + main)) {
      measured.metrics["best_metric"] = eval.at("best_" + main).get<double>();
    }
  }
  const Json::json_pointer bottleneck("/bound/bottleneck");
  if (summary.contains(bottleneck)) measured.bottleneck = summary.at(bottleneck);
  if (measured.metrics.contains("total_up_bytes") &&
      measured.metrics.contains("total_down_bytes")) {
    measured.metrics["total_bytes"] =
        measured.metrics["total_up_bytes"] + measured.metrics["total_down_bytes"];
  }
  if (summary.contains("model_bytes_up")) {
    measured.metrics["model_bytes"] =
        summary.at("model_bytes_up").get<double>() + summary.at("model_bytes_down").get<double>();
  }
  measureSteps(runFolder, measured.metrics);
  measureTransfers(runFolder, measured);
  measured.curve = readLearningCurve(runFolder);
  return measured;
}

namespace {

// The columns of a point of a curve.
struct CurveColumn {
  const char* name;
  std::optional<double> CurvePoint::*value;
};
constexpr CurveColumn kCurve[] = {{"train_loss", &CurvePoint::trainLoss},
                                  {"train_metric", &CurvePoint::trainMetric},
                                  {"eval_loss", &CurvePoint::evalLoss},
                                  {"eval_metric", &CurvePoint::evalMetric}};

Json curveJson(const LearningCurve& curve) {
  Json json = {{"metric", curve.metric}, {"epochs", Json::array()}};
  for (const CurvePoint& point : curve.points) {
    Json one = {{"epoch", point.epoch},
                {"seconds", point.seconds},
                {"up_bytes", point.bytesUp},
                {"down_bytes", point.bytesDown}};
    for (const CurveColumn& column : kCurve) {
      if (point.*column.value) one[column.name] = *(point.*column.value);
    }
    json["epochs"].push_back(std::move(one));
  }
  return json;
}

LearningCurve curveFromJson(const Json& json) {
  LearningCurve curve{json.at("metric").get<std::string>(), {}};
  for (const Json& one : json.at("epochs")) {
    CurvePoint point{one.at("epoch").get<std::uint64_t>(),
                     one.at("seconds").get<double>(),
                     one.at("up_bytes").get<double>(),
                     one.at("down_bytes").get<double>(),
                     {},
                     {},
                     {},
                     {}};
    for (const CurveColumn& column : kCurve) {
      if (one.contains(column.name)) point.*column.value = one.at(column.name).get<double>();
    }
    curve.points.push_back(point);
  }
  return curve;
}

}  // namespace

Json toJson(const Measured& measured) {
  Json json = {{"metrics", Json::object()},
               {"bottleneck", measured.bottleneck},
               {"curve", curveJson(measured.curve)},
               {"transfers", Json::array()}};
  for (const SweepMetric& metric : kMetrics) {
    const auto found = measured.metrics.find(std::string(metric.name));
    if (found != measured.metrics.end()) json["metrics"][found->first] = found->second;
  }
  for (const SizeClass& one : measured.classes) {
    json["transfers"].push_back({{"flow", one.flow},
                                 {"transfers", one.transfers},
                                 {"bytes", one.bytes},
                                 {"bandwidth", one.bandwidth}});
  }
  return json;
}

Measured measuredFromJson(const Json& json) {
  Measured measured;
  for (const auto& [name, value] : json.at("metrics").items()) {
    measured.metrics[name] = value.get<double>();
  }
  measured.bottleneck = json.at("bottleneck").get<std::string>();
  measured.curve = curveFromJson(json.at("curve"));
  for (const Json& one : json.at("transfers")) {
    measured.classes.push_back({one.at("flow").get<std::string>(),
                                one.at("transfers").get<std::uint64_t>(),
                                one.at("bytes").get<double>(), one.at("bandwidth").get<double>()});
  }
  return measured;
}

std::vector<SeedGroup> groupBySeed(const std::vector<PointResult>& results) {
  std::vector<SeedGroup> groups;
  std::map<std::string, std::size_t> places;
  for (const PointResult& result : results) {
    SweepPoint point = result.point;
    std::erase_if(point.values, [](const auto& value) { return isRepetition(value.first); });
    const auto [place, isNew] = places.try_emplace(point.name(), groups.size());
    if (isNew) groups.emplace_back().point = point;
    if (result.status == PointResult::Status::done) {
      groups[place->second].members.push_back(&result);
    }
  }
  for (SeedGroup& group : groups) {
    for (const SweepMetric& metric : kMetrics) {
      std::vector<double> values;
      for (const PointResult* member : group.members) {
        const auto found = member->measured.metrics.find(std::string(metric.name));
        if (found != member->measured.metrics.end()) values.push_back(found->second);
      }
      if (!values.empty()) group.metrics[std::string(metric.name)] = spreadOf(values);
    }
    std::vector<const LearningCurve*> curves;
    for (const PointResult* member : group.members) curves.push_back(&member->measured.curve);
    group.curve = meanCurve(curves);
    const auto hasOther = [&](const LearningCurve* one) {
      return one->metric != curves[0]->metric;
    };
    if (!curves.empty() && std::none_of(curves.begin(), curves.end(), hasOther)) {
      group.mainMetric = curves[0]->metric;
    }
    std::vector<double> speedUps;
    for (const PointResult* member : group.members) {
      if (member->speedUp) speedUps.push_back(*member->speedUp);
    }
    if (!speedUps.empty()) group.speedUp = spreadOf(speedUps);
  }
  return groups;
}

void setSpeedUps(std::vector<PointResult>& results, const std::vector<SweepAxis>& axes,
                 const std::vector<std::string>& reference) {
  const auto replaced = parseReference(axes, reference);
  if (replaced.empty()) return;
  std::map<std::string, double> speeds;  // images per second, by the point's name
  for (const PointResult& result : results) {
    const auto speed = result.measured.metrics.find("images_per_second");
    if (result.status != PointResult::Status::done) continue;
    if (speed != result.measured.metrics.end()) speeds[result.point.name()] = speed->second;
  }
  for (PointResult& result : results) {
    SweepPoint other = result.point;
    for (auto& [key, value] : other.values) {
      for (const auto& [changed, to] : replaced) {
        if (key == changed) value = to;
      }
    }
    const auto own = speeds.find(result.point.name());
    const auto base = speeds.find(other.name());
    if (own != speeds.end() && base != speeds.end() && base->second > 0) {
      result.speedUp = own->second / base->second;
    }
  }
}

}  // namespace cleave
