#include "client/config/setting_changes.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>

#include "client/config/settings.h"
#include "common/core/log.h"

namespace cleave {
namespace {

std::string valueText(const std::string& value) { return value.empty() ? "no value" : value; }

// Whether setting `key` sets `changed` too: "codec" sets "codec.gradient/0".
bool sets(const std::string& key, const std::string& changed) {
  if (!changed.starts_with(key)) return false;
  const std::string rest = changed.substr(key.size());
  return rest.empty() || rest.front() == '.' || rest.front() == '[';
}

struct FixedKey {
  std::string key;
  std::vector<SettingChange> changes;  // of this key, or of keys below it

  std::string text() const {
    const SettingChange& first = changes.front();
    const bool isOne = std::all_of(changes.begin(), changes.end(), [&](const auto& each) {
      return each.before == first.before && each.after == first.after;
    });
    return isOne ? fmt::format("{} from {} to {}", key, valueText(first.before),
                               valueText(first.after))
                 : key;
  }
};

// The keys to name for changes that are not allowed. A key that is set can change others, such as
// the defaults of keys beside it, which are then not named.
std::vector<FixedKey> keysToName(const std::vector<SettingChange>& fixed,
                                 const std::vector<std::string>& overrides) {
  std::vector<FixedKey> named;
  for (const std::string& override : overrides) {
    FixedKey each{override.substr(0, override.find('=')), {}};
    std::copy_if(fixed.begin(), fixed.end(), std::back_inserter(each.changes),
                 [&](const SettingChange& change) { return sets(each.key, change.key); });
    if (!each.changes.empty()) named.push_back(std::move(each));
  }
  if (!named.empty()) return named;
  for (const SettingChange& change : fixed) named.push_back({change.key, {change}});
  return named;
}

nlohmann::ordered_json readRecord(Files& files, const std::string& path) {
  const auto text = files.read(path);
  if (!text) return nlohmann::ordered_json::array();
  auto record = nlohmann::ordered_json::parse(*text, nullptr, false);
  const bool isIntact =
      record.is_array() && std::all_of(record.begin(), record.end(), [](const auto& each) {
        const auto hasText = [&](const char* name) {
          return each.contains(name) && each.at(name).is_string();
        };
        return each.is_object() && each.contains("step") && each.at("step").is_number_unsigned() &&
               hasText("key") && hasText("after");
      });
  if (isIntact) return record;
  processLog()->warn("{} is damaged, so earlier changes of settings are lost", path);
  return nlohmann::ordered_json::array();
}

// Removes each key's last change if it is one of `step` and its value is not in `values`.
void removeUnapplied(nlohmann::ordered_json& record, std::uint64_t step,
                     const std::map<std::string, std::string>& values) {
  std::set<std::string> seen;
  for (std::size_t i = record.size(); i-- > 0;) {
    const auto& each = record[i];
    const auto key = each.at("key").get<std::string>();
    if (!seen.insert(key).second || each.at("step").get<std::uint64_t>() != step) continue;
    const auto value = values.find(key);
    const std::string current = value == values.end() ? "" : value->second;
    if (each.at("after").get<std::string>() != current) record.erase(i);
  }
}

}  // namespace

bool mayChange(const std::string& path) {
  std::string name = path;
  if (const std::size_t open = name.find('['); open != std::string::npos) {
    name.erase(open, name.find(']', open) - open + 1);
  }
  const std::vector<KeyText> keys = clientKeys();
  const auto row =
      std::find_if(keys.begin(), keys.end(), [&](const KeyText& key) { return key.name == name; });
  return row != keys.end() && row->mark == KeyMark::mayChange;
}

std::vector<SettingChange> changesBetween(const std::map<std::string, std::string>& before,
                                          const std::map<std::string, std::string>& after,
                                          const std::string& folder,
                                          const std::vector<std::string>& overrides) {
  std::vector<SettingChange> changes;
  const auto add = [&](const std::string& key, const std::string& old, const std::string& value) {
    if (old != value) changes.push_back({key, old, value});
  };
  for (const auto& [key, value] : after) {
    const auto old = before.find(key);
    add(key, old == before.end() ? "" : old->second, value);
  }
  for (const auto& [key, value] : before) {
    if (!after.contains(key)) add(key, value, "");
  }
  std::vector<SettingChange> fixed;
  std::copy_if(changes.begin(), changes.end(), std::back_inserter(fixed),
               [](const SettingChange& change) { return !mayChange(change.key); });
  if (fixed.empty()) return changes;
  const std::vector<FixedKey> named = keysToName(fixed, overrides);
  std::string texts;
  for (const FixedKey& each : named) texts += (texts.empty() ? "" : ", ") + each.text();
  throw UsageError(
      "other-run-spec", fmt::format("the run in {} cannot change {}", folder, texts),
      "leave it out, or start a separate run; 'cleave-client keys' marks the keys that "
      "may change on resume")
      .about(named.front().key);
}

void recordChanges(Files& files, const std::string& folder,
                   const std::vector<SettingChange>& changes, std::uint64_t step,
                   const std::map<std::string, std::string>& before) {
  const std::string path = folder + "/changes.json";
  const nlohmann::ordered_json earlier = readRecord(files, path);
  nlohmann::ordered_json record = earlier;
  for (auto& each : record) {
    if (each.at("step").get<std::uint64_t>() > step) each["step"] = step;
  }
  removeUnapplied(record, step, before);
  for (const SettingChange& change : changes) {
    processLog()->info("after step {}: {} changes from {} to {}", step, change.key,
                       valueText(change.before), valueText(change.after));
    record.push_back(
        {{"step", step}, {"key", change.key}, {"before", change.before}, {"after", change.after}});
  }
  if (record != earlier) files.write(path, record.dump(2) + "\n");
}

}  // namespace cleave
