// The real programs within TLS: which clients are admitted, which are refused and what both sides
// report, and SIGHUP.
#include <catch2/catch.hpp>
#include <csignal>
#include <filesystem>
#include <fstream>

#include "tests/daemon/mistakes.h"
#include "tests/support/network/certificates.h"
#include "tests/support/network/relay.h"

namespace cleave::test {
namespace {

using Catch::Matchers::Contains;

Arguments tlsOf(const std::string& folder) {
  return {"--set", "tls.enabled=true", "--set", "tls.folder=" + folder};
}

// Runs the cheapest command of a client.
Ended probe(const TestServer& server, const Arguments& more,
            const std::string& host = "127.0.0.1") {
  Arguments all = {"probe",      "--server",  host + ":" + std::to_string(server.port()),
                   "--max-size", "1kB",       "--repeat",
                   "1",          "--seconds", "0.2"};
  all.insert(all.end(), more.begin(), more.end());
  return ask(all);
}

TEST_CASE("a run within TLS trains, and the server records the client's name") {
  const TemporaryFolder folder;
  const CertificateFolder certificates;
  const TestAuthority authority;
  const std::string own = certificates.path("server"), alice = certificates.path("it's alice");
  authority.writeServer(own);
  authority.write(alice, "client", clientRequest());
  TestServer server(folder, tlsOf(own));
  const Ended ended = runClient("train", folder.path("client"),
                                {"--server", server.address(), "--tls", alice, "--json"});
  INFO(ended.errors);
  REQUIRE(ended.code == 0);
  server.stop();
  const auto runs = server.runFolders();
  REQUIRE(runs.size() == 1);
  CHECK_THAT(readFile(runs[0] + "/log.txt"), Contains(" (alice): mlp blocks"));
}

TEST_CASE("a refused client and the server both log the reason") {
  struct Row {
    std::string name;
    std::string client;  // the client's folder; empty: without TLS
    std::string host;
    std::vector<std::string> says;
    std::string logged;
  };
  const TemporaryFolder folder;
  const CertificateFolder certificates;
  const TestAuthority authority, other;
  const std::string own = certificates.path("server");
  authority.writeServer(own);
  const auto folderOf = [&](const std::string& name, const CertificateRequest& request,
                            const TestAuthority& from) {
    const std::string path = certificates.path(name);
    from.write(path, "client", request);
    std::filesystem::copy_file(own + "/ca.crt", path + "/ca.crt",
                               std::filesystem::copy_options::overwrite_existing);
    return path;
  };
  const std::string good = folderOf("good", clientRequest(), authority);
  const std::string stranger = certificates.path("stranger");
  other.write(stranger, "client", clientRequest());
  const std::string here = "127.0.0.1";
  const std::vector<Row> rows = {
      {"another CA's",
       folderOf("other", clientRequest(), other),
       here,
       {"the server refuses the certificate of this client", "not from a CA that is trusted"},
       "the client's certificate (its name is alice) is not from a CA that is trusted here"},
      {"expired",
       folderOf("expired", {.beginsInDays = -9, .endsInDays = -2}, authority),
       here,
       {"it has expired", "cleave-server certs client NAME"},
       "the client's certificate (its name is alice) has expired (on "},
      {"not yet valid",
       folderOf("early", {.beginsInDays = 2}, authority),
       here,
       {"it is not valid yet", "compare the clocks"},
       "is not valid yet (it is valid from "},
      {"a server's",
       folderOf("server's", {.names = "URI:cleave:server", .usage = "serverAuth"}, authority),
       here,
       {"it is not made for this side"},
       "is not made for this side of a connection"},
      {"another server's name",
       good,
       "127.0.0.2",
       {"is not for the name that the client connects to (it is for localhost, 127.0.0.1)",
        "connect by a name or address that is in the server's certificate",
        "cleave-server certs init --renew --name 127.0.0.2"},
       "the client refuses the certificate of this server"},
      {"a CA that the client does not trust",
       stranger,
       here,
       {"the server's certificate is not from a CA that is trusted here", "need the same CA"},
       "the client refuses the certificate of this server: it is not from a CA"},
      {"without TLS",
       "",
       here,
       {"the client connected without TLS", "--tls DIR"},
       "the client connected without TLS"},
  };
  TestServer server(folder, tlsOf(own));
  Arguments elsewhere = tlsOf(own);
  elsewhere.insert(elsewhere.end(), {"--set", "listen.address=127.0.0.2"});
  TestServer second(folder, elsewhere, "second");
  TestServer third(folder, tlsOf(own), "third");  // a server logs each reason once in a while
  for (const Row& row : rows) {
    INFO(row.name);
    TestServer& asked = row.host != here ? second : row.client == stranger ? third : server;
    checkError(
        probe(asked, row.client.empty() ? Arguments{} : Arguments{"--tls", row.client}, row.host),
        row.client.empty() ? kWrongUse : kFailedRun, row.says);
    CHECK(asked.process().waitForOutput(row.logged, kPatience));
  }
  CHECK(probe(server, {"--tls", good}).code == 0);
  for (TestServer* each : {&server, &second, &third}) each->stop();
}

TEST_CASE("a client with TLS and a server without both report the mismatch") {
  const TemporaryFolder folder;
  const CertificateFolder certificates;
  const TestAuthority authority;
  authority.write(certificates.path("client"), "client", clientRequest());
  TestServer server(folder);
  checkError(
      probe(server, {"--tls", certificates.path("client")}), kWrongUse,
      {"[not-tls]", "the server speaks Cleave without TLS", "set tls.enabled in the server's"});
  CHECK(server.process().waitForOutput("the peer uses TLS, but this side does not", kPatience));
}

TEST_CASE("a client whose server is down names the command that starts one like it") {
  const CertificateFolder certificates;
  const TestAuthority authority;
  const std::string client = certificates.path("it's alice");
  authority.write(client, "client", clientRequest());
  const auto probeAt = [](const std::string& address, const Arguments& more) {
    return ask(with({"probe", "--server", address}, more));
  };
  const std::string start = "start it there: cleave-server serve --config configs/server.yaml ";
  checkError(probeAt("127.0.0.1:1", {}), kFailedRun,
             {"[no-server]", start + "--set listen.port=1;"});
  checkError(probeAt("127.0.0.1:1", {"--tls", client}), kFailedRun,
             {"[no-server]", start + "--set listen.port=1 --set tls.enabled=true;"});
  // The loopback network, under a name that may be that of another machine.
  checkError(probeAt("[::ffff:127.0.0.1]:1", {}), kFailedRun,
             {"[no-server]", start + "--set listen.address=0.0.0.0 --set listen.port=1 --set "
                                     "tls.enabled=true, and pass --tls DIR here;"});
}

TEST_CASE("SIGHUP also applies revocations to open sessions, and ignores invalid files") {
  const TemporaryFolder folder;
  const CertificateFolder certificates;
  const TestAuthority authority;
  const std::string own = certificates.path("server");
  const std::string alice = certificates.path("alice"), bob = certificates.path("bob");
  authority.writeServer(own);
  authority.write(alice, "client", {.names = "URI:cleave:client/alice", .serial = 7});
  authority.write(bob, "client", {.names = "URI:cleave:client/bob", .serial = 8});
  TestServer server(folder, tlsOf(own));
  const Process ofAlice = startSlowClient(folder.path("alice"), server.address(), {"--tls", alice});
  Process ofBob = startSlowClient(folder.path("bob"), server.address(), {"--tls", bob});
  waitForSteps(folder.path("alice"));
  waitForSteps(folder.path("bob"));

  authority.writeRevoked(own, {7});
  CHECK(probe(server, {"--tls", alice}).code == 0);  // not reloaded yet
  server.process().signal(SIGHUP);
  REQUIRE(server.process().waitForOutput("reloaded the certificates", kPatience));
  checkError(finish(ofAlice), kFailedRun,
             {"[certificate-revoked]", "the client's certificate (its name is alice) was revoked",
              "ask the server's operator"});
  checkError(probe(server, {"--tls", alice}), kFailedRun,
             {"[certificate-revoked]", "it was revoked"});
  CHECK(server.process().waitForOutput("the client's certificate (its name is alice) was revoked",
                                       kPatience));
  CHECK(probe(server, {"--tls", bob}).code == 0);

  std::ofstream(own + "/revoked.crl") << "nothing";
  server.process().signal(SIGHUP);
  REQUIRE(server.process().waitForOutput("keeping the current certificates", kPatience));
  CHECK(probe(server, {"--tls", bob}).code == 0);
  checkError(probe(server, {"--tls", alice}), kFailedRun,
             {"[certificate-revoked]", "it was revoked"});

  CHECK_FALSE(ofBob.wait(std::chrono::milliseconds(0)));  // bob's session continues
  ofBob.signal(SIGKILL);
  finish(ofBob);
}

TEST_CASE("a client whose certificate is revoked while its connection is broken cannot reconnect") {
  const TemporaryFolder folder;
  const CertificateFolder certificates;
  const TestAuthority authority;
  const std::string own = certificates.path("server"), alice = certificates.path("alice");
  authority.writeServer(own);
  authority.write(alice, "client", {.serial = 7});
  TestServer server(folder, tlsOf(own));
  Relay relay("127.0.0.1", server.port());
  const Process client =
      startSlowClient(folder.path("run"), addressAt(relay.port()), {"--tls", alice});
  waitForSteps(folder.path("run"));
  relay.stall(true);  // keeps new connections from the server
  relay.cut();
  REQUIRE(server.process().waitForOutput("is kept for", kPatience));
  authority.writeRevoked(own, {7});
  server.process().signal(SIGHUP);
  REQUIRE(server.process().waitForOutput("reloaded the certificates", kPatience));
  relay.stall(false);
  checkError(finish(client), kFailedRun, {"[certificate-revoked]"});
}

TEST_CASE("mistakes with TLS files are reported with a hint") {
  const CertificateFolder certificates;
  const TestAuthority authority;
  const std::string own = certificates.path("own"), mixed = certificates.path("mixed");
  authority.writeServer(own);
  authority.write(own, "client", clientRequest());
  authority.writeServer(mixed);
  authority.write(mixed, "client", clientRequest());
  namespace fs = std::filesystem;
  fs::permissions(own + "/server.key", fs::perms::others_read, fs::perm_options::add);
  fs::permissions(own + "/client.key", fs::perms::group_read, fs::perm_options::add);
  fs::copy_file(mixed + "/client.crt", mixed + "/server.crt", fs::copy_options::overwrite_existing);
  const auto mistake = [&](const std::string& name, const std::string& folder,
                           std::vector<std::string> says) {
    return Mistake{name, tlsOf(folder), kWrongUse, std::move(says)};
  };
  checkMistakes(
      {serverProgram(), "serve", "--set", "listen.port=0"},
      {mistake("no folder", "/nowhere", {"cannot read /nowhere/ca.crt", "--tls DIR"}),
       mistake("a key that others can read", own,
               {own + "/server.key: users other than its owner can read or write it", "chmod 600"}),
       mistake("another's key", mixed,
               {mixed + "/server.key does not belong to the certificate"})});
  checkMistakes({clientProgram(), "probe", "--server", "127.0.0.1:9"},
                {{"a key that others can read",
                  {"--tls", own},
                  kWrongUse,
                  {"[key-readable]", own + "/client.key", "chmod 600"}},
                 {"no folder",
                  {"--tls", "/nowhere"},
                  kWrongUse,
                  {"[no-certificates]", "cannot read /nowhere/ca.crt"}}});
}

}  // namespace
}  // namespace cleave::test
