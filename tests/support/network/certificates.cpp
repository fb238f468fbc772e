#include "tests/support/network/certificates.h"

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>

#include <cstdio>
#include <random>
#include <stdexcept>

#include "common/net/streams/certificate.h"

namespace cleave::test {
namespace {

constexpr long kDay = 24 * 3600;

struct CloseFile {
  void operator()(FILE* file) const { std::fclose(file); }
};
using Key = Owned<EVP_PKEY>;
using Certificate = Owned<X509>;
using File = std::unique_ptr<FILE, CloseFile>;

void require(bool done, const std::string& what) {
  if (!done) throw std::runtime_error("cannot make " + what);
}

void setName(X509_NAME* name, const char* text) {
  X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_UTF8,
                             reinterpret_cast<const unsigned char*>(text), -1, -1, 0);
}

Certificate makeCertificate(EVP_PKEY* key, const X509* issuer, const char* subject, long serial,
                            int beginsInDays, int endsInDays) {
  Certificate made(X509_new());
  X509_set_version(made.get(), X509_VERSION_3);
  ASN1_INTEGER_set(X509_get_serialNumber(made.get()), serial);
  X509_gmtime_adj(X509_getm_notBefore(made.get()), beginsInDays * kDay);
  X509_gmtime_adj(X509_getm_notAfter(made.get()), endsInDays * kDay);
  setName(X509_get_subject_name(made.get()), subject);
  X509_set_issuer_name(made.get(), X509_get_subject_name(issuer ? issuer : made.get()));
  require(X509_set_pubkey(made.get(), key) == 1, "a certificate");
  return made;
}

void extend(X509* certificate, X509* issuer, int kind, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, &context, kind, value.c_str());
  require(extension != nullptr, "the extension " + value);
  X509_add_ext(certificate, extension, -1);
  X509_EXTENSION_free(extension);
}

File create(const std::string& path) {
  File file(std::fopen(path.c_str(), "w"));
  require(file != nullptr, path);
  ::fchmod(::fileno(file.get()), 0600);
  return file;
}

}  // namespace

struct TestAuthority::State {
  Key key{EVP_EC_gen("P-256")};
  Certificate certificate;
};

TestAuthority::TestAuthority(int endsInDays) : state_(std::make_unique<State>()) {
  EVP_PKEY* key = state_->key.get();
  state_->certificate = makeCertificate(key, nullptr, "Cleave test CA", 1, -400, endsInDays);
  X509* own = state_->certificate.get();
  extend(own, own, NID_basic_constraints, "critical,CA:TRUE,pathlen:0");
  extend(own, own, NID_key_usage, "critical,keyCertSign,cRLSign");
  extend(own, own, NID_subject_key_identifier, "hash");
  require(X509_sign(own, key, EVP_sha256()) > 0, "a CA");
}

TestAuthority::~TestAuthority() = default;

void TestAuthority::write(const std::string& folder, const std::string& name,
                          const CertificateRequest& request) const {
  const Key key(EVP_EC_gen("P-256"));
  X509* authority = state_->certificate.get();
  const Certificate made = makeCertificate(key.get(), authority, "test", request.serial,
                                           request.beginsInDays, request.endsInDays);
  extend(made.get(), authority, NID_authority_key_identifier, "keyid:always");
  if (!request.names.empty()) {
    extend(made.get(), authority, NID_subject_alt_name, request.names);
  }
  if (!request.usage.empty()) extend(made.get(), authority, NID_ext_key_usage, request.usage);
  require(X509_sign(made.get(), state_->key.get(), EVP_sha256()) > 0, "a certificate");

  PEM_write_X509(create(folder + "/ca.crt").get(), authority);
  PEM_write_X509(create(folder + "/" + name + ".crt").get(), made.get());
  PEM_write_PrivateKey(create(folder + "/" + name + ".key").get(), key.get(), nullptr, nullptr, 0,
                       nullptr, nullptr);
}

void TestAuthority::writeRevoked(const std::string& folder,
                                 const std::vector<long>& serials) const {
  const Owned<X509_CRL> list(X509_CRL_new());
  X509_CRL_set_version(list.get(), X509_CRL_VERSION_2);
  X509_CRL_set_issuer_name(list.get(), X509_get_subject_name(state_->certificate.get()));
  const std::unique_ptr<ASN1_TIME, decltype(&ASN1_TIME_free)> time(X509_gmtime_adj(nullptr, -60),
                                                                   &ASN1_TIME_free);
  X509_CRL_set1_lastUpdate(list.get(), time.get());
  X509_gmtime_adj(time.get(), 30 * kDay);
  X509_CRL_set1_nextUpdate(list.get(), time.get());
  X509_gmtime_adj(time.get(), -60);
  for (const long serial : serials) {
    X509_REVOKED* revoked = X509_REVOKED_new();
    ASN1_INTEGER* number = ASN1_INTEGER_new();
    ASN1_INTEGER_set(number, serial);
    X509_REVOKED_set_serialNumber(revoked, number);
    X509_REVOKED_set_revocationDate(revoked, time.get());
    ASN1_INTEGER_free(number);
    X509_CRL_add0_revoked(list.get(), revoked);
  }
  require(X509_CRL_sign(list.get(), state_->key.get(), EVP_sha256()) > 0, "a list");
  PEM_write_X509_CRL(create(folder + "/revoked.crl").get(), list.get());
}

void TestAuthority::writeServer(const std::string& folder,
                                const CertificateRequest& request) const {
  write(folder, "server", request);
  writeRevoked(folder);
}

CertificateFolder::CertificateFolder()
    : folder_(std::filesystem::temp_directory_path() /
              ("cleave-certificates-" + std::to_string(std::random_device{}()))) {
  std::filesystem::create_directories(folder_);
}

CertificateFolder::~CertificateFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

std::string CertificateFolder::path(const std::string& name) const {
  std::filesystem::create_directories(folder_ / name);
  return (folder_ / name).string();
}

}  // namespace cleave::test
