// Reads evaluation.json, which `cleave-client eval` writes into a run's folder, for the page.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace cleave {

// Follows the file, and the run's model files, which may be replaced after an evaluation.
class EvaluationReader {
 public:
  explicit EvaluationReader(std::string folder) : folder_(std::move(folder)) {}

  // Reads what has changed. Returns whether anything has.
  bool read();

  // The part of the file that the page shows; null if the file is missing or damaged. In addition:
  // "weights", which is "current" if the run's folder still has the evaluated weights, "older" if
  // it has only others, and "unknown" if evaluation.json does not identify them or the folder has
  // none; "of", the name of the file with these weights if they are current; "note", a sentence for
  // readers unless they are current.
  const nlohmann::json& shown() const { return shown_; }
  // One sentence per problem: the file is damaged, or the weights are older.
  const std::vector<std::string>& problems() const { return problems_; }

 private:
  struct Stamp {
    std::filesystem::file_time_type time;
    std::uintmax_t bytes = 0;
    bool operator==(const Stamp&) const = default;
  };
  // Of the file `name` in the folder; zero if it does not exist.
  Stamp stampOf(const std::string& name) const;
  // The digest of a model file, in hexadecimal; empty if there is no such file. It is computed
  // again only if the file has changed.
  const std::string& digestOf(const std::string& name);
  void describeWeights();

  const std::string folder_;
  // As of the last read(), by file name. Models are listed only if there is an evaluation.
  std::map<std::string, Stamp> stamps_ = {{"evaluation.json", Stamp()}};
  struct Digest {
    Stamp of;
    std::string hex;
  };
  std::map<std::string, Digest> digests_;
  nlohmann::json shown_;
  std::vector<std::string> problems_;
};

}  // namespace cleave
