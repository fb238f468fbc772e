// The result of probing a link: transfers of several sizes, and the line fitted to their times.
// Pure functions; docs/metrics.md is the contract of the CSV file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace cleave {

// The traffic measured: one direction alone, or one direction while both are busy.
enum class ProbeWay : std::uint8_t { up, down, upOfBoth, downOfBoth };
inline constexpr ProbeWay kProbeWays[] = {ProbeWay::up, ProbeWay::down, ProbeWay::upOfBoth,
                                          ProbeWay::downOfBoth};
inline bool isUp(ProbeWay way) { return way == ProbeWay::up || way == ProbeWay::upOfBoth; }
inline bool isOfBoth(ProbeWay way) { return way >= ProbeWay::upOfBoth; }

struct ProbeTransfer {
  std::string time;  // end of the transfer, formatted as in all records
  ProbeWay way = ProbeWay::up;
  std::uint64_t bytes = 0;  // without frame headers
  std::uint32_t repeat = 1;
  // One way, from passing the first byte to the socket until the last one's arrival.
  double seconds = 0;
  double receiverSeconds = 0;  // at the receiver, from reading the first byte to reading the last
};

struct ProbeResult {
  std::string server;          // such as "10.0.0.5:4800"
  std::string options;         // of the command probe: " --server 10.0.0.5:4800 --tls certs"
  std::string serverSoftware;  // such as "cleave 0.1.0"
  std::uint64_t session = 0;
  double roundTripSeconds = 0;  // minimum of several exchanges without payload
  std::vector<ProbeTransfer> transfers;
  std::vector<std::uint64_t> skipped;  // sizes that would have exceeded the time limit

  std::vector<std::uint64_t> sizes() const;  // the sizes measured, ascending
  // The median seconds of these transfers; nullopt if there are none.
  std::optional<double> median(ProbeWay way, std::uint64_t bytes) const;
};

// The line seconds = latency + bytes / rate.
struct LinkFit {
  double latency = 0;          // seconds, at least 0
  std::optional<double> rate;  // bytes per second; nullopt if larger transfers take no longer
  double deviation = 0;        // the largest |fit - measured| / measured
};

struct LinkPoint {
  double bytes = 0;
  double seconds = 0;  // above 0
};

// The line that minimizes the squares of (fit - measured) / sqrt(fit * measured). This error is
// relative: 1 kB counts as much as 100 MB, and predicting half the time is as wrong as predicting
// twice the time. For a single point, fits only the rate.
LinkFit fitLink(std::span<const LinkPoint> points);
// Fits the median times of one way.
LinkFit fitOf(const ProbeResult& result, ProbeWay way);

// Whether the rates and the latency in sentenceOf() may be used: every rate could be measured, and
// each median is within 100 % of the fit.
bool isReliable(const ProbeResult& result);
// What to do if they may not: a command.
std::string probeAgain(const ProbeResult& result);

// Example: "up 938 Mbit/s, down 940 Mbit/s (both at once: 921 and 933 Mbit/s), 10.1 ms one way; the
// fit is within 3 %". Says so if these figures are unreliable.
std::string sentenceOf(const ProbeResult& result);

std::vector<std::string> probeColumns();
// Returns the contents of the CSV file. `run`: the run id; empty if there is no run.
std::string probeCsv(const ProbeResult& result, const std::string& run);

}  // namespace cleave
