// The folder of certificates: contents and permissions of its files, files that are never
// overwritten, and OpenSSL's verdict on the chain and the revocation list.
#include "server/access/certs.h"

#include <openssl/x509v3.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <set>

#include "common/core/durable.h"
#include "common/program/program.h"
#include "server/access/names.h"
#include "tests/support/error_code.h"

namespace cleave {
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;

constexpr std::time_t kStart = 1800000000;  // 2027-01-15

class Folder {
 public:
  Folder() {
    std::string name = (fs::temp_directory_path() / "cleave-certs-XXXXXX").string();
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  ~Folder() { fs::remove_all(path_); }
  std::string path(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

// A folder of certificates created at kStart.
struct Certs : Folder {
  Certs() { at(0).init({"train.example.org", "192.0.2.7"}); }
  CertificateFolder at(int days) const { return CertificateFolder(folder, kStart + days * kDay); }
  std::string file(const std::string& name) const { return folder + "/" + name; }

  const std::string folder = path("certs");
};

std::string read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  INFO(path);
  REQUIRE(file);
  return {std::istreambuf_iterator<char>(file), {}};
}

Certificate certificateAt(const std::string& path) { return certificateFromPem(read(path), path); }

mode_t modeOf(const std::string& path) {
  struct stat status {};
  REQUIRE(::stat(path.c_str(), &status) == 0);
  return status.st_mode & 07777;
}

// All files in the folder and its subfolders, by path.
std::set<std::string> filesIn(const std::string& folder) {
  std::set<std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) {
      files.insert(fs::relative(entry.path(), folder).string());
    }
  }
  return files;
}

// Verifies a certificate in the folder with OpenSSL and the revocation list, for a purpose and at a
// time. Returns X509_V_OK or the reason of the failure.
int verified(const Certs& certs, const std::string& name, int purpose, std::time_t time) {
  const std::unique_ptr<X509_STORE, decltype(&X509_STORE_free)> store(X509_STORE_new(),
                                                                      X509_STORE_free);
  const Certificate authority = certificateAt(certs.file("ca.crt"));
  const RevocationList list = revocationListFromPem(read(certs.file("revoked.crl")), "revoked.crl");
  REQUIRE(X509_STORE_add_cert(store.get(), authority.get()) == 1);
  REQUIRE(X509_STORE_add_crl(store.get(), list.get()) == 1);
  const std::unique_ptr<X509_STORE_CTX, decltype(&X509_STORE_CTX_free)> context(
      X509_STORE_CTX_new(), X509_STORE_CTX_free);
  const Certificate certificate = certificateAt(certs.file(name));
  REQUIRE(X509_STORE_CTX_init(context.get(), store.get(), certificate.get(), nullptr) == 1);
  X509_STORE_CTX_set_time(context.get(), 0, time);
  X509_STORE_CTX_set_flags(context.get(), X509_V_FLAG_CRL_CHECK | X509_V_FLAG_X509_STRICT);
  X509_STORE_CTX_set_purpose(context.get(), purpose);
  X509_verify_cert(context.get());
  return X509_STORE_CTX_get_error(context.get());
}

const std::string kClient = "clients/clinic-a/client.crt";

}  // namespace

