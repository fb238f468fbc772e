// The keys of the device, the servers, and the connections to them.
#include "client/config/settings_keys.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "common/core/endpoint.h"
#include "common/core/units.h"
#include "common/run/config_errors.h"
#include "common/run/device.h"

namespace cleave::client_keys {
namespace {

void checkDirectAddresses(Config& config, Settings& settings) {
  const std::size_t count = settings.directAddresses.size();
  const std::string place = config.where("connect.direct_addresses") + ": connect.direct_addresses";
  for (const std::string& each : settings.directAddresses) parseEndpoint({place, each}, 1);
  if (count == 0 || count + 1 == settings.bodies()) return;
  throw UsageError("bad-servers",
                   fmt::format("{} lists {}, but the run has {}", place, countText(count, "server"),
                               countText(settings.bodies(), "server")),
                   "give one address for each server but the first");
}

void checkCohortKeys(Config& config, Settings& settings) {
  const auto& members = settings.cohort.members;
  if (!settings.cohort.exists() && members.empty() && settings.member.empty()) return;
  std::vector<std::string> missing;
  if (!settings.cohort.exists()) missing.emplace_back("cohort.id");
  if (members.empty()) missing.emplace_back("cohort.members");
  if (settings.member.empty()) missing.emplace_back("cohort.member");
  if (!missing.empty()) {
    const bool isOnlyName = missing.size() == 1 && settings.member.empty();
    throw UsageError(
        "bad-cohort", fmt::format("a member of a cohort needs {}", fmt::join(missing, " and ")),
        isOnlyName ? fmt::format("set it to this client's name in cohort.members, such as "
                                 "--set cohort.member={}",
                                 members.front())
                   : "set cohort.id, cohort.members and cohort.member, or none of them")
        .about("cohort");
  }
  if (std::ranges::count(members, settings.member) != 1) {
    throw UsageError(
        "bad-cohort",
        fmt::format("{}: '{}' is not one of cohort.members, {}", config.where("cohort.member"),
                    settings.member, fmt::join(members, ", ")),
        "set it to this client's name in that list")
        .about("cohort.member");
  }
  if (settings.cohort.isRelay() && settings.cohortKeyFile.empty()) {
    throw UsageError("bad-cohort",
                     "members that take turns need a key, with which they seal head and tail for "
                     "each other, so that the server cannot read them",
                     "make one for all members, (umask 077; openssl rand -hex 32 > cohort.key), "
                     "and set cohort.key_file=cohort.key")
        .about("cohort.key_file");
  }
}

}  // namespace

void addDeviceAndLink(Table& table) {
  table
      .text("device", "`cpu`, `cuda`, `cuda:N`", &Settings::device,
            "device for head and tail; see [GPUs](#gpus)")
      .mayChange()
      .then([](Config& config, Settings& s) {
        checkAt(config, "device", [&] { checkDeviceName(s.device); });
      });
  addFields(table, "device_bits");
  table
      .integer("threads.client", "", 0, 1024, &Settings::clientThreads,
               "number of compute threads; 0: all usable cores, or half of them if client and "
               "server share the machine")
      .mayChange();
  addFields(table, "threads.");
  table
      .boolean("tls.enabled", field(&Settings::tls, &TlsSettings::enabled),
               "TLS 1.3 to `--server`; `--tls DIR` sets both `tls` keys")
      .mayChange();
  table
      .text("tls.folder", "path", field(&Settings::tls, &TlsSettings::folder),
            "folder with `ca.crt`, `client.crt`, `client.key`")
      .mayChange();
  table.add("servers", "list of `HOST:PORT`", "", "`[]`",
            "the servers, one per body, if `--server` is not given: [several "
            "servers](#several-servers); `HOST:PORT+HOST:PORT`: [replicas](#replicas)",
            [](Config& config, Settings& s) {
              s.servers = config.texts("servers", std::vector<std::string>{});
            });
  table
      .boolean("connect.direct", &Settings::hasDirectLinks,
               "with several servers: neighbouring servers exchange their tensors over [direct "
               "links](#direct-links-between-servers) instead of through the client")
      .mayChange();
  table
      .add("connect.direct_addresses", "list of `HOST:PORT`", "", "those of `servers`",
           "the addresses at which each server but the first is reached by the server before it, "
           "if they differ from the client's",
           [](Config& config, Settings& s) {
             s.directAddresses =
                 config.texts("connect.direct_addresses", std::vector<std::string>{});
           })
      .mayChange()
      .then(checkDirectAddresses);
  table
      .number("connect.retry_seconds", "s", 0, 1e6, &Settings::retrySeconds,
              "how long to retry if no server answers, or if a full server asks the client to "
              "retry later")
      .mayChange();
  table
      .number("connect.reconnect_seconds", "s", 0, 1e6, &Settings::reconnectSeconds,
              "how long to try to reconnect if the connection breaks, counted from the first break "
              "since the last step or byte; 0: the run then ends")
      .mayChange();
  table
      .number("connect.progress_seconds", "s", 0, 1e6, &Settings::progressSeconds,
              "how long to wait for a server that answers, but makes no step and no byte of "
              "progress; 0: without limit")
      .mayChange();
  table
      .text("cohort.id", "text", field(&Settings::cohort, &Cohort::id),
            "the name of a [cohort](joint.md): clients that train one model with the samples of "
            "all; empty: none")
      .sent();
  table
      .add("cohort.members", "list of names", "", "`[]`",
           "the members of the cohort, in the same order in the configuration of each; with TLS, "
           "the names in their certificates",
           [](Config& config, Settings& s) {
             s.cohort.members = config.texts("cohort.members", std::vector<std::string>{});
           })
      .sent();
  table
      .choice("cohort.mode", {std::string(kJoint), std::string(kRelay)},
              field(&Settings::cohort, &Cohort::mode),
              "`joint`: all members train together; `relay`: one after the other, for members that "
              "are not online at the same time: [turns](joint.md#one-after-the-other)")
      .sent();
  table.integer("cohort.turn_epochs", "", 1, 1000000, &Settings::turnEpochs,
                "in a relay: the passes over its own samples that a member makes in its turn");
  table.text(
      "cohort.key_file", "path", &Settings::cohortKeyFile,
      "in a relay: the file with the key that all members have, and the server does not: 64 "
      "hexadecimal digits. It seals head and tail, which the server keeps between the turns");
  table
      .choice(
          "cohort.order", {std::string(kByMember), std::string(kGlobal)},
          field(&Settings::cohort, &Cohort::order),
          "how the servers order the micro-batches of a step: `by-member`: those of each "
          "member on their own, so that a slow member delays only the end of the step; needs "
          "memory for the gradients of each in each step in progress; `global`: in the order of "
          "the batch. The results differ in their last bits")
      .sent();
  table
      .integer("cohort.min_members", "", 0, kMaxMembers,
               field(&Settings::cohort, &Cohort::minMembers),
               "minimum number of connected members with which a run continues, while the others "
               "may come back; 0: all")
      .sent();
  table
      .integer("cohort.begin_members", "", 0, kMaxMembers,
               field(&Settings::cohort, &Cohort::beginMembers),
               "with `cohort.min_members`: the number of connected members, the first among them, "
               "with which a run begins; the others join when they connect; 0: all")
      .sent();
  table
      .integer("cohort.wait_seconds", "s", 0, kMaxWaitSeconds,
               field(&Settings::cohort, &Cohort::waitSeconds),
               "with `cohort.min_members`: how long a run waits for a member whose connection has "
               "broken, at most `limits.park_seconds` of the server; how long it then waits for "
               "its client, before it goes on without it; and for how long it goes on before a "
               "member that comes back takes part again. In any cohort: how long a member waits "
               "for the others, if they have already ended the run that it continues. In a relay: "
               "how long the others wait for the member whose turn it is, before one of them takes "
               "the next turn")
      .sent();
  table.text("cohort.member", "text", &Settings::member, "which of `cohort.members` this client is")
      .then(checkCohortKeys);
}

}  // namespace cleave::client_keys
