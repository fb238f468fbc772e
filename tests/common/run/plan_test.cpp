// Run specs of hostile clients: random variations of valid specs are either refused with an Error
// or planned, quickly and without allocating the memory that they describe.
#include "common/run/plan.h"
#include "common/link/tensor_link_options.h"

#include <catch2/catch.hpp>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>

#include "common/core/clock.h"
#include "common/core/random.h"
#include "common/link/transfer_order.h"
#include "common/net/connection_messages.h"
#include "common/run/config_errors.h"
#include "common/run/run_folder.h"
#include "compression/registry.h"
#include "proto/wire.pb.h"
#include "tests/support/error_code.h"

using namespace cleave;

namespace {

RunSpec honest(const std::string& model) {
  RunSpec spec;
  spec.model = {model, {}, {3, 32, 32}, 10};
  spec.cut0 = 1;
  spec.cut1 = 3;
  spec.maxBatch = spec.trainBatch = 16;
  spec.microBatches = 4;
  spec.codecs["activation/0"] = parseCodec("block:bits=8");
  spec.optimizer.parameters["momentum"] = 0.9;
  return spec;
}

// The spec after it has crossed the wire.
RunSpec received(const RunSpec& spec) {
  wire::RunSpec proto;
  toWire(spec, proto);
  return runSpecFromWire(proto);
}

class Draw {
 public:
  explicit Draw(std::uint64_t seed) : key_(randomKey(seed, "plan-test")) {}
  std::uint64_t below(std::uint64_t bound) { return randomBits(key_, next_++) % bound; }
  template <typename T, std::size_t N>
  T of(const T (&values)[N]) {
    return values[below(N)];
  }

 private:
  RandomKey key_;
  std::uint64_t next_ = 0;
};

constexpr std::uint64_t kNumbers[] = {0,
                                      1,
                                      2,
                                      3,
                                      1000,
                                      1 << 20,
                                      (1 << 20) + 1,
                                      1 << 28,
                                      0x7fffffff,
                                      0x80000000,
                                      0xffffffff,
                                      1ull << 32,
                                      1ull << 63,
                                      std::numeric_limits<std::uint64_t>::max()};
constexpr double kValues[] = {0,
                              -1,
                              1,
                              1e300,
                              -1e300,
                              std::numeric_limits<double>::infinity(),
                              std::numeric_limits<double>::quiet_NaN()};
const std::string kTexts[] = {"",
                              "0",
                              "-1",
                              "1",
                              "4096",
                              "1000000000",
                              "99999999999999999999",
                              "nan",
                              "sgd",
                              "width",
                              "none",
                              "block:bits=99",
                              "topk:ratio=1e-9",
                              "zstd:level=1(zstd:level=1(zstd:level=1(none)))",
                              "power:rank=1000000",
                              "delta(block:bits=4)",
                              std::string(10000, '('),
                              std::string(1000, ',')};

void change(nlohmann::json& spec, Draw& draw) {
  const auto number = [&] { return draw.of(kNumbers); };
  nlohmann::json& model = spec["model"];
  const char* const numbers[] = {"cut0",
                                 "cut1",
                                 "max_batch",
                                 "train_batch",
                                 "train_samples",
                                 "train.staleness",
                                 "train.in_flight",
                                 "replica",
                                 "replicas",
                                 "train.micro_batches"};
  switch (draw.below(12)) {
    case 0:
      model["name"] = draw.of(kTexts);
      break;
    case 1:
      model["parameters"]["width"] = draw.of(kTexts);
      break;
    case 2:
      model["parameters"][draw.of(kTexts)] = draw.of(kTexts);
      break;
    case 3:
      model["sample_shape"][draw.below(3)] = number();
      break;
    case 4:
      model["sample_shape"].push_back(number());
      break;
    case 5:
      model["classes"] = number();
      break;
    case 6:
      spec["codec"]["activation/1"] = draw.of(kTexts);
      break;
    case 7:
      spec["codec"][draw.of(kTexts)] = "none";
      break;
    case 8:
      spec["train.optimizer"]["parameters"]["momentum"] = draw.of(kValues);
      break;
    case 9:
      spec[draw.of(kTexts)] = number();
      break;
    default:
      spec[draw.of(numbers)] = number();
  }
}

wire::RunSpec withFields(const std::string& fields) {
  wire::RunSpec proto;
  proto.set_fields(fields);
  return proto;
}

// Returns whether the spec can be planned.
bool plans(const std::string& fields) {
  try {
    const RunPlan plan = planRun(runSpecFromWire(withFields(fields)));
    CHECK(plan.inFlight >= 1);
    CHECK(plan.inFlight <= plan.spec.microBatches * (plan.spec.staleness + 1));
    CHECK(serverBytes(plan) > 0);
    CHECK(maxWeightsBytes(plan) > 0);
    return true;
  } catch (const Error& error) {
    CHECK_FALSE(error.code().empty());
    return false;
  }
}

}  // namespace

