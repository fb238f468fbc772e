// Names and numbers of flows, the flows of a body, and containers of values by flow.
#include "common/topology/flow.h"

#include <catch2/catch.hpp>
#include <set>

using namespace cleave;

TEST_CASE("every flow can be found by its name and by its number") {
  std::set<std::uint64_t> numbers;
  for (int cut = 0; cut < 256; cut += 51) {
    for (const int tensor : {0, 1, 255}) {
      for (const Flow flow : {activationAt(cut, tensor), gradientAt(cut, tensor)}) {
        CHECK(flowFromName(flowName(flow)) == flow);
        CHECK(flowFromNumber(flowNumber(flow)) == flow);
        CHECK(numbers.insert(flowNumber(flow)).second);
      }
    }
  }
  for (const Flow flow : {kWeightsBody, kGradsBody, kTraceBody}) {
    CHECK(isBlob(flow));
    CHECK(flowFromName(flowName(flow)) == flow);
  }
  CHECK(flowName(activationAt(0)) == "activation/0");
  CHECK(flowName(gradientAt(2, 1)) == "gradient/2.1");
  CHECK(flowName(kWeightsBody) == "weights/body");
}

TEST_CASE("an unknown flow name is refused") {
  for (const char* name :
       {"", "activation", "activation/", "activation/x", "activation/00", "activation/256",
        "activation/-1", "activation/0.", "activation/0.0", "activation/0.1.2", "activation/0 ",
        "Activation/0", "weights/0", "weights/", "trace/body/", "gradient/99999999999999999999"}) {
    CAPTURE(name);
    CHECK_FALSE(flowFromName(name));
  }
  CHECK_FALSE(flowFromNumber(~std::uint64_t{0}));
  CHECK_FALSE(flowFromNumber(std::uint64_t{1} << 10));  // a flow of cut 512
}

TEST_CASE("a body's flows are determined by its cuts and their tensors") {
  const Place second{1, 2, {{}, {"mask", false}}, {{}}};
  const std::vector<Flow> expected = {activationAt(1), activationAt(1, 1), activationAt(2),
                                      gradientAt(2), gradientAt(1)};
  CHECK(second.flows() == expected);
  for (const Flow flow : expected) CHECK(second.contains(flow));
  for (const Flow flow : {activationAt(0), gradientAt(1, 1), activationAt(2, 1), kWeightsBody}) {
    CHECK_FALSE(second.contains(flow));
  }
  CHECK(second.isUp(activationAt(1)));
  CHECK(second.isUp(gradientAt(2)));
  CHECK_FALSE(second.isUp(activationAt(2)));
  CHECK_FALSE(second.isUp(gradientAt(1)));
}

TEST_CASE("values by flow keep the insertion order of the flows") {
  FlowMap<int> map(Place{}.flows(), 1);
  CHECK(map.size() == 4);
  map[gradientAt(1)] = 7;
  map[kWeightsBody] = 9;
  CHECK(map.size() == 5);
  CHECK(map.at(gradientAt(1)) == 7);
  CHECK(map.get(kGradsBody) == 0);
  CHECK(map.find(kGradsBody) == nullptr);
  CHECK_THROWS_AS(map.at(kGradsBody), std::out_of_range);
  CHECK(map.begin()->first == activationAt(0));
}
