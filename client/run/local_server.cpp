#include "client/run/local_server.h"

#include <spdlog/fmt/fmt.h>
#include <string.h>  // NOLINT(modernize-deprecated-headers): sigabbrev_np() is not in <cstring>

#include <chrono>
#include <filesystem>
#include <thread>
#include <vector>

#include "common/core/clock.h"
#include "common/model/model.h"

namespace cleave {
namespace {

// The kernel closes a process's connections a moment before waitpid() reports its end.
constexpr double kReapSeconds = 1;

// Resource limits are disabled, because the user owns both sides. With so few connections, 1,024
// open files are enough.
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
                                    "limits.sessions=64",  // of the members of a cohort
                                    "--set",
                                    "limits.connections=128",
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
                                    "weights.keep_mib=0",  // its store belongs to one run
                                    "--set",
                                    "usage.enabled=false",
                                    "--set",
                                    "status.socket=off"};
  for (const std::string& each : overrides) words.insert(words.end(), {"--set", each});
  return words;
}

}  // namespace

std::vector<std::string> overridesFor(const std::string& model) {
  if (!findModel(model).isForBenchmarks) return {};
  return {"models.allow=[" + model + "]"};
}

LocalServer::LocalServer(const std::string& store, const std::string& device,
                         const std::vector<std::string>& overrides, int errors)
    : server_(commandLine(store, device, overrides), errors),
      store_(store),
      address_{server_.address(), nullptr} {}

void LocalServer::checkAlive(const std::string& runId) {
  const SteadyTime start = now();
  std::optional<int> code;
  while (!(code = server_.ended()) && secondsSince(start) < kReapSeconds) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  if (!code) return;
  const char* const signal = *code > 128 ? ::sigabbrev_np(*code - 128) : nullptr;
  const std::string log = store_ + "/local/" + runId + "/log.txt";
  std::error_code ignored;
  throw RunError(
      "own-server-ended",
      fmt::format("the server that the client has started {}{}",
                  signal != nullptr ? fmt::format("was killed (SIG{})", signal)
                                    : fmt::format("has ended with the exit code {}", *code),
                  std::filesystem::exists(log, ignored) ? "; its log: " + log : ""),
      signal != nullptr && signal == std::string_view("KILL")
          ? "free memory if this machine had none left (journalctl -k)"
          : "see its error on stderr");
}

}  // namespace cleave
