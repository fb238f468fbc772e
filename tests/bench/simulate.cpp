// bench_simulate: predicts steps from the times that bench_step measured, like `cleave-client
// simulate`. Prints JSON.

#include <CLI/CLI.hpp>
#include <chrono>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "client/commands/link_options.h"
#include "client/planning/step_prediction.h"
#include "common/predict/simulator.h"
#include "common/program/program.h"

namespace cleave {
namespace {

using Json = nlohmann::ordered_json;

StepCosts costsFrom(const Json& json) {
  StepCosts costs;
  costs.microBatches = json.at("micro_batches").get<std::uint32_t>();
  costs.headForward = json.at("head_forward_seconds").get<double>();
  costs.tailStep = json.at("tail_step_seconds").get<double>();
  costs.headBackward = json.at("head_backward_seconds").get<double>();
  costs.updateSeconds = json.at("update_seconds").get<double>();
  costs.members = json.value("members", 1u);
  costs.memberBytes = json.value("member_bytes", 0.0);
  if (costs.members > 1) {
    costs.batch = json.at("batch").get<std::uint32_t>();
    costs.largest = json.at("largest_micro_batch").get<std::uint32_t>();
    costs.samples = json.at("micro_batch").get<std::uint32_t>();
    costs.isByMember = json.at("order") == kByMember;
  }
  const Json bodies = json.value("bodies", Json::array({json}));
  costs.bodies.clear();
  for (const Json& each : bodies) {
    const auto number = static_cast<int>(costs.bodies.size());
    BodyCosts& body = costs.bodies.emplace_back();
    body.place = {number, number + 1};
    body.forward = each.at("body_forward_seconds").get<double>();
    body.backward = each.at("body_backward_seconds").get<double>();
    body.weights = each.at("body_weights_seconds").get<double>();
    for (const Flow flow : body.place.flows()) {
      const Json& object = json.at("flows").at(flowName(flow));
      costs.flows[flow] = {object.at("bytes").get<double>(),
                           object.at("encode_seconds").get<double>(),
                           object.at("decode_seconds").get<double>()};
    }
  }
  return costs;
}

// With --edge-rate, neighbouring servers have direct links. With a staleness, "steady" has the
// seconds per step of a long run, and their bound.
int run(const std::string& path, const LinkOptions& link, std::uint32_t staleness) {
  std::ifstream file(path);
  const Json times = Json::parse(file);
  StepCosts costs = costsFrom(times);
  if (!link.edgeRate.empty()) costs.edges.resize(costs.bodies.size() - 1);
  linkCosts(link).applyTo(costs);
  const StepPrediction prediction = predictStep(costs);
  Json json = toJson(costs, times.at("batch").get<std::uint32_t>(), &prediction);
  for (const Schedule* schedule : predictableSchedules(costs)) {
    if (staleness == 0 || !supportsStaleness(*schedule)) continue;
    const std::uint32_t inFlight = predictedInFlight(costs, *schedule, 0, staleness);
    json["steady"][std::string(schedule->name)] =
        steadyStepSeconds(costs, policyOf(*schedule, inFlight), staleness);
    json["steady"]["bound"] = steadyStepBound(costs, staleness).seconds;
  }
  std::cout << json.dump() << std::endl;
  return 0;
}

}  // namespace
}  // namespace cleave

int main(int argc, char** argv) {
  CLI::App app{"Predicts a step from the times that bench_step measured", "bench_simulate"};
  std::string times;
  cleave::LinkOptions link;
  app.add_option("--times", times, "File with the member \"times\" of a line of bench_step")
      ->required();
  cleave::addLinkOptions(app, link);
  std::uint32_t staleness = 0;
  app.add_option("--staleness", staleness, "Also predicts steps that overlap");
  return cleave::runProgram(app, argc, argv, [&] { return cleave::run(times, link, staleness); });
}
