#include "client/commands/link_options.h"

#include <spdlog/fmt/fmt.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <utility>

namespace cleave {
namespace {

// The rate of an unlimited link: faster than any memory.
constexpr double kUnlimitedRate = 1e12;

std::string shownRate(double rate) { return rate == kUnlimitedRate ? "unlimited" : rateText(rate); }

double seconds(Nanoseconds time) { return std::chrono::duration<double>(time).count(); }

}  // namespace

void addLinkOptions(CLI::App& command, LinkOptions& options) {
  command
      .add_option("--rate", options.rate,
                  "Rate of the link in each direction, such as 1Gbit/s, 20MB/s or unlimited")
      ->type_name("RATE")
      ->required();
  command.add_option("--up-rate", options.upRate, "Rate from client to server, if it differs")
      ->type_name("RATE");
  command.add_option("--down-rate", options.downRate, "Rate from server to client, if it differs")
      ->type_name("RATE");
  command
      .add_option("--latency", options.latencies,
                  "One-way latency, such as 10ms or 100us; with several servers, one for all, or "
                  "one per server, separated by commas")
      ->type_name("TIME")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->required();
  command
      .add_option("--queue", options.queue,
                  "Send buffer of the link per direction, such as 128KiB; urgent tensors wait "
                  "behind the bytes in it")
      ->type_name("SIZE")
      ->default_str("0B");
  command.add_flag("--separate-links", options.separate,
                   "Each of several servers has a link of this rate; default: all links share the "
                   "rate of the client's connection");
  command
      .add_option("--edge-rate", options.edgeRate,
                  "Rate of the links between servers in each direction: direct links "
                  "(connect.direct), and the network of replicas; default: --rate")
      ->type_name("RATE");
  command
      .add_option("--edge-latency", options.edgeLatency,
                  "Their one-way latency; default: the highest --latency of these servers")
      ->type_name("TIME");
}

LinkCosts linkCosts(const LinkOptions& options) {
  const auto rate = [&](const char* flag, const std::string& own) {
    const bool isOwn = !own.empty();
    const double value = parseRate({isOwn ? flag : "--rate", isOwn ? own : options.rate});
    return value > 0 ? value : kUnlimitedRate;
  };
  LinkCosts link{rate("--up-rate", options.upRate),
                 rate("--down-rate", options.downRate),
                 {},
                 static_cast<double>(parseSize({"--queue", options.queue})),
                 options.separate,
                 rate("--edge-rate", options.edgeRate),
                 {}};
  if (!options.edgeLatency.empty()) {
    link.edgeLatency = parseTime({"--edge-latency", options.edgeLatency});
  }
  for (const std::string& latency : options.latencies) {
    link.latencies.push_back(parseTime({"--latency", latency}));
  }
  return link;
}

void LinkCosts::checkServers(std::size_t servers) const {
  if (latencies.size() == 1 || latencies.size() == servers) return;
  throw UsageError("bad-value",
                   fmt::format("--latency has {} values, but model.cuts divides the model among {}",
                               latencies.size(), countText(servers, "server")),
                   "give one latency for all servers, or one per server; the replicas of a body "
                   "share one");
}

void LinkCosts::applyTo(StepCosts& costs) const {
  const std::size_t bodies = costs.bodies.size();
  costs.sharesLink = costs.servers() > 1 && !separate;
  for (std::size_t b = 0; b < bodies; ++b) {
    BodyCosts& body = costs.bodies[b];
    body.rateUp = rateUp;
    body.rateDown = rateDown;
    body.latency = seconds(latencies[latencies.size() == 1 ? 0 : b]);
    body.queueBytes = queueBytes;
  }
  for (std::size_t e = 0; e < costs.edges.size(); ++e) {
    const double higher = std::max(costs.bodies[e].latency, costs.bodies[e + 1].latency);
    costs.edges[e] = {edgeRate, edgeLatency ? seconds(*edgeLatency) : higher};
  }
  for (BodyCosts& body : costs.bodies) {
    const double latency = edgeLatency ? seconds(*edgeLatency) : body.latency;
    body.replicas.seconds = reduceSeconds(body.replicas, edgeRate, latency);
  }
}

nlohmann::ordered_json LinkCosts::json() const {
  nlohmann::ordered_json latency = seconds(latencies.front());
  if (latencies.size() > 1) {
    latency = nlohmann::ordered_json::array();
    for (const Nanoseconds each : latencies) latency.push_back(seconds(each));
  }
  return {{"rate_up", rateUp},
          {"rate_down", rateDown},
          {"latency_seconds", std::move(latency)},
          {"queue_bytes", queueBytes},
          {"separate_links", separate}};
}

std::string LinkCosts::text() const {
  std::string latency;
  for (const Nanoseconds each : latencies) {
    latency += (latency.empty() ? "" : ", ") + durationText(each);
  }
  return fmt::format("{} up, {} down, {} one way{}", shownRate(rateUp), shownRate(rateDown),
                     latency, separate ? ", separate links" : "");
}

}  // namespace cleave