TEST_CASE("init creates a CA, a server certificate and an empty revocation list") {
  const Certs certs;
  auto files = filesIn(certs.folder);
  const std::string issued = "issued/" + serialOf(certificateAt(certs.file("server.crt")).get());
  CHECK(files == std::set<std::string>{"ca.crt", "ca.key", "server.crt", "server.key",
                                       "revoked.crl", issued + ".crt"});
  CHECK(fs::directory_iterator(certs.path("")) != fs::directory_iterator());
  CHECK(filesIn(certs.path("")).size() == files.size());  // no other files are left

  const Certificate authority = certificateAt(certs.file("ca.crt"));
  CHECK(X509_verify(authority.get(), X509_get0_pubkey(authority.get())) == 1);
  CHECK(X509_check_ca(authority.get()) == 1);
  CHECK(X509_get_pathlen(authority.get()) == 0);
  CHECK(X509_get_key_usage(authority.get()) == (KU_KEY_CERT_SIGN | KU_CRL_SIGN));
  CHECK(endOf(authority.get()) == kStart + kAuthorityDays * kDay);

  const Certificate server = certificateAt(certs.file("server.crt"));
  CHECK(X509_verify(server.get(), X509_get0_pubkey(authority.get())) == 1);
  CHECK(X509_check_ca(server.get()) == 0);
  CHECK(X509_get_extended_key_usage(server.get()) == XKU_SSL_SERVER);
  CHECK(X509_get_key_usage(server.get()) == KU_DIGITAL_SIGNATURE);
  CHECK(uriOf(server.get()) == "cleave:server");
  CHECK(namesOf(server.get()) == std::vector<std::string>{"train.example.org", "192.0.2.7",
                                                          "localhost", "127.0.0.1", "::1"});
  CHECK(startOf(server.get()) == kStart - 3600);
  CHECK(endOf(server.get()) == kStart + 90 * kDay);
  CHECK(verified(certs, "server.crt", X509_PURPOSE_SSL_SERVER, kStart) == X509_V_OK);
  CHECK(verified(certs, "server.crt", X509_PURPOSE_SSL_CLIENT, kStart) ==
        X509_V_ERR_INVALID_PURPOSE);

  const RevocationList list = revocationListFromPem(read(certs.file("revoked.crl")), "revoked.crl");
  CHECK(X509_CRL_verify(list.get(), X509_get0_pubkey(authority.get())) == 1);
  CHECK(numberOf(list.get()) == 1);
  CHECK(revokedOf(list.get()).empty());
}

TEST_CASE("a client's certificate names the client's identity and nothing else") {
  const Certs certs;
  certs.at(1).makeClient("clinic-a");
  CHECK(filesIn(certs.file("clients")) ==
        std::set<std::string>{"clinic-a/ca.crt", "clinic-a/client.crt", "clinic-a/client.key"});
  CHECK(read(certs.file("clients/clinic-a/ca.crt")) == read(certs.file("ca.crt")));
  const Certificate client = certificateAt(certs.file(kClient));
  CHECK(uriOf(client.get()) == "cleave:client/clinic-a");
  CHECK(namesOf(client.get()).empty());
  CHECK(X509_get_extended_key_usage(client.get()) == XKU_SSL_CLIENT);
  CHECK(endOf(client.get()) == kStart + 91 * kDay);
  const Key key = keyFromPem(readPrivateFile(certs.file("clients/clinic-a/client.key")), "key");
  CHECK(X509_check_private_key(client.get(), key.get()) == 1);
  CHECK(EVP_PKEY_get_bits(key.get()) == 256);
  CHECK(EVP_PKEY_is_a(key.get(), "EC"));
  CHECK(verified(certs, kClient, X509_PURPOSE_SSL_CLIENT, kStart + kDay) == X509_V_OK);
  CHECK(verified(certs, kClient, X509_PURPOSE_SSL_SERVER, kStart + kDay) ==
        X509_V_ERR_INVALID_PURPOSE);
  CHECK(verified(certs, kClient, X509_PURPOSE_SSL_CLIENT, kStart + 92 * kDay) ==
        X509_V_ERR_CERT_HAS_EXPIRED);
}

TEST_CASE("the umask does not change the modes of files: keys and folders are private") {
  for (const mode_t mask : {0, 022, 077}) {
    CAPTURE(mask);
    const mode_t before = ::umask(mask);
    const Certs certs;
    certs.at(0).makeClient("clinic-a");
    certs.at(1).renewClient("clinic-a");
    certs.at(1).renewServer({});
    certs.at(1).revoke("clinic-a");
    ::umask(before);
    CHECK(modeOf(certs.file("")) == 0700);
    std::set<std::string> names;
    for (const auto& entry : fs::recursive_directory_iterator(certs.file(""))) {
      const fs::path& path = entry.path();
      CAPTURE(path.string());
      names.insert(path.filename().string());
      const mode_t wanted = entry.is_directory() ? 0700 : path.extension() == ".key" ? 0600 : 0644;
      CHECK(modeOf(path.string()) == wanted);
    }
    for (const char* name : {"ca.key", "server.key", "client.key", "ca.crt", "server.crt",
                             "client.crt", "revoked.crl", "issued", "clinic-a"}) {
      CHECK(names.contains(name));
    }
  }
}

