#include "client/train/local_server.h"

#include <vector>

namespace cleave {
namespace {

// Resource limits are disabled, because the user owns both sides.
std::vector<std::string> commandLine(const std::string& store, const std::string& device,
                                     const std::vector<std::string>& overrides) {
  std::vector<std::string> words = {programBeside("cleave-server"),
                                    "serve",
                                    "--log-level",
                                    "warn",
                                    "--set",
                                    "listen.port=0",
                                    "--set",
                                    "store=" + store,
                                    "--set",
                                    "device=" + device,
                                    "--set",
                                    "limits.memory_mib=16777216",
                                    "--set",
                                    "limits.disk_mib=1073741824",
                                    "--set",
                                    "limits.disk_reserve_mib=0",
                                    "--set",
                                    "limits.idle_seconds=604800",
                                    "--set",
                                    "limits.runs_per_hour=1000000",
                                    "--set",
                                    "limits.action_seconds=86400",
                                    "--set",
                                    "limits.codec_seconds=86400",
                                    "--set",
                                    "wait.allowed=true",
                                    "--set",
                                    "weights.keep_mib=0",  // its store belongs to one run
                                    "--set",
                                    "usage.enabled=false",
                                    "--set",
                                    "status.socket=off"};
  for (const std::string& each : overrides) words.insert(words.end(), {"--set", each});
  return words;
}

}  // namespace

LocalServer::LocalServer(const std::string& store, const std::string& device,
                         const std::vector<std::string>& overrides, int errors)
    : server_(commandLine(store, device, overrides), errors),
      address_{server_.address(), nullptr} {}

}  // namespace cleave
