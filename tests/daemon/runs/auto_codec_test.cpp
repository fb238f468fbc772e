// `codec: auto` with the real programs and an emulated link.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/daemon/daemons.h"

namespace cleave::test {
namespace {

using Catch::Matchers::Contains;
using nlohmann::json;

constexpr const char* kFlows[] = {"activation/0", "activation/1", "gradient/1", "gradient/0"};

class TestLink {
 public:
  explicit TestLink(Arguments arguments)
      : process_([&] {
          arguments.insert(arguments.begin(), std::string(CLEAVE_PROGRAMS) + "/cleave-link");
          return Process::start(arguments);
        }()) {
    REQUIRE(process_.waitForOutput("listening on ", kPatience));
    REQUIRE(process_.waitForOutput("\n", kPatience));
    const std::string output = process_.output();
    address_ = output.substr(output.rfind(' ') + 1);
    address_.pop_back();
  }
  const std::string& address() const { return address_; }

 private:
  Process process_;
  std::string address_;
};

// A run of 20 steps. Without a codec, a step sends 260 kB in each direction.
Arguments wideModel(const std::string& server) {
  return {"--server", server,
          "--set",    "model.width=1024",
          "--set",    "train.epochs=3",
          "--set",    "train.max_steps=20",
          "--set",    "train.learning_rate.peak=0.001",
          "--set",    "eval.every=0"};
}

Arguments withCodec(Arguments arguments, const std::string& codec) {
  arguments.insert(arguments.end(), {"--set", "codec=" + codec});
  return arguments;
}

std::string resolvedCodecs(const std::string& config) {
  const std::size_t begin = config.find("\ncodec:");
  REQUIRE(begin != std::string::npos);
  std::size_t end = begin + 1;
  do {
    end = config.find('\n', end) + 1;
  } while (end < config.size() && config[end] == ' ');
  return config.substr(begin + 1, end - begin - 1);
}

// The codec without the entropy coding that may wrap it.
std::string quantiser(const std::string& codec) {
  return codec.starts_with("rans(") ? codec.substr(5, codec.size() - 6) : codec;
}

// The bits per value of `block`, or of a codec that sends as many bytes.
int bitsOf(const std::string& codec) {
  const std::string name = "bits=";
  const double bits = std::stod(codec.substr(codec.find(name) + name.size()));
  return static_cast<int>(std::ceil(bits));
}

// Checks that each flow's chosen codec has nearly the highest SNR of those that were compared,
// unless a trial with the codecs of the highest SNR took longer.
void checkLeastNoisy(const json& summary) {
  const json& choice = summary.at("codec_choice");
  std::map<std::string, std::string> best;
  for (const auto& [flow, compared] : choice.at("snr_db").items()) {
    CHECK(compared.size() == 5);
    double highest = -1000;
    for (const auto& [spec, snr] : compared.items()) {
      if (snr.get<double>() > highest) best[flow] = spec;
      highest = std::max(highest, snr.get<double>());
    }
  }
  bool isTried = false;
  bool isUsed = true;
  for (const auto& [flow, spec] : best) {
    for (const json& trial : choice.at("trials")) {
      isTried = isTried || quantiser(trial.at("codec").at(flow)) == spec;
    }
    const json& compared = choice.at("snr_db").at(flow);
    const std::string codec = quantiser(summary.at("codec").at(flow));
    isUsed = isUsed && compared.at(codec).get<double>() > compared.at(spec).get<double>() - 1;
  }
  INFO(choice.dump(1));
  CHECK((isUsed || isTried));
}

// Sums up the bytes of the steps' tensors by flow and codec. Weights are excluded, because the
// number of fetches depends on the link.
std::map<std::string, double> tensorBytes(const std::string& folder) {
  std::map<std::string, double> bytes;
  for (const CsvRow& row : readCsv(folder + "/transfers.csv")) {
    if (row.at("flow") == "weights/body") continue;
    bytes[row.at("flow") + " " + row.at("codec")] += std::stod(row.at("raw_bytes"));
  }
  return bytes;
}

TEST_CASE("auto is lossless with a server that the client has started, unless a budget is given") {
  const TemporaryFolder folder;
  const Arguments all = wideModel("");
  const Arguments alone(all.begin() + 2, all.end());  // without --server
  const std::string lossless = folder.path("lossless"), limited = folder.path("limited");
  const Ended ended = runClient("train", lossless, withCodec(alone, "auto"));
  INFO(ended.errors);
  REQUIRE(ended.code == 0);
  REQUIRE(runClient("train", limited, withCodec(alone, "auto:max_ratio=0.3")).code == 0);
  CHECK(summaryOf(lossless).at("codec_choice").at("trials").empty());
  CHECK_FALSE(summaryOf(limited).at("codec_choice").at("trials").empty());
  for (const char* flow : kFlows) {
    CHECK(summaryOf(lossless).at("codec").at(flow) == "none");
    CHECK(summaryOf(limited).at("codec").at(flow) != "none");
  }
  CHECK_THAT(ended.errors, Contains("without a link in between"));
}

TEST_CASE(
    "auto is resolved in every record before step 1, and the run can be repeated bit-identically") {
  const TemporaryFolder folder;
  TestServer server(folder);
  const TestLink link({"--target", server.address(), "--rate", "30Mbit/s", "--latency", "1ms"});
  const std::string first = folder.path("first");
  const Ended ended = runClient("train", first, withCodec(wideModel(link.address()), "auto"));
  INFO(ended.errors);
  REQUIRE(ended.code == 0);

  const json summary = summaryOf(first);
  REQUIRE(summary.at("codec_choice").at("trials").size() >= 1);
  CHECK(summary.at("codec_choice").at("trials").at(0).at("codec").at("activation/0") ==
        "block:bits=8");
  const std::string config = readFile(first + "/config.yaml");
  CHECK_THAT(config, !Contains("auto"));
  std::string unquoted = resolvedCodecs(config);
  std::erase(unquoted, '"');
  for (const char* flow : kFlows) {
    const std::string codec = summary.at("codec").at(flow);
    CHECK_THAT(unquoted, Contains(std::string(flow) + ": " + codec));
    // The printed codecs can be pasted into a configuration.
    CHECK_THAT(ended.output, Contains(std::string(flow) + ": \"" + codec + "\""));
    CHECK_THAT(readFile(first + "/log.txt"), Contains(std::string(flow) + ": \"" + codec + "\""));
  }

  // If the same codecs are given explicitly, there is no trial, and the results are bit-identical.
  const std::string second = folder.path("second");
  const Ended repeated = ask({"train", "--config", first + "/config.yaml", "--server",
                              server.address(), "--run-dir", second});
  INFO(repeated.errors);
  REQUIRE(repeated.code == 0);
  CHECK_FALSE(summaryOf(second).contains("codec_choice"));
  CHECK(resolvedCodecs(readFile(second + "/config.yaml")) == resolvedCodecs(config));
  CHECK(readFile(second + "/model.safetensors") == readFile(first + "/model.safetensors"));
  CHECK(tensorBytes(second) == tensorBytes(first));
  CHECK(readCsv(first + "/steps.csv").size() == readCsv(second + "/steps.csv").size());

  // The server has only two runs: trials leave no records, and `auto` is never sent to the server.
  server.stop();
  CHECK(server.runFolders().size() == 2);
  for (const std::string& run : server.runFolders()) {
    CHECK_THAT(run, !Contains("trial"));
    CHECK_THAT(readFile(run + "/config.yaml"), !Contains("auto"));
    CHECK(tensorBytes(run) == tensorBytes(first));
  }
  // In the account of usage, trials have no names.
  const Ended usage = finish(Process::start(
      {serverProgram(), "usage", "--runs", "--json", "--set", "store=" + folder.path("store")}));
  const json runs = json::parse(usage.output).at("identities").at(0).at("runs");
  REQUIRE(runs.size() == 3);
  CHECK(std::count_if(runs.begin(), runs.end(), [](const json& run) {
          return run.at("run").get<std::string>().empty();
        }) == 1);
}

TEST_CASE("a slow link gets 4 bits, and fewer only if configured") {
  const TemporaryFolder folder;
  // The server does not allow fetching weights, because fetching the trained body would take
  // minutes at this rate.
  const TestServer server(folder, {"--set", "weights.fetch=false"});
  const TestLink link({"--target", server.address(), "--rate", "500kbit/s"});
  const std::pair<const char*, int> cases[] = {
      {"auto", 4}, {"auto:min_bits=2", 2}, {"auto:max_ratio=0.08", 2}};
  for (const auto& [spec, bits] : cases) {
    INFO(spec);
    bool isCompared = false;
    // On a busy machine, no time may be left to compare codecs.
    for (int attempt = 0; attempt < 5 && !isCompared; ++attempt) {
      const std::string run = folder.path("run");
      std::filesystem::remove_all(run);
      const Ended ended = runClient("train", run, withCodec(wideModel(link.address()), spec));
      INFO(ended.errors);
      REQUIRE(ended.code == 0);
      const json summary = summaryOf(run);
      // On a busy machine, only the flows of one direction may be slower than the computing.
      int least = 4;
      for (const char* flow : kFlows) {
        const int chosen = bitsOf(summary.at("codec").at(flow));
        CHECK(chosen <= 4);
        least = std::min(least, chosen);
      }
      CHECK(least == bits);
      isCompared = summary.at("codec_choice").contains("snr_db");
      if (isCompared) checkLeastNoisy(summary);
    }
    CHECK(isCompared);
  }
}

TEST_CASE("only the flows of a slow direction get lossier codecs, and configured codecs are kept") {
  const TemporaryFolder folder;
  const TestServer server(folder);
  const TestLink link({"--target", server.address(), "--up-rate", "500kbit/s"});
  const std::string run = folder.path("run");
  const Ended ended =
      runClient("train", run, withCodec(wideModel(link.address()), "{gradient/0: bf16}"));
  INFO(ended.errors);
  REQUIRE(ended.code == 0);
  const json codecs = summaryOf(run).at("codec");
  CHECK(bitsOf(codecs.at("activation/0")) == 4);
  CHECK(bitsOf(codecs.at("gradient/1")) == 4);
  CHECK((codecs.at("activation/1") == "none" || bitsOf(codecs.at("activation/1")) == 8));
  CHECK(codecs.at("gradient/0") == "bf16");
}

TEST_CASE("a run that is too short for a trial still chooses codecs and reports them") {
  const TemporaryFolder folder;
  const TestServer server(folder);
  const Ended ended = runClient(
      "train", folder.path("run"),
      {"--server", server.address(), "--set", "codec=auto", "--set", "train.max_steps=5"});
  REQUIRE(ended.code == 0);
  CHECK_THAT(ended.errors, Contains("too short"));
  CHECK(summaryOf(folder.path("run")).at("codec").at("activation/0") == "block:bits=8");
  CHECK_THAT(readFile(folder.path("run") + "/config.yaml"), !Contains("auto"));
}

TEST_CASE("a run whose codecs were chosen can be resumed") {
  const TemporaryFolder folder;
  const TestServer server(folder);
  const std::string run = folder.path("run");
  // Enough steps for two commits, even if the disk is busy.
  const Arguments arguments = {
      "--server", server.address(),          "--set", "codec=auto",
      "--set",    "train.epochs=100",        "--set", "train.max_steps=1500",
      "--set",    "checkpoint.every_steps=4"};
  const Process killed = startClient("train", run, arguments, failingAt("committed:2:kill"));
  REQUIRE(killed.wait(kPatience));
  REQUIRE_FALSE(std::filesystem::exists(run + "/summary.json"));
  const Ended ended = ask({"train", "--resume", run});
  INFO(ended.errors);
  REQUIRE(ended.code == 0);
  CHECK(summaryOf(run).at("resumes") == 1);
}

TEST_CASE("a trial needs no second session, and an unreachable server leaves no folder") {
  const TemporaryFolder folder;
  const TestServer server(folder, {"--set", "limits.sessions=1"});
  const Ended ended =
      runClient("train", folder.path("run"), withCodec(wideModel(server.address()), "auto"));
  INFO(ended.errors);
  CHECK(ended.code == 0);
  CHECK(summaryOf(folder.path("run")).at("codec_choice").at("trials").size() >= 1);

  const Ended refused = runClient("train", folder.path("none"),
                                  {"--server", "127.0.0.1:1", "--set", "connect.retry_seconds=0"});
  CHECK(refused.code == 1);
  CHECK_FALSE(std::filesystem::exists(folder.path("none")));
}

TEST_CASE("an error that no codec can change ends the search for codecs") {
  const TemporaryFolder folder;
  const TestServer server(folder, {"--set", "limits.action_seconds=0.5"});
  const Ended ended =
      runClient("train", folder.path("run"),
                with(withCodec(wideModel(server.address()), "auto"),
                     {"--set", "model={name: sleep, of: mlp, width: 1024, F2: 5000}"}));
  INFO(ended.errors);
  CHECK(ended.code == 1);
  CHECK_THAT(ended.errors, Contains("error [action-too-long]"));
  CHECK_THAT(ended.errors, !Contains("trial failed"));
  CHECK_FALSE(std::filesystem::exists(folder.path("run")));
}

TEST_CASE("without a run, auto is explained and nothing is tried") {
  const json plan = askJson(
      {"train", "--dry-run", "--config", configFile("synthetic.yaml"), "--server", "127.0.0.1:1"});
  for (const json& flow : plan.at("flows")) {
    CHECK(flow.at("codec").get<std::string>().starts_with("block:bits=8"));
    CHECK(flow.at("auto_chooses_among") == json({"none", "block:bits=8", "block:bits=4"}));
  }
  CHECK_THAT(plan.at("config").get<std::string>(), Contains("codec: auto"));
  // The client would start the server itself.
  const json alone = askJson({"train", "--dry-run", "--config", configFile("synthetic.yaml")});
  for (const json& flow : alone.at("flows")) {
    CHECK(flow.at("codec") == "none");
    CHECK(flow.at("auto_chooses_among").is_null());
  }
  const json given = askJson(
      {"train", "--dry-run", "--config", configFile("synthetic.yaml"), "--set", "codec=none"});
  for (const json& flow : given.at("flows")) CHECK(flow.at("auto_chooses_among").is_null());
  CHECK(ask({"train", "--dry-run", "--config", configFile("synthetic.yaml"), "--set",
             "codec=auto:min_bits=1"})
            .code == 2);
}

}  // namespace
}  // namespace cleave::test