TEST_CASE("random run specs are either refused or planned") {
  std::size_t planned = 0;
  std::size_t drawn = 0;
  double longest = 0;
  for (const std::string model : {"mlp", "small_cnn", "mobilenet_v2"}) {
    const nlohmann::json fields = toJson(honest(model));
    REQUIRE(plans(fields.dump()));
    for (std::uint64_t seed = 0; seed < 3000; ++seed) {
      CAPTURE(model, seed);
      Draw draw(seed);
      nlohmann::json spec = fields;
      for (std::uint64_t left = 1 + draw.below(3); left > 0; --left) change(spec, draw);
      const SteadyTime start = now();
      if (plans(spec.dump())) ++planned;
      longest = std::max(longest, secondsSince(start));
      ++drawn;
    }
  }
  CHECK(longest < 1);
  CHECK(planned > drawn / 20);  // checks that both outcomes occur
  CHECK(planned < drawn);
}

TEST_CASE("corrupted run specs are refused or planned") {
  const std::string honestBytes = toJson(honest("small_cnn")).dump();
  for (std::uint64_t seed = 0; seed < 20000; ++seed) {
    CAPTURE(seed);
    Draw draw(seed);
    std::string bytes = honestBytes;
    for (std::uint64_t left = 1 + draw.below(4); left > 0; --left) {
      bytes[draw.below(bytes.size())] = static_cast<char>(draw.below(256));
    }
    plans(bytes);
  }
}

TEST_CASE("admission accounts for the memory of micro-batches and of those in flight") {
  RunSpec spec = honest("small_cnn");
  spec.maxBatch = spec.trainBatch = 1 << 16;
  spec.microBatches = 1 << 16;  // one sample per micro-batch
  const auto bytes = [&](std::uint32_t inFlight) {
    spec.inFlight = inFlight;
    return serverBytes(planRun(spec));
  };
  CHECK(bytes(1 << 16) - bytes(1) >= ((std::size_t{1} << 16) - 1) * kMicroBatchBytes);

  // A codec with state keeps a state per micro-batch, whether or not the micro-batch is in flight.
  const std::size_t stateless = bytes(1);
  spec.codecs["activation/0"] = parseCodec("power:rank=1");
  const RunPlan plan = planRun(spec);
  const std::size_t state =
      plan.codecs.at(activationAt(0))
          .own->memory(flowSpec(plan.blocks, plan.stage.cuts, activationAt(0), 1))
          .state;
  REQUIRE(state > 0);
  CHECK(serverBytes(plan) > stateless + (std::size_t{1} << 16) * state);
}

