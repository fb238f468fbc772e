// Connections within TLS: normal operation, refusals and how both sides report them, damage, and
// invalid files.
#include "common/net/streams/tls.h"

#include <fcntl.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <fstream>
#include <future>
#include <string>
#include <thread>

#include "common/net/streams/tls_stream.h"
#include "tests/support/error_code.h"
#include "tests/support/network/certificates.h"
#include "tests/support/network/loopback.h"

using namespace cleave;
using namespace cleave::test;
using namespace std::chrono_literals;

namespace {

struct Folders {
  CertificateFolder folder;
  TestAuthority authority;
  std::string client = folder.path("client");
  std::string server = folder.path("server");

  Folders() {
    authority.writeServer(server);
    authority.write(client, "client", clientRequest());
  }
};

ConnectionOptions clientOptions(const std::string& folder, const std::string& name = "localhost",
                                std::uint64_t bytesPerKey = kBytesPerTlsKey) {
  ConnectionOptions options;
  options.tls = TlsContext::load(folder, TlsRole::client, bytesPerKey);
  options.serverName = name;
  return options;
}

ConnectionOptions serverOptions(const std::string& folder,
                                std::uint64_t bytesPerKey = kBytesPerTlsKey) {
  ConnectionOptions options;
  options.tls = TlsContext::load(folder, TlsRole::server, bytesPerKey);
  return options;
}

// A pair of connections: a is the client, b the server.
class Handshake : public Pair {
 public:
  using Pair::Pair;

  void shake() {
    const auto into = [](Outcome& outcome) {
      return [&outcome](const std::exception_ptr& error) {
        outcome.done = true;
        if (error) outcome.fail(error);
      };
    };
    boost::asio::co_spawn(io_, serve(), into(outcomeB));
    boost::asio::co_spawn(io_, ask(), into(outcomeA));
    finish();
  }

 private:
  boost::asio::awaitable<void> ask() {
    co_await a.writeHandshakeFrame(FrameKind::hello, "hi");
    co_await a.readHandshakeFrame(ConnectionState::awaitingHelloOk);
  }
  boost::asio::awaitable<void> serve() {
    co_await b.readHandshakeFrame(ConnectionState::awaitingHello);
    co_await b.writeHandshakeFrame(FrameKind::helloOk, "ok");
  }
};

// A client that uses OpenSSL directly, to do what Cleave's client never does. It has its own thread
// and a blocking socket.
class ForeignClient : public Loopback {
 public:
  explicit ForeignClient(const ConnectionOptions& server)
      : sockets_(connect()), connection(std::move(sockets_.second), server) {
    const int descriptor = sockets_.first.native_handle();
    ::fcntl(descriptor, F_SETFL, ::fcntl(descriptor, F_GETFL) & ~O_NONBLOCK);
    SSL_CTX_set_verify(context_, SSL_VERIFY_NONE, nullptr);
    std::signal(SIGPIPE, SIG_IGN);  // the server may close while OpenSSL writes
  }
  ~ForeignClient() {
    SSL_free(ssl_);
    SSL_CTX_free(context_);
  }
  SSL_CTX* context() { return context_; }
  int descriptor() { return sockets_.first.native_handle(); }
  SSL* ssl() { return ssl_; }

  void useCertificate(const std::string& folder) {
    SSL_CTX_use_certificate_chain_file(context_, (folder + "/client.crt").c_str());
    SSL_CTX_use_PrivateKey_file(context_, (folder + "/client.key").c_str(), SSL_FILETYPE_PEM);
  }

  // Performs the handshake, runs `then`, reads until the connection ends, and closes. Returns the
  // reason for the end. Meanwhile, the server's connection runs until it has an `outcome`.
  std::string talk(const std::function<void()>& then = [] {}) {
    ssl_ = SSL_new(context_);
    SSL_set_fd(ssl_, descriptor());
    std::future<std::string> text = std::async(std::launch::async, [this, then] {
      if (SSL_connect(ssl_) == 1) then();
      char byte = 0;
      while (SSL_read(ssl_, &byte, 1) == 1) {
      }
      const char* reason = ERR_reason_error_string(ERR_peek_error());
      ::shutdown(descriptor(), SHUT_RDWR);
      return std::string(reason != nullptr ? reason : "closed");
    });
    start(connection, sink, outcome);
    runUntil([&] { return outcome.done; });
    return text.get();
  }