TEST_CASE("a CA key that other users may read is refused") {
  const Certs certs;
  for (const mode_t mode : {0640, 0604, 0620, 0644}) {
    REQUIRE(::chmod(certs.file("ca.key").c_str(), mode) == 0);
    CHECK(errorCode([&] { certs.at(0).makeClient("clinic-a"); }) == "key-readable");
  }
  CHECK_FALSE(fs::exists(certs.file("clients/clinic-a")));
  REQUIRE(::chmod(certs.file("ca.key").c_str(), 0400) == 0);
  certs.at(0).makeClient("clinic-a");
}

TEST_CASE("nothing is overwritten") {
  const Certs certs;
  certs.at(0).makeClient("clinic-a");
  const auto contents = [&] {
    std::map<std::string, std::string> all;
    for (const std::string& file : filesIn(certs.folder)) all[file] = read(certs.file(file));
    return all;
  };
  const auto before = contents();
  CHECK(errorCode([&] { certs.at(1).init({}); }) == "certs-exist");
  CHECK(errorCode([&] { certs.at(1).makeClient("clinic-a"); }) == "certs-exist");
  CHECK(contents() == before);
  CHECK(filesIn(certs.path("")).size() == before.size());

  // Other files are kept too, and so is a name whose folder is missing but whose certificate is
  // still valid.
  fs::create_directory(certs.path("other"));
  std::ofstream(certs.path("other/file")) << "keep";
  CHECK(errorCode([&] { CertificateFolder(certs.path("other")).init({}); }) == "certs-exist");
  CHECK(filesIn(certs.path("other")) == std::set<std::string>{"file"});
  fs::remove_all(certs.file("clients/clinic-a"));
  CHECK(errorCode([&] { certs.at(1).makeClient("clinic-a"); }) == "certs-exist");
}

TEST_CASE("init accepts an empty folder, and one whose parents do not exist") {
  const Folder folder;
  fs::create_directory(folder.path("empty"));
  CertificateFolder(folder.path("empty/")).init({});
  CHECK(modeOf(folder.path("empty")) == 0700);
  CertificateFolder(folder.path("a/b/certs")).init({});
  CHECK(fs::exists(folder.path("a/b/certs/server.crt")));
}

TEST_CASE("serials are random and long") {
  const Certs certs;
  std::set<std::string> serials;
  for (int j = 0; j < 8; ++j) certs.at(0).makeClient("client-" + std::to_string(j));
  for (const IssuedCertificate& issued : certs.at(0).list()) serials.insert(issued.serial);
  CHECK(serials.size() == 10);
  CHECK(std::any_of(serials.begin(), serials.end(),
                    [](const std::string& serial) { return serial.size() == 32; }));
}

TEST_CASE("revoked certificates are refused by their serials, and the list's number increases") {
  const Certs certs;
  certs.at(0).makeClient("clinic-a");
  certs.at(0).makeClient("clinic-b");
  const std::string first = serialOf(certificateAt(certs.file(kClient)).get());
  certs.at(2).renewClient("clinic-a");
  const std::string second = serialOf(certificateAt(certs.file(kClient)).get());
  REQUIRE(first != second);

  CHECK(certs.at(3).revoke("clinic-a") == 2);  // the client's previous certificate is still valid
  CHECK(verified(certs, kClient, X509_PURPOSE_SSL_CLIENT, kStart + 3 * kDay) ==
        X509_V_ERR_CERT_REVOKED);
  CHECK(verified(certs, "issued/" + first + ".crt", X509_PURPOSE_SSL_CLIENT, kStart + 3 * kDay) ==
        X509_V_ERR_CERT_REVOKED);
  CHECK(verified(certs, "clients/clinic-b/client.crt", X509_PURPOSE_SSL_CLIENT,
                 kStart + 3 * kDay) == X509_V_OK);
  CHECK(certs.at(4).revoke("clinic-a") == 0);
  CHECK(certs.at(5).revoke("clinic-b") == 1);

  const RevocationList list = revocationListFromPem(read(certs.file("revoked.crl")), "revoked.crl");
  CHECK(numberOf(list.get()) == 3);
  std::map<std::string, std::time_t> dates;
  for (const Revocation& revocation : revokedOf(list.get())) {
    dates[revocation.serial] = revocation.date;
  }
  CHECK(dates.size() == 3);
  CHECK(dates[first] == kStart + 3 * kDay);
  CHECK(dates[second] == kStart + 3 * kDay);

  // A client whose key was stolen can get a new certificate afterwards.
  certs.at(6).renewClient("clinic-a");
  CHECK(verified(certs, kClient, X509_PURPOSE_SSL_CLIENT, kStart + 6 * kDay) == X509_V_OK);
  try {
    certs.at(6).revoke("clinic-c");
    FAIL("nothing was thrown");
  } catch (const UsageError& error) {
    CHECK(error.code() == "no-such-client");
    CHECK_THAT(error.hint(), Contains("'" + certs.at(6).command("client clinic-c") + "' to add"));
    CHECK_THAT(error.hint(), Contains(" --folder " + shellWord(certs.at(6).folder())));
  }
  CHECK_THAT(errorText([&] { certs.at(6).revoke("clinik-a"); }),
             Contains("did you mean clinic-a?"));
}