TEST_CASE("codecs that keep samples are for activations, and need memory for all samples") {
  RunSpec spec = honest("small_cnn");
  const std::size_t before = serverBytes(planRun(spec));
  CHECK(sampleCacheBytes(planRun(spec)) == 0);
  spec.codecs = {{"activation/1", parseCodec("rans(delta(block:bits=4))")}};
  CHECK(errorCode([&] { planRun(spec); }) == "bad-run-spec");  // without their number
  spec.trainSamples = 50000;
  const RunPlan plan = planRun(spec);
  const std::size_t row = flowSpec(plan.blocks, plan.stage.cuts, activationAt(1), 1).bytes();
  CHECK(sampleCacheBytes(plan) >= 50000.0 * static_cast<double>(row));
  CHECK(sampleCacheBytes(plan) <= 50000.0 * static_cast<double>(row + 64));
  CHECK(serverBytes(plan) >= before + 50000 * row);
  CHECK(snapshotBytes(plan) >= 50000 * row);
  CHECK(samplesDiskBytes(plan) == 0);
  RunPlan onDisk = plan;
  onDisk.samplesOnDisk = true;
  CHECK(serverBytes(onDisk) >= before + 50000 * 8);
  CHECK(serverBytes(onDisk) < before + 50000 * 8 + (8 << 20));
  CHECK(snapshotBytes(onDisk) < (8 << 20));
  CHECK(samplesDiskBytes(onDisk) == 2 * 50000 * row);
  RunPlan trial = plan;
  trial.maxKeptSamples = 100;
  CHECK(serverBytes(trial) >= before + 50000 * 8 + 100 * row);
  CHECK(serverBytes(trial) < serverBytes(plan) / 2);

  spec.trainSamples = std::numeric_limits<std::uint32_t>::max();
  CHECK(serverBytes(planRun(spec)) > std::size_t{spec.trainSamples} * row);
  spec.codecs = {{"gradient/0", parseCodec("delta(block:bits=4)")}};
  CHECK(errorCode([&] { planRun(spec); }) == "bad-codec-spec");
}

TEST_CASE(
    "an error is placed at its own key if the configuration has it, or at that of the check") {
  const Config config = Config::parse("model:\n  cuts: [1, 9]\n", "a.yaml", {});
  const auto placed = [&](const UsageError& thrown, const std::string& path) -> UsageError {
    try {
      checkAt(config, path, [&] { throw thrown; });
    } catch (const UsageError& error) {
      return error;
    }
    return UsageError("nothing", "was thrown");
  };
  const UsageError fault("bad-cuts", "a fault", "a hint");
  for (const UsageError& error : {placed(UsageError(fault).about("model.cuts"), "weights.file"),
                                  placed(fault, "model.cuts")}) {
    CHECK(error.what() == std::string("a.yaml:2: model.cuts: a fault"));
    CHECK(error.hint() == "a hint");
    CHECK(error.key() == "model.cuts");
    CHECK(error.location() == "a.yaml:2");
  }
  for (const UsageError& error :
       {placed(fault, ""), placed(UsageError(fault).about("--resume"), ""),
        placed(UsageError(fault).about("data.skip"), "model.cuts")}) {
    CHECK(error.what() == std::string("a fault"));
    CHECK(error.location().empty());
  }
}

TEST_CASE("an error of a plan has the key that must change") {
  const auto keyOf = [](const RunSpec& spec) {
    try {
      planRun(spec);
    } catch (const UsageError& error) {
      return error.key();
    }
    return std::string("none");
  };
  RunSpec spec = honest("mlp");
  spec.cut1 = 99;
  CHECK(keyOf(spec) == "model.cuts");
  spec = honest("mlp");
  spec.model.parameters["width"] = "0";
  CHECK(keyOf(spec) == "model.width");
  spec = honest("mlp");
  spec.codecs["gradient/0"] = parseCodec("delta(block:bits=4)");
  CHECK(keyOf(spec) == "codec");
}

TEST_CASE("a run's admitted memory includes its session's limit for data in transit") {
  const RunPlan plan = planRun(honest("small_cnn"));
  CHECK(static_cast<double>(transitBytes(plan)) > flowBytes(plan, Role::server));
  CHECK(serverBytes(plan) > transitBytes(plan));
}

