// The servers of a run: their addresses and number, the threads beside them, and those that the
// client starts itself.
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/host_name.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/run/prepare_parts.h"
#include "common/core/units.h"

namespace cleave {
namespace {

// Makes no DNS query: an address is one of this machine's if a socket can be bound to it.
bool isThisMachine(const std::string& host) {
  boost::system::error_code error;
  if (host == "localhost" || host == boost::asio::ip::host_name(error)) return true;
  const auto address = boost::asio::ip::make_address(host, error);
  if (error) return false;
  boost::asio::io_context io;
  boost::asio::ip::tcp::socket socket(io);
  const boost::asio::ip::tcp::endpoint endpoint(address, 0);
  socket.open(endpoint.protocol(), error);
  if (!error) socket.bind(endpoint, error);
  return !error;
}

ThreadCount threadsBeside(const std::vector<ServerAddress>& servers, int asked) {
  const bool isBeside = servers.empty() || std::any_of(servers.begin(), servers.end(),
                                                       [](const ServerAddress& server) {
                                                         return isThisMachine(server.host);
                                                       });
  return chooseThreads(usableCores(), asked, 0, isBeside);
}

void checkServerCount(const PreparedRun& run) {
  const std::size_t bodies = run.settings.bodies();
  const std::size_t given = run.settings.bodyReplicas.size();
  if (given > 0 && given != bodies) {
    throw UsageError(
        "bad-servers",
        fmt::format("model.cuts has {} values, so the run needs the addresses of {}, but those of "
                    "{} are given",
                    bodies + 1, bodies == 1 ? "1 body" : fmt::format("{} bodies", bodies), given),
        "separate bodies by commas and join the replicas of a body by +, as in --server "
        "10.0.0.5:4800+10.0.0.6:4800,10.0.0.7:4800; the same server may be given for several "
        "bodies");
  }
  if (maxReplicasOf(run.settings) == 1 || !run.settings.hasEdges()) return;
  throw UsageError("bad-servers",
                   "a body has replicas, but connect.direct is set, and direct links connect one "
                   "server per body",
                   "set connect.direct to false, or give one address per body");
}

}  // namespace

void chooseServers(PreparedRun& run, std::vector<BodyServers> bodies, Purpose purpose) {
  const bool isInference = purpose == Purpose::inference;
  if (bodies.empty() && !isInference) {
    for (const std::string& server : run.settings.servers) {
      bodies.push_back(parseBodyServers(server));
    }
  }
  for (BodyServers& body : bodies) {
    if (isInference) body.resize(1);
    run.settings.bodyReplicas.push_back(static_cast<std::uint32_t>(body.size()));
  }
  run.servers = allServers(bodies);
  checkServerCount(run);
}

void chooseThreadsOf(PreparedRun& run, Purpose purpose) {
  const bool isAlone = purpose == Purpose::inference && run.servers.empty();
  const ThreadCount count = isAlone
                                ? chooseThreads(usableCores(), run.settings.clientThreads, 0, false)
                                : threadsBeside(run.servers, run.settings.clientThreads);
  run.threads = count.threads;
  run.threadsText = count.text;
  if (purpose == Purpose::verification || purpose == Purpose::inference) {
    run.settings.serverThreads = static_cast<std::uint32_t>(run.threads);
  }
}

ThreadCount clientThreads(const RunOptions& options, int asked) {
  return threadsBeside(allServers(parseAddresses(options.server)), asked);
}

void requireOneServer(const ClientSettings& settings, const std::string& what) {
  if (settings.bodies() == 1) return;
  throw UsageError(
      "several-servers",
      fmt::format("{} does not support several servers yet, but model.cuts divides the "
                  "model among {}",
                  what, settings.bodies()),
      "give model.cuts two values");
}

std::string addressesText(const PreparedRun& run) {
  std::string text;
  for (std::size_t s = 0; s < run.servers.size(); ++s) {
    const bool isFirst = run.bodies[s].stage.replica.rank == 0;
    text += (s == 0 ? "" : isFirst ? ", " : "+") + run.servers[s].text();
  }
  return text;
}

// Starts the last one first, because each may connect to the next one only.
void startLocalServers(PreparedRun& run) {
  const std::vector<std::string> models = overridesFor(run.settings.model.name);
  std::vector<std::string> edges;
  for (std::size_t b = run.bodies.size(); b-- > 0;) {
    const std::string store =
        run.folder + "/server" + (b == 0 ? std::string() : fmt::format("-{}", b + 1));
    if (run.settings.hasEdges() && b > 0) edges.emplace_back("edges.accept=true");
    std::vector<std::string> overrides = edges;
    overrides.insert(overrides.end(), models.begin(), models.end());
    run.localServers.insert(run.localServers.begin(),
                            std::make_unique<LocalServer>(store, run.settings.device, overrides));
    const ServerAddress address = run.localServers.front()->address();
    run.servers.insert(run.servers.begin(), address);
    if (run.settings.hasEdges()) edges = {fmt::format("edges.allow=[\"{}\"]", address.text())};
  }
}

}  // namespace cleave
