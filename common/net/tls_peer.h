// What is wrong with a certificate, ours or the peer's: from OpenSSL's numbers to our errors.
#pragma once

#include <openssl/x509.h>

#include <ctime>
#include <exception>
#include <string>

#include "common/core/error.h"
#include "common/net/tls.h"

namespace cleave {

// What the check of a peer's certificate found. One for each connection, its SSL's app data.
struct PeerCheck {
  int error = X509_V_OK;
  std::string name;     // cleave:client/NAME; not to be trusted where there is an error
  std::string details;  // of the error: when a certificate ended, which names it has
  std::string renewal;  // of another name's: the server's command that adds it
};

// OpenSSL's verify callback: beyond the chain, dates, host name and revocation, a certificate must
// be made for its side, and a client's must have a name.
int checkPeer(int accepted, X509_STORE_CTX* store);

// The Error for a connection whose handshake or records failed. `check` is that of the peer's
// certificate; OpenSSL's queue has the rest.
std::exception_ptr tlsError(const PeerCheck& check, TlsRole ours);

// Checks a peer again that was accepted before: `certificate` with `chain`, by what `context`
// trusts and has revoked now. Dates do not count: a session may outlast its certificate. Throws
// RunError, as the handshake would.
void checkPeerAgain(const TlsContext& context, X509* certificate, STACK_OF(X509) * chain,
                    PeerCheck check);

// "2027-02-19 22:17 UTC"
std::string timeText(std::time_t time);

}  // namespace cleave
