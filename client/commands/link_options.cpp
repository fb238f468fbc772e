#include "client/commands/link_options.h"

#include <spdlog/fmt/fmt.h>

#include <CLI/CLI.hpp>

namespace cleave {

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
  command.add_option("--latency", options.latency, "One-way latency, such as 10ms or 100us")
      ->type_name("TIME")
      ->required();
  command
      .add_option("--queue", options.queue,
                  "Send buffer of the link per direction, such as 128KiB; urgent tensors wait "
                  "behind the bytes in it")
      ->type_name("SIZE")
      ->default_str("0B");
}

LinkCosts linkCosts(const LinkOptions& options) {
  const auto rate = [&](const char* flag, const std::string& own) {
    const bool isOwn = !own.empty();
    const double value = parseRate({isOwn ? flag : "--rate", isOwn ? own : options.rate});
    // 0 means unlimited; this rate is faster than any memory.
    return value > 0 ? value : 1e12;
  };
  return {rate("--up-rate", options.upRate), rate("--down-rate", options.downRate),
          parseTime({"--latency", options.latency}),
          static_cast<double>(parseSize({"--queue", options.queue}))};
}

void LinkCosts::applyTo(BodyCosts& body) const {
  body.rateUp = rateUp;
  body.rateDown = rateDown;
  body.latency = latencySeconds();
  body.queueBytes = queueBytes;
}

nlohmann::ordered_json LinkCosts::json() const {
  return {{"rate_up", rateUp},
          {"rate_down", rateDown},
          {"latency_seconds", latencySeconds()},
          {"queue_bytes", queueBytes}};
}

std::string LinkCosts::text() const {
  return fmt::format("{} up, {} down, {} one way", rateText(rateUp), rateText(rateDown),
                     durationText(latency));
}

}  // namespace cleave
