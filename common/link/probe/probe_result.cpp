#include "common/link/probe/probe_result.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <iterator>

#include "common/core/units.h"
#include "common/files/record.h"

namespace cleave {
namespace {

double secondsOf(const LinkFit& fit, const LinkPoint& point) {
  return fit.latency + (fit.rate ? point.bytes / *fit.rate : 0);
}

// The weighted least-squares line a + b x. The weights are such that, once `fitted` has converged
// to this line, it minimizes the sum of (fit - t)^2 / (fit t): the derivative of that sum is the
// sum of (fit - t) (fit + t) / (fit^2 t).
LinkFit weightedLine(std::span<const LinkPoint> points, const std::vector<double>& fitted) {
  // Bytes are divided by their maximum, so that both columns have the same magnitude.
  double scale = 1;
  for (const LinkPoint& point : points) scale = std::max(scale, point.bytes);
  double w = 0, wx = 0, wxx = 0, wt = 0, wxt = 0;
  for (std::size_t j = 0; j < points.size(); ++j) {
    const double x = points[j].bytes / scale;
    const double t = points[j].seconds;
    const double weight = (fitted[j] + t) / (fitted[j] * fitted[j] * t);
    w += weight;
    wx += weight * x;
    wxx += weight * x * x;
    wt += weight * t;
    wxt += weight * x * t;
  }
  const double determinant = w * wxx - wx * wx;
  double a = 0, b = 0;
  if (determinant > 1e-12 * w * wxx) {
    a = (wt * wxx - wxt * wx) / determinant;
    b = (wxt * w - wt * wx) / determinant;
  }
  // Constrains the line to what a link can do: no negative latency, and no time that decreases with
  // the size.
  if (a <= 0 && wxx > 0) {
    a = 0;
    b = wxt / wxx;
  } else if (b <= 0) {
    a = wt / w;
    b = 0;
  }
  LinkFit fit;
  fit.latency = a;
  if (b > 0) fit.rate = scale / b;
  return fit;
}

std::string rateOf(const LinkFit& fit) {
  return fit.rate ? rateText(*fit.rate) : "a rate that these sizes cannot measure";
}

}  // namespace

std::vector<std::uint64_t> ProbeResult::sizes() const {
  std::vector<std::uint64_t> all;
  for (const ProbeTransfer& transfer : transfers) all.push_back(transfer.bytes);
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  return all;
}

std::optional<double> ProbeResult::median(ProbeWay way, std::uint64_t bytes) const {
  std::vector<double> seconds;
  for (const ProbeTransfer& transfer : transfers) {
    if (transfer.way == way && transfer.bytes == bytes) seconds.push_back(transfer.seconds);
  }
  if (seconds.empty()) return std::nullopt;
  std::sort(seconds.begin(), seconds.end());
  const std::size_t half = seconds.size() / 2;
  return seconds.size() % 2 == 1 ? seconds[half] : (seconds[half - 1] + seconds[half]) / 2;
}

LinkFit fitLink(std::span<const LinkPoint> points) {
  constexpr int kRounds = 20;  // the values converge after ten
  if (points.empty()) return {};
  std::vector<double> fitted;  // seconds on the previous round's line
  for (const LinkPoint& point : points) fitted.push_back(point.seconds);
  LinkFit fit;
  for (int round = 0; round < kRounds; ++round) {
    fit = weightedLine(points, fitted);
    for (std::size_t j = 0; j < points.size(); ++j) {
      // Moves halfway on a logarithmic scale, so that the rounds do not oscillate.
      fitted[j] = std::sqrt(fitted[j] * std::max(secondsOf(fit, points[j]), 1e-3 * fitted[j]));
    }
  }
  for (const LinkPoint& point : points) {
    fit.deviation =
        std::max(fit.deviation, std::abs(secondsOf(fit, point) - point.seconds) / point.seconds);
  }
  return fit;
}

LinkFit fitOf(const ProbeResult& result, ProbeWay way) {
  std::vector<LinkPoint> points;
  for (const std::uint64_t bytes : result.sizes()) {
    if (const auto seconds = result.median(way, bytes)) {
      points.push_back({static_cast<double>(bytes), *seconds});
    }
  }
  return fitLink(points);
}

bool isReliable(const ProbeResult& result) {
  constexpr double kMaxDeviation = 1;  // beyond, the fit says more than twice the measured time
  return std::all_of(std::begin(kProbeWays), std::end(kProbeWays), [&](ProbeWay way) {
    const LinkFit fit = fitOf(result, way);
    return fit.rate && fit.deviation <= kMaxDeviation;
  });
}

std::string probeAgain(const ProbeResult& result) {
  return "measure again while the link and both machines are idle: cleave-client probe" +
         result.options + " --seconds 60";
}

std::string sentenceOf(const ProbeResult& result) {
  double deviation = 0;
  for (const ProbeWay way : kProbeWays) {
    deviation = std::max(deviation, fitOf(result, way).deviation);
  }
  const LinkFit up = fitOf(result, ProbeWay::up);
  const LinkFit down = fitOf(result, ProbeWay::down);
  const double latency = (up.latency + down.latency) / 2;
  return fmt::format(
      "up {}, down {} (both at once: {} and {}), {} one way; the fit is within {:.0f} %{}",
      rateOf(up), rateOf(down), rateOf(fitOf(result, ProbeWay::upOfBoth)),
      rateOf(fitOf(result, ProbeWay::downOfBoth)),
      durationText(std::chrono::duration_cast<Nanoseconds>(std::chrono::duration<double>(latency))),
      std::ceil(100 * deviation), isReliable(result) ? "" : ", so these figures are unreliable");
}

std::vector<std::string> probeColumns() {
  return {"time",  "run",    "session", "direction",        "both",
          "bytes", "repeat", "seconds", "receiver_seconds", "round_trip_seconds"};
}

std::string probeCsv(const ProbeResult& result, const std::string& run) {
  std::string csv;
  const auto line = [&csv](const std::vector<Cell>& cells) {
    for (std::size_t j = 0; j < cells.size(); ++j) {
      csv += (j == 0 ? "" : ",") + formatCell(cells[j]);
    }
    csv += "\n";
  };
  std::vector<Cell> header;
  for (const std::string& column : probeColumns()) header.emplace_back(column);
  line(header);
  for (const ProbeTransfer& transfer : result.transfers) {
    line({transfer.time, run.empty() ? Cell() : Cell(run), result.session,
          std::string(isUp(transfer.way) ? "up" : "down"),
          std::uint64_t{isOfBoth(transfer.way) ? 1u : 0u}, transfer.bytes,
          std::uint64_t{transfer.repeat}, transfer.seconds, transfer.receiverSeconds,
          result.roundTripSeconds});
  }
  return csv;
}

}  // namespace cleave
