// Creates keys, certificates and revocation lists with OpenSSL: one CA signs for a server and its
// clients. ECDSA on P-256. Does not access the file system.
#pragma once

#include <ctime>
#include <string>
#include <vector>

#include "common/core/error.h"
#include "common/net/streams/certificate.h"

namespace cleave {

using Key = Owned<EVP_PKEY>;
using Certificate = Owned<X509>;
using RevocationList = Owned<X509_CRL>;

// All functions throw RunError "openssl-failed" if OpenSSL fails.

Key makeKey();

enum class CertificateKind { authority, server, client };

struct CertificateRequest {
  CertificateKind kind = CertificateKind::client;
  std::string commonName;
  std::string uri;                 // SAN URI; empty: none
  std::vector<std::string> names;  // SAN: host names and IP addresses
  std::time_t from = 0;
  std::time_t until = 0;
};

struct Issuer {
  X509* certificate;
  EVP_PKEY* key;
};

// Without an issuer, the certificate is self-signed. The serial is a random number of 128 bits.
Certificate makeCertificate(const CertificateRequest& request, EVP_PKEY* key, const Issuer* issuer);

struct Revocation {
  std::string serial;  // in the form of serialOf()
  std::time_t date = 0;
};

struct RevocationRequest {
  std::uint64_t number = 1;  // increases with every list
  std::vector<Revocation> revoked;
  std::time_t from = 0;
  std::time_t until = 0;  // expiry time, after which other verifiers may reject all certificates
};
RevocationList makeRevocationList(const RevocationRequest& request, const Issuer& issuer);

std::string pemOf(EVP_PKEY* key);  // PKCS #8, without a password
std::string pemOf(X509* certificate);
std::string pemOf(X509_CRL* list);

// Parse `text`, the contents of the file `path`. Throw UsageError "bad-certificate" if it is not of
// the expected kind.
Key keyFromPem(const std::string& text, const std::string& path);
Certificate certificateFromPem(const std::string& text, const std::string& path);
RevocationList revocationListFromPem(const std::string& text, const std::string& path);

std::string serialOf(const X509* certificate);  // hexadecimal, lower case
std::time_t startOf(const X509* certificate);
std::time_t endOf(const X509* certificate);
std::string uriOf(const X509* certificate);                 // the first SAN URI; empty: none
std::vector<std::string> namesOf(const X509* certificate);  // host names and IP addresses
bool isAuthority(X509* certificate);
std::uint64_t numberOf(const X509_CRL* list);
std::vector<Revocation> revokedOf(X509_CRL* list);

bool isIpAddress(const std::string& name);

}  // namespace cleave
