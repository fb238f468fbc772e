#include "server/access/x509.h"

#include <arpa/inet.h>
#include <openssl/bio.h>
#include <openssl/bn.h>
#include <openssl/ec.h>
#include <openssl/err.h>
#include <openssl/pem.h>

#include <array>
#include <cctype>
#include <string_view>

namespace cleave {
namespace {

constexpr int kSerialBits = 128;
constexpr long kVersion3 = 2;  // version 3 of a certificate, as encoded
constexpr long kListVersion2 = 1;

[[noreturn]] void throwOpenSsl(const std::string& what) {
  std::array<char, 256> reason{};
  ERR_error_string_n(ERR_get_error(), reason.data(), reason.size());
  ERR_clear_error();
  throw RunError("openssl-failed", "OpenSSL cannot " + what + ": " + reason.data());
}

// For OpenSSL calls that return 1 or a pointer on success.
void need(bool succeeded, const char* what) {
  if (!succeeded) throwOpenSsl(what);
}

// ---- Numbers and times ----

Owned<ASN1_INTEGER> integerOf(const BIGNUM* number) {
  Owned<ASN1_INTEGER> integer(BN_to_ASN1_INTEGER(number, nullptr));
  need(integer != nullptr, "create a number");
  return integer;
}

Owned<ASN1_INTEGER> randomSerial() {
  const Owned<BIGNUM> number(BN_new());
  need(number && BN_rand(number.get(), kSerialBits, BN_RAND_TOP_ANY, BN_RAND_BOTTOM_ANY) == 1,
       "draw a serial number");
  return integerOf(number.get());
}

std::string hexOf(const ASN1_INTEGER* integer) {
  const Owned<BIGNUM> number(ASN1_INTEGER_to_BN(integer, nullptr));
  need(number != nullptr, "read a number");
  const Owned<char> text(BN_bn2hex(number.get()));
  need(text != nullptr, "read a number");
  std::string hex = text.get();
  for (char& c : hex) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return hex;
}

Owned<ASN1_INTEGER> integerOfHex(const std::string& hex) {
  BIGNUM* number = nullptr;
  need(BN_hex2bn(&number, hex.c_str()) > 0, "read a serial number");
  const Owned<BIGNUM> owned(number);
  return integerOf(number);
}

Owned<ASN1_TIME> asn1Time(std::time_t time) {
  Owned<ASN1_TIME> made(ASN1_TIME_set(nullptr, time));
  need(made != nullptr, "create a date");
  return made;
}

std::time_t needTime(const ASN1_TIME* time) {
  const std::optional<std::time_t> read = timeOf(time);
  need(read.has_value(), "read a date");
  return *read;
}

// ---- Extensions ----

Owned<X509_EXTENSION> extension(X509V3_CTX& context, int kind, const std::string& value) {
  Owned<X509_EXTENSION> made(X509V3_EXT_conf_nid(nullptr, &context, kind, value.c_str()));
  need(made != nullptr, "create an extension of a certificate");
  return made;
}

void setContext(X509V3_CTX& context, X509* issuer, X509* subject, X509_CRL* list) {
  X509V3_set_ctx(&context, issuer, subject, nullptr, list, 0);
  X509V3_set_ctx_nodb(&context);
}

// Names were checked on entry and contain no commas.
std::string alternativeNames(const CertificateRequest& request) {
  std::string list = request.uri.empty() ? "" : "URI:" + request.uri;
  for (const std::string& name : request.names) {
    list += (list.empty() ? "" : ",") + std::string(isIpAddress(name) ? "IP:" : "DNS:") + name;
  }
  return list;
}

void addExtensions(X509* certificate, const CertificateRequest& request, X509* issuer) {
  X509V3_CTX context;
  setContext(context, issuer, certificate, nullptr);
  const auto add = [&](int kind, const std::string& value) {
    need(X509_add_ext(certificate, extension(context, kind, value).get(), -1) == 1,
         "add an extension to a certificate");
  };
  const bool authority = request.kind == CertificateKind::authority;
  add(NID_basic_constraints, authority ? "critical,CA:TRUE,pathlen:0" : "critical,CA:FALSE");
  add(NID_key_usage, authority ? "critical,keyCertSign,cRLSign" : "critical,digitalSignature");
  if (!authority) {
    add(NID_ext_key_usage, request.kind == CertificateKind::server ? "serverAuth" : "clientAuth");
    add(NID_subject_alt_name, alternativeNames(request));
  }
  add(NID_subject_key_identifier, "hash");
  add(NID_authority_key_identifier,
      "keyid:always");  // must follow the subject's identifier, which it may use
}

// ---- PEM ----

template <typename Write>
std::string pem(Write write) {
  const Owned<BIO> bio(BIO_new(BIO_s_mem()));
  need(bio && write(bio.get()) == 1, "write PEM");
  char* text = nullptr;
  const long bytes = BIO_get_mem_data(bio.get(), &text);
  return {text, static_cast<std::size_t>(bytes)};
}

template <typename Owner, typename Read>
Owner fromPem(const std::string& text, const std::string& path, const char* what, Read read) {
  const Owned<BIO> bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
  need(bio != nullptr, "read PEM");
  // Passes an empty password; otherwise OpenSSL would ask for one on the terminal.
  char none[] = "";
  Owner owner(read(bio.get(), nullptr, nullptr, none));
  if (owner) return owner;
  ERR_clear_error();
  throw UsageError("bad-certificate", path + " contains no " + what + " in PEM",
                   "check its content; 'cleave-server certs init' makes a folder with what is "
                   "needed");
}

}  // namespace

bool isIpAddress(const std::string& name) {
  std::array<unsigned char, sizeof(in6_addr)> address{};
  return ::inet_pton(AF_INET, name.c_str(), address.data()) == 1 ||
         ::inet_pton(AF_INET6, name.c_str(), address.data()) == 1;
}

// ---- Creating ----

Key makeKey() {
  Key key(EVP_EC_gen("P-256"));
  need(key != nullptr, "create a key");
  return key;
}

Certificate makeCertificate(const CertificateRequest& request, EVP_PKEY* key,
                            const Issuer* issuer) {
  Certificate made(X509_new());
  need(made != nullptr, "create a certificate");
  X509* const certificate = made.get();
  X509* const signer = issuer ? issuer->certificate : certificate;
  X509_NAME* const name = X509_get_subject_name(certificate);
  const auto* commonName = reinterpret_cast<const unsigned char*>(request.commonName.data());
  need(X509_set_version(certificate, kVersion3) == 1 &&
           X509_set_serialNumber(certificate, randomSerial().get()) == 1 &&
           X509_set1_notBefore(certificate, asn1Time(request.from).get()) == 1 &&
           X509_set1_notAfter(certificate, asn1Time(request.until).get()) == 1 &&
           X509_set_pubkey(certificate, key) == 1 &&
           X509_NAME_add_entry_by_NID(name, NID_commonName, MBSTRING_UTF8, commonName,
                                      static_cast<int>(request.commonName.size()), -1, 0) == 1 &&
           X509_set_issuer_name(certificate, X509_get_subject_name(signer)) == 1,
       "fill in a certificate");
  addExtensions(certificate, request, signer);
  need(X509_sign(certificate, issuer ? issuer->key : key, EVP_sha256()) > 0, "sign a certificate");
  return made;
}

RevocationList makeRevocationList(const RevocationRequest& request, const Issuer& issuer) {
  RevocationList made(X509_CRL_new());
  need(made != nullptr, "create a revocation list");
  X509_CRL* const list = made.get();
  need(X509_CRL_set_version(list, kListVersion2) == 1 &&
           X509_CRL_set_issuer_name(list, X509_get_subject_name(issuer.certificate)) == 1 &&
           X509_CRL_set1_lastUpdate(list, asn1Time(request.from).get()) == 1 &&
           X509_CRL_set1_nextUpdate(list, asn1Time(request.until).get()) == 1,
       "fill in a revocation list");
  for (const Revocation& revocation : request.revoked) {
    Owned<X509_REVOKED> entry(X509_REVOKED_new());
    need(entry &&
             X509_REVOKED_set_serialNumber(entry.get(), integerOfHex(revocation.serial).get()) ==
                 1 &&
             X509_REVOKED_set_revocationDate(entry.get(), asn1Time(revocation.date).get()) == 1 &&
             X509_CRL_add0_revoked(list, entry.get()) == 1,
         "revoke a certificate");
    (void)entry.release();  // now owned by the list
  }
  const Owned<ASN1_INTEGER> number(ASN1_INTEGER_new());
  need(number && ASN1_INTEGER_set_uint64(number.get(), request.number) == 1 &&
           X509_CRL_add1_ext_i2d(list, NID_crl_number, number.get(), 0, 0) == 1,
       "number a revocation list");
  X509V3_CTX context;
  setContext(context, issuer.certificate, nullptr, list);
  need(X509_CRL_add_ext(
           list, extension(context, NID_authority_key_identifier, "keyid:always").get(), -1) == 1 &&
           X509_CRL_sort(list) == 1 && X509_CRL_sign(list, issuer.key, EVP_sha256()) > 0,
       "sign a revocation list");
  return made;
}

// ---- Conversion to and from PEM ----

std::string pemOf(EVP_PKEY* key) {
  return pem([&](BIO* bio) {
    return PEM_write_bio_PKCS8PrivateKey(bio, key, nullptr, nullptr, 0, nullptr, nullptr);
  });
}
std::string pemOf(X509* certificate) {
  return pem([&](BIO* bio) { return PEM_write_bio_X509(bio, certificate); });
}
std::string pemOf(X509_CRL* list) {
  return pem([&](BIO* bio) { return PEM_write_bio_X509_CRL(bio, list); });
}

Key keyFromPem(const std::string& text, const std::string& path) {
  return fromPem<Key>(text, path, "private key", PEM_read_bio_PrivateKey);
}
Certificate certificateFromPem(const std::string& text, const std::string& path) {
  return fromPem<Certificate>(text, path, "certificate", PEM_read_bio_X509);
}
RevocationList revocationListFromPem(const std::string& text, const std::string& path) {
  return fromPem<RevocationList>(text, path, "revocation list", PEM_read_bio_X509_CRL);
}

std::string serialOf(const X509* certificate) { return hexOf(X509_get0_serialNumber(certificate)); }
std::time_t startOf(const X509* certificate) { return needTime(X509_get0_notBefore(certificate)); }
std::time_t endOf(const X509* certificate) { return needTime(X509_get0_notAfter(certificate)); }
bool isAuthority(X509* certificate) { return X509_check_ca(certificate) == 1; }

std::string uriOf(const X509* certificate) {
  const AlternativeNames names = alternativeNamesOf(certificate);
  return names.uris.empty() ? "" : names.uris.front();
}

std::vector<std::string> namesOf(const X509* certificate) {
  return alternativeNamesOf(certificate).hosts;
}

std::uint64_t numberOf(const X509_CRL* list) {
  const Owned<ASN1_INTEGER> number(
      static_cast<ASN1_INTEGER*>(X509_CRL_get_ext_d2i(list, NID_crl_number, nullptr, nullptr)));
  std::uint64_t value = 0;
  if (number) need(ASN1_INTEGER_get_uint64(&value, number.get()) == 1, "read a number");
  return value;
}

std::vector<Revocation> revokedOf(X509_CRL* list) {
  std::vector<Revocation> revoked;
  const STACK_OF(X509_REVOKED)* entries = X509_CRL_get_REVOKED(list);
  for (int j = 0; j < sk_X509_REVOKED_num(entries); ++j) {
    const X509_REVOKED* entry = sk_X509_REVOKED_value(entries, j);
    revoked.push_back({hexOf(X509_REVOKED_get0_serialNumber(entry)),
                       needTime(X509_REVOKED_get0_revocationDate(entry))});
  }
  return revoked;
}

}  // namespace cleave