TEST_CASE(
    "the members of a cohort need memory for the batch's samples once, and gradients of each") {
  const auto planOf = [](std::uint32_t members, std::string_view order,
                         std::uint32_t inFlight = 0) {
    RunSpec spec = honest("small_cnn");
    spec.codecs.clear();
    spec.inFlight = inFlight;
    spec.cohort.id = "cohort";
    for (std::uint32_t m = 0; m < members; ++m) {
      spec.cohort.members.push_back("m" + std::to_string(m));
    }
    spec.cohort.batch = spec.cohort.evalBatch = spec.maxBatch;
    spec.cohort.order = order;
    return planRun(spec);
  };
  const RunPlan one = planOf(1, kGlobal), two = planOf(2, kGlobal), many = planOf(64, kGlobal);
  // Each has a buffer for weights, and may have one micro-batch that is not full.
  const auto oneMore = static_cast<double>(transitBytes(two) - transitBytes(one));
  CHECK(oneMore <
        1.3 * static_cast<double>(maxWeightsBytes(one)) + flowBytes(one, Role::server) / 2);
  CHECK(static_cast<double>(transitBytes(many)) <
        static_cast<double>(transitBytes(one)) * 2 + 63 * oneMore);
  CHECK(63 * flowBytes(one, Role::server) > flowBytes(many, Role::server) * 8);
  const auto trained =
      static_cast<double>(trainedCount(one.blocks, one.stage.cuts.cut0, one.stage.cuts.cut1));
  const auto difference = [](const RunPlan& a, const RunPlan& b) {
    return static_cast<double>(serverBytes(a)) - static_cast<double>(serverBytes(b));
  };
  CHECK(difference(planOf(64, kByMember), many) == Approx(63 * 4 * trained).margin(100));
  CHECK(difference(planOf(2, kByMember), planOf(2, kByMember, 1)) > 0);
  CHECK(flowBytes(many, Role::client) < flowBytes(many, Role::server) * 1.01);
}

TEST_CASE("without gradients at cut 0, all micro-batches may be in flight, and all are counted") {
  RunSpec spec = honest("small_cnn");
  spec.codecs.clear();
  spec.inFlight = 1;
  const RunPlan usual = planRun(spec);
  spec.headIsFrozen = true;
  const RunPlan frozen = planRun(spec);
  CHECK(usual.inFlight == 1);
  CHECK(frozen.inFlight == 4);
  CHECK(frozen.flows() == std::vector<Flow>{activationAt(0), activationAt(1), gradientAt(1)});
  CHECK(serverBytes(frozen) > serverBytes(usual));

  // A body that does not train keeps no data for a backward.
  spec.freeze.push_back("*");
  const RunPlan forwardOnly = planRun(spec);
  CHECK(forwardOnly.inFlight == 1);
  CHECK(forwardOnly.flows() == std::vector<Flow>{activationAt(0), activationAt(1)});
  CHECK(serverBytes(forwardOnly) < serverBytes(usual));
}

TEST_CASE("a body may be after any cut of the run") {
  RunSpec spec = honest("small_cnn");
  spec.codecs.clear();
  spec.cutNumber = 3;
  CHECK(errorCode([&] { planRun(spec); }) == "bad-run-spec");
  spec.bodies = 4;
  const RunPlan plan = planRun(spec);
  CHECK(plan.flows() ==
        std::vector<Flow>{activationAt(3), activationAt(4), gradientAt(4), gradientAt(3)});
  spec.codecs["activation/0"] = parseCodec("fp16");
  CHECK(errorCode([&] { planRun(spec); }) == "bad-run-spec");
  spec.codecs = {{"activation/3", parseCodec("fp16")}};
  CHECK(planRun(spec).codecs.at(activationAt(3)).own->spec() == "fp16");
  spec.cutNumber = kMaxServers;
  CHECK(errorCode([&] { received(spec); }) == "bad-run-spec");
}

TEST_CASE("the client keeps the encoded tensors that it passes on between two bodies") {
  RunSpec spec = honest("small_cnn");
  spec.codecs = {{"activation/1", parseCodec("block:bits=8")},
                 {"gradient/1", parseCodec("block:bits=4")}};
  const RunPlan first = planRun(spec);
  CHECK(passedOnBytes({first}) == 0);
  spec.cutNumber = 1;
  spec.bodies = 2;
  spec.cut0 = 3;
  spec.cut1 = 4;
  const RunPlan second = planRun(spec);
  double expected = 0;
  for (const Flow flow : {activationAt(1), gradientAt(1)}) {
    const std::size_t encoded = first.codecs.at(flow).own->maxEncodedBytes(
        flowSpec(first.blocks, first.stage.cuts, flow, first.largestMicroBatch()));
    expected += first.inFlight * static_cast<double>(BufferPool::capacityFor(encoded));
  }
  CHECK(passedOnBytes({first, second}) == expected);
}

