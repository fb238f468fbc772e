#include "common/net/streams/tls_peer.h"

#include <openssl/err.h>
#include <openssl/ssl.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <ctime>
#include <new>

#include "common/files/identity.h"
#include "common/net/streams/certificate.h"

namespace cleave {
namespace {

constexpr std::size_t kMaxNamesShown = 200;  // bytes

// A reason to refuse a certificate. The refusing side reports the error, the other side gets the
// alert.
struct Reason {
  const char* code;
  int alert;
  const char* says;  // what is wrong with the certificate
  const char* hintForClient;
  const char* hintForServer;
};

// Each reason has its own alert. The alert is all that the other side receives, so both sides
// report the same reason.
constexpr Reason kUnknownCa = {"certificate-unknown-ca", SSL_AD_UNKNOWN_CA,
                               "is not from a CA that is trusted here",
                               "give the client the folder that 'cleave-server certs client NAME' "
                               "made on this server: both sides need the same CA",
                               "give the client the folder that 'cleave-server certs client NAME' "
                               "made on this server: both sides need the same CA"};
constexpr Reason kExpired = {
    "certificate-expired", SSL_AD_CERTIFICATE_EXPIRED, "has expired",
    "make a new one on the server: cleave-server certs client NAME --renew",
    "run 'cleave-server certs init --renew' on the server, or correct a wrong clock"};
constexpr Reason kNotYetValid = {"certificate-not-yet-valid", SSL_AD_CERTIFICATE_UNKNOWN,
                                 "is not valid yet", "compare the clocks of both machines",
                                 "compare the clocks of both machines"};
constexpr Reason kRevoked = {
    "certificate-revoked", SSL_AD_CERTIFICATE_REVOKED, "was revoked",
    "ask the server's operator to renew it: cleave-server certs client NAME --renew",
    "ask the server's operator"};
constexpr Reason kWrongKind = {"certificate-wrong-kind", SSL_AD_UNSUPPORTED_CERTIFICATE,
                               "is not made for this side of a connection",
                               "use client.crt and client.key as 'cleave-server certs client "
                               "NAME' made them",
                               "use server.crt and server.key as 'cleave-server certs init' "
                               "made them"};
constexpr Reason kWrongName = {"wrong-server-name", SSL_AD_BAD_CERTIFICATE,
                               "is not for the name that the client connects to", "",
                               "connect by a name or address that is in the server's certificate"};
constexpr std::array kReasons = {&kUnknownCa, &kExpired,   &kNotYetValid,
                                 &kRevoked,   &kWrongKind, &kWrongName};

const Reason* reasonOf(int verifyError) {
  switch (verifyError) {
    case X509_V_ERR_CERT_HAS_EXPIRED:
      return &kExpired;
    case X509_V_ERR_CERT_NOT_YET_VALID:
      return &kNotYetValid;
    case X509_V_ERR_CERT_REVOKED:
      return &kRevoked;
    case X509_V_ERR_INVALID_PURPOSE:
      return &kWrongKind;
    case X509_V_ERR_HOSTNAME_MISMATCH:
    case X509_V_ERR_IP_ADDRESS_MISMATCH:
      return &kWrongName;
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY:
    case X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE:
    case X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN:
    case X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT:
    case X509_V_ERR_CERT_SIGNATURE_FAILURE:  // another CA of the same name
      return &kUnknownCa;
    default:
      return nullptr;
  }
}

// The OpenSSL error that produces the reason's alert.
int errorWithAlertOf(int verifyError) {
  const Reason* reason = reasonOf(verifyError);
  if (reason == &kUnknownCa) return X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY;
  if (reason == &kNotYetValid) return X509_V_ERR_INVALID_EXTENSION;
  return verifyError;
}

// ---- Certificate contents ----

// The client's name; empty if the certificate has none, or more than one.
std::string clientName(const X509* certificate) {
  std::string found;
  for (const std::string& uri : alternativeNamesOf(certificate).uris) {
    if (!uri.starts_with(kClientUri)) continue;
    if (!found.empty() || !isClientName(uri.substr(kClientUri.size()))) return {};
    found = uri.substr(kClientUri.size());
  }
  return found;
}

// The names by which clients may connect to a server. They come from a peer and are written to a
// log.
std::string hostNames(const X509* certificate) {
  std::string all;
  for (std::string one : alternativeNamesOf(certificate).hosts) {
    std::erase_if(one, [](char c) { return c <= ' ' || c > '~'; });
    if (!one.empty() && all.size() + one.size() < kMaxNamesShown) {
      all += (all.empty() ? "" : ", ") + one;
    }
  }
  return all.empty() ? "no name" : all;
}

// Requires the extension: without it, a certificate would be valid for either side.
bool isMadeFor(X509* certificate, TlsRole role) {
  const std::uint32_t usage = X509_get_extended_key_usage(certificate);
  return usage != UINT32_MAX &&
         (usage & (role == TlsRole::client ? XKU_SSL_CLIENT : XKU_SSL_SERVER)) != 0;
}

std::string detailsOf(int error, const X509* certificate) {
  if (error == X509_V_ERR_CERT_HAS_EXPIRED) {
    return " (on " + timeText(timeOf(X509_get0_notAfter(certificate)).value_or(0)) + ")";
  }
  if (error == X509_V_ERR_CERT_NOT_YET_VALID) {
    return " (it is valid from " + timeText(timeOf(X509_get0_notBefore(certificate)).value_or(0)) +
           ")";
  }
  if (error == X509_V_ERR_HOSTNAME_MISMATCH || error == X509_V_ERR_IP_ADDRESS_MISMATCH) {
    return " (it is for " + hostNames(certificate) + ")";
  }
  return {};
}

// Returns the command that adds the name to which the client of `ssl` connects, and keeps the
// certificate's other names; loopback names are added by default. The names come from a peer, so
// they must be safe to paste into a shell.
std::string renewalFor(const SSL* ssl, const X509* certificate) {
  X509_VERIFY_PARAM* param = SSL_get0_param(const_cast<SSL*>(ssl));
  std::string asked;
  if (const char* host = X509_VERIFY_PARAM_get0_host(param, 0)) {
    asked = host;
  } else if (char* address = X509_VERIFY_PARAM_get1_ip_asc(param)) {
    asked = address;
    OPENSSL_free(address);
  }
  std::string command = "cleave-server certs init --renew --name " + asked;
  for (const std::string& name : alternativeNamesOf(certificate).hosts) {
    if (name == "localhost" || name == "127.0.0.1" || name == "::1") continue;
    const bool isPlain = std::all_of(name.begin(), name.end(), [](unsigned char c) {
      return std::isalnum(c) != 0 || c == '.' || c == '-' || c == ':';
    });
    if (!isPlain || name.starts_with('-') || command.size() > 2 * kMaxNamesShown) continue;
    command += " --name " + name;
  }
  return command;
}

// ---- Errors ----

RunError refusedHere(const PeerCheck& check, TlsRole ours) {
  const bool ofClient = ours == TlsRole::server;
  std::string whose = ofClient ? "the client's certificate" : "the server's certificate";
  if (!check.name.empty()) whose += " (its name is " + check.name + ")";
  const Reason* reason = reasonOf(check.error);
  if (reason == nullptr) {
    return RunError("tls-failed",
                    whose + " is refused: " + X509_verify_cert_error_string(check.error),
                    "make a new one")
        .about(kCertificatesKey);
  }
  std::string hint = ofClient ? reason->hintForClient : reason->hintForServer;
  if (!check.renewal.empty()) {
    hint += ", or add this name on the server and send it SIGHUP: " + check.renewal;
  }
  return RunError(reason->code, whose + " " + reason->says + check.details, hint)
      .about(kCertificatesKey);
}

RunError requiredError(const std::string& sentence) {
  return RunError("certificate-required", sentence,
                  "give the client the folder that 'cleave-server certs client NAME' made for it: "
                  "set tls.folder, or --tls DIR")
      .about(kCertificatesKey);
}

RunError versionError(const std::string& sentence) {
  return RunError("tls-version", sentence, "install a current version of Cleave on both machines")
      .about("tls.enabled");
}

RunError refusedThere(int alert, TlsRole ours, ErrorKind broken) {
  const bool ofClient = ours == TlsRole::client;
  const std::string peer = ofClient ? "the server" : "the client";
  for (const Reason* reason : kReasons) {
    if (reason->alert != alert || (ofClient && reason == &kWrongName)) continue;
    return RunError(reason->code,
                    peer + " refuses the certificate of this " + (ofClient ? "client" : "server") +
                        ": it " + reason->says,
                    ofClient ? reason->hintForClient : reason->hintForServer)
        .about(kCertificatesKey);
  }
  if (alert == SSL_AD_CERTIFICATE_REQUIRED) {
    return requiredError(peer + " requires a certificate, but received none");
  }
  if (alert == SSL_AD_PROTOCOL_VERSION) return versionError(peer + " does not speak TLS 1.3");
  return RunError(broken, "tls-failed",
                  peer + " ends TLS with the alert \"" + SSL_alert_desc_string_long(alert) + "\"",
                  "check its log, and any proxy between the two machines, then try again")
      .about("tls.enabled");
}

}  // namespace

std::string timeText(std::time_t time) {
  std::tm utc{};
  ::gmtime_r(&time, &utc);
  char text[64];
  std::strftime(text, sizeof text, "%Y-%m-%d %H:%M UTC", &utc);
  return text;
}

int checkPeer(int accepted, X509_STORE_CTX* store) {
  int error = X509_STORE_CTX_get_error(store);
  // The list is a local file: no newer list is available, and its certificates stay revoked.
  if (error == X509_V_ERR_CRL_HAS_EXPIRED) {
    X509_STORE_CTX_set_error(store, X509_V_OK);
    return 1;
  }
  const auto* ssl = static_cast<const SSL*>(
      X509_STORE_CTX_get_ex_data(store, SSL_get_ex_data_X509_STORE_CTX_idx()));
  const TlsRole peer = SSL_is_server(ssl) == 1 ? TlsRole::client : TlsRole::server;
  auto& check = *static_cast<PeerCheck*>(SSL_get_app_data(ssl));
  X509* own = X509_STORE_CTX_get0_cert(store);
  if (peer == TlsRole::client) check.name = clientName(own);
  if (accepted == 1 && X509_STORE_CTX_get_error_depth(store) == 0 &&
      (!isMadeFor(own, peer) || (peer == TlsRole::client && check.name.empty()))) {
    accepted = 0;
    error = X509_V_ERR_INVALID_PURPOSE;
  }
  if (accepted == 1) return 1;
  check.error = error;
  check.details = detailsOf(error, X509_STORE_CTX_get_current_cert(store));
  if (reasonOf(error) == &kWrongName) check.renewal = renewalFor(ssl, own);
  X509_STORE_CTX_set_error(store, errorWithAlertOf(error));
  return 0;
}

void checkPeerAgain(const TlsContext& context, X509* certificate, STACK_OF(X509) * chain,
                    PeerCheck check) {
  const Owned<X509_STORE_CTX> store(X509_STORE_CTX_new());
  if (!store || X509_STORE_CTX_init(store.get(), SSL_CTX_get_cert_store(context.native()),
                                    certificate, chain) != 1) {
    throw std::bad_alloc();
  }
  X509_STORE_CTX_set_flags(store.get(), X509_V_FLAG_NO_CHECK_TIME);
  const bool isAccepted = X509_verify_cert(store.get()) == 1;
  ERR_clear_error();
  if (isAccepted) return;
  check.error = X509_STORE_CTX_get_error(store.get());
  check.details.clear();
  throw refusedHere(check, context.role());
}

std::exception_ptr tlsError(const PeerCheck& check, TlsRole ours, ErrorKind broken) {
  const std::string peer = ours == TlsRole::client ? "the server" : "the client";
  if (check.error != X509_V_OK) return std::make_exception_ptr(refusedHere(check, ours));
  const unsigned long error = ERR_peek_error();
  const int reason = ERR_GET_REASON(error);
  if (ERR_GET_LIB(error) == ERR_LIB_SSL) {
    if (reason >= SSL_AD_REASON_OFFSET) {
      return std::make_exception_ptr(refusedThere(reason - SSL_AD_REASON_OFFSET, ours, broken));
    }
    if (reason == SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE) {
      return std::make_exception_ptr(requiredError(peer + " has no certificate"));
    }
    if (reason == SSL_R_UNSUPPORTED_PROTOCOL || reason == SSL_R_WRONG_SSL_VERSION) {
      return std::make_exception_ptr(versionError(peer + " does not speak TLS 1.3"));
    }
  }
  const char* text = ERR_reason_error_string(error);
  return std::make_exception_ptr(TlsFailed(
      broken,
      peer + " sends data that is not valid TLS: " + (text != nullptr ? text : "unknown reason"),
      "check any proxy between the two machines, then try again"));
}

}  // namespace cleave