TEST_CASE("renewing replaces key and certificate, and keeps the server's names") {
  const Certs certs;
  certs.at(0).makeClient("clinic-a");
  const std::string key = read(certs.file("server.key"));
  certs.at(80).renewServer({});
  CHECK(read(certs.file("server.key")) != key);
  const Certificate server = certificateAt(certs.file("server.crt"));
  CHECK(endOf(server.get()) == kStart + 170 * kDay);
  CHECK(namesOf(server.get()).front() == "train.example.org");
  CHECK(X509_check_private_key(
            server.get(), keyFromPem(read(certs.file("server.key")), "server.key").get()) == 1);
  certs.at(81).renewServer({"other.example.org"});
  CHECK(certs.at(81).serverNames().front() == "other.example.org");

  fs::remove_all(certs.file("clients/clinic-a"));  // moved elsewhere by the operator
  certs.at(82).renewClient("clinic-a");
  CHECK(filesIn(certs.file("clients/clinic-a")).size() == 3);
  CHECK(errorCode([&] { certs.at(82).renewClient("clinic-b"); }) == "no-such-client");
  for (const std::string& file : filesIn(certs.folder)) {
    CHECK_THAT(file, !Contains(".new-"));
  }
}

TEST_CASE("no certificate outlives its CA") {
  const Certs certs;
  certs.at(kAuthorityDays - 10).makeClient("clinic-a");
  CHECK(endOf(certificateAt(certs.file(kClient)).get()) == kStart + kAuthorityDays * kDay);
}

TEST_CASE("the list shows every certificate with its state") {
  const Certs certs;
  certs.at(0).makeClient("clinic-a");
  certs.at(0).makeClient("clinic-b");
  certs.at(75).renewClient("clinic-a");
  certs.at(76).revoke("clinic-b");
  const auto states = [&](int days) {
    std::vector<std::string> all;
    for (const IssuedCertificate& issued : certs.at(days).list()) {
      all.push_back(issued.name + ": " + stateName(stateOf(issued, kStart + days * kDay)) +
                    (issued.isNewest ? "" : ", renewed"));
    }
    return all;
  };
  using List = std::vector<std::string>;
  CHECK(states(76) == List{"authority: valid", "server: valid", "clinic-a: valid, renewed",
                           "clinic-a: valid", "clinic-b: revoked"});
  CHECK(states(77) == List{"authority: valid", "server: expires soon",
                           "clinic-a: expires soon, renewed", "clinic-a: valid",
                           "clinic-b: revoked"});
  CHECK(states(91) == List{"authority: valid", "server: expired", "clinic-a: expired, renewed",
                           "clinic-a: valid", "clinic-b: revoked"});
}

TEST_CASE("names that are not valid identities or host names are refused") {
  const Certs certs;
  for (const std::string name :
       {"", "A", "a_b", "-a", "a.b", "../a", "a/b", "local", "default", "a b", "\xc3\xa9"}) {
    INFO(name);
    CHECK_FALSE(isClientName(name));
    CHECK(errorCode([&] { certs.at(0).makeClient(name); }) == "bad-name");
  }
  CHECK_FALSE(isClientName(std::string(64, 'a')));
  for (const std::string name : {"a", "0", "clinic-a", "a-"}) CHECK(isClientName(name));
  CHECK(isClientName(std::string(63, 'a')));
  for (const std::string name :
       {"", "a,IP:1.2.3.4", "*.example.org", "a..b", "-a", "a b", ".a", "https://a", "a:4800"}) {
    INFO(name);
    CHECK(errorCode([&] { certs.at(0).renewServer({name}); }) == "bad-name");
  }
  certs.at(0).renewServer({"fe00::7", "a.b-c.D0"});
}

