// The results of a probe: the line fitted to its times, the medians, and the CSV file.
#include "common/link/probe/probe_result.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

using namespace cleave;

namespace {

const std::vector<double> kSizes = {1e3, 1e4, 1e5, 1e6, 1e7, 1e8};

std::vector<LinkPoint> line(double latency, double rate) {
  std::vector<LinkPoint> points;
  for (const double bytes : kSizes) points.push_back({bytes, latency + bytes / rate});
  return points;
}

ProbeTransfer transfer(ProbeWay way, std::uint64_t bytes, double seconds) {
  return {"2026-01-31T12:34:56.789Z", way, bytes, 1, seconds, seconds / 2};
}

}  // namespace

TEST_CASE("the command that probes again has the options of the probe") {
  ProbeResult result;
  result.server = "10.0.0.5:4800";
  result.options = " --server 10.0.0.5:4800 --tls 'my certs'";
  CHECK(probeAgain(result).ends_with(
      "cleave-client probe --server 10.0.0.5:4800 --tls 'my certs' --seconds 60"));
}

TEST_CASE("the fit of exact times is the line through them") {
  for (const double latency : {20e-6, 10e-3, 0.3}) {
    for (const double rate : {125e3, 117e6, 1.2e9}) {
      const LinkFit fit = fitLink(line(latency, rate));
      REQUIRE(fit.rate);
      CHECK(*fit.rate == Approx(rate).epsilon(1e-6));
      CHECK(fit.latency == Approx(latency).epsilon(1e-6));
      CHECK(fit.deviation < 1e-6);
    }
  }
}

TEST_CASE("an error of 10 % at one size changes the fit by less than 10 % at every size") {
  for (std::size_t wrong = 0; wrong < kSizes.size(); ++wrong) {
    auto points = line(10e-3, 100e6);
    points[wrong].seconds *= 1.1;
    const LinkFit fit = fitLink(points);
    INFO("size " << kSizes[wrong]);
    CHECK(fit.deviation > 0.01);
    CHECK(fit.deviation < 0.1);
    CHECK(*fit.rate == Approx(100e6).epsilon(0.1));
    CHECK(fit.latency == Approx(10e-3).epsilon(0.1));
  }
}

TEST_CASE("the fit of times with a few percent of noise is within a few percent of the line") {
  auto points = line(10e-3, 117e6);
  for (std::size_t j = 0; j < points.size(); ++j) points[j].seconds *= j % 2 == 0 ? 1.03 : 0.97;
  const LinkFit fit = fitLink(points);
  CHECK(*fit.rate == Approx(117e6).epsilon(0.04));
  CHECK(fit.latency == Approx(10e-3).epsilon(0.04));
  CHECK(fit.deviation < 0.06);
}

TEST_CASE("if no line fits, the relative errors above and below are equal") {
  // Ten times as many bytes take 100 times as long. The line must be too high at the first point
  // and too low at the second.
  const std::vector<LinkPoint> points = {{1e5, 1e-4}, {1e6, 1e-2}};
  const LinkFit fit = fitLink(points);
  REQUIRE(fit.rate);
  const double first = fit.latency + 1e5 / *fit.rate;
  const double second = fit.latency + 1e6 / *fit.rate;
  CHECK(first / 1e-4 == Approx(1e-2 / second).epsilon(0.02));
}

TEST_CASE("a fit never has a negative latency or an impossible rate") {
  SECTION("one size gives only a rate") {
    const std::vector<LinkPoint> one = {{1e6, 0.5}};
    const LinkFit fit = fitLink(one);
    CHECK(*fit.rate == Approx(2e6));
    CHECK(fit.latency == 0);
  }
  SECTION("the latency is never below 0") {
    const std::vector<LinkPoint> points = {{1e6, 0.1}, {2e6, 0.3}};
    CHECK(fitLink(points).latency == 0);
    CHECK(fitLink(points).rate);
  }
  SECTION("there is no rate if more bytes take no longer") {
    const std::vector<LinkPoint> points = {{1e3, 0.2}, {1e4, 0.1}};
    const LinkFit fit = fitLink(points);
    CHECK_FALSE(fit.rate);
    CHECK(fit.latency > 0.1);
    CHECK(fit.latency < 0.2);
  }
  SECTION("there is no fit without points") { CHECK_FALSE(fitLink({}).rate); }
}

