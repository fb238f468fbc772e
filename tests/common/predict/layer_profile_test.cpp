#include "common/predict/layer_profile.h"

#include <catch2/catch.hpp>
#include <string>
#include <utility>

#include "common/predict/profile.h"
#include "tests/support/error_code.h"
#include "tests/support/files/folder.h"

using namespace cleave;

namespace {

const std::string kGraph =
    "node1 -- Input -- forward_compute_time=0.000, backward_compute_time=0.000, "
    "activation_size=8.0, parameter_size=0.000\n"
    "node3 -- Add -- forward_compute_time=1.000, backward_compute_time=1.000, "
    "activation_size=4.0, parameter_size=0.000\n"
    "node2 -- Linear(2, 3) -- forward_compute_time=1.000, backward_compute_time=2.000, "
    "activation_size=[2.0; 3.0], parameter_size=40.000\n"
    "\tnode1 -- node2\n\tnode2 -- node3\n\tnode1 -- node3\n";

LayerProfile readText(const std::string& text, std::uint32_t batch = 0) {
  const test::Folder folder;
  folder.write("profile", text);
  return readLayerProfile(folder.file("profile"), batch);
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  return text.replace(text.find(from), from.size(), to);
}

}  // namespace

TEST_CASE("the graph of a text profile becomes a chain") {
  const LayerProfile profile = readText(kGraph, 32);
  CHECK(profile.batch == 32);
  CHECK(profile.names == std::vector<std::string>{"node2 Linear(2, 3)", "node3 Add"});
  REQUIRE(profile.layers.size() == 2);
  CHECK(profile.layers[0].seconds == Approx(3e-3));
  CHECK(profile.layers[0].outputBytes == 8 + 5);  // the sum also needs the input
  CHECK(profile.layers[0].parameterBytes == 40);
  CHECK(profile.layers[0].savedBytes == 8 + 5);
  CHECK(profile.layers[1].seconds == Approx(2e-3));
  CHECK(profile.layers[1].outputBytes == 0);
}

TEST_CASE("a profile of `profile` has its blocks as layers") {
  Profile profile;
  profile.batch = 8;
  profile.blocks = {{"head", 100, 10, 7, 0}, {"tail", 4, 20, 9, 0}};
  profile.sizes = {{4, {{0.4, 0.8, 0}, {0.1, 0.2, 0}}, 0.05}};
  profile.runSpec = nlohmann::ordered_json::object();
  const std::string text = toJson(profile).dump();
  const LayerProfile whole = readText(text);
  CHECK(whole.batch == 8);
  CHECK(whole.names == std::vector<std::string>{"head", "tail"});
  CHECK(whole.layers[0].seconds == Approx(2 * 1.2));
  CHECK(whole.layers[0].outputBytes == 800);
  CHECK(whole.layers[0].parameterBytes == 10);
  CHECK(whole.layers[0].savedBytes == 56);
  CHECK(whole.layers[1].seconds == Approx(2 * 0.35));  // with the loss
  CHECK(readText(text, 2).layers[0].seconds == Approx(0.6));
}

TEST_CASE("a damaged text profile is refused") {
  const std::pair<std::string, std::string> damages[] = {
      {"activation_size=4.0", "activation=4.0"},
      {"forward_compute_time=1.000", "forward_compute_time=-1"},
      {"forward_compute_time=1.000", "forward_compute_time=inf"},
      {"forward_compute_time=1.000", "forward_compute_time=1x"},
      {"forward_compute_time=1.000", "forward_compute_time="},
      {"[2.0; 3.0]", "[2.0; 3.0"},
      {"node3 -- Add", "node2 -- Add"},
      {" -- Add -- ", " "},
      {"\tnode1 -- node2", "\tnode1 -- node7"},
      {"\tnode1 -- node2", "\tnode3 -- node2"},  // a cycle
      {"\tnode1 -- node2", "\tnode1"}};
  for (const auto& [from, to] : damages) {
    CAPTURE(from, to);
    const std::string damaged = replaced(kGraph, from, to);
    CHECK(errorCode([&] { readText(damaged); }) == "bad-profile");
  }
  for (const std::string& text : {std::string(), std::string("{}"), std::string(17 << 20, ' ')}) {
    CHECK(errorCode([&] { readText(text); }) == "bad-profile");
  }
  CHECK(errorCode([] { readLayerProfile("/does/not/exist", 0); }) == "bad-profile");
}
