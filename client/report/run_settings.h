// The files of a run that are not tables, as far as a report shows them.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace cleave {

// Flat: "train.batch" and its text, in file order.
using Settings = std::vector<std::pair<std::string, std::string>>;

// What cannot be read is a sentence in `problems`.
Settings readConfig(const std::string& path, std::vector<std::string>& problems);
Settings readEnvironment(const std::string& path, std::vector<std::string>& problems);

// The advice of a run's summary; empty if there is none.
std::string readAdvice(const std::string& path);

// Warnings and errors of a log, the last ones. A log that is missing has none.
std::vector<std::string> readWarnings(const std::string& path);

}  // namespace cleave