TEST_CASE("medians are taken per direction and size") {
  ProbeResult result;
  for (const double seconds : {3.0, 1.0, 2.0}) {
    result.transfers.push_back(transfer(ProbeWay::up, 1000, seconds));
  }
  result.transfers.push_back(transfer(ProbeWay::up, 10000, 5));
  result.transfers.push_back(transfer(ProbeWay::up, 10000, 6));
  result.transfers.push_back(transfer(ProbeWay::downOfBoth, 1000, 9));
  CHECK(result.sizes() == std::vector<std::uint64_t>{1000, 10000});
  CHECK(*result.median(ProbeWay::up, 1000) == 2);
  CHECK(*result.median(ProbeWay::up, 10000) == 5.5);
  CHECK(*result.median(ProbeWay::downOfBoth, 1000) == 9);
  CHECK_FALSE(result.median(ProbeWay::down, 1000));
}

TEST_CASE("the summary sentence states the rates, the latency and the error of the fit") {
  ProbeResult result;
  for (const ProbeWay way : kProbeWays) {
    for (const LinkPoint& point : line(10e-3, isOfBoth(way) ? 100e6 : 117.25e6)) {
      result.transfers.push_back(
          transfer(way, static_cast<std::uint64_t>(point.bytes), point.seconds));
    }
  }
  result.transfers.front().seconds *= 1.02;
  CHECK(sentenceOf(result).starts_with("up 93"));
  CHECK(sentenceOf(result).find("down 938 Mbit/s (both at once: 800 Mbit/s and 800 Mbit/s), 10.") !=
        std::string::npos);
  CHECK(sentenceOf(result).ends_with(" ms one way; the fit is within 2 %"));
  CHECK(isReliable(result));
}

TEST_CASE("a fit that says more than twice a measured time, and an unknown rate, are unreliable") {
  ProbeResult result;
  const auto add = [&](ProbeWay way, std::uint64_t bytes, double seconds) {
    result.transfers.push_back(transfer(way, bytes, seconds));
  };
  for (const ProbeWay way : kProbeWays) {
    for (const LinkPoint& point : line(10e-3, 100e6)) {
      add(way, static_cast<std::uint64_t>(point.bytes), point.seconds);
    }
  }
  SECTION("one size in one direction took far longer than the line through the others") {
    for (ProbeTransfer& one : result.transfers) {
      if (one.way == ProbeWay::downOfBoth && one.bytes == 10'000) one.seconds *= 100;
    }
    CHECK(fitOf(result, ProbeWay::downOfBoth).deviation > 1);
  }
  SECTION("larger transfers took no longer, so there is no rate") {
    result.transfers.clear();
    for (const ProbeWay way : kProbeWays) {
      add(way, 1000, 1e-3);
      add(way, 10'000, 1e-3);
    }
    CHECK_FALSE(fitOf(result, ProbeWay::up).rate);
  }
  CHECK_FALSE(isReliable(result));
  CHECK(sentenceOf(result).ends_with(" %, so these figures are unreliable"));
}

TEST_CASE("the file has a header and one row per transfer") {
  ProbeResult result;
  result.session = 7;
  result.roundTripSeconds = 0.02;
  result.transfers.push_back(transfer(ProbeWay::up, 1000, 0.25));
  result.transfers.push_back(transfer(ProbeWay::downOfBoth, 1000, 0.5));
  CHECK(probeCsv(result, "") ==
        "time,run,session,direction,both,bytes,repeat,seconds,receiver_seconds,round_trip_seconds\n"
        "2026-01-31T12:34:56.789Z,,7,up,0,1000,1,0.25,0.125,0.02\n"
        "2026-01-31T12:34:56.789Z,,7,down,1,1000,1,0.5,0.25,0.02\n");
  CHECK(probeCsv(result, "run-1").find("Z,run-1,7,up,") != std::string::npos);
}