TEST_CASE("a split backward needs all micro-batches in flight, and memory for its gradients") {
  RunSpec spec = honest("small_cnn");
  const std::size_t undivided = serverBytes(planRun(spec));
  spec.schedule = "zb";
  CHECK(planRun(spec).inFlight == spec.microBatches);
  CHECK(serverBytes(planRun(spec)) > undivided);
  const std::size_t divided = serverBytes(planRun(spec));
  spec.recompute = true;
  CHECK(serverBytes(planRun(spec)) == divided);
  spec.inFlight = 2;
  CHECK(errorCode([&] { planRun(spec); }) == "bad-in-flight");
}

TEST_CASE("with staleness, more micro-batches are in flight, and older weights need memory") {
  RunSpec spec = honest("small_cnn");
  const RunPlan without = planRun(spec);
  spec.staleness = 2;
  const RunPlan plan = planRun(spec);
  CHECK(plan.inFlight == 12);
  CHECK(plan.stage.staleness == 2);
  CHECK(engineOptions(plan).staleness == 2);
  const auto trained = static_cast<std::size_t>(trainedCount(plan.blocks, 1, 3));
  spec.inFlight = 4;
  // Three copies of the parameters, and the gradients of two more steps.
  CHECK(serverBytes(planRun(spec)) >= serverBytes(without) + 5 * trained * sizeof(float));
  CHECK(snapshotBytes(plan) == snapshotBytes(without) + 2 * trained * sizeof(float));

  const auto refused = [](RunSpec changed) { return errorCode([&] { planRun(changed); }); };
  spec.inFlight = 13;
  CHECK(refused(spec) == "bad-in-flight");
  spec.inFlight = 0;
  spec.staleness = kMaxStaleness + 1;
  CHECK(errorCode([&] { received(spec); }) == "bad-run-spec");
  spec.staleness = 1;
  spec.codecs["activation/0"] = parseCodec("power:rank=2");
  CHECK(refused(spec) == "bad-staleness");
  spec.codecs.clear();
  spec.schedule = "gpipe";
  CHECK(refused(spec) == "bad-staleness");
  spec.staleness = 0;
  CHECK(refused(spec) == "");
  spec.deviceBits = "some";
  CHECK(refused(spec) == "bad-device");
}

TEST_CASE("a replica's plan is for its share of the batches") {
  RunSpec spec = honest("small_cnn");
  spec.microBatches = 5;
  spec.replicas = 2;
  const RunPlan first = planRun(spec);
  spec.replica = 1;
  const RunPlan second = planRun(spec);
  CHECK(first.microBatches == 3);
  CHECK(second.microBatches == 2);
  CHECK(first.maxBatch == 10);  // 16 samples in micro-batches of 4, 3, 3, 3, 3
  CHECK(second.maxBatch == 6);
  CHECK(first.inFlight == 3);
  CHECK(second.inFlight == 2);
  CHECK(second.stage.replica == Replica{1, 2});
  for (const RunPlan* plan : {&first, &second}) {
    CHECK(plan->spec.microBatches == 5);
    CHECK(engineOptions(*plan).microBatches == 5);
    CHECK(engineOptions(*plan).replica == plan->stage.replica);
    CHECK(engineOptions(*plan).reduces);
    CHECK(shareSize(*plan) == shareSize(first));
  }
  CHECK(digestOf(first.spec) != digestOf(second.spec));
  // Their codecs draw different numbers.
  CHECK(linkOptions(first, Role::server).seed != linkOptions(second, Role::server).seed);
  CHECK(linkOptions(second, Role::client).seed == linkOptions(second, Role::server).seed);
  // The client's plan has the whole batch.
  const RunPlan client = planClient(spec, {}, nullptr);
  CHECK(client.microBatches == 5);
  CHECK(client.stage.replica == Replica{0, 2});
  CHECK(planReplica(client, 1).spec == second.spec);
}

