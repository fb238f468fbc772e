// Reads a run's files other than its tables, for the report.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace cleave {

// Flattened: "train.batch" and its text, in file order.
using Settings = std::vector<std::pair<std::string, std::string>>;

// Appends a sentence to `problems` if the file cannot be read.
Settings readConfig(const std::string& path, std::vector<std::string>& problems);
Settings readEnvironment(const std::string& path, std::vector<std::string>& problems);

// The advice in a run's summary; empty if there is none.
std::string readAdvice(const std::string& path);

// The last warnings and errors of a log; empty if it does not exist.
std::vector<std::string> readWarnings(const std::string& path);

}  // namespace cleave
