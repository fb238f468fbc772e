#include "client/sweep/figure_groups.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "client/report/records/csv_reader.h"
#include "client/sweep/grid.h"
#include "common/core/error.h"
#include "common/core/yaml.h"

namespace cleave {
namespace {

using Json = nlohmann::ordered_json;

// The names of the finished points.
std::vector<std::string> pointsOf(const std::string& folder) {
  std::vector<std::string> names;
  CsvReader(folder, "results", {"point", "status"}).read([&](const CsvRow& row) {
    const std::string name(row.text(0));
    const bool isName = !name.empty() && name.find('/') == std::string::npos && name[0] != '.';
    if (isName && row.text(1) == "done") names.push_back(name);
  });
  return names;
}

SweepPoint readPoint(const std::string& path) {
  SweepPoint point;
  std::ifstream file(path, std::ios::binary);
  try {
    const Json result = Json::parse(file);
    for (const auto& [key, value] : result.at("values").items()) {
      point.values.emplace_back(key, value.get<std::string>());
    }
  } catch (const nlohmann::json::exception& error) {
    throw UsageError("bad-sweep", path + " was not written by a sweep: " + error.what(),
                     "rerun the sweep, which writes it again");
  }
  return point;
}

// "block:bits=4, rate=100Mbit/s": the values of the keys in which the groups differ.
std::string labelOf(const std::vector<std::pair<std::string, std::string>>& values,
                    const std::map<std::string, std::set<std::string>>& known) {
  std::string label;
  for (const auto& [key, value] : values) {
    if (known.at(key).size() < 2) continue;
    label += label.empty() ? "" : ", ";
    label += key == "codec" ? value : key.substr(key.rfind('.') + 1) + "=" + value;
  }
  return label.empty() ? "all points" : label;
}

}  // namespace

bool isSweep(const std::string& folder) { return std::filesystem::exists(folder + "/sweep.json"); }

std::vector<FigureGroup> sweepFigureGroups(const std::string& folder) {
  std::vector<FigureGroup> groups;
  std::map<std::string, std::set<std::string>> known;  // values by key
  for (const std::string& name : pointsOf(folder)) {
    std::string run = folder;
    run += "/" + name;
    SweepPoint point = readPoint(run + "/result.json");
    std::erase_if(point.values, [](const auto& value) { return isRepetition(value.first); });
    for (const auto& [key, value] : point.values) known[key].insert(value);
    auto group = std::find_if(groups.begin(), groups.end(),
                              [&](const FigureGroup& one) { return one.values == point.values; });
    if (group == groups.end()) group = groups.insert(groups.end(), {"", point.values, {}});
    group->runs.push_back(findRun(run, {}));
  }
  if (groups.empty()) {
    throw UsageError("no-run", quotedForError(folder) + " is a sweep without a finished point",
                     "rerun the sweep's command, which continues it");
  }
  for (FigureGroup& group : groups) group.label = labelOf(group.values, known);
  return groups;
}

}  // namespace cleave
