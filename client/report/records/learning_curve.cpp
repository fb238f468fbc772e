#include "client/report/records/learning_curve.h"

#include <map>

#include "client/report/records/csv_reader.h"

namespace cleave {
namespace {

constexpr std::string_view kTrain = "train_", kEval = "eval_";

struct Bytes {
  double up = 0, down = 0;
};

// Returns the bytes from the start of the run to the end of each epoch. The bytes of a handshake
// count for the epoch that follows.
std::map<std::uint64_t, Bytes> bytesByEpoch(const std::string& folder) {
  CsvReader reader(folder, "steps");
  const std::size_t epoch = reader.column("epoch"), wireUp = reader.column("wire_up_bytes"),
                    wireDown = reader.column("wire_down_bytes"),
                    controlUp = reader.column("control_up_bytes"),
                    controlDown = reader.column("control_down_bytes");
  std::map<std::uint64_t, Bytes> ends;
  Bytes sum;
  reader.read([&](const CsvRow& row) {
    const auto number = row.number(epoch);
    const double up = row.number(wireUp).value_or(0) + row.number(controlUp).value_or(0);
    const double down = row.number(wireDown).value_or(0) + row.number(controlDown).value_or(0);
    if (row.isGarbled()) return;
    sum.up += up;
    sum.down += down;
    if (number && *number >= 1) ends[static_cast<std::uint64_t>(*number)] = sum;
  });
  return ends;
}

// Reads the rows of epochs.csv by epoch, each with the seconds of that epoch alone. If an epoch was
// repeated after an interruption, its last row counts.
std::map<std::uint64_t, CurvePoint> rowsByEpoch(const std::string& folder, std::string& metric) {
  CsvReader reader(folder, "epochs");
  const std::size_t epoch = reader.column("epoch"), trainSeconds = reader.column("train_seconds"),
                    evalSeconds = reader.column("eval_seconds"),
                    trainLoss = reader.column("train_loss"),
                    trainMetric = reader.column("train_loss+1"),
                    evalLoss = reader.column("eval_loss"),
                    evalMetric = reader.column("eval_loss+1");
  std::map<std::uint64_t, CurvePoint> rows;
  reader.read([&](const CsvRow& row) {
    const std::string& evalName = reader.nameOf(evalMetric);
    if (evalName.starts_with(kEval)) metric = evalName.substr(kEval.size());
    const bool isSame =
        !metric.empty() && reader.nameOf(trainMetric) == std::string(kTrain) + metric;
    const auto number = row.number(epoch);
    CurvePoint point;
    point.seconds = row.number(trainSeconds).value_or(0) + row.number(evalSeconds).value_or(0);
    point.trainLoss = row.number(trainLoss);
    if (isSame) point.trainMetric = row.number(trainMetric);
    point.evalLoss = row.number(evalLoss);
    if (!metric.empty()) point.evalMetric = row.number(evalMetric);
    if (row.isGarbled() || !number || *number < 1) return;
    point.epoch = static_cast<std::uint64_t>(*number);
    rows[point.epoch] = point;
  });
  return rows;
}

// The spread of a figure over the points that have it.
template <typename Get>
std::optional<Spread> spreadOver(const std::vector<const CurvePoint*>& points, const Get& get) {
  std::vector<double> values;
  for (const CurvePoint* point : points) {
    if (const std::optional<double> value = get(*point)) values.push_back(*value);
  }
  return values.empty() ? std::nullopt : std::optional(spreadOf(values));
}

}  // namespace

LearningCurve readLearningCurve(const std::string& folder) {
  LearningCurve curve;
  const std::map<std::uint64_t, Bytes> bytes = bytesByEpoch(folder);
  double seconds = 0;
  for (auto& [epoch, point] : rowsByEpoch(folder, curve.metric)) {
    point.seconds = seconds += point.seconds;
    if (const auto found = bytes.find(epoch); found != bytes.end()) {
      point.bytesUp = found->second.up;
      point.bytesDown = found->second.down;
    }
    curve.points.push_back(point);
  }
  return curve;
}

std::vector<MeanCurvePoint> meanCurve(const std::vector<const LearningCurve*>& curves) {
  std::map<std::uint64_t, std::vector<const CurvePoint*>> byEpoch;
  for (const LearningCurve* curve : curves) {
    for (const CurvePoint& point : curve->points) byEpoch[point.epoch].push_back(&point);
  }
  std::vector<MeanCurvePoint> means;
  for (const auto& [epoch, points] : byEpoch) {
    const auto over = [&](const auto& get) { return spreadOver(points, get); };
    const auto all = [&](const auto& get) {
      return *over([&](const CurvePoint& p) { return std::optional<double>(get(p)); });
    };
    means.push_back({epoch, points.size(), all([](const CurvePoint& p) { return p.seconds; }),
                     all([](const CurvePoint& p) { return p.bytesUp; }),
                     all([](const CurvePoint& p) { return p.bytesDown; }),
                     all([](const CurvePoint& p) { return p.bytes(); }),
                     over([](const CurvePoint& p) { return p.trainLoss; }),
                     over([](const CurvePoint& p) { return p.trainMetric; }),
                     over([](const CurvePoint& p) { return p.evalLoss; }),
                     over([](const CurvePoint& p) { return p.evalMetric; })});
  }
  return means;
}

}  // namespace cleave
