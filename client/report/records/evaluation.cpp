#include "client/report/records/evaluation.h"

#include <array>
#include <fstream>
#include <iterator>
#include <utility>

#include "common/core/printable.h"
#include "common/files/sha256.h"

namespace cleave {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kMaxEvaluationBytes = 16 << 20;
constexpr std::size_t kMaxRows = 1000;  // maximum number of rows in a table
constexpr const char* kFile = "evaluation.json";
constexpr std::array kModels = {"model.safetensors", "model.best.safetensors"};

// Returns the number under `key`, or null.
Json number(const Json& of, const char* key) {
  const Json& value = of.at(key);
  if (value.is_null()) return nullptr;
  return value.get<double>();
}

template <typename Function>
Json rows(const Json& list, const Function& row) {
  Json all = Json::array();
  for (const Json& each : list) {
    if (all.size() == kMaxRows) break;
    all.push_back(row(each));
  }
  return all;
}

Json shown(const Json& file) {
  Json json = {{"model", file.at("model").get<std::string>()},
               {"samples", file.at("samples").get<std::uint64_t>()}};
  if (file.contains("steps") && !file.at("steps").is_null()) {
    json["steps"] = file.at("steps").get<std::uint64_t>();
  }
  if (file.contains("weights_sha256") && !file.at("weights_sha256").is_null()) {
    json["weights_sha256"] = file.at("weights_sha256").get<std::string>();
  }
  for (const auto& [name, value] : file.at("metrics").items()) {
    json["metrics"].push_back({name, value.is_null() ? Json() : Json(value.get<double>())});
  }
  if (!file.contains("classes")) return json;
  json["classes"] = rows(file.at("classes"), [](const Json& each) {
    return Json{{"name", printable(each.at("name").get<std::string>())},
                {"samples", each.at("samples").get<std::uint64_t>()},
                {"precision", number(each, "precision")},
                {"recall", number(each, "recall")},
                {"f1", number(each, "f1")},
                {"auroc", number(each, "auroc")}};
  });
  json["confused"] = rows(file.at("most_confused"), [](const Json& each) {
    return Json{each.at("samples").get<std::uint64_t>(),
                printable(each.at("class").get<std::string>()),
                printable(each.at("predicted").get<std::string>())};
  });
  if (file.contains("confusion")) {
    json["confusion"] = file.at("confusion").get<std::vector<std::vector<std::uint64_t>>>();
    for (const Json& row : json["confusion"]) {
      if (row.size() != json["classes"].size() ||
          json["confusion"].size() != json["classes"].size()) {
        throw std::out_of_range("confusion");
      }
    }
  }
  const Json& calibration = file.at("calibration");
  json["calibration_error"] = calibration.at("error").get<double>();
  json["bins"] = rows(calibration.at("bins"), [](const Json& bin) {
    return Json{{"from", bin.at("from").get<double>()},
                {"samples", bin.at("samples").get<std::uint64_t>()},
                {"confidence", bin.at("confidence").get<double>()},
                {"accuracy", bin.at("accuracy").get<double>()}};
  });
  return json;
}

// Returns the part of the file that the page shows, or null if the file is missing. If it is
// damaged, appends a sentence to `problems` and returns null.
Json readEvaluation(const std::string& path, std::vector<std::string>& problems) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file.is_open()) return nullptr;
  const std::streamoff size = file.tellg();
  const auto refuse = [&](const std::string& fault) {
    problems.push_back(path + " " + fault + "; to write it again: cleave-client eval RUN");
    return Json();
  };
  if (size < 0 || static_cast<std::size_t>(size) > kMaxEvaluationBytes)
    return refuse("is too large");
  file.seekg(0);
  const std::string text(std::istreambuf_iterator<char>(file), {});
  try {
    return shown(Json::parse(text));
  } catch (const std::exception&) {  // including a wrong type or a missing key
    return refuse("is damaged");
  }
}

}  // namespace

EvaluationReader::Stamp EvaluationReader::stampOf(const std::string& name) const {
  const std::string path = folder_ + "/" + name;
  std::error_code missing;
  Stamp stamp{std::filesystem::last_write_time(path, missing),
              std::filesystem::file_size(path, missing)};
  return missing ? Stamp() : stamp;
}

const std::string& EvaluationReader::digestOf(const std::string& name) {
  Digest& digest = digests_[name];
  if (const Stamp now = stampOf(name); digest.of != now) {
    const auto bytes = sha256OfFile(folder_ + "/" + name);
    digest = {now, bytes ? hexOf(*bytes) : ""};
  }
  return digest.hex;
}

void EvaluationReader::describeWeights() {
  const std::string evaluated =
      std::filesystem::path(shown_["model"].get<std::string>()).filename();
  const std::string again =
      "cleave-client eval " + folder_ + (evaluated == kModels[1] ? " --best" : "");
  const auto note = [&](const char* weights, const std::string& sentence) {
    shown_["weights"] = weights;
    shown_["note"] = sentence;
  };
  if (!shown_.contains("weights_sha256")) {
    return note("unknown",
                "It is unknown which weights these are. To evaluate the current model: " + again);
  }
  bool hasModel = false;
  for (const char* name : kModels) {
    const std::string& digest = digestOf(name);
    hasModel = hasModel || !digest.empty();
    if (digest != shown_["weights_sha256"].get<std::string>()) continue;
    shown_["weights"] = "current";
    // If both files have these weights, names the one that was evaluated.
    if (!shown_.contains("of") || name == evaluated) shown_["of"] = name;
  }
  if (shown_.contains("of")) return;
  if (!hasModel)
    return note("unknown", "The run's folder no longer has the weights of this model.");
  note("older",
       "These are the results of an older model, not of the one in the run's folder. To "
       "evaluate the current model: " +
           again);
  problems_.push_back("evaluation.json is of an older model; to evaluate the current one: " +
                      again);
}

bool EvaluationReader::read() {
  std::map<std::string, Stamp> stamps = {{kFile, stampOf(kFile)}};
  if (stamps[kFile] != Stamp()) {
    for (const char* model : kModels) stamps[model] = stampOf(model);
  }
  if (stamps == stamps_) return false;
  stamps_ = std::move(stamps);
  problems_.clear();
  shown_ = readEvaluation(folder_ + "/" + kFile, problems_);
  if (!shown_.is_null()) describeWeights();
  return true;
}

}  // namespace cleave
