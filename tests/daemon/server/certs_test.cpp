// `cleave-server certs`: its output, whose last line is the next command to run, and its errors.
// Also checks that a server with unsafe settings does not start.
#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <filesystem>

#include "tests/daemon/mistakes.h"

namespace cleave::test {
namespace {

using Catch::Matchers::Contains;
using Catch::Matchers::EndsWith;

Ended certs(Arguments arguments) {
  arguments.insert(arguments.begin(), {serverProgram(), "certs"});
  return finish(Process::start(arguments));
}

// Fails the test unless the command exits with 0.
std::string done(const Arguments& arguments) {
  const Ended ended = certs(arguments);
  INFO(ended.errors);
  REQUIRE(ended.code == 0);
  CHECK(ended.errors.empty());
  return ended.output;
}

TEST_CASE("certs: each command prints the next one, from init to revoke") {
  const TemporaryFolder folder;
  const std::string certificates = folder.path("my certs");
  const std::string quoted = "--folder '" + certificates + "'\n";

  std::string output =
      done({"init", "--folder", certificates, "--name", "train.example.org", "--name", "::7"});
  CHECK_THAT(output, Contains("for train.example.org, ::7, localhost, 127.0.0.1, ::1"));
  CHECK_THAT(output, EndsWith("  cleave-server certs client NAME " + quoted));
  output = done({"list", "--folder", certificates});
  CHECK_THAT(output, Contains("authority") && Contains("server") &&
                         EndsWith("  cleave-server certs client NAME " + quoted));

  output = done({"client", "clinic-a", "--folder", certificates});
  CHECK_THAT(output, Contains("  scp -r '" + certificates + "/clients/clinic-a' CLIENT:certs\n") &&
                         EndsWith("--server train.example.org:4800 --tls certs\n"));
  CHECK(std::filesystem::exists(certificates + "/clients/clinic-a/client.key"));
  output = done({"list", "--folder", certificates});
  CHECK_THAT(output,
             Contains("clinic-a") && Contains("valid, 90 days left") &&
                 EndsWith("--set tls.enabled=true --set tls.folder='" + certificates + "'\n"));

  output = done({"client", "clinic-a", "--renew", "--folder", certificates});
  CHECK_THAT(output, EndsWith("  scp '" + certificates + "/clients/clinic-a'/* CLIENT:certs/\n"));
  output = done({"init", "--renew", "--folder", certificates});
  CHECK_THAT(output, EndsWith("  kill -HUP $(pidof cleave-server)\n"));
  CHECK_THAT(output, Contains("for train.example.org"));

  output = done({"revoke", "clinic-a", "--folder", certificates});
  CHECK_THAT(output, Contains("revoked 2 certificates of clinic-a") &&
                         EndsWith("  kill -HUP $(pidof cleave-server)\n"));
  output = done({"revoke", "clinic-a", "--folder", certificates});
  CHECK_THAT(output, Contains("every certificate of clinic-a is already revoked"));

  const auto json = nlohmann::json::parse(done({"list", "--json", "--folder", certificates}));
  CHECK(json["folder"] == certificates);
  std::vector<std::string> states;
  for (const auto& issued : json["certificates"]) {
    states.push_back(issued["kind"].get<std::string>() + " " + issued["name"].get<std::string>() +
                     " " + issued["state"].get<std::string>());
    CHECK(issued["serial"].get<std::string>().size() > 24);
    CHECK(issued["revoked"].is_null() == (issued["state"] != "revoked"));
  }
  CHECK(states == std::vector<std::string>{"authority authority valid", "server server valid",
                                           "server server valid", "client clinic-a revoked",
                                           "client clinic-a revoked"});
}

TEST_CASE("certs: mistakes are reported with a hint") {
  const TemporaryFolder folder;
  const std::string certificates = folder.path("certs");
  done({"init", "--folder", certificates});
  done({"client", "clinic-a", "--folder", certificates});
  const std::string readable = folder.path("readable");
  done({"init", "--folder", readable});
  REQUIRE(::chmod((readable + "/ca.key").c_str(), 0640) == 0);
  const std::string none = folder.path("none");
  checkMistakes(
      {serverProgram(), "certs"},
      {
          {"no command", {}, kWrongUse, {"a command is missing", "init, client, revoke, list"}},
          {"mistyped command", {"revok"}, kWrongUse, {"did you mean revoke?"}},
          {"no name", {"client"}, kWrongUse, {"NAME is required"}},
          {"init again",
           {"init", "--folder", certificates},
           kWrongUse,
           {"[certs-exist]", certificates + " already exists", "certs init --renew"}},
          {"a client again",
           {"client", "clinic-a", "--folder", certificates},
           kWrongUse,
           {"[certs-exist]", "clinic-a already has a certificate",
            "certs client clinic-a --renew"}},
          {"an invalid name",
           {"client", "../x", "--folder", certificates},
           kWrongUse,
           {"[bad-name]", "'../x' is not a valid name for a client", "such as clinic-a"}},
          {"a reserved name",
           {"client", "local", "--folder", certificates},
           kWrongUse,
           {"[bad-name]", "'local' is reserved"}},
          {"no host name",
           {"init", "--name", "a b", "--folder", none},
           kWrongUse,
           {"[bad-name]", "'a b' is neither a host name nor an IP address", "--name 192.0.2.7"}},
          {"revoke an unknown client",
           {"revoke", "clinic-b", "--folder", certificates},
           kWrongUse,
           {"[no-such-client]",
            "no certificate was made for the client clinic-b; did you mean clinic-a?"}},
          {"no folder",
           {"list", "--folder", none},
           kWrongUse,
           {"[no-certs]", none + " has no certificates", "cleave-server certs init"}},
          {"the authority's key is readable",
           {"client", "clinic-b", "--folder", readable},
           kWrongUse,
           {"[key-readable]", "ca.key: users other than its owner can read or write it (mode 0640)",
            "chmod 600"}},
          {"a folder that cannot be created",
           {"init", "--folder", "/proc/certs"},
           kFailedRun,
           {"[cannot-write]", "/proc/certs: cannot be created"}},
      });
  CHECK_FALSE(std::filesystem::exists(none));
}

TEST_CASE("certs: every command's help has an example") {
  for (const std::string command : {"init", "client", "revoke", "list"}) {
    CHECK_THAT(done({command, "--help"}), Contains("Example:\n  cleave-server certs " + command));
  }
}

TEST_CASE("a server on a public address without TLS prints the commands that enable TLS") {
  const TemporaryFolder folder;
  for (const std::string address : {"0.0.0.0", "fd00::7", "192.0.2.1"}) {
    const Ended ended = finish(
        Process::start({serverProgram(), "serve", "--config", configFile("server.yaml"), "--set",
                        "listen.address=" + address, "--set", "store=" + folder.path("my store")}));
    checkError(ended, kWrongUse,
               {"[unsafe-bind]",
                "listening on " + address + " without TLS would let anyone who can reach it",
                "\n  cleave-server certs init --folder certs\n",
                "\n  cleave-server serve --config " + configFile("server.yaml") +
                    " --set listen.address=" + address +
                    " --set 'store=" + folder.path("my store") + "' --set tls.enabled=true\n"});
    CHECK_FALSE(std::filesystem::exists(folder.path("my store")));
  }
}

TEST_CASE("serve has no option that allows a public address without TLS") {
  const Ended ended = finish(Process::start({serverProgram(), "serve", "--insecure-bind"}));
  checkError(ended, kWrongUse, {"has no option '--insecure-bind'"});
}

}  // namespace
}  // namespace cleave::test