TEST_CASE("this machine's names include the loopback names, without duplicates") {
  const std::vector<std::string> names = namesOfThisMachine();
  for (const char* loopback : {"localhost", "127.0.0.1", "::1"}) {
    CHECK(std::count(names.begin(), names.end(), loopback) == 1);
  }
}

TEST_CASE("a folder that init did not create, and damaged files, are refused") {
  const Folder folder;
  CHECK(errorCode([&] { CertificateFolder(folder.path("none")).list(); }) == "no-certs");
  CHECK(errorCode([&] { CertificateFolder(folder.path("none")).makeClient("a"); }) == "no-certs");
  const Certs certs;
  const Certs others;
  fs::copy_file(others.file("ca.key"), certs.file("ca.key"), fs::copy_options::overwrite_existing);
  CHECK(errorCode([&] { certs.at(0).makeClient("a"); }) == "bad-certificate");
  fs::remove(certs.file("ca.key"));
  CHECK(errorCode([&] { certs.at(0).makeClient("a"); }) == "cannot-read");
  std::ofstream(certs.file("revoked.crl")) << "-----BEGIN X509 CRL-----\nAAAA\n";
  CHECK(errorCode([&] { certs.at(0).list(); }) == "bad-certificate");
}

TEST_CASE("the openssl program accepts and refuses the same certificates") {
  if (std::system("openssl version >/dev/null 2>&1") != 0) {
    WARN("skipped: the openssl program is not installed");
    return;
  }
  const Folder folder;
  CertificateFolder certs(folder.path("certs"));  // the program uses the real time
  certs.init({"train.example.org"});
  certs.makeClient("clinic-a");
  certs.makeClient("clinic-b");
  certs.revoke("clinic-b");
  const auto run = [&](const std::string& arguments) {
    const std::string command = "cd " + folder.path("certs") + " && openssl " + arguments + " 2>&1";
    const std::unique_ptr<FILE, int (*)(FILE*)> pipe(::popen(command.c_str(), "r"), ::pclose);
    REQUIRE(pipe);
    std::string output;
    std::array<char, 4096> chunk{};
    while (std::size_t bytes = std::fread(chunk.data(), 1, chunk.size(), pipe.get())) {
      output.append(chunk.data(), bytes);
    }
    return output;
  };
  const std::string verify = "verify -x509_strict -crl_check -CAfile ca.crt -CRLfile revoked.crl ";
  CHECK(run(verify + "-purpose sslserver -verify_hostname train.example.org server.crt") ==
        "server.crt: OK\n");
  CHECK(run(verify + "-purpose sslserver -verify_ip 127.0.0.1 server.crt") == "server.crt: OK\n");
  CHECK_THAT(run(verify + "-verify_hostname other.example.org server.crt"),
             Contains("hostname mismatch"));
  CHECK_THAT(run(verify + "-purpose sslclient clients/clinic-a/client.crt"), Contains(": OK"));
  CHECK_THAT(run(verify + "-purpose sslclient clients/clinic-b/client.crt"),
             Contains("certificate revoked"));
  CHECK_THAT(run("crl -in revoked.crl -noout -text"),
             Contains("X509v3 CRL Number: \n                2"));
  CHECK_THAT(run("x509 -in clients/clinic-a/client.crt -noout -text"),
             Contains("URI:cleave:client/clinic-a") && Contains("ASN1 OID: prime256v1") &&
                 Contains("TLS Web Client Authentication") && Contains("ecdsa-with-SHA256"));
}

TEST_CASE("words are quoted for a shell only if necessary") {
  CHECK(shellWord("certs/clients/a-1") == "certs/clients/a-1");
  CHECK(shellWord("my certs") == "'my certs'");
  CHECK(shellWord("it's") == "'it'\\''s'");
  CHECK(shellWord("$(x)") == "'$(x)'");
  CHECK(shellWord("") == "''");
  CommonOptions options;
  CHECK(optionsText(options).empty());
  options.config = "my server.yaml";
  options.overrides = {"store=a", "models.allow=[mlp, graph]"};
  CHECK(optionsText(options) ==
        " --config 'my server.yaml' --set store=a --set 'models.allow=[mlp, graph]'");
}

}  // namespace cleave
