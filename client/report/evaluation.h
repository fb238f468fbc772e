// Reads evaluation.json, which `cleave-client eval` writes into a run's folder, for the page.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace cleave {

// Returns the part of the file that the page shows, or null if the file is missing. If it is
// damaged, appends a sentence to `problems` and returns null.
nlohmann::json readEvaluation(const std::string& path, std::vector<std::string>& problems);

}  // namespace cleave