 private:
  SocketPair sockets_;
  SSL_CTX* context_ = SSL_CTX_new(TLS_client_method());
  SSL* ssl_ = nullptr;

 public:
  Connection connection;
  Sink sink;
  Outcome outcome;
};

void writeText(const std::string& path, const std::string& text) {
  std::ofstream(path) << text;
  ::chmod(path.c_str(), 0600);
}

std::string codeOfLoading(const std::string& folder, TlsRole role) {
  return errorCode([&] { TlsContext::load(folder, role); });
}

}  // namespace

// ---- Normal operation ----

TEST_CASE(
    "within TLS, tensors in both directions at once arrive intact, and all bytes are counted") {
  const Folders folders;
  // With the smaller value, the keys are renewed many times.
  const auto bytesPerKey = GENERATE(as<std::uint64_t>{}, kBytesPerTlsKey, 100'000);
  Pair pair(clientOptions(folders.client, "localhost", bytesPerKey),
            serverOptions(folders.server, bytesPerKey));
  std::map<std::string, Bytes> fromA, fromB;
  for (const std::size_t size :
       {std::size_t{0}, std::size_t{1}, std::size_t{16} << 10, std::size_t{3} << 20}) {
    const std::string name = std::to_string(size);
    pair.send(pair.a, name, fromA[name] = randomBytes(size, 1));
    pair.send(pair.b, name, fromB[name] = randomBytes(size, 2));
  }
  std::uint16_t flags = 0;
  pair.sinkB.onFrame = [&](const FrameHeader& header) { flags |= header.flags; };
  pair.startBoth();
  pair.runUntil([&] { return pair.sinkA.tensors.size() == 4 && pair.sinkB.tensors.size() == 4; });
  pair.a.sayBye("done");
  pair.finish();
  CHECK(pair.outcomeA.text == "");
  CHECK(pair.outcomeB.text == "");
  CHECK(pair.outcomeB.reason == "done");
  CHECK(pair.sinkB.tensors == fromA);
  CHECK(pair.sinkA.tensors == fromB);
  CHECK(flags == 0);  // frames within TLS have no checksums
  CHECK(pair.b.identity() == "alice");
  CHECK(pair.a.identity() == "");
  CHECK(pair.a.bytes().tensorSent + pair.b.bytes().tensorSent == pair.wireBytes);
  CHECK(pair.a.bytes().tensorSent == pair.b.bytes().tensorReceived);
  CHECK(pair.a.bytes().controlSent == pair.b.bytes().controlReceived);
  CHECK(pair.a.linkInfo().roundTripSeconds > 0);
}

TEST_CASE(
    "within TLS, an urgent tensor overtakes others, and fail() ends run() despite a stuck frame") {
  const Folders folders;
  Pair pair(clientOptions(folders.client), serverOptions(folders.server), 4096);
  const Bytes big = randomBytes(std::size_t{16} << 20, 1);
  pair.startBoth();
  pair.a.ping();
  pair.runUntil([&] { return pair.a.bytes().controlReceived > 0; });
  pair.send(pair.b, "big", big, 2);
  SECTION("urgent") {
    pair.sinkA.onFrame = [&, sent = false](const FrameHeader&) mutable {
      if (!sent) pair.send(pair.b, "urgent", randomBytes(100, 2), 1);
      sent = true;
    };
    pair.runUntil([&] { return pair.sinkA.tensors.size() == 2; });
    pair.b.sayBye("done");
    pair.finish();
    CHECK(pair.sinkA.order == std::vector<std::string>{"urgent", "big"});
    CHECK(pair.sinkA.tensors["big"] == big);
  }
  SECTION("failure") {
    pair.sinkA.onFrame = [&, failed = false](const FrameHeader&) mutable {
      if (!failed) pair.b.fail(std::make_exception_ptr(RunError("no-luck", "sentence")));
      failed = true;
    };
    pair.finish();
    CHECK(pair.outcomeA.code == "no-luck");
    CHECK(pair.outcomeB.code == "no-luck");
  }
}

TEST_CASE("a server's certificate may have host names and IP addresses") {
  const Folders folders;
  const std::string name = GENERATE("localhost", "127.0.0.1", "a.example.org", "::1");
  folders.authority.writeServer(
      folders.server, serverRequest("DNS:localhost,DNS:*.example.org,IP:127.0.0.1,IP:::1"));
  Handshake pair(clientOptions(folders.client, name), serverOptions(folders.server));
  pair.shake();
  CHECK(pair.outcomeA.text == "");
  CHECK(pair.outcomeB.text == "");
}

TEST_CASE("only TLS 1.3 with two cipher suites is accepted, and no session tickets are issued") {
  const Folders folders;
  ForeignClient client(serverOptions(folders.server));
  client.useCertificate(folders.client);
  const auto speak = [&](const char* suite) {
    SSL_CTX_set_ciphersuites(client.context(), suite);
    std::string spoken;
    const std::string end = client.talk([&] {
      spoken = SSL_get_cipher(client.ssl());
      SSL_shutdown(client.ssl());
    });
    CHECK(SSL_SESSION_is_resumable(SSL_get_session(client.ssl())) == 0);
    return spoken;
  };
  SECTION("AES") {
    CHECK(speak("TLS_AES_128_GCM_SHA256") == "TLS_AES_128_GCM_SHA256");
    CHECK(client.outcome.code == "connection-closed");  // after close_notify, without a Bye
  }
  SECTION("ChaCha20") {
    CHECK(speak("TLS_CHACHA20_POLY1305_SHA256") == "TLS_CHACHA20_POLY1305_SHA256");
  }
  SECTION("any other cipher suite") {
    CHECK(speak("TLS_AES_256_GCM_SHA384") == "");
    CHECK(client.outcome.code == "tls-failed");
  }
  SECTION("TLS 1.2") {
    SSL_CTX_set_max_proto_version(client.context(), TLS1_2_VERSION);
    CHECK(client.talk() == "tlsv1 alert protocol version");
    CHECK(client.outcome.code == "tls-version");
    CHECK(client.outcome.text == "the client does not speak TLS 1.3");
  }
}

// ---- Who is refused ----

TEST_CASE("each kind of invalid certificate is refused with its own code on both sides") {
  struct Case {
    std::string name;
    CertificateRequest client = clientRequest();
    std::vector<long> revoked = {};
    bool otherAuthority = false;
    std::string code;
    std::string says;  // the server's error
  };
  const std::vector<Case> cases = {
      {.name = "another CA's",
       .otherAuthority = true,
       .code = "certificate-unknown-ca",
       .says =
           "the client's certificate (its name is alice) is not from a CA that is trusted here"},
      {.name = "expired",
       .client = {.beginsInDays = -9, .endsInDays = -2},
       .code = "certificate-expired",
       .says = "has expired (on "},
      {.name = "not yet valid",
       .client = {.beginsInDays = 2},
       .code = "certificate-not-yet-valid",
       .says = "is not valid yet (it is valid from "},
      {.name = "revoked", .revoked = {7, 2}, .code = "certificate-revoked", .says = "was revoked"},
      {.name = "a server's",
       .client = {.names = "URI:cleave:server", .usage = "serverAuth"},
       .code = "certificate-wrong-kind",
       .says = "is not made for this side"},
      {.name = "for any use",
       .client = {.usage = ""},
       .code = "certificate-wrong-kind",
       .says = "is not made for this side"},
      {.name = "without a name",
       .client = {.names = "DNS:alice"},
       .code = "certificate-wrong-kind",
       .says = "is not made for this side"},
      {.name = "with an invalid name",
       .client = {.names = "URI:cleave:client/../bob"},
       .code = "certificate-wrong-kind",
       .says = "the client's certificate is not made for"},
      {.name = "with two names",
       .client = {.names = "URI:cleave:client/alice,URI:cleave:client/bob"},
       .code = "certificate-wrong-kind",
       .says = "is not made for"},
  };
  for (const Case& row : cases) {
    INFO(row.name);
    const Folders folders;
    folders.authority.writeRevoked(folders.server, row.revoked);
    const TestAuthority other;
    (row.otherAuthority ? other : folders.authority).write(folders.client, "client", row.client);
    // The client still trusts the server.
    folders.authority.write(folders.server, "server", serverRequest());
    std::filesystem::copy_file(folders.server + "/ca.crt", folders.client + "/ca.crt",
                               std::filesystem::copy_options::overwrite_existing);
    Handshake pair(clientOptions(folders.client), serverOptions(folders.server));
    pair.shake();
    CHECK(pair.outcomeB.code == row.code);
    CHECK(pair.outcomeB.text.find(row.says) != std::string::npos);
    CHECK(pair.outcomeA.code == row.code);
    CHECK(pair.outcomeA.text.starts_with("the server refuses the certificate of this client: it "));
    CHECK(!pair.outcomeA.hint.empty());
    CHECK(!pair.outcomeB.hint.empty());
    CHECK(pair.b.bytes().controlReceived == 0);
  }
}

TEST_CASE("an accepted certificate is checked again against reloaded files") {
  const Folders folders;
  Handshake pair(clientOptions(folders.client), serverOptions(folders.server));
  pair.shake();
  REQUIRE(pair.outcomeB.code == "");
  const auto checkAgain = [&] {
    return errorCode(
        [&] { pair.b.checkPeerAgain(*TlsContext::load(folders.server, TlsRole::server)); });
  };
  CHECK(checkAgain() == "");
  folders.authority.writeRevoked(folders.server, {7, clientRequest().serial});
  CHECK(checkAgain() == "certificate-revoked");
  folders.authority.writeRevoked(folders.server, {7});
  CHECK(checkAgain() == "");
  TestAuthority().writeServer(folders.server);
  CHECK(checkAgain() == "certificate-unknown-ca");
}

TEST_CASE("each kind of invalid server certificate is refused with its own code") {
  struct Case {
    std::string name;
    CertificateRequest server = serverRequest();
    std::string host = "localhost";
    bool otherAuthority = false;
    std::string code;
    std::string says;  // the client's error
    std::string hint = {};
  };
  const std::vector<Case> cases = {
      {.name = "another name's",
       .server = {.names = "DNS:localhost,DNS:train.example.org,DNS:$(reboot).org",
                  .usage = "serverAuth"},
       .host = "example.org",
       .code = "wrong-server-name",
       .says = "(it is for localhost, train.example.org, ",
       // The hint lists the certificate's names, except a name that a shell would execute.
       .hint = "cleave-server certs init --renew --name example.org --name train.example.org"},
      {.name = "another address's",
       .host = "10.0.0.1",
       .code = "wrong-server-name",
       .says = "is not for the name that the client connects to",
       .hint = "cleave-server certs init --renew --name 10.0.0.1"},
      {.name = "another CA's",
       .otherAuthority = true,
       .code = "certificate-unknown-ca",
       .says = ""},
      {.name = "expired",
       .server =
           {.names = "DNS:localhost", .usage = "serverAuth", .beginsInDays = -9, .endsInDays = -2},
       .code = "certificate-expired",
       .says = "the server's certificate has expired (on "},
      {.name = "a client's",
       .server = {.names = "DNS:localhost", .usage = "clientAuth"},
       .code = "certificate-wrong-kind",
       .says = "is not made for this side"},
  };
  for (const Case& row : cases) {
    INFO(row.name);
    const Folders folders;
    const TestAuthority other;
    (row.otherAuthority ? other : folders.authority).writeServer(folders.server, row.server);
    Handshake pair(clientOptions(folders.client, row.host), serverOptions(folders.server));
    pair.shake();
    CHECK(pair.outcomeA.code == row.code);
    CHECK(pair.outcomeA.text.find(row.says) != std::string::npos);
    CHECK(pair.outcomeB.code == row.code);
    CHECK(pair.outcomeB.text.starts_with("the client refuses the certificate of this server: it "));
    CHECK(!pair.outcomeA.hint.empty());
    CHECK(pair.outcomeA.hint.ends_with(row.hint));
    CHECK(pair.b.bytes().controlReceived == 0);
    CHECK(pair.a.bytes().controlSent == 0);
  }
}

TEST_CASE("a client without a certificate is refused") {
  const Folders folders;
  ForeignClient client(serverOptions(folders.server));
  CHECK(client.talk() == "tlsv13 alert certificate required");
  CHECK(client.outcome.code == "certificate-required");
  CHECK(client.outcome.text == "the client has no certificate");
}

TEST_CASE("if only one side uses TLS, both report it") {
  const Folders folders;
  SECTION("a server that requires TLS") {
    Handshake pair({}, serverOptions(folders.server));
    pair.shake();
    CHECK(pair.outcomeB.code == "not-tls");
    CHECK(pair.outcomeA.code == "not-tls");
    CHECK(pair.outcomeA.text == "the client connected without TLS, but this server requires TLS");
    CHECK(pair.outcomeA.hint.find("--tls DIR") != std::string::npos);
    CHECK(pair.outcomeA.exitCode == 2);
    CHECK(pair.outcomeB.exitCode == 2);
  }
  SECTION("a client that requires TLS") {
    Handshake pair(clientOptions(folders.client), {});
    pair.shake();
    CHECK(pair.outcomeA.code == "not-tls");
    CHECK(pair.outcomeA.text ==
          "the server speaks Cleave without TLS, but this client requires TLS");
    CHECK(pair.outcomeB.code == "not-tls");
    CHECK(pair.outcomeA.exitCode == 2);
    CHECK(pair.outcomeB.exitCode == 2);
  }
  SECTION("a client that is not Cleave") {
    Raw raw(serverOptions(folders.server));
    raw.send("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
    raw.collect();
    CHECK(raw.run().code == "not-cleave");
    CHECK(raw.outcome.text.find("an HTTP client") != std::string::npos);
  }
}

// ---- Damage and silence ----

TEST_CASE("a damaged record ends a connection within TLS, and the peer is notified") {
  const Folders folders;
  ForeignClient client(serverOptions(folders.server));
  client.useCertificate(folders.client);
  const std::string end = client.talk([&] {
    std::string record("\x17\x03\x03\x00\x20", 5);
    record.append(32, 'x');
    REQUIRE(::write(client.descriptor(), record.data(), record.size()) == 37);
  });
  CHECK(client.outcome.code == "tls-failed");
  CHECK(client.outcome.text.find("the client sends data that is not valid TLS: ") == 0);
  CHECK(end == "sslv3 alert bad record mac");
}

TEST_CASE("a stream that ends within TLS without a Bye is an error") {
  const Folders folders;
  ForeignClient client(serverOptions(folders.server));
  client.useCertificate(folders.client);
  client.talk([&] { ::shutdown(client.descriptor(), SHUT_WR); });
  CHECK(client.outcome.code == "connection-closed");
  CHECK(client.outcome.text.find("without a Bye") != std::string::npos);
}

TEST_CASE("a record that arrives too slowly ends the connection") {
  const Folders folders;
  ConnectionOptions options = serverOptions(folders.server);
  options.frame = {.grace = 100ms, .bytesPerSecond = 1024};
  ForeignClient client(options);
  client.useCertificate(folders.client);
  client.talk([&] {
    const std::string record = std::string("\x17\x03\x03\x40\x00", 5) + std::string(16384, 'x');
    for (const char byte : record) {
      if (::send(client.descriptor(), &byte, 1, MSG_NOSIGNAL) != 1) break;
      std::this_thread::sleep_for(20ms);
    }
  });
  CHECK(client.outcome.code == "too-slow");
}

TEST_CASE("a flood of key updates ends the connection") {
  const Folders folders;
  ForeignClient client(serverOptions(folders.server));
  client.useCertificate(folders.client);
  client.talk([&] {
    for (int j = 0; j < 100000; ++j) {
      SSL_key_update(client.ssl(), SSL_KEY_UPDATE_REQUESTED);
      if (SSL_do_handshake(client.ssl()) != 1) break;
    }
  });
  CHECK(client.outcome.code == "flood");
}

TEST_CASE("a peer that does not finish the handshake in time is disconnected") {
  const Folders folders;
  ConnectionOptions options = serverOptions(folders.server);
  options.tlsDeadline = 50ms;
  Raw raw(options);
  raw.collect();
  SECTION("nothing") {}
  SECTION("a part of the handshake") { raw.send("\x16\x03\x01"); }
  CHECK(raw.run().code == "tls-timeout");
  CHECK(raw.outcome.text.find("within 0.05 s") != std::string::npos);
}

TEST_CASE("data that is not a handshake is not read for long") {
  const Folders folders;
  Raw raw(serverOptions(folders.server));
  raw.collect();
  // Records of an incomplete ClientHello that declares 16 MiB.
  std::string record("\x16\x03\x01\x40\x00\x01\xff\xff\xff", 9);
  record.append((16 << 10) - 4, 'x');
  for (int j = 0; j < 8; ++j) raw.send(record);
  CHECK(raw.run().code == "tls-failed");
}

// ---- Files ----

TEST_CASE("errors in TLS files are reported with the file name") {
  const Folders folders;
  CHECK(codeOfLoading(folders.server, TlsRole::server) == "");
  CHECK(codeOfLoading(folders.client, TlsRole::client) == "");
  CHECK(codeOfLoading(folders.client, TlsRole::server) == "no-certificates");
  CHECK(errorText([&] {
          TlsContext::load("/nowhere", TlsRole::client);
        }).find("cannot read /nowhere/ca.crt") == 0);
  SECTION("a key that others can read") {
    ::chmod((folders.server + "/server.key").c_str(), 0640);
    CHECK(codeOfLoading(folders.server, TlsRole::server) == "key-readable");
  }
  SECTION("the key of another certificate") {
    const std::string key = folders.client + "/client.key";
    std::filesystem::remove(key);
    std::filesystem::copy_file(folders.server + "/server.key", key);
    CHECK(codeOfLoading(folders.client, TlsRole::client) == "key-mismatch");
  }
  SECTION("a file that is not PEM") {
    const std::string file = GENERATE("ca.crt", "server.crt", "server.key", "revoked.crl");
    writeText(folders.server + "/" + file, GENERATE("", "-----BEGIN CERTIFICATE-----\nx\n"));
    CHECK(codeOfLoading(folders.server, TlsRole::server) == "bad-certificate-file");
    CHECK(errorText([&] { TlsContext::load(folders.server, TlsRole::server); }).find(file) !=
          std::string::npos);
  }
  SECTION("the revocation list of another CA") {
    const TestAuthority other;
    other.writeRevoked(folders.server);
    CHECK(codeOfLoading(folders.server, TlsRole::server) == "bad-certificate-file");
  }
}

TEST_CASE("a certificate that expires within 14 days gives a warning") {
  const Folders folders;
  const auto warning = [&] { return TlsContext::load(folders.client, TlsRole::client)->warning(); };
  CHECK(warning() == "");
  folders.authority.write(folders.client, "client", {.endsInDays = 13});
  CHECK(warning().find(folders.client + "/client.crt expires on ") != std::string::npos);
  folders.authority.write(folders.client, "client", {.endsInDays = 0});
  CHECK(warning().find("/client.crt expired on ") != std::string::npos);
  const TestAuthority ending(13);
  ending.write(folders.client, "client", clientRequest());
  CHECK(warning().find("/ca.crt expires on ") != std::string::npos);
}
