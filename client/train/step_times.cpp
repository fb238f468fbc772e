#include "client/train/step_times.h"

#include <cmath>
#include <fstream>
#include <stdexcept>

#include "common/core/durable.h"
#include "common/run/plan.h"

namespace cleave {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::pair<ActionKind, const char*> kKindKeys[] = {
    {ActionKind::headForward, "head_forward_seconds"},
    {ActionKind::tailStep, "tail_step_seconds"},
    {ActionKind::headBackward, "head_backward_seconds"},
    {ActionKind::bodyForward, "body_forward_seconds"},
    {ActionKind::bodyBackward, "body_backward_seconds"},
};

StepTimes fromJson(const Json& json) {
  const auto number = [](const Json& object, const std::string& key) {
    const double value = object.at(key).get<double>();
    if (!(value >= 0 && std::isfinite(value)))
      throw std::out_of_range(key + " is not a finite number of at least 0");
    return value;
  };
  StepTimes times;
  times.batch = json.at("batch").get<std::uint32_t>();
  StepCosts& costs = times.costs;
  costs.microBatches = json.at("micro_batches").get<std::uint32_t>();
  if (costs.microBatches < 1 || costs.microBatches > times.batch) {
    throw std::out_of_range("micro_batches is not in 1…batch");
  }
  for (const auto& [kind, key] : kKindKeys) {
    costs.of(kind) = number(json, key);
  }
  costs.updateSeconds = number(json, "update_seconds");
  for (const Flow flow : costs.body().place.flows()) {
    const Json& object = json.at("flows").at(flowName(flow));
    costs.flows[flow] = {number(object, "bytes"), number(object, "encode_seconds"),
                         number(object, "decode_seconds")};
  }
  return times;
}

}  // namespace

Json toJson(const StepTimes& times) {
  const StepCosts& costs = times.costs;
  Json json = {{"batch", times.batch}, {"micro_batches", costs.microBatches}};
  for (const auto& [kind, key] : kKindKeys) json[key] = costs.of(kind);
  json["update_seconds"] = costs.updateSeconds;
  for (const auto& [flow, tensor] : costs.flows) {
    json["flows"][flowName(flow)] = {{"bytes", tensor.bytes},
                                     {"encode_seconds", tensor.encodeSeconds},
                                     {"decode_seconds", tensor.decodeSeconds}};
  }
  return json;
}

std::vector<StepTimes> readTimes(const std::string& path) {
  std::ifstream file(path);
  try {
    const Json json = Json::parse(file);
    std::vector<StepTimes> times;
    for (const Json& object : json.at("measured")) times.push_back(fromJson(object));
    if (times.empty()) throw std::out_of_range("it has no measurements");
    return times;
  } catch (const std::exception& error) {
    throw UsageError(
        "bad-times",
        path + (file.is_open() ? " was not written by --write-times: " + std::string(error.what())
                               : ": cannot be read"),
        "write one with --write-times FILE");
  }
}

void writeTimes(const std::string& path, const std::vector<StepTimes>& times) {
  Json json = {{"measured", Json::array()}};
  for (const StepTimes& one : times) json["measured"].push_back(toJson(one));
  writeFileDurably(path, json.dump(2) + "\n");
}

}  // namespace cleave
