#include "common/net/streams/tls.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <vector>

#include "common/core/durable.h"
#include "common/core/error.h"
#include "common/net/streams/certificate.h"
#include "common/net/streams/tls_peer.h"

namespace cleave {
namespace {

constexpr std::time_t kWarnSeconds = std::time_t{14} * 24 * 3600;
constexpr long kMaxChainBytes = 16 << 10;  // maximum size of a peer's certificate chain
constexpr const char* kSuites = "TLS_AES_128_GCM_SHA256:TLS_CHACHA20_POLY1305_SHA256";

struct Closed {
  void operator()(FILE* file) const { std::fclose(file); }
};
using FilePtr = std::unique_ptr<FILE, Closed>;

FilePtr openFile(const std::string& path) {
  FilePtr file(std::fopen(path.c_str(), "re"));
  if (file) return file;
  throw UsageError("no-certificates",
                   "cannot read " + path + ", which TLS requires: " + std::strerror(errno),
                   "pass the folder with the certificates as tls.folder, a client also as --tls "
                   "DIR; 'cleave-server certs init' writes a server's to certs, and 'cleave-server "
                   "certs client NAME' a client's to certs/clients/NAME");
}

[[noreturn]] void refuseFile(const std::string& path, const std::string& what) {
  throw UsageError("bad-certificate-file", path + " " + what,
                   "make a new one ('cleave-server certs --help'), or copy it again");
}

// Reads all objects in a PEM file. Requires at least one.
template <typename Pointer, auto Read>
std::vector<Pointer> readAll(const std::string& path, const char* what) {
  const FilePtr file = openFile(path);
  std::vector<Pointer> all;
  while (Pointer one{Read(file.get(), nullptr, nullptr, nullptr)}) all.push_back(std::move(one));
  const bool atEnd = ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_NO_START_LINE;
  ERR_clear_error();
  if (all.empty() || !atEnd) refuseFile(path, std::string("is not a PEM file of ") + what);
  return all;
}

std::vector<Owned<X509>> readCertificates(const std::string& path) {
  return readAll<Owned<X509>, PEM_read_X509>(path, "certificates");
}

Owned<EVP_PKEY> readKey(const std::string& path) {
  openFile(path);  // throws if it does not exist
  const std::string text = readPrivateFile(path);
  const Owned<BIO> source(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
  // Otherwise OpenSSL would ask for a passphrase on the terminal.
  const auto noPassphrase = [](char*, int, int, void*) { return -1; };
  Owned<EVP_PKEY> key(PEM_read_bio_PrivateKey(source.get(), nullptr, noPassphrase, nullptr));
  ERR_clear_error();
  if (!key) refuseFile(path, "is not a PEM file of a private key without a passphrase");
  return key;
}

std::time_t endOf(const Owned<X509>& certificate) {
  return timeOf(X509_get0_notAfter(certificate.get())).value_or(0);
}

}  // namespace

std::shared_ptr<const TlsContext> TlsContext::load(const std::string& folder, TlsRole role,
                                                   std::uint64_t bytesPerKey) {
  std::shared_ptr<TlsContext> context(new TlsContext(folder, role, bytesPerKey));
  context->readAuthorities();
  context->readOwn(role == TlsRole::client ? "client" : "server");
  if (role == TlsRole::server) context->readRevoked();
  return context;
}

TlsContext::TlsContext(std::string folder, TlsRole role, std::uint64_t bytesPerKey)
    : folder_(std::move(folder)),
      role_(role),
      bytesPerKey_(bytesPerKey),
      native_(SSL_CTX_new(TLS_method())) {
  if (native_ == nullptr) throw std::bad_alloc();
  SSL_CTX_set_min_proto_version(native_, TLS1_3_VERSION);
  SSL_CTX_set_max_proto_version(native_, TLS1_3_VERSION);
  SSL_CTX_set_ciphersuites(native_, kSuites);
  SSL_CTX_set_options(native_, SSL_OP_NO_COMPRESSION | SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_TICKET);
  // A resumed session would outlive the revocation of its certificate, and early data can be
  // replayed.
  SSL_CTX_set_num_tickets(native_, 0);
  SSL_CTX_set_session_cache_mode(native_, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_max_early_data(native_, 0);
  SSL_CTX_set_max_cert_list(native_, kMaxChainBytes);
  SSL_CTX_set_verify(native_, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, checkPeer);
}

TlsContext::~TlsContext() { SSL_CTX_free(native_); }

void TlsContext::readAuthorities() {
  for (const Owned<X509>& authority : readCertificates(path("ca.crt"))) {
    X509_STORE_add_cert(SSL_CTX_get_cert_store(native_), authority.get());
    ends_.emplace_back(endOf(authority), path("ca.crt"));
  }
}

void TlsContext::readOwn(const std::string& name) {
  const std::string file = path(name + ".crt");
  const std::string keyFile = path(name + ".key");
  const std::vector<Owned<X509>> chain = readCertificates(file);
  const Owned<EVP_PKEY> key = readKey(keyFile);
  ends_.emplace_back(endOf(chain.front()), file);
  if (X509_check_private_key(chain.front().get(), key.get()) != 1) {
    ERR_clear_error();
    throw UsageError("key-mismatch",
                     "the key " + keyFile + " does not belong to the certificate " + file,
                     "copy both again from the same place, or make new ones");
  }
  bool taken = SSL_CTX_use_certificate(native_, chain.front().get()) == 1 &&
               SSL_CTX_use_PrivateKey(native_, key.get()) == 1;
  for (std::size_t j = 1; taken && j < chain.size(); ++j) {
    taken = SSL_CTX_add1_chain_cert(native_, chain[j].get()) == 1;
  }
  if (taken) return;
  ERR_clear_error();
  refuseFile(file, "has a key that is too weak, or of an unknown kind");
}

void TlsContext::readRevoked() {
  X509_STORE* store = SSL_CTX_get_cert_store(native_);
  const std::string file = path("revoked.crl");
  const std::vector<Owned<X509>> authorities = readCertificates(path("ca.crt"));
  for (const Owned<X509_CRL>& list :
       readAll<Owned<X509_CRL>, PEM_read_X509_CRL>(file, "lists of revoked certificates")) {
    // With a list of another CA, OpenSSL would refuse either all clients or none.
    const bool isOurs = std::any_of(authorities.begin(), authorities.end(), [&](const auto& one) {
      return X509_CRL_verify(list.get(), X509_get0_pubkey(one.get())) == 1;
    });
    ERR_clear_error();
    if (!isOurs) refuseFile(file, "is not signed by the CA of " + path("ca.crt"));
    X509_STORE_add_crl(store, list.get());
  }
  X509_STORE_set_flags(store, X509_V_FLAG_CRL_CHECK);
}

std::string TlsContext::warning() const {
  const auto& [end, file] = *std::min_element(ends_.begin(), ends_.end());
  const std::time_t time = std::time(nullptr);
  if (end > time + kWarnSeconds) return {};
  return "the certificate " + file + (end <= time ? " expired on " : " expires on ") +
         timeText(end) + "; peers refuse expired certificates, so renew it";
}

}  // namespace cleave
