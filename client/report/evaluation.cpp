#include "client/report/evaluation.h"

#include <fstream>
#include <iterator>

namespace cleave {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kMaxEvaluationBytes = 16 << 20;
constexpr std::size_t kMaxRows = 1000;  // maximum number of rows in a table

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
  for (const auto& [name, value] : file.at("metrics").items()) {
    json["metrics"].push_back({name, value.is_null() ? Json() : Json(value.get<double>())});
  }
  if (!file.contains("classes")) return json;
  json["classes"] = rows(file.at("classes"), [](const Json& each) {
    return Json{{"name", each.at("name").get<std::string>()},
                {"samples", each.at("samples").get<std::uint64_t>()},
                {"precision", number(each, "precision")},
                {"recall", number(each, "recall")},
                {"f1", number(each, "f1")},
                {"auroc", number(each, "auroc")}};
  });
  json["confused"] = rows(file.at("most_confused"), [](const Json& each) {
    return Json{each.at("samples").get<std::uint64_t>(), each.at("class").get<std::string>(),
                each.at("predicted").get<std::string>()};
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

}  // namespace

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

}  // namespace cleave
