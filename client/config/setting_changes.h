// The settings that a resumed run changes, and the record of these changes, RUN/changes.json.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/checkpoint/files.h"

namespace cleave {

struct SettingChange {
  std::string key;
  std::string before, after;  // as YAML; empty: the key has no value
};

// Whether a run that is resumed may change the key at this path: that of "insert[0].cut" is
// "insert.cut", and that of a codec of an inner cut is "codec".
bool mayChange(const std::string& path);

// The differences between two results of valuesOf(). Throws UsageError "other-run-spec" if a key
// that is fixed differs: it names those that `overrides` (KEY=VALUE) set, or else all. `folder`:
// the run's, for the error.
std::vector<SettingChange> changesBetween(const std::map<std::string, std::string>& before,
                                          const std::map<std::string, std::string>& after,
                                          const std::string& folder,
                                          const std::vector<std::string>& overrides);

// Adds these changes to the record of a run that continues after `step`. Earlier changes of later
// steps apply from this step on, because these steps are repeated. Writes nothing if that changes
// nothing. `before`: the values in config.yaml, which is written after the record; a change of the
// last step that is not in it is removed, because a killed process recorded it and did not apply
// it.
void recordChanges(Files& files, const std::string& folder,
                   const std::vector<SettingChange>& changes, std::uint64_t step,
                   const std::map<std::string, std::string>& before);

}  // namespace cleave
