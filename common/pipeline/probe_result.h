// What a probe of a link found: transfers of several sizes, and the line through their times. Pure
// functions; docs/metrics.md is the contract of the CSV file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace cleave {

// What was on the link: one direction alone, or that direction of both at once.
enum class ProbeWay : std::uint8_t { up, down, upOfBoth, downOfBoth };
inline constexpr ProbeWay kProbeWays[] = {ProbeWay::up, ProbeWay::down, ProbeWay::upOfBoth,
                                          ProbeWay::downOfBoth};
inline bool isUp(ProbeWay way) { return way == ProbeWay::up || way == ProbeWay::upOfBoth; }
inline bool isOfBoth(ProbeWay way) { return way >= ProbeWay::upOfBoth; }

struct ProbeTransfer {
  std::string time;  // of its end, as in all records
  ProbeWay way = ProbeWay::up;
  std::uint64_t bytes = 0;  // without frames' headers
  std::uint32_t repeat = 1;
  double seconds = 0;          // one way: from the first byte handed over to the last one's arrival
  double receiverSeconds = 0;  // from the first byte read to the last, at the receiver
};

struct ProbeResult {
  std::string server;          // "10.0.0.5:4800"
  std::string serverSoftware;  // "cleave 0.1.0"
  std::uint64_t session = 0;
  double roundTripSeconds = 0;  // the least of several exchanges without payload
  std::vector<ProbeTransfer> transfers;
  std::vector<std::uint64_t> skipped;  // sizes that would have taken longer than allowed

  std::vector<std::uint64_t> sizes() const;  // that were measured, ascending
  // Seconds; nothing where that was not measured.
  std::optional<double> median(ProbeWay way, std::uint64_t bytes) const;
};

// seconds = latency + bytes / rate
struct LinkFit {
  double latency = 0;          // seconds, at least 0
  std::optional<double> rate;  // bytes a second; nothing where more bytes take no longer
  double deviation = 0;        // the largest |fit - measured| / measured
};

struct LinkPoint {
  double bytes = 0;
  double seconds = 0;  // above 0
};

// The line of least squares of (fit - measured) / sqrt(fit * measured): that is the relative error,
// so that 1 kB counts as much as 100 MB, and half the time is as wrong as twice the time. Of a
// single point: its rate alone.
LinkFit fitLink(std::span<const LinkPoint> points);
// Through the medians of one way.
LinkFit fitOf(const ProbeResult& result, ProbeWay way);

// "up 938 Mbit/s, down 940 Mbit/s (both at once: 921 and 933 Mbit/s), 10.1 ms one way; the fit is
// within 3 %"
std::string sentenceOf(const ProbeResult& result);

std::vector<std::string> probeColumns();
// The whole file. `run`: empty where there is none.
std::string probeCsv(const ProbeResult& result, const std::string& run);

}  // namespace cleave
