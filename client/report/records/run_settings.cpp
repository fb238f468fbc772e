#include "client/report/records/run_settings.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

#include "common/core/yaml.h"

namespace cleave {
namespace {

constexpr std::size_t kMaxSettingsBytes = std::size_t{1} << 20;
constexpr std::size_t kLogTail = std::size_t{1} << 18;
constexpr std::size_t kMaxWarnings = 8;

std::string fileName(const std::string& path) { return std::filesystem::path(path).filename(); }

std::optional<std::string> readText(const std::string& path, std::vector<std::string>& problems) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    problems.push_back(fileName(path) + " is missing");
    return std::nullopt;
  }
  std::string text(kMaxSettingsBytes, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(file.gcount()));
  return text;
}

std::string joined(const std::string& path, const std::string& key) {
  return path.empty() ? key : path + "." + key;
}

std::string inlineText(const YamlNode& node) {
  const bool isMap = node.kind == YamlNode::Kind::map;
  if (!isMap && node.kind != YamlNode::Kind::list) return node.text;
  std::string text;
  for (const YamlNode& child : node.children) {
    text += (text.empty() ? "" : ", ") + (isMap ? child.key + ": " : "") + inlineText(child);
  }
  return isMap ? "{" + text + "}" : "[" + text + "]";
}

void flatten(const YamlNode& node, const std::string& path, Settings& settings) {
  if (node.kind != YamlNode::Kind::map) {
    settings.emplace_back(path, inlineText(node));
    return;
  }
  for (const YamlNode& child : node.children) flatten(child, joined(path, child.key), settings);
}

void flatten(const nlohmann::ordered_json& node, const std::string& path, Settings& settings) {
  if (node.is_object()) {
    for (const auto& [key, child] : node.items()) flatten(child, joined(path, key), settings);
  } else if (node.is_array()) {
    std::string text;
    for (const auto& child : node) {
      text += (text.empty() ? "" : ", ") +
              (child.is_string() ? child.get<std::string>() : child.dump());
    }
    settings.emplace_back(path, text);
  } else {
    settings.emplace_back(path, node.is_string() ? node.get<std::string>() : node.dump());
  }
}

void addEarlierValues(const std::vector<ChangedSetting>& changes, Settings& settings) {
  std::map<std::string, std::string> earlier;
  for (const ChangedSetting& change : changes) {
    std::string& text = earlier[change.key];
    text +=
        (text.empty() ? "" : ", ") + change.before + " until step " + std::to_string(change.step);
  }
  for (auto& [key, text] : settings) {
    if (earlier.contains(key)) text += " (" + earlier.at(key) + ")";
  }
}

}  // namespace

std::vector<ChangedSetting> readChanges(const std::string& path) {
  std::vector<std::string> ignored;
  const auto json = nlohmann::json::parse(readText(path, ignored).value_or(""), nullptr, false);
  std::vector<ChangedSetting> changes;
  try {
    for (const auto& change : json) {
      if (!change.at("step").is_number_unsigned()) return {};
      changes.push_back({change.at("step").get<std::uint64_t>(), change.at("key"),
                         change.at("before"), change.at("after")});
    }
  } catch (const nlohmann::json::exception&) {
    return {};  // the file is damaged
  }
  return changes;
}

CohortFile readCohort(const std::string& path) {
  std::vector<std::string> ignored;
  const auto json = nlohmann::json::parse(readText(path, ignored).value_or(""), nullptr, false);
  try {
    CohortFile cohort{
        json.at("id"), json.at("member"), json.at("members"), json.at("train_samples"), {}};
    if (cohort.samples.size() != cohort.members.size()) return {};
    cohort.waitsFor = json.value("waits_for", std::vector<std::string>());
    for (const auto& each : json.at("attendance")) {
      const Attendance next{each.at("first_step"), each.at("evaluated"), each.at("present")};
      const auto& known = cohort.attendance;
      if (!next.follows(known.empty() ? nullptr : &known.back(), cohort.members.size())) return {};
      cohort.attendance.push_back(next);
    }
    return cohort;
  } catch (const nlohmann::json::exception&) {
    return {};  // the file is damaged, or missing
  }
}

Settings readConfig(const std::string& path, const std::vector<ChangedSetting>& changes,
                    std::vector<std::string>& problems) {
  Settings settings;
  const auto text = readText(path, problems);
  if (!text) return settings;
  try {
    flatten(parseYaml(*text, fileName(path)), "", settings);
    addEarlierValues(changes, settings);
  } catch (const Error& error) {
    problems.push_back(fileName(path) + " cannot be read: " + error.what());
    settings.clear();
  }
  return settings;
}

