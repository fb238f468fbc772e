// A run spec crosses the wire unchanged, and only one with exactly its fields, each within its
// range.
#include "common/run/run_spec.h"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <string>

#include "compression/registry.h"
#include "proto/wire.pb.h"
#include "tests/support/error_code.h"

using namespace cleave;

namespace {

// A different value for each field.
RunSpec filled() {
  RunSpec spec;
  spec.model = {"mlp", {{"width", "16"}}, {1, 28, 28}, 10};
  spec.inserts = {{1, "linear", {{"rank", 2}, {"decay", 0.25}}}};
  spec.codecs = {{"activation/0", parseCodec("none")}};
  spec.seed = 7;
  spec.microBatches = 8;
  spec.inFlight = 3;
  spec.schedule = "zb";
  spec.staleness = 2;
  spec.replicas = 4;
  spec.optimizer = {"adam", {{"beta1", 0.1}}, {{"*.bias", 0.5}, {"head.*", std::nullopt}}};
  spec.freeze = {"*", "!head.*"};
  spec.averageDecay = 0.999;
  spec.recompute = true;
  spec.bodyPrecision = Precision::bf16;
  spec.deviceBits = "fast";
  spec.serverThreads = 5;
  spec.rawNonFinite = true;
  spec.cut0 = 1;
  spec.cut1 = 4;
  spec.cutNumber = 6;
  spec.bodies = 9;
  spec.maxBatch = spec.trainBatch = 64;
  spec.stepsPerEpoch = std::uint64_t{1} << 60;
  spec.trainSamples = 0xffffffff;
  spec.initialWeights = spec.headIsFrozen = spec.codecLevels = true;
  spec.watchEvery = 9;
  spec.replica = 3;
  spec.trace = {2, 11};
  spec.graph = "\xff\x00 bytes";
  spec.graphDigest = std::string(32, '\xfe');
  return spec;
}

RunSpec received(const nlohmann::json& fields) {
  wire::RunSpec proto;
  proto.set_fields(fields.dump());
  return runSpecFromWire(proto);
}

nlohmann::json fields() {
  RunSpec spec = filled();
  spec.graph = spec.graphDigest = "";
  return toJson(spec);
}

}  // namespace

TEST_CASE("a run spec survives the wire and a file") {
  for (const RunSpec& spec : {filled(), [] {
                                RunSpec least;
                                least.maxBatch = least.trainBatch = 1;
                                return least;
                              }()}) {
    wire::RunSpec proto;
    toWire(spec, proto);
    CHECK(runSpecFromWire(proto) == spec);
    CHECK(runSpecFromJson(nlohmann::json::parse(toJson(spec).dump())) == spec);
  }
}

TEST_CASE("a trace does not change the digest of a run spec, all other fields do") {
  RunSpec untraced = filled();
  untraced.trace = {};
  CHECK(digestOf(untraced) == digestOf(filled()));
  untraced.graph += "x";
  CHECK(digestOf(untraced) != digestOf(filled()));
}

TEST_CASE("a run spec needs each of its fields, and has no others") {
  const nlohmann::json all = fields();
  for (const auto& [name, value] : all.items()) {
    CAPTURE(name);
    nlohmann::json without = fields();
    without.erase(name);
    CHECK(errorCode([&] { received(without); }) == "bad-run-spec");
    // A value of another type.
    for (const nlohmann::json& other :
         {nlohmann::json(), nlohmann::json(-1), nlohmann::json({{"x", {1, "y"}}})}) {
      nlohmann::json changed = fields();
      changed[name] = other;
      CHECK(errorCode([&] { received(changed); }) == "bad-run-spec");
    }
  }
  nlohmann::json more = fields();
  more["train.more"] = 1;
  CHECK(errorCode([&] { received(more); }) == "bad-run-spec");
  CHECK(errorCode([] { runSpecFromWire({}); }) == "bad-run-spec");
}

TEST_CASE("values outside the range of their field are refused") {
  const std::pair<const char*, nlohmann::json> values[] = {
      {"train.staleness", 17},
      {"train.ema", 1.5},
      {"train.ema", -0.5},
      {"max_batch", 0},
      {"train_batch", 0},
      {"cut0", 1 << 17},
      {"cut_number", 64},
      {"bodies", 65},
      {"train.micro_batches", 0},
      {"replicas", 17},
      {"replica", std::uint64_t{1} << 32},
      {"steps_per_epoch", std::uint64_t{1} << 63},
      {"train.micro_batches", 1.5}};
  for (const auto& [name, value] : values) {
    CAPTURE(name, value);
    nlohmann::json changed = fields();
    changed[name] = value;
    CHECK(errorCode([&] { received(changed); }) == "bad-run-spec");
  }
}

TEST_CASE("texts of a run spec are printable, and deep nesting is refused") {
  nlohmann::json changed = fields();
  changed["train.schedule"] = "a\nb\x1b";
  changed["codec"] = {{"a\nb", "none"}};
  const RunSpec spec = received(changed);
  CHECK(spec.schedule == "a b?");
  CHECK(spec.codecs.at("a b").text == "none");
  changed["codec"] = {{"activation/0", "c\x1b"}};
  CHECK_THAT(errorText([&] { received(changed); }), Catch::Matchers::Contains("'c?'"));
  wire::RunSpec deep;
  deep.set_fields(std::string(60000, '['));
  CHECK(errorCode([&] { runSpecFromWire(deep); }) == "bad-run-spec");
}
