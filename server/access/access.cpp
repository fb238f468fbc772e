#include "server/access/access.h"

#include <fnmatch.h>

#include <algorithm>
#include <utility>

#include "common/config/config.h"
#include "common/core/log.h"
#include "common/core/names.h"
#include "common/core/units.h"
#include "server/access/names.h"

namespace cleave {
namespace {

constexpr std::int64_t kMaxMiB = 1 << 24;
// A lower rate would keep a peer waiting so long that it would consider the server dead.
constexpr double kMinRate = 125e3;  // 1 Mbit/s

void checkIdentity(const Config& config, const std::string& name) {
  if (isClientName(name) || name == kLocalIdentity || name == kDefaultIdentity) return;
  throw UsageError("bad-config", config.where(name) + ": this is not the name of an identity",
                   "use the client's name in its certificate, [a-z0-9-]; 'local' for clients "
                   "without TLS; 'default' for all clients that are not listed");
}

std::vector<std::string> readModels(Config& config, const std::string& path,
                                    const std::vector<std::string>& allowed) {
  std::vector<std::string> models = config.texts(path);
  for (const std::string& model : models) {
    if (std::count(allowed.begin(), allowed.end(), model) > 0) continue;
    const std::string meant = nearestName(model, allowed);
    throw UsageError("bad-config",
                     config.where(path) + ": " + path + " has " + model +
                         ", which this server does not allow" +
                         (meant.empty() ? "" : "; did you mean " + meant + "?"),
                     "correct it, or allow it in models.allow of the server's configuration");
  }
  return models;
}

double readRate(Config& config, const std::string& path) {
  const double rate = parseRate({config.where(path) + ": " + path, config.text(path)});
  if (rate == 0 || rate >= kMinRate) return rate;
  throw UsageError("bad-config", config.where(path) + ": " + path + " is too low for training",
                   "set it to 1Mbit/s or more");
}

Allowance readAllowance(Config& config, const std::string& name,
                        const std::vector<std::string>& models) {
  Allowance allowance;
  const std::string path = name + ".";
  if (config.has(path + "models")) {
    allowance.models = readModels(config, path + "models", models);
  }
  if (config.has(path + "sessions")) {
    allowance.sessions = static_cast<std::uint32_t>(config.integer(path + "sessions", 0, 10000));
  }
  if (config.has(path + "memory_mib")) {
    allowance.memoryBytes =
        static_cast<std::size_t>(config.integer(path + "memory_mib", 0, kMaxMiB)) << 20;
  }
  if (config.has(path + "disk_mib")) {
    allowance.diskBytes =
        kMiB * static_cast<std::size_t>(config.integer(path + "disk_mib", 0, kMaxDiskMiB));
  }
  if (config.has(path + "runs_per_hour")) {
    allowance.runsPerHour =
        static_cast<std::uint32_t>(config.integer(path + "runs_per_hour", 0, kMaxRunsPerHour));
  }
  if (config.has(path + "idle_seconds")) {
    allowance.idleSeconds = config.number(path + "idle_seconds", 1, kMaxIdleSeconds);
  }
  if (config.has(path + "rate")) allowance.rate = readRate(config, path + "rate");
  if (config.has(path + "runs")) allowance.runs = config.texts(path + "runs");
  return allowance;
}

bool owns(const Allowance& allowance, const std::string& runId) {
  return std::any_of(allowance.runs.begin(), allowance.runs.end(), [&](const std::string& pattern) {
    return ::fnmatch(pattern.c_str(), runId.c_str(), 0) == 0;
  });
}

}  // namespace

Access::Access(std::string file, std::vector<std::string> models)
    : file_(std::move(file)), models_(std::move(models)), allowances_(read()) {}

Access::Allowances Access::read() const {
  Allowances allowances;
  if (file_.empty()) {
    allowances[kDefaultIdentity] = {};
    return allowances;
  }
  Config config = Config::load(file_, {});
  for (const std::string& name : config.keys("")) {
    checkIdentity(config, name);
    if (!config.isMap(name)) {
      throw UsageError(
          "bad-config", config.where(name) + ": " + name + " has no map of limits",
          "write the limits below it, indented, or '" + name + ": {}' for the server's limits");
    }
    allowances[name] = readAllowance(config, name, models_);
  }
  config.refuseUnknown();
  return allowances;
}

const Allowance* Access::find(const std::string& identity) const {
  auto found = allowances_.find(identity);
  if (found == allowances_.end()) found = allowances_.find(kDefaultIdentity);
  return found == allowances_.end() ? nullptr : &found->second;
}

const Allowance& Access::of(const std::string& identity) const {
  if (const Allowance* allowance = find(identity)) return *allowance;
  throw UsageError("unknown-identity", "the identity " + identity + " is not in the access file",
                   "ask the server's operator to add it, or to add a 'default' entry");
}

void Access::checkRun(const std::string& identity, const std::string& runId) const {
  const Allowance& own = of(identity);
  if (owns(own, runId)) return;
  if (!own.runs.empty()) {
    std::string patterns;
    for (const std::string& pattern : own.runs) {
      patterns += (patterns.empty() ? "" : ", ") + pattern;
    }
    throw UsageError("others-run", "the run " + runId + " is not allowed for " + identity,
                     "set run.name on the client so that its run id matches " + patterns);
  }
  for (const auto& [name, allowance] : allowances_) {
    if (name == identity || !owns(allowance, runId)) continue;
    throw UsageError("others-run", "the run " + runId + " belongs to another identity",
                     "use another run.name");
  }
}

std::shared_ptr<Throttle> Access::throttle(const std::string& identity) {
  const double rate = of(identity).rate;
  std::erase_if(throttles_, [](const auto& entry) { return entry.second.expired(); });
  auto throttle = throttles_[identity].lock();
  if (!throttle) {
    throttle = std::make_shared<Throttle>(rate);
    throttles_[identity] = throttle;
  }
  return throttle;
}

void Access::reload() {
  if (file_.empty()) return;
  try {
    allowances_ = read();
  } catch (const Error& error) {
    processLog()->error("the access file is invalid, keeping the current one: {}; {}", error.what(),
                        error.hint());
    return;
  }
  for (const auto& [identity, weak] : throttles_) {
    const auto throttle = weak.lock();
    const Allowance* allowance = find(identity);
    if (throttle && allowance) throttle->setRate(allowance->rate);
  }
  processLog()->info("reloaded the access file {}: {} entries", file_, allowances_.size());
}

}  // namespace cleave
