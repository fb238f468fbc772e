// Reads certificates and owns OpenSSL's objects, for code that makes certificates
// (server/access/x509.h) and code that checks them (tls.h).
#pragma once

#include <openssl/x509v3.h>

#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace cleave {

struct OpenSslDelete {
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
  void operator()(X509* certificate) const { X509_free(certificate); }
  void operator()(X509_CRL* list) const { X509_CRL_free(list); }
  void operator()(X509_STORE_CTX* store) const { X509_STORE_CTX_free(store); }
  void operator()(X509_EXTENSION* extension) const { X509_EXTENSION_free(extension); }
  void operator()(X509_REVOKED* entry) const { X509_REVOKED_free(entry); }
  void operator()(GENERAL_NAMES* names) const { GENERAL_NAMES_free(names); }
  // ASN1_INTEGER and ASN1_TIME are the same type as ASN1_STRING.
  void operator()(ASN1_STRING* text) const { ASN1_STRING_free(text); }
  void operator()(BIO* bio) const { BIO_free_all(bio); }
  void operator()(BIGNUM* number) const { BN_free(number); }
  void operator()(char* text) const { OPENSSL_free(text); }
};
template <typename Type>
using Owned = std::unique_ptr<Type, OpenSslDelete>;

// Nullopt if `time` is not valid.
std::optional<std::time_t> timeOf(const ASN1_TIME* time);

// Subject alternative names, in order. They may come from a peer and contain any bytes.
struct AlternativeNames {
  std::vector<std::string> uris;
  std::vector<std::string> hosts;  // host names, and IP addresses as text
};
AlternativeNames alternativeNamesOf(const X509* certificate);

}  // namespace cleave