TEST_CASE("the sum of the replicas' gradients needs memory, and a smaller share of a batch less") {
  RunSpec spec = honest("small_cnn");
  const RunPlan alone = planRun(spec);
  CHECK(shareSize(alone) == 0);
  CHECK_FALSE(engineOptions(alone).reduces);
  spec.replicas = 4;
  const RunPlan one = planRun(spec);
  CHECK(serverBytes(one) > shareSize(one) * sizeof(float) + 3 * (std::size_t{4} << 20));
  CHECK(flowBytes(one, Role::server) < flowBytes(alone, Role::server));
}

TEST_CASE("run specs with impossible replicas are refused") {
  const RunSpec honestSpec = honest("small_cnn");
  const auto refused = [&](std::uint32_t replicas, std::uint32_t replica,
                           const std::function<void(RunSpec&)>& change = {}) {
    RunSpec spec = honestSpec;
    spec.replicas = replicas;
    spec.replica = replica;
    if (change) change(spec);
    return errorCode([&] { planRun(received(spec)); });
  };
  CHECK(refused(2, 1) == "");
  CHECK(refused(2, 2) == "bad-run-spec");
  CHECK(refused(1, 1) == "bad-run-spec");
  CHECK(refused(5, 0) == "bad-run-spec");  // of 4 micro-batches
  CHECK(refused(kMaxBodyReplicas + 1, 0) == "bad-run-spec");
  CHECK(refused(0xffffffff, 0xfffffffe) == "bad-run-spec");
  CHECK(refused(2, 0, [](RunSpec& spec) {
          spec.codecs["activation/0"] = parseCodec("delta(block:bits=4)");
          spec.trainSamples = 10;
        }) == "bad-codec-spec");
  CHECK(refused(2, 0, [](RunSpec& spec) { spec.staleness = 1; }) == "");
  CHECK(refused(2, 0, [](RunSpec& spec) {
          spec.staleness = 1;
          spec.schedule = "1f1b";
        }) == "bad-staleness");
}

TEST_CASE("a model that sleeps has limited times") {
  RunSpec spec = honest("sleep");
  spec.model.parameters = {{"F2", "60000"}};
  spec.cut1 = 2;
  CHECK_NOTHROW(planRun(spec));
  for (const char* time : {"60001", "-1", "nan", "1e9"}) {
    spec.model.parameters = {{"F2", time}};
    CHECK(errorCode([&] { planRun(spec); }) == "bad-model-parameter");
  }
}

TEST_CASE("a lower precision needs memory for the cast weights") {
  RunSpec spec = honest("mobilenet_v2");
  const std::size_t full = serverBytes(planRun(spec));
  spec.bodyPrecision = Precision::bf16;
  CHECK(serverBytes(planRun(spec)) > full);
}

TEST_CASE("patterns that would take too long to match are refused") {
  RunSpec spec = honest("mobilenet_v2");
  for (int n = 0; n < 64; ++n) spec.freeze.push_back("*" + std::string(255, 'a'));
  CHECK(errorCode([&] { planRun(spec); }) == "bad-run-spec");
  spec.freeze.clear();
  spec.freeze.push_back("*" + std::string(256, 'a'));
  CHECK(errorCode([&] { planRun(spec); }) == "bad-run-spec");
}

TEST_CASE("a run id is a valid folder name and cannot be mistaken for an option") {
  for (const std::string& id :
       std::vector<std::string>{"a", "7", "run-1", "run-", std::string(64, 'x')}) {
    INFO(id);
    CHECK(errorCode([&] { checkRunId(id); }).empty());
  }
  for (const std::string& id :
       std::vector<std::string>{"", "-", "-rf", "--help", ".", "..", "a/b", "A", "a b", "a\nb", "ä",
                                std::string(65, 'x')}) {
    INFO(id);
    CHECK(errorCode([&] { checkRunId(id); }) == "bad-run-id");
  }
}