Settings readEnvironment(const std::string& path, std::vector<std::string>& problems) {
  Settings settings;
  const auto text = readText(path, problems);
  if (!text) return settings;
  try {
    flatten(nlohmann::ordered_json::parse(*text), "", settings);
  } catch (const nlohmann::json::exception& error) {
    const std::string what = error.what();  // "[json.exception.parse_error.101] parse error at …"
    problems.push_back(fileName(path) + " cannot be read: " + what.substr(what.find(' ') + 1));
    settings.clear();
  }
  return settings;
}

namespace {

// Returns null if the file is damaged or missing. For example, summary.json is missing until the
// run has ended.
nlohmann::json readJson(const std::string& path) {
  std::vector<std::string> ignored;
  const auto json = nlohmann::json::parse(readText(path, ignored).value_or(""), nullptr, false);
  return json.is_object() ? json : nlohmann::json();
}

}  // namespace

SummaryFile readSummary(const std::string& path) {
  const nlohmann::json json = readJson(path);
  SummaryFile summary;
  const nlohmann::json::json_pointer sentence("/bound/advice/sentence");
  if (json.contains(sentence) && json.at(sentence).is_string()) {
    summary.advice = json.at(sentence).get<std::string>();
  }
  const auto readPart = [&](const char* key, const auto& read) {
    if (!json.contains(key)) return;
    try {
      read(json.at(key));
    } catch (const nlohmann::json::exception&) {  // the file is damaged
    }
  };
  readPart("kept", [&](const nlohmann::json& kept) {
    summary.kept = {kept.at("metric"), kept.at("value"), kept.at("epoch")};
  });
  readPart("target", [&](const nlohmann::json& target) {
    summary.target = {target.at("metric"), target.at("value"),
                      target.value("steps", std::uint64_t{0}), target.value("seconds", 0.0),
                      target.value("bytes", 0.0)};
  });
  readPart("reconnects", [&](const nlohmann::json& reconnects) {
    summary.interruptions = {reconnects, json.at("resumes"), json.at("steps_redone"),
                             json.at("offline_seconds")};
  });
  readPart("seconds", [&](const nlohmann::json& seconds) {
    const auto both = [&](const std::string& name) {
      return std::array<double, kDirections>{json.value(name + "_up", 0.0),
                                             json.value(name + "_down", 0.0)};
    };
    summary.totals = RunTotals{seconds,
                               {json.at("bytes_up"), json.at("bytes_down")},
                               both("tensor_bytes"),
                               both("model_bytes"),
                               json.at("ratio").get<double>(),
                               json.at("images_per_second").get<double>()};
  });
  readPart("bound", [&](const nlohmann::json& bound) {
    if (!bound.contains("over_bound")) return;
    summary.bound = {bound.at("seconds_per_step"), bound.at("over_bound"), bound.at("bottleneck")};
  });
  return summary;
}

PlannedRun readPlannedRun(const std::string& path) {
  const nlohmann::json json = readJson(path);
  const auto number = [&](const char* key) {
    const auto found = json.find(key);
    return found != json.end() && found->is_number_unsigned() ? found->get<std::uint64_t>() : 0;
  };
  // "HOST:PORT,HOST:PORT": several servers; "HOST:PORT+HOST:PORT": replicas.
  const std::string servers =
      json.contains("server") && json.at("server").is_string() ? json.at("server") : "";
  const auto separators =
      std::count_if(servers.begin(), servers.end(), [](char c) { return c == ',' || c == '+'; });
  return {number("steps"), number("epochs"), 1 + static_cast<std::uint64_t>(separators)};
}

std::vector<std::string> readWarnings(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  file.seekg(0, std::ios::end);
  const std::streamoff size = file.tellg();
  file.seekg(std::max<std::streamoff>(0, size - static_cast<std::streamoff>(kLogTail)));
  std::vector<std::string> warnings;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string time, level;
    words >> time >> level;
    if (level == "warn" || level == "error" || level == "critical") warnings.push_back(line);
  }
  if (warnings.size() > kMaxWarnings) {
    warnings.erase(warnings.begin(), warnings.end() - static_cast<std::ptrdiff_t>(kMaxWarnings));
  }
  return warnings;
}

}  // namespace cleave
