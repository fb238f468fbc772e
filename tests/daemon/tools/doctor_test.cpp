// `cleave-client doctor`: its findings about machines, data and servers, with and without faults.
#include <catch2/catch.hpp>
#include <filesystem>

#include "tests/daemon/daemons.h"
#include "tests/daemon/mistakes.h"
#include "tests/support/network/certificates.h"

namespace cleave::test {
namespace {

using Catch::Matchers::Contains;
using Json = nlohmann::json;

Ended doctor(const Arguments& more) {
  Arguments all = {"doctor", "--seconds", "0.2"};
  all.insert(all.end(), more.begin(), more.end());
  return ask(all);
}

struct Report {
  int code = -1;
  Json json;
  // The check with that name. Fails the test unless there is one.
  Json at(const std::string& name) const {
    for (const Json& check : json.at("checks")) {
      if (check.at("check") == name) return check;
    }
    FAIL("there is no check " << name << " in " << json.dump(2));
    return {};
  }
  std::string finding(const std::string& name) const { return at(name).at("finding"); }
  std::string sentence(const std::string& name) const { return at(name).at("sentence"); }
  std::string hint(const std::string& name) const { return at(name).at("hint"); }
};

Report report(Arguments more) {
  more.emplace_back("--json");
  const Ended ended = doctor(more);
  INFO(ended.errors);
  CHECK(ended.errors.empty());
  return {ended.code, Json::parse(ended.output)};
}

// Both results are accepted, because the test must not depend on the machine's speed.
bool isWell(const std::string& finding) { return finding == "ok" || finding == "warn"; }

TEST_CASE("doctor finds no problems with a good server, and reports its measurements") {
  const TemporaryFolder folder;
  const CertificateFolder certificates;
  const TestAuthority authority;
  authority.writeServer(certificates.path("server"));
  authority.write(certificates.path("alice"), "client", clientRequest());
  TestServer server(
      folder, {"--set", "tls.enabled=true", "--set", "tls.folder=" + certificates.path("server")});
  const Arguments arguments = {"--server",  server.address(),
                               "--tls",     certificates.path("alice"),
                               "--config",  configFile("synthetic.yaml"),
                               "--run-dir", folder.path("run")};
  const Report found = report(arguments);
  INFO(found.json.dump(2));
  CHECK(found.code == 0);
  CHECK(found.json.at("failures") == 0);
  for (const char* name :
       {"config", "data", "run", "device", "certificates", "reach", "tls", "server", "admission"}) {
    INFO(name);
    CHECK(found.finding(name) == "ok");
    CHECK(found.hint(name).empty());
  }
  const bool isReliable = found.sentence("link").find("unreliable") == std::string::npos;
  CHECK(found.finding("link") == (isReliable ? "ok" : "warn"));
  CHECK(found.hint("link").empty() == isReliable);
  for (const char* name : {"libtorch", "threads", "memory", "disk"}) {
    INFO(name);
    CHECK(isWell(found.finding(name)));
  }
  CHECK(found.finding("privacy") == "skipped");
  CHECK_THAT(found.sentence("privacy"), Contains("the server can reconstruct the inputs"));
  CHECK(found.at("data").at("figures").at("train_samples") == 2048);
  CHECK(found.at("libtorch").at("figures").at("sgemm_gigaflops_per_second") > 0);
  CHECK(found.at("memory").at("figures").at("needed_bytes") > 1000);
  CHECK(found.at("disk").at("figures").at("free_bytes") > 0);
  CHECK_THAT(found.sentence("certificates"), Contains("belongs to alice and expires on "));
  CHECK(found.at("certificates").at("figures").at("days_left").get<double>() ==
        Approx(30).margin(0.1));
  CHECK_THAT(found.sentence("server"), Contains("cleave ") && Contains("wire format version 6"));
  CHECK(found.at("link").at("figures").at("round_trip_seconds") > 0);
  CHECK(found.at("admission").at("figures").at("device") == "cpu");
  CHECK_THAT(found.sentence("link"),
             Contains("up ") && Contains(", down ") && Contains(" one way"));

  const Ended lines = doctor(arguments);
  CHECK(lines.code == 0);
  CHECK_THAT(lines.output, Contains("ok    certificates  ") && Contains("  link          up ") &&
                               Contains("\n0 failures, "));
  CHECK_FALSE(std::filesystem::exists(folder.path("run")));
}

TEST_CASE("doctor without a server or a configuration checks the machine") {
  const Report found = report({});
  CHECK(found.code == 0);
  for (const char* name : {"config", "data", "certificates", "reach"}) {
    CHECK(found.finding(name) == "skipped");
  }
  CHECK(isWell(found.finding("libtorch")));
}

TEST_CASE("doctor continues after a failure and exits with 1") {
  const TemporaryFolder folder;
  const Report found =
      report({"--server", "127.0.0.1:1", "--config", configFile("cifar10.yaml"), "--set",
              "data.folder=" + folder.path("nothing"), "--run-dir", "/proc/runs"});
  INFO(found.json.dump(2));
  CHECK(found.code == kFailedRun);
  CHECK(found.json.at("failures") == 3);
  CHECK(found.finding("config") == "ok");
  CHECK(found.finding("data") == "FAIL");
  CHECK_THAT(found.sentence("data"), Contains("nothing/data_batch_1.bin cannot be read"));
  CHECK_FALSE(found.hint("data").empty());
  CHECK(isWell(found.finding("libtorch")));
  CHECK(found.finding("disk") == "FAIL");
  CHECK_THAT(found.hint("disk"), Contains("--run-dir"));
  CHECK(found.finding("reach") == "FAIL");
  CHECK_THAT(found.sentence("reach"), Contains("cannot connect to 127.0.0.1:1"));
  CHECK_THAT(found.hint("reach"), Contains("cleave-server serve"));
}

TEST_CASE("doctor distinguishes a wrong configuration from wrong data") {
  const TemporaryFolder folder;
  const Report mistyped =
      report({"--config", configFile("synthetic.yaml"), "--set", "train.batchs=1"});
  CHECK(mistyped.code == kFailedRun);
  CHECK_THAT(mistyped.sentence("config"), Contains("did you mean train.batch?"));
  CHECK(mistyped.finding("data") == "skipped");
  const Report cuts =
      report({"--config", configFile("synthetic.yaml"), "--set", "model.cuts=[3, 90]"});
  CHECK(cuts.code == kFailedRun);
  CHECK(cuts.finding("data") == "ok");
  CHECK(cuts.finding("run") == "FAIL");
  CHECK_THAT(cuts.sentence("run"), Contains("cuts 3 and 90"));
  CHECK(cuts.json.at("failures") == 1);
  CHECK_THAT(report({"--config", folder.path("none.yaml")}).sentence("config"),
             Contains("none.yaml"));
}

TEST_CASE("doctor reports invalid certificates and the reason of a refusal") {
  const TemporaryFolder folder;
  const CertificateFolder certificates;
  const TestAuthority authority;
  const TestAuthority other;
  authority.writeServer(certificates.path("server"));
  authority.write(certificates.path("ends"), "client",
                  {.names = "URI:cleave:client/bob", .endsInDays = 5});
  other.write(certificates.path("stranger"), "client", clientRequest());
  authority.write(certificates.path("exposed"), "client", clientRequest());
  std::filesystem::permissions(certificates.path("exposed") + "/client.key",
                               std::filesystem::perms(0644));
  TestServer server(
      folder, {"--set", "tls.enabled=true", "--set", "tls.folder=" + certificates.path("server")});

  const Report ends = report({"--server", server.address(), "--tls", certificates.path("ends")});
  CHECK(ends.code == 0);
  CHECK(ends.finding("certificates") == "warn");
  CHECK_THAT(ends.sentence("certificates"), Contains("expires on "));
  CHECK_THAT(ends.hint("certificates"), Contains("--renew"));
  CHECK(ends.finding("link") != "FAIL");  // "warn" on a busy machine

  const Report stranger =
      report({"--server", server.address(), "--tls", certificates.path("stranger")});
  CHECK(stranger.code == kFailedRun);
  CHECK(stranger.finding("certificates") == "ok");
  CHECK(stranger.finding("reach") == "ok");
  CHECK(stranger.finding("tls") == "FAIL");
  CHECK_THAT(stranger.sentence("tls"), Contains("not from a CA that is trusted"));

  const Report exposed =
      report({"--server", server.address(), "--tls", certificates.path("exposed")});
  CHECK(exposed.code == kFailedRun);
  CHECK_THAT(exposed.sentence("certificates"), Contains("users other than its owner"));
  CHECK_THAT(exposed.hint("certificates"), Contains("chmod 600"));
  CHECK(exposed.finding("reach") == "skipped");

  const Report plain = report({"--server", server.address()});
  CHECK(plain.code == kFailedRun);
  CHECK(plain.finding("tls") == "FAIL");
  CHECK_THAT(plain.hint("tls"), Contains("--tls DIR"));
}

TEST_CASE("if the server allows no probes, doctor only warns that the link was not measured") {
  const TemporaryFolder folder;
  TestServer server(folder, {"--set", "probe.allowed=false"});
  const Report found = report({"--server", server.address()});
  CHECK(found.code == 0);
  CHECK(found.finding("server") == "ok");
  CHECK(found.finding("link") == "warn");
  CHECK_THAT(found.sentence("link"), Contains("does not allow probes"));
  CHECK(found.finding("tls") == "skipped");
}

TEST_CASE("doctor reports why the server would refuse the run") {
  const TemporaryFolder folder;
  TestServer server(folder, {"--set", "models.allow=[small_cnn]"});
  const Arguments arguments = {"--server", server.address(), "--config",
                               configFile("synthetic.yaml")};
  const Report found = report(arguments);
  CHECK(found.code == kFailedRun);
  CHECK(found.finding("link") != "FAIL");
  CHECK(found.finding("admission") == "FAIL");
  CHECK(found.at("admission").at("figures").at("code") == "model-not-allowed");
  CHECK_THAT(found.hint("admission"), Contains("models.allow"));
  CHECK(report({"--server", server.address()}).finding("admission") == "skipped");
}

TEST_CASE("mistakes with doctor are reported with a hint") {
  checkMistakes({clientProgram(), "doctor"},
                {{"no port", {"--server", "nowhere"}, kWrongUse, {"[bad-address]", "has no port"}},
                 {"no time", {"--seconds", "0"}, kWrongUse, {"--seconds"}}});
}

}  // namespace
}  // namespace cleave::test
