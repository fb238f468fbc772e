#include "common/cohort/roster_json.h"

namespace cleave {

nlohmann::json toJson(const Roster& roster) {
  nlohmann::json attendance = nlohmann::json::array();
  for (const Attendance& each : roster.attendance) {
    attendance.push_back(
        {{"first_step", each.firstStep}, {"evaluated", each.evaluated}, {"present", each.present}});
  }
  return {{"train_samples", roster.train},
          {"evaluation_samples", roster.evaluation},
          {"attendance", attendance}};
}

Roster rosterFromJson(const nlohmann::json& json) {
  Roster roster{json.at("train_samples"), json.at("evaluation_samples")};
  for (const nlohmann::json& each : json.at("attendance")) {
    roster.attendance.push_back({each.at("first_step"), each.at("evaluated"), each.at("present")});
  }
  return roster;
}

}  // namespace cleave
