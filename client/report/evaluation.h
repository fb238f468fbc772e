// Reads evaluation.json, which `cleave-client eval` writes into a run's folder, for the page.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace cleave {

// What the page shows of the file; null if it is missing. Appends a sentence to `problems` if it is
// damaged, and returns null.
nlohmann::json readEvaluation(const std::string& path, std::vector<std::string>& problems);

}  // namespace cleave
