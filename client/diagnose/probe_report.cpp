#include "client/diagnose/probe_report.h"

#include <spdlog/fmt/fmt.h>

#include "common/core/units.h"

namespace cleave {
namespace {

using Json = nlohmann::ordered_json;

std::string keyOf(ProbeWay way) {
  return std::string(isUp(way) ? "up" : "down") + (isOfBoth(way) ? "_of_both" : "");
}

std::string milliseconds(double seconds) { return fmt::format("{:.3f}", 1e3 * seconds); }

std::string megabits(double rate) {
  const double value = 8e-6 * rate;
  return value < 1000 ? fmt::format("{:.3g}", value) : fmt::format("{:.0f}", value);
}

std::string fitText(const LinkFit& fit) {
  return fmt::format("{} ms + bytes / {}", milliseconds(fit.latency),
                     fit.rate ? rateText(*fit.rate) : "unknown");
}

}  // namespace

std::string probeTable(const ProbeResult& result) {
  std::string text = fmt::format("link to {} ({}): round trip {} ms\n\n", result.server,
                                 result.serverSoftware, milliseconds(result.roundTripSeconds));
  text += fmt::format("{:>8} |{:^40} |{:^40}\n", "one way", "one direction alone", "both at once");
  text += fmt::format("{:>8}", "size");
  for (const char* way : {"up", "down", "up", "down"}) {
    text += fmt::format(" |{:>11}{:>8}", std::string(way) + ", ms", "Mbit/s");
  }
  text += "\n";
  for (const std::uint64_t bytes : result.sizes()) {
    text += fmt::format("{:>8}", bytesText(static_cast<double>(bytes)));
    for (const ProbeWay way : kProbeWays) {
      const auto seconds = result.median(way, bytes);
      text += seconds ? fmt::format(" |{:>11}{:>8}", milliseconds(*seconds),
                                    megabits(static_cast<double>(bytes) / *seconds))
                      : fmt::format(" |{:>19}", "");
    }
    text += "\n";
  }
  text += "\n";
  for (const ProbeWay way : kProbeWays) {
    const LinkFit fit = fitOf(result, way);
    text += fmt::format("{:<16}{}, within {:.1f} %\n",
                        std::string(isUp(way) ? "up" : "down") + (isOfBoth(way) ? ", both" : ""),
                        fitText(fit), 100 * fit.deviation);
  }
  if (!result.skipped.empty()) {
    std::string sizes;
    for (const std::uint64_t bytes : result.skipped) {
      sizes += (sizes.empty() ? "" : ", ") + bytesText(static_cast<double>(bytes));
    }
    text += fmt::format("skipped         {}: would exceed the time limit (--seconds)\n", sizes);
  }
  text += "\n" + sentenceOf(result) + "\n";
  return isReliable(result) ? text : text + "hint: " + probeAgain(result) + "\n";
}

Json probeJson(const ProbeResult& result) {
  Json json = {{"server", result.server},        {"software", result.serverSoftware},
               {"session", result.session},      {"round_trip_seconds", result.roundTripSeconds},
               {"sentence", sentenceOf(result)}, {"reliable", isReliable(result)}};
  for (const ProbeWay way : kProbeWays) {
    const LinkFit fit = fitOf(result, way);
    json["fit"][keyOf(way)] = {{"latency_seconds", fit.latency},
                               {"rate", fit.rate ? Json(*fit.rate) : Json()},
                               {"largest_deviation", fit.deviation}};
  }
  json["sizes"] = Json::array();
  for (const std::uint64_t bytes : result.sizes()) {
    Json size = {{"bytes", bytes}};
    for (const ProbeWay way : kProbeWays) {
      if (const auto seconds = result.median(way, bytes)) {
        size[keyOf(way) + "_seconds"] = *seconds;
      }
    }
    json["sizes"].push_back(size);
  }
  json["skipped"] = result.skipped;
  return json;
}

}  // namespace cleave
