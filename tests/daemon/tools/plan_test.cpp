// `cleave-client profile`, `cleave-server profile` and `cleave-client plan`.
#include <algorithm>
#include <catch2/catch.hpp>
#include <fstream>
#include <map>

#include "tests/daemon/daemons.h"

namespace cleave::test {
namespace {

using Catch::Matchers::Contains;

const Arguments kConfig = {"--config", configFile("synthetic.yaml"), "--log-level", "error"};
// The blocks of this configuration's model, whose default cuts are [2, 5].
const std::vector<std::string> kBlocks = {"flatten", "fc1", "relu1", "fc2", "relu2", "fc_out"};

// A profile in which each block takes this many milliseconds forward and backward together, for a
// micro-batch of 8 samples.
std::string writeProfile(const TemporaryFolder& folder, const std::string& name,
                         const std::vector<double>& milliseconds) {
  nlohmann::json blocks, half, none;
  for (std::size_t b = 0; b < kBlocks.size(); ++b) {
    blocks.push_back({{"name", kBlocks[b]},
                      {"output_bytes_per_sample", b == 0                    ? 256
                                                  : b + 1 == kBlocks.size() ? 40
                                                                            : 128},
                      {"parameter_bytes", 0},
                      {"saved_bytes_per_sample", 128},
                      {"update_seconds", 0}});
    half.push_back(0.5e-3 * milliseconds[b]);
    none.push_back(0);
  }
  const nlohmann::json codec = {{"encode_seconds_per_byte", 0}, {"decode_seconds_per_byte", 0}};
  const nlohmann::json profile = {{"profile", 2},
                                  {"device", "the CPU"},
                                  {"threads", 1},
                                  {"memory_bytes", 1e9},
                                  {"batch", 32},
                                  {"blocks", blocks},
                                  {"sizes",
                                   {{{"samples", 8},
                                     {"loss_seconds", 0},
                                     {"forward_seconds", half},
                                     {"backward_seconds", half},
                                     {"weights_seconds", none}}}},
                                  {"codecs", {{"none", codec}, {"block:bits=4", codec}}},
                                  {"run_spec", nlohmann::json::object()}};
  std::ofstream(folder.path(name)) << profile.dump();
  return folder.path(name);
}

Arguments planArguments(const std::string& client, const std::string& server,
                        const Arguments& more) {
  return with(with(with({"plan"}, kConfig),
                   {"--set", "codec=none", "--profile", client, "--server-profile", server}),
              more);
}

// What a run with these settings of a plan needs. `settings`: those that the plan does not choose,
// and the cuts.
nlohmann::json dryRunOf(const nlohmann::json& plan, const Arguments& settings) {
  return askJson(with(with(with({"train", "--dry-run"}, kConfig), settings),
                      {"--set", "train.micro_batches=" + plan.at("micro_batches").dump(), "--set",
                       "train.in_flight=" + plan.at("in_flight").dump(), "--set",
                       "train.schedule=" + plan.at("schedule").get<std::string>()}));
}

// Of an exported model, the plan joins the estimates of its modules, so that it may estimate a
// little more.
void checkNeeds(const nlohmann::json& used, const nlohmann::json& planned) {
  CHECK(used.get<double>() <= planned.get<double>());
  CHECK(used.get<double>() >= 0.8 * planned.get<double>());
}

void checkSameNeeds(const nlohmann::json& used, const nlohmann::json& plan) {
  checkNeeds(used.at("client_memory_bytes"), plan.at("client_memory_bytes"));
  checkNeeds(used.at("server_memory_bytes").at(0), plan.at("server_memory_bytes"));
  CHECK(used.at("step").at("up_bytes") == plan.at("bytes_up"));
  CHECK(used.at("step").at("down_bytes") == plan.at("bytes_down"));
}

const Arguments kFastLink = {"--rate", "unlimited", "--latency", "0"};

TEST_CASE("both sides are profiled, and the plan made from their profiles can be used") {
  const TemporaryFolder folder;
  const std::string client = folder.path("client.json"), server = folder.path("server.json");
  const nlohmann::json profile = askJson(
      with(with({"profile"}, kConfig), {"--output", client, "--repeat", "1", "--codec", "fp16"}));
  REQUIRE(profile.at("blocks").size() == kBlocks.size());
  CHECK(profile.at("blocks").at(1).at("parameter_bytes") == 4 * (64 * 32 + 32));
  CHECK(profile.at("blocks").at(1).at("output_bytes_per_sample") == 4 * 32);
  CHECK(profile.at("sizes").back().at("samples") == 32);
  CHECK(profile.at("sizes").back().at("backward_seconds").at(3).get<double>() > 0);
  CHECK(profile.at("sizes").back().at("loss_seconds").get<double>() > 0);
  CHECK(profile.at("codecs").at("fp16").at("encode_seconds_per_byte").get<double>() > 0);

  const Ended ended =
      finish(Process::start({serverProgram(), "profile", "--of", client, "--output", server,
                             "--repeat", "1", "--json", "--log-level", "error"}));
  INFO(ended.errors);
  REQUIRE(ended.code == 0);
  const nlohmann::json ofServer = nlohmann::json::parse(ended.output);
  CHECK(ofServer.at("blocks").size() == kBlocks.size() - 2);  // without the first and the last
  CHECK(ofServer.at("blocks").front().at("name") == "fc1");
  CHECK(ofServer.at("memory_bytes") == 8192.0 * 1024 * 1024);
  CHECK(ofServer.at("codecs").size() == profile.at("codecs").size());

  const nlohmann::json plans =
      askJson(planArguments(client, server, {"--rate", "100Mbit/s", "--latency", "5ms"}));
  const nlohmann::json& best = plans.at("plans").at(0);
  CHECK(best.at("seconds") <= plans.at("configured").at("seconds").get<double>() * 1.05);
  CHECK(best.at("seconds") >= best.at("bound_seconds").get<double>() * (1 - 1e-9));
  checkSameNeeds(
      dryRunOf(best, {"--set", "codec=none", "--set", "model.cuts=" + best.at("cuts").dump()}),
      best);
  CHECK_THAT(plans.at("yaml").get<std::string>(), Contains("cuts: [") && Contains("codec: {"));
}

TEST_CASE("the slowest block goes to the faster side") {
  const TemporaryFolder folder;
  const std::string slow = writeProfile(folder, "slow", {0, 1, 0, 50, 0, 1});
  const std::string fast = writeProfile(folder, "fast", {0, 1, 0, 5, 0, 1});
  const nlohmann::json plans = askJson(planArguments(slow, fast, kFastLink));
  for (const nlohmann::json& plan : plans.at("plans")) {
    CHECK(plan.at("cuts").at(0).get<int>() <= 3);
    CHECK(plan.at("cuts").at(1).get<int>() >= 4);
  }
  // In the best plan, the faster server computes fc2, and the client the rest. A batch has 4 times
  // the profile's samples, so the server takes 4 x 5 ms, and the client at least 4 x 1 ms.
  CHECK(plans.at("plans").at(0).at("seconds").get<double>() < 30e-3);
  // Pairs of cuts x 1, 2, 4, …, 32 micro-batches. Cut 1 would send the inputs to the server.
  CHECK(plans.at("considered") == 6 * 6);
  const nlohmann::json kept = askJson(planArguments(slow, fast, with(kFastLink, {"--keep-cuts"})));
  CHECK(kept.at("plans").at(0).at("cuts") == nlohmann::json({2, 5}));
  CHECK(kept.at("considered") == 6);
}

TEST_CASE("no settings have a shorter predicted step than the plans") {
  const TemporaryFolder folder;
  const std::string client = writeProfile(folder, "client", {0.5, 3, 0.5, 6, 1, 2});
  const std::string server = writeProfile(folder, "server", {0, 2, 0.5, 3, 0.5, 0});
  const Arguments link = {"--rate",    "2Mbit/s", "--down-rate", "4Mbit/s",
                          "--latency", "3ms",     "--set",       "train.batch=8"};
  const nlohmann::json plans = askJson(planArguments(client, server, link));
  double shortest = 1e9;
  for (int cut0 = 2; cut0 < 5; ++cut0) {
    for (int cut1 = cut0 + 1; cut1 < 6; ++cut1) {
      Arguments arguments = planArguments(client, server, link);
      arguments.front() = "simulate";
      const nlohmann::json cases =
          askJson(with(arguments, {"--set", "model.cuts=" + nlohmann::json({cut0, cut1}).dump(),
                                   "--micro-batches", "1", "--micro-batches", "2",
                                   "--micro-batches", "4", "--micro-batches", "8"}));
      shortest = std::min(shortest, cases.at("best").at("seconds").get<double>());
    }
  }
  for (const nlohmann::json& plan : plans.at("plans")) {
    CHECK(plan.at("seconds").get<double>() >= shortest * (1 - 1e-9));
    CHECK(plan.at("seconds").get<double>() <= shortest * 1.05 * (1 + 1e-9));
  }
}

TEST_CASE("a second server is used if it makes a step shorter") {
  const TemporaryFolder folder;
  const std::string client = writeProfile(folder, "client", {0, 1, 500, 500, 0, 1});
  const std::string server = writeProfile(folder, "server", {0, 0, 20, 20, 0, 0});
  // One server takes 4 x 40 ms for a batch; two servers at least 4 x 20 ms each.
  const nlohmann::json one = askJson(planArguments(client, server, kFastLink));
  CHECK(one.at("plans").at(0).at("cuts").size() == 2);
  CHECK(one.at("plans").at(0).at("seconds").get<double>() >= 160e-3);
  const Arguments second = with(kFastLink, {"--server-profile", server});
  const nlohmann::json two = askJson(planArguments(client, server, second));
  const nlohmann::json& best = two.at("plans").at(0);
  REQUIRE(best.at("cuts").size() == 3);
  CHECK(best.at("cuts").at(0) == 2);
  CHECK(best.at("cuts").at(2).get<int>() >= 4);
  CHECK(best.at("seconds").get<double>() >= 80e-3);
  CHECK(best.at("seconds").get<double>() < 110e-3);
  CHECK(best.at("codecs").contains("activation/2"));
  CHECK(two.at("considered") == (6 + 4) * 6);  // 2 or 3 cuts at 4 positions
  CHECK_THAT(two.at("yaml").get<std::string>(),
             Contains("cuts: [2, 3, ") && Contains("# servers: [HOST:PORT, HOST:PORT]\n"));

  // The plan is the prediction of simulate for the same settings.
  Arguments same = planArguments(client, server, second);
  same.front() = "simulate";
  const nlohmann::json cases =
      askJson(with(same, {"--set", "model.cuts=" + best.at("cuts").dump(), "--micro-batches",
                          best.at("micro_batches").dump()}));
  const std::string schedule = best.at("schedule");
  CHECK(cases.at("cases").at(0).at("schedules").at(schedule).at("seconds").get<double>() ==
        Approx(best.at("seconds").get<double>()));
  // On a slow link, the tensors between the servers cost more than the second server saves.
  const nlohmann::json slow = askJson(planArguments(
      client, server, {"--rate", "100kbit/s", "--latency", "0", "--server-profile", server}));
  CHECK(slow.at("plans").at(0).at("cuts").size() == 2);
  CHECK(slow.at("configured").at("cuts") == nlohmann::json({2, 5}));
}

TEST_CASE("replicas are used if they are allowed and make a step shorter") {
  const TemporaryFolder folder;
  const std::string client = writeProfile(folder, "client", {0, 1, 500, 500, 0, 1});
  const std::string server = writeProfile(folder, "server", {0, 0, 20, 20, 0, 0});
  // One server takes 4 x 40 ms for a batch, and 3 replicas a third of that.
  const Arguments three = with(kFastLink, {"--replicas", "3"});
  const nlohmann::json plans = askJson(planArguments(client, server, three));
  const nlohmann::json& best = plans.at("plans").at(0);
  CHECK(best.at("replicas") == 3);
  CHECK(best.at("seconds").get<double>() >= 160e-3 / 3);
  CHECK(best.at("seconds").get<double>() < 75e-3);
  // Pairs of cuts x (1 micro-batch, 2 with up to 2 replicas, 4, …, 32 with up to 3).
  CHECK(plans.at("considered") == 6 * (1 + 2 + 4 * 3));
  CHECK(plans.at("configured").at("replicas") == 1);
  CHECK_THAT(plans.at("yaml").get<std::string>(),
             Contains("# servers: [HOST:PORT+HOST:PORT+HOST:PORT]\n"));
  CHECK(askJson(planArguments(client, server, kFastLink)).at("plans").at(0).at("replicas") == 1);

  // The plan is the prediction of simulate, and the run has the plan's needs.
  const Arguments addresses = {"--set", "servers=[a:1+b:1+c:1]", "--set",
                               "model.cuts=" + best.at("cuts").dump()};
  Arguments same = planArguments(client, server, with(kFastLink, addresses));
  same.front() = "simulate";
  const nlohmann::json cases =
      askJson(with(same, {"--micro-batches", best.at("micro_batches").dump()}));
  const std::string schedule = best.at("schedule");
  CHECK(cases.at("cases").at(0).at("schedules").at(schedule).at("seconds").get<double>() ==
        Approx(best.at("seconds").get<double>()));
  checkSameNeeds(dryRunOf(best, with(addresses, {"--set", "codec=none"})), best);
  const auto simulated = [&](const Arguments& more) {
    return askJson(with(same, more)).at("cases").at(0);
  };
  // With one micro-batch in flight, each of the 4 passes forward and backward alone.
  const Arguments trained = {"--set", "model.cuts=[2, 5]", "--micro-batches", "4"};
  const auto secondsOf = [](const nlohmann::json& one) {
    return one.at("schedules").at("priority").at("seconds").get<double>();
  };
  const double together = secondsOf(simulated(trained));
  const double alone = secondsOf(simulated(with(trained, {"--in-flight", "1"})));
  CHECK(alone >= 4 * 40e-3);
  CHECK(alone > together * 1.01);
  // The strict order of 1f1b would wait for a micro-batch that the client cannot send yet.
  for (const auto& steady : simulated(with(trained, {"--staleness", "2"})).at("steady")) {
    CHECK(steady.at("schedule") != "1f1b");
  }
  const Ended few = ask(with(same, {"--micro-batches", "2"}));
  CHECK(few.code == 2);
  CHECK_THAT(few.errors, Contains("[bad-run-spec]") && Contains("hint: set train.micro_batches"));

  const Ended latencies = ask(with(same, {"--latency", "1ms,2ms,3ms"}));
  CHECK(latencies.code == 2);
  CHECK_THAT(latencies.errors, Contains("replicas of a body share one"));
  // A last batch of 2 samples has no micro-batch for a third replica.
  const nlohmann::json rest =
      askJson(planArguments(client, server, with(three, {"--set", "data.train.size=130"})));
  CHECK(rest.at("plans").at(0).at("replicas") == 2);
  // The plan of a run with replicas may have none.
  const nlohmann::json without =
      askJson(planArguments(client, server, with(kFastLink, with(addresses, {"--replicas", "1"}))));
  CHECK_THAT(without.at("yaml").get<std::string>(), Contains("# servers: [HOST:PORT]\n"));

  // On a slow network of the servers, the sum of the gradients takes longer than replicas save.
  const nlohmann::json slow =
      askJson(planArguments(client, server, with(three, {"--edge-rate", "10kbit/s"})));
  CHECK(slow.at("plans").at(0).at("replicas") == 1);
}

TEST_CASE("with more servers than configured, the first and the last cut keep their codecs") {
  const TemporaryFolder folder;
  const std::string client = writeProfile(folder, "client", {0, 1, 500, 500, 0, 1});
  const std::string server = writeProfile(folder, "server", {0, 0, 20, 20, 0, 0});
  const nlohmann::json plans = askJson(
      planArguments(client, server,
                    with(kFastLink, {"--server-profile", server, "--set",
                                     "codec={activation/0: block:bits=4, activation/1: none, "
                                     "gradient/1: block:bits=4, gradient/0: none}"})));
  const nlohmann::json& best = plans.at("plans").at(0);
  REQUIRE(best.at("cuts").size() == 3);
  CHECK(best.at("codecs") == nlohmann::json({{"activation/0", "block:bits=4"},
                                             {"activation/1", "none"},
                                             {"activation/2", "none"},
                                             {"gradient/2", "block:bits=4"},
                                             {"gradient/1", "block:bits=4"},
                                             {"gradient/0", "none"}}));
}

TEST_CASE("a configuration with two servers is compared with its plans") {
  const TemporaryFolder folder;
  const std::string profile = writeProfile(folder, "profile", {0, 1, 0, 1, 0, 1});
  const nlohmann::json plans =
      askJson(planArguments(profile, profile,
                            with(kFastLink, {"--set", "model.cuts=[1, 3, 5]", "--server-memory",
                                             "100MiB", "--keep-cuts"})));
  CHECK(plans.at("configured").at("cuts") == nlohmann::json({1, 3, 5}));
  CHECK(plans.at("plans").at(0).at("cuts") == nlohmann::json({1, 3, 5}));
  CHECK(plans.at("considered") == 6);
}

Arguments exportedModel(const std::string& cuts, const std::string& more = "",
                        const std::string& file = "tiny") {
  return {"--set", "codec=none", "--set",
          "model={name: graph, file: " CLEAVE_SOURCE_DIR "/tests/data/" + file + ".pt2, cuts: [" +
              cuts + "]" + more + "}"};
}

// Profiles of both sides.
struct Profiles {
  std::string client, server;
  std::vector<std::string> blocks, ofServer;  // names
};

Profiles profileBoth(const TemporaryFolder& folder, const Arguments& model) {
  Profiles profiles{folder.path("client.json"), folder.path("server.json"), {}, {}};
  const nlohmann::json client = askJson(with(with(with({"profile"}, kConfig), model),
                                             {"--output", profiles.client, "--repeat", "1"}));
  const Ended ended =
      finish(Process::start({serverProgram(), "profile", "--of", profiles.client, "--output",
                             profiles.server, "--repeat", "1", "--json", "--log-level", "error"}));
  INFO(ended.errors);
  REQUIRE(ended.code == 0);
  const nlohmann::json server = nlohmann::json::parse(ended.output);
  for (const auto& block : client.at("blocks")) profiles.blocks.push_back(block.at("name"));
  for (const auto& block : server.at("blocks")) profiles.ofServer.push_back(block.at("name"));
  return profiles;
}

Arguments planOf(const Profiles& profiles, const Arguments& model, const Arguments& more) {
  return with(with(with({"plan"}, kConfig), model),
              with({"--profile", profiles.client, "--server-profile", profiles.server}, more));
}

TEST_CASE("a plan chooses the cuts of an exported model by name, and the run has its memory") {
  const TemporaryFolder folder;
  // Two tensors cross the cuts block.0 and block. A plan may choose block.0 because it is
  // configured.
  const Arguments model = exportedModel("conv, block.0");
  const Profiles profiles = profileBoth(folder, model);
  CHECK(profiles.blocks ==
        std::vector<std::string>{"conv", "norm", "block.0", "pool", "dropout", "(rest)"});
  CHECK(profiles.ofServer == std::vector<std::string>{"norm", "block.0", "pool", "dropout"});
  const Arguments link = {"--rate", "100Mbit/s", "--latency", "1ms"};
  const nlohmann::json plans = askJson(planOf(profiles, model, link));
  CHECK(plans.at("considered") == 10 * 6);  // pairs of cuts x 1, 2, 4, …, 32 micro-batches
  CHECK(plans.at("configured").at("cuts") == nlohmann::json({"conv", "block.0"}));
  CHECK_THAT(plans.at("servers_learn").get<std::string>(),
             Contains("From activation/0 (codec none), the server can reconstruct the inputs; from "
                      "gradient/1 (codec none), it can tell the labels."));
  const nlohmann::json& best = plans.at("plans").at(0);
  const std::string first = best.at("cuts").at(0), last = best.at("cuts").at(1);
  CHECK_THAT(plans.at("yaml").get<std::string>(), Contains("cuts: [" + first + ", " + last + "]"));
  checkSameNeeds(dryRunOf(best, exportedModel(first + ", " + last)), best);

  // The prediction is that of simulate for other cuts of the same profile.
  Arguments same = planOf(profiles, exportedModel(first + ", " + last), link);
  same.front() = "simulate";
  const nlohmann::json cases =
      askJson(with(same, {"--micro-batches", best.at("micro_batches").dump()}));
  CHECK(cases.at("best").at("seconds").get<double>() ==
        Approx(best.at("seconds").get<double>()).epsilon(0.05));

  const nlohmann::json kept = askJson(planOf(profiles, model, with(link, {"--keep-cuts"})));
  CHECK(kept.at("plans").at(0).at("cuts") == nlohmann::json({"conv", "block.0"}));
  CHECK_THAT(kept.at("yaml").get<std::string>(), !Contains("cuts"));
}

TEST_CASE("plans have the memory that a model's evaluation graph needs") {
  std::map<std::string, double> needed;  // by file
  for (const std::string file : {"modes", "modes_training"}) {
    const TemporaryFolder folder;
    const Arguments model = exportedModel("first, middle", "", file);
    const Profiles profiles = profileBoth(folder, model);
    const nlohmann::json plans = askJson(
        planOf(profiles, model, {"--rate", "100Mbit/s", "--latency", "1ms", "--keep-cuts"}));
    const nlohmann::json& plan = plans.at("plans").at(0);
    checkSameNeeds(dryRunOf(plan, model), plan);
    // The best plan's number of micro-batches depends on measured times.
    nlohmann::json fixed = plan;
    fixed["micro_batches"] = fixed["in_flight"] = 4;
    needed[file] = dryRunOf(fixed, model).at("server_memory_bytes").at(0);
  }
  // In evaluation, `middle` makes a tensor of 16 x 64 floats per sample.
  CHECK(needed.at("modes") > needed.at("modes_training"));
}

TEST_CASE("a plan divides an exported model among several servers") {
  const TemporaryFolder folder;
  const Arguments model = exportedModel("conv, norm, pool");
  const Profiles profiles = profileBoth(folder, model);
  const Arguments link = {"--rate", "100Mbit/s",        "--latency",
                          "1ms",    "--server-profile", profiles.server};
  const nlohmann::json kept = askJson(planOf(profiles, model, with(link, {"--keep-cuts"})));
  const nlohmann::json& best = kept.at("plans").at(0);
  CHECK(best.at("cuts") == nlohmann::json({"conv", "norm", "pool"}));
  const nlohmann::json used = dryRunOf(best, model);
  checkNeeds(used.at("client_memory_bytes"), best.at("client_memory_bytes"));
  const auto memory = used.at("server_memory_bytes").get<std::vector<double>>();
  checkNeeds(*std::max_element(memory.begin(), memory.end()), best.at("server_memory_bytes"));
  const nlohmann::json plans = askJson(planOf(profiles, model, link));
  CHECK(plans.at("considered") > 2 * kept.at("considered").get<int>());
  CHECK(plans.at("plans").at(0).at("seconds").get<double>() <=
        1.05 * best.at("seconds").get<double>());
}

TEST_CASE("an exported model with learned inserts, or adapters in one part, keeps its cuts") {
  const TemporaryFolder folder;
  const Arguments inserts =
      with(exportedModel("conv, pool"), {"--set", "insert=[{cut: 0, kind: conv, channels: 2}]"});
  const Profiles profiles = profileBoth(folder, inserts);
  CHECK(profiles.blocks == std::vector<std::string>{"conv", "pool", "(rest)"});
  CHECK(profiles.ofServer == std::vector<std::string>{"pool"});
  const nlohmann::json plans = askJson(planOf(profiles, inserts, kFastLink));
  CHECK(plans.at("plans").at(0).at("cuts") == nlohmann::json({"conv", "pool"}));
  const Arguments adapters =
      exportedModel("conv, pool", ", lora: {rank: 2, targets: [classifier], parts: [tail]}");
  CHECK(profileBoth(folder, adapters).blocks.size() == 3);
}

TEST_CASE("a profile of other cuts or of another model is refused with a hint") {
  const TemporaryFolder folder;
  const Profiles profiles = profileBoth(folder, exportedModel("conv, pool"));
  const auto refused = [&](const Arguments& arguments, const std::string& sentence) {
    const Ended ended = ask(arguments);
    INFO(ended.errors);
    CHECK(ended.code == 2);
    CHECK_THAT(ended.errors, Contains(sentence) && Contains("hint: "));
  };
  refused(planOf(profiles, exportedModel("conv, block.0"), kFastLink),
          "does not have the cut after block.0");
  const std::string builtIn = writeProfile(folder, "profile", {0, 1, 0, 1, 0, 1});
  refused(planOf({builtIn, builtIn, {}, {}}, exportedModel("conv, pool"), kFastLink),
          "a profile is of another model");
}

TEST_CASE("a lossy codec is chosen only if it makes a step shorter") {
  const TemporaryFolder folder;
  const std::string profile = writeProfile(folder, "profile", {0, 1, 0, 1, 0, 1});
  const Arguments codecs = {"--codec", "none", "--codec", "block:bits=4"};
  const nlohmann::json fast = askJson(planArguments(profile, profile, with(kFastLink, codecs)));
  CHECK(fast.at("plans").at(0).at("codecs").at("activation/0") == "none");
  const nlohmann::json slow = askJson(
      planArguments(profile, profile, with({"--rate", "100kbit/s", "--latency", "0"}, codecs)));
  CHECK(slow.at("plans").at(0).at("codecs").at("activation/0") == "block:bits=4");
  CHECK(slow.at("plans").at(0).at("codecs").at("gradient/0") == "block:bits=4");
}

TEST_CASE("a plan uses staleness only if it is allowed and shortens the step") {
  const TemporaryFolder folder;
  const std::string client = writeProfile(folder, "client", {0, 1, 0, 1, 0, 1});
  const std::string server = writeProfile(folder, "server", {0, 5, 0, 5, 0, 0});
  const Arguments slow = {"--rate", "unlimited", "--latency", "50ms", "--keep-cuts"};
  const nlohmann::json alone = askJson(planArguments(client, server, slow));
  CHECK(alone.at("plans").at(0).at("staleness") == 0);
  CHECK(alone.at("considered") == 6);
  // The path of a micro-batch, 4 x 50 ms and more, takes up to 4 steps.
  const Arguments overlapping = with(slow, {"--staleness", "3"});
  const nlohmann::json plans = askJson(planArguments(client, server, overlapping));
  const nlohmann::json& best = plans.at("plans").at(0);
  CHECK(best.at("staleness") == 3);
  CHECK(plans.at("considered") == 4 * 6);  // D = 0, 1, 2, 3
  CHECK(best.at("seconds").get<double>() >= 50e-3);
  CHECK(best.at("seconds").get<double>() < 75e-3);
  CHECK(best.at("bottleneck") == "latency");
  CHECK(best.at("seconds") >= best.at("bound_seconds").get<double>() * (1 - 1e-9));
  CHECK_THAT(plans.at("yaml").get<std::string>(), Contains("staleness: 3"));
  // The configured staleness is allowed, and the configuration is predicted with it.
  const nlohmann::json configured =
      askJson(planArguments(client, server, with(slow, {"--set", "train.staleness=3"})));
  CHECK(configured.at("plans").at(0) == best);
  CHECK(configured.at("configured").at("seconds").get<double>() <
        0.5 * alone.at("configured").at("seconds").get<double>());
  // The plan is the prediction of simulate for the same settings.
  Arguments same = planArguments(client, server, {"--rate", "unlimited", "--latency", "50ms"});
  same.front() = "simulate";
  const nlohmann::json cases =
      askJson(with(same, {"--staleness", "3", "--micro-batches", best.at("micro_batches").dump()}));
  const nlohmann::json& steady = cases.at("cases").at(0).at("steady");
  const auto planned = std::find_if(steady.begin(), steady.end(), [&](const nlohmann::json& each) {
    return each.at("schedule") == best.at("schedule");
  });
  REQUIRE(planned != steady.end());
  CHECK(planned->at("seconds").get<double>() == Approx(best.at("seconds").get<double>()));
  // Without latency, one server is always busy, and overlapping steps gain nothing.
  const nlohmann::json fast = askJson(
      planArguments(client, server, {"--rate", "unlimited", "--latency", "0", "--staleness", "3"}));
  CHECK(fast.at("plans").at(0).at("staleness") == 0);
}

TEST_CASE("a plan for a cohort counts the links and the tensors of all members") {
  const TemporaryFolder folder;
  const std::string client = writeProfile(folder, "client", {0, 1, 0, 1, 0, 1});
  const std::string server = writeProfile(folder, "server", {0, 1, 0, 1, 0, 0});
  const Arguments slow = {"--rate", "100Mbit/s", "--latency", "1ms", "--keep-cuts"};
  const nlohmann::json alone = askJson(planArguments(client, server, slow)).at("configured");
  const Arguments four = with(slow, {"--set", "cohort={id: c, members: [a, b, c, d], member: a}"});
  const nlohmann::json plans = askJson(planArguments(client, server, four));
  const nlohmann::json& together = plans.at("configured");
  CHECK(together.at("bytes_up").get<double>() == Approx(alone.at("bytes_up").get<double>() / 4));
  CHECK(together.at("server_memory_bytes") > alone.at("server_memory_bytes"));
  CHECK(plans.at("plans").at(0).at("seconds") <= together.at("seconds"));
}

TEST_CASE("plans that do not fit into memory are left out") {
  const TemporaryFolder folder;
  const std::string profile = writeProfile(folder, "profile", {0, 1, 0, 1, 0, 1});
  const auto memoryOf = [&](const Arguments& more) {
    const nlohmann::json plans = askJson(planArguments(profile, profile, with(kFastLink, more)));
    double max = 0;
    for (const nlohmann::json& plan : plans.at("plans")) {
      max = std::max(max, plan.at("server_memory_bytes").get<double>());
    }
    return max;
  };
  const double all = memoryOf({});
  const auto limit = static_cast<std::uint64_t>(all) - 1;
  const double less = memoryOf({"--server-memory", std::to_string(limit) + "B"});
  CHECK(less <= static_cast<double>(limit));
  const Ended none =
      ask(planArguments(profile, profile, with(kFastLink, {"--client-memory", "1KiB"})));
  CHECK(none.code == 2);
  CHECK_THAT(none.errors, Contains("[no-plan]") && Contains("hint: lower train.batch"));
}

TEST_CASE("plan shows a table and the keys to change") {
  const TemporaryFolder folder;
  const std::string profile = writeProfile(folder, "profile", {0, 1, 0, 1, 0, 1});
  const Ended shown = ask(planArguments(profile, profile, kFastLink));
  REQUIRE(shown.code == 0);
  CHECK_THAT(shown.output, Contains("  best ") && Contains("  configured ") &&
                               Contains("\nmodel:\n  cuts: [") && Contains("\ntrain:\n"));
}

// Three layers: only the first one has few parameters, and it takes as long as the others together.
std::string writeGraph(const TemporaryFolder& folder) {
  std::ofstream file(folder.path("graph.txt"));
  const auto node = [&](const char* id, double milliseconds, double parameterBytes) {
    file << id << " -- Linear -- forward_compute_time=" << milliseconds
         << ", backward_compute_time=" << milliseconds
         << ", activation_size=1000000.000, parameter_size=" << parameterBytes << "\n";
  };
  node("node1", 10, 1e6);
  node("node2", 5, 100e6);
  node("node3", 5, 100e6);
  file << "\tnode1 -- node2\n\tnode2 -- node3\n";
  return folder.path("graph.txt");
}

TEST_CASE("a model is divided among the workers of a cluster") {
  const TemporaryFolder folder;
  // Each of the two workers of a machine has 1 GB/s.
  const Arguments arguments = {"plan",   "--workers", "2x2", "--profile", writeGraph(folder),
                               "--rate", "16Gbit/s"};
  const nlohmann::json plan =
      askJson(with(arguments, {"--batch", "32", "--epoch-samples", "32000"}));
  CHECK(plan.at("configuration") == "2-1-1");
  const double seconds = (20e-3 + 1e6 / 1e9) / 2, parallel = (40e-3 + 1.5 * 201e6 / 1e9) / 4;
  CHECK(plan.at("seconds_per_batch").get<double>() == Approx(seconds));
  CHECK(plan.at("speed_up").get<double>() == Approx(parallel / seconds));
  CHECK(plan.at("bytes_per_batch").get<double>() == Approx(1e6 + 2 * 2e6));
  CHECK(plan.at("seconds_per_epoch").get<double>() == Approx(1000 * seconds));
  CHECK(plan.at("stages").at(1) == nlohmann::json({{"first", "node2 Linear"},
                                                   {"last", "node2 Linear"},
                                                   {"layers", 1},
                                                   {"workers", 1},
                                                   {"memory_bytes", 3 * 100e6 + 2 * 1e6}}));
  CHECK(plan.at("data_parallel").at("bytes_per_batch").get<double>() == Approx(1.5 * 201e6));

  const Ended shown = ask(arguments);
  CHECK_THAT(shown.output,
             Contains("configuration  2-1-1: 3 stages on 4 workers, 8 Gbit/s per worker\n") &&
                 Contains("data parallel"));
  // Inside one machine, each worker has a link of its own.
  const nlohmann::json inside =
      askJson({"plan", "--workers", "1x2", "--profile", folder.path("graph.txt"), "--rate",
               "1Mbit/s", "--inside-rate", "unlimited"});
  CHECK(inside.at("configuration") == "2");
}

TEST_CASE("errors of a plan for workers have a hint") {
  const TemporaryFolder folder;
  const std::string graph = writeGraph(folder);
  const auto refused = [&](const std::string& workers, const Arguments& more,
                           const std::string& sentence) {
    const Ended ended =
        ask(with({"plan", "--workers", workers, "--profile", graph, "--rate", "1Gbit/s"}, more));
    CHECK(ended.code == 2);
    CHECK_THAT(ended.errors, Contains(sentence));
  };
  for (const char* workers : {"4", "0x4", "4x", "x4", "-1x4", "4x4x4", "4x2000"}) {
    refused(workers, {}, "is not a number of workers");
  }
  refused("2x2", {"--replicas", "1"}, "cannot use 4 workers");
  refused("100x100", {}, "hint: give at most 5461 workers");
  refused("2x2", {"--latency", "1ms"}, "--latency");
  CHECK_THAT(ask({"plan", "--profile", graph, "--rate", "1Gbit/s"}).errors,
             Contains("--config is required"));
}

TEST_CASE("errors of plan and profile have a hint") {
  const TemporaryFolder folder;
  const std::string profile = writeProfile(folder, "profile", {0, 1, 0, 1, 0, 1});
  const auto refused = [&](const Arguments& arguments, const std::string& sentence) {
    const Ended ended = ask(arguments);
    INFO(ended.errors);
    CHECK(ended.code == 2);
    CHECK_THAT(ended.errors, Contains(sentence) && Contains("hint: "));
  };
  refused(planArguments(profile, folder.path("none"), kFastLink), "cannot be read");
  refused(planArguments(profile, profile, {"--rate", "1Mbit/s", "--latency", "1ms,2ms"}),
          "--latency has 2 values");
  refused(planArguments(profile, profile, with(kFastLink, {"--codec", "fp16"})),
          "does not have the codec 'fp16'");
  refused(planArguments(profile, profile, with(kFastLink, {"--set", "model.depth=3"})),
          "does not have the blocks");
  refused(planArguments(profile, profile, with(kFastLink, {"--set", "model.width=64"})),
          "has an output of 128 B per sample");
  const Ended server = finish(Process::start(
      {serverProgram(), "profile", "--of", profile, "--output", folder.path("server.json")}));
  CHECK(server.code == 2);
  CHECK_THAT(server.errors, Contains("hint: "));
}

}  // namespace
}  // namespace cleave::test
