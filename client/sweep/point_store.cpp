#include "client/sweep/point_store.h"

#include <fcntl.h>
#include <spdlog/fmt/fmt.h>
#include <sys/file.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>

#include "common/core/durable.h"
#include "common/core/yaml.h"
#include "common/files/environment.h"

namespace cleave {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kResultFile = "result.json";

std::string resultPath(const std::string& folder, const PlannedPoint& planned) {
  return folder + "/" + planned.point.name() + "/" + kResultFile;
}

std::string planPath(const std::string& folder, const PlannedPoint& planned) {
  return folder + "/" + planned.point.name() + ".plan.json";
}

Json planJson(const PlannedPoint& planned) {
  return {{"config", planned.config}, {"link", planned.link}, {"server", planned.server}};
}

// Describes the first line in which two texts differ: "'epochs: 1' stored, 'epochs: 2' now".
std::string firstDifference(const std::string& stored, const std::string& now) {
  std::istringstream theirs(stored), ours(now);
  for (;;) {
    std::string a, b;
    const bool more = static_cast<bool>(std::getline(theirs, a));
    const bool moreOurs = static_cast<bool>(std::getline(ours, b));
    if ((!more && !moreOurs) || a != b) {
      const auto trimmed = [](const std::string& text) {
        return quotedForError(text.substr(std::min(text.find_first_not_of(' '), text.size())));
      };
      return trimmed(a) + " stored, " + trimmed(b) + " now";
    }
  }
}

std::string linkText(const Json& link) {
  std::string text;
  for (const Json& one : link) text += (text.empty() ? "" : " ") + one.get<std::string>();
  return text.empty() ? "none" : text;
}

// Throws UsageError unless the stored plan `there` equals `planned`.
void checkPlan(const std::string& folder, const Json& there, const PlannedPoint& planned) {
  const Json now = planJson(planned);
  if (there == now) return;
  std::string difference;
  if (there.at("config") != now.at("config")) {
    difference = "configuration: " + firstDifference(there.at("config"), planned.config);
  } else if (there.at("link") != now.at("link")) {
    difference = fmt::format("link: {} stored, {} now", linkText(there.at("link")),
                             linkText(now.at("link")));
  } else {
    const auto name = [](const std::string& server) {
      return server.empty() ? std::string("none") : server;
    };
    difference =
        fmt::format("server: {} stored, {} now", name(there.at("server")), name(planned.server));
  }
  throw UsageError(
      "sweep-changed",
      folder + "/" + planned.point.name() + " was run with a different " + difference,
      "restore what differs, for example with --set, give the changed sweep its own folder with "
      "--folder, or remove this one");
}

// Returns the figures of a point. Earlier versions stored fewer of them: then the point's run is
// measured again.
Measured storedFigures(const std::string& runFolder, Json measured) {
  if (!measured.contains("curve")) {
    std::ifstream file(runFolder + "/summary.json", std::ios::binary);
    const Json summary = Json::parse(file, nullptr, false);
    if (summary.is_object()) return measureRun(summary, runFolder);
    measured["curve"] = {{"metric", ""}, {"epochs", Json::array()}};
  }
  return measuredFromJson(measured);
}

}  // namespace

std::optional<StoredPoint> loadPoint(
    const std::string& folder, const PlannedPoint& planned,
    const std::function<std::string(const std::string& config)>& completed) {
  const std::string path = resultPath(folder, planned);
  std::ifstream file(path, std::ios::binary);
  if (!file) return std::nullopt;
  const std::string text(std::istreambuf_iterator<char>(file), {});
  try {
    Json json = Json::parse(text);
    Json& config = json.at("plan").at("config");
    if (config != planned.config) config = completed(config);
    checkPlan(folder, json.at("plan"), planned);
    StoredPoint stored;
    stored.result.point = planned.point;
    stored.result.facts = planned.facts;
    stored.result.status = PointResult::Status::done;
    stored.result.measured =
        storedFigures(folder + "/" + planned.point.name(), json.at("measured"));
    stored.seconds = json.at("seconds").get<double>();
    return stored;
  } catch (const nlohmann::json::exception& error) {
    throw UsageError("bad-sweep", path + " was not written by a sweep: " + error.what(),
                     "remove it to run the point again");
  }
}

bool isBegun(const std::string& folder, const PlannedPoint& planned) {
  std::ifstream file(planPath(folder, planned), std::ios::binary);
  return file && Json::parse(file, nullptr, false) == planJson(planned);
}

void storePlan(const std::string& folder, const PlannedPoint& planned) {
  writeFileDurably(planPath(folder, planned), planJson(planned).dump(2) + "\n");
}

void removePlan(const std::string& folder, const PlannedPoint& planned) {
  const std::string path = planPath(folder, planned);
  std::error_code error;
  std::filesystem::remove(path, error);
  if (error) throwCannotWrite(path, "cannot be removed", error.value());
}

std::size_t countOtherPoints(const std::string& folder, const std::vector<PlannedPoint>& planned) {
  std::set<std::string> names;
  for (const PlannedPoint& one : planned) names.insert(one.point.name());
  std::size_t count = 0;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
    const bool done = std::filesystem::exists(entry.path() / kResultFile, ignored);
    if (done && !names.contains(entry.path().filename())) ++count;
  }
  return count;
}

void storePoint(const std::string& folder, const PlannedPoint& planned, const StoredPoint& stored) {
  Json json = {{"software", softwareVersion()},
               {"values", Json::object()},
               {"seconds", stored.seconds},
               {"measured", toJson(stored.result.measured)},
               {"plan", planJson(planned)}};
  for (const auto& [key, value] : planned.point.values) json["values"][key] = value;
  writeFileDurably(resultPath(folder, planned), json.dump(2) + "\n");
}

SweepFolder::SweepFolder(const std::string& folder) {
  const std::string marker = folder + "/sweep.json";
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) {
    throw UsageError("not-writable", "cannot create the folder " + folder + ": " + error.message(),
                     "give another folder with --folder");
  }
  if (!std::filesystem::exists(marker, error)) {
    if (!std::filesystem::is_empty(folder, error)) {
      throw UsageError("not-a-sweep", folder + " contains files other than those of a sweep",
                       "give a new or empty folder with --folder");
    }
    writeFileDurably(marker, Json{{"software", softwareVersion()}}.dump(2) + "\n");
  }
  lock_ = OpenFile(::open(marker.c_str(), O_RDONLY | O_CLOEXEC));
  if (!lock_) throwCannotWrite(marker, "cannot be opened", errno);
  if (::flock(lock_.get(), LOCK_EX | LOCK_NB) != 0) {
    throw UsageError("sweep-runs", "another sweep is running in " + folder,
                     "wait until it ends, or give another folder with --folder");
  }
}

}  // namespace cleave
