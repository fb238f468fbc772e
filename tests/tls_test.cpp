// Connections within TLS.
#include <catch2/catch.hpp>
#include <string>

#include "tests/certificates.h"
#include "tests/loopback.h"

using namespace cleave;
using namespace cleave::test;

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

ConnectionOptions clientOptions(const std::string& folder, const std::string& name = "localhost") {
  ConnectionOptions options;
  options.tls = TlsContext::load(folder, TlsRole::client);
  options.serverName = name;
  return options;
}

ConnectionOptions serverOptions(const std::string& folder) {
  ConnectionOptions options;
  options.tls = TlsContext::load(folder, TlsRole::server);
  return options;
}

}  // namespace

TEST_CASE("tensors both ways at once arrive intact within TLS") {
  const Folders folders;
  Pair pair(clientOptions(folders.client), serverOptions(folders.server));
  std::map<std::string, Bytes> fromA, fromB;
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{3} << 20}) {
    const std::string name = std::to_string(size);
    pair.send(pair.a, name, fromA[name] = randomBytes(size, 1));
    pair.send(pair.b, name, fromB[name] = randomBytes(size, 2));
  }
  pair.startBoth();
  pair.runUntil([&] { return pair.sinkA.tensors.size() == 3 && pair.sinkB.tensors.size() == 3; });
  pair.a.sayBye("done");
  pair.finish();
  CHECK(pair.outcomeA.text == "");
  CHECK(pair.outcomeB.text == "");
  CHECK(pair.sinkB.tensors == fromA);
  CHECK(pair.sinkA.tensors == fromB);
  CHECK(pair.b.identity() == "alice");
  CHECK(pair.a.identity() == "");
}
