// The seconds and bytes that a run has spent: in this process, and in earlier processes up to the
// checkpoints from which the run continued. Lost steps are not included; their seconds and bytes
// are only in the CSV files.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>

#include "common/link/transfers.h"

namespace cleave {

struct RunSpent {
  double seconds = 0;
  LinkTotals totals;  // without `flows` and `transfers`

  void add(double moreSeconds, const LinkTotals& more);
};

nlohmann::json toJson(const RunSpent& spent);
// Throws nlohmann's exceptions if the JSON was not written by toJson().
RunSpent spentFromJson(const nlohmann::json& json);

}  // namespace cleave
