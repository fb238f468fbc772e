// Converts OpenSSL's errors about a certificate, ours or the peer's, to our errors.
#pragma once

#include <openssl/x509.h>

#include <ctime>
#include <exception>
#include <string>

#include "common/core/error.h"
#include "common/net/streams/tls.h"

namespace cleave {

// Error::key() of errors about certificates.
inline constexpr const char* kCertificatesKey = "tls.folder";

// The peer sends what is not TLS.
class TlsFailed : public ProtocolError {
 public:
  TlsFailed(ErrorKind kind, const std::string& sentence, std::string hint)
      : ProtocolError(kind, "tls-failed", sentence, std::move(hint)) {
    key_ = "tls.enabled";
  }
};

// The result of checking a peer's certificate. Each connection stores one as its SSL object's app
// data.
struct PeerCheck {
  int error = X509_V_OK;
  std::string name;     // cleave:client/NAME; not trustworthy if there is an error
  std::string details;  // details of the error: expiry time, or the names in the certificate
  std::string renewal;  // for a wrong name: the server command that adds the name
};

// OpenSSL's verify callback. In addition to chain, dates, host name and revocation, it checks that
// a certificate is made for its side, and that a client's certificate has a name.
int checkPeer(int accepted, X509_STORE_CTX* store);

// The Error for a connection whose handshake or records failed. `check` is the result for the
// peer's certificate; the rest comes from OpenSSL's error queue.
std::exception_ptr tlsError(const PeerCheck& check, TlsRole ours, ErrorKind broken);

// Checks a previously accepted peer again: `certificate` with `chain`, against the trusted CAs and
// revocation lists of `context`. Ignores dates, because a session may outlive its certificate.
// Throws the same RunError as the handshake.
void checkPeerAgain(const TlsContext& context, X509* certificate, STACK_OF(X509) * chain,
                    PeerCheck check);

// "2027-02-19 22:17 UTC"
std::string timeText(std::time_t time);

}  // namespace cleave
