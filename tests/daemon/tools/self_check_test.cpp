// Client and server report their computing capabilities at startup, and runs record them.
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "tests/daemon/daemons.h"

namespace cleave::test {
namespace {

using Catch::Matchers::Contains;

const char* const kLine = "self-check: ";

std::size_t count(const std::string& text, const std::string& what) {
  std::size_t found = 0;
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) {
    ++found;
  }
  return found;
}

nlohmann::json checkOf(const std::string& runFolder) {
  return nlohmann::json::parse(readFile(runFolder + "/environment.json")).at("self_check");
}

TEST_CASE("each program logs the self-check once and records it in every run's environment.json") {
  const TemporaryFolder folder;
  TestServer server(folder);
  CHECK(server.process().waitForOutput("info cleave-server: self-check: ", kPatience));
  for (const char* command : {"train", "verify"}) {
    const std::string client = folder.path(command);
    const Ended ended = runClient(command, client, {"--server", server.address()});
    REQUIRE(ended.code == 0);
    const bool isQuiet = command == std::string("verify");  // such commands log only warnings
    CHECK(count(ended.errors, "info cleave-client: self-check: ") == (isQuiet ? 0 : 1));
    const nlohmann::json check = checkOf(client);
    CHECK(check.at("threads") ==
          nlohmann::json::parse(readFile(client + "/environment.json")).at("threads"));
    CHECK(check.at("sgemm_gigaflops_per_second") > 0);
    CHECK(check.at("copy_gigabytes_per_second") > 0);
    CHECK(check.at("seconds") > 0);
    CHECK_FALSE(check.at("instruction_set").get<std::string>().empty());
  }
  CHECK(count(server.process().errors(), "info cleave-server: self-check: ") == 1);
  REQUIRE(server.runFolders().size() == 2);
  CHECK(checkOf(server.runFolders()[0]) == checkOf(server.runFolders()[1]));
}

TEST_CASE("a LibTorch that does not use the processor's vector instructions gives a warning") {
  const TemporaryFolder folder;
  const auto environment = [&] {
    const std::string client = folder.path("plain");
    REQUIRE(runClient("train", client, {"--set", "train.max_steps=1"}).code == 0);
    return nlohmann::json::parse(readFile(client + "/environment.json"));
  }();
  const auto& flags = environment.at("cpu").at("flags");
  if (std::find(flags.begin(), flags.end(), "avx2") == flags.end()) return;
  const Ended ended = finish(Process::start(
      {clientProgram(), "train", "--config", configFile("synthetic.yaml"), "--run-dir",
       folder.path("slow"), "--set", "train.max_steps=1", "--set", "eval.every=0"},
      {{"ATEN_CPU_CAPABILITY", "default"}}));
  CHECK(ended.code == 0);
  CHECK_THAT(ended.errors, Contains(std::string("warning cleave-client: ") + kLine) &&
                               Contains("unset ATEN_CPU_CAPABILITY"));
  CHECK(checkOf(folder.path("slow")).at("instruction_set") == "DEFAULT");
}

}  // namespace
}  // namespace cleave::test
