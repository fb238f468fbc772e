// The folder of certificates that cleave-server makes: an authority of its own, the server's
// certificate, one for each client, and the list of those that are revoked.
//
//   ca.crt ca.key server.crt server.key revoked.crl    what the server reads (ca.key: these
//                                                      commands alone)
//   clients/NAME/ca.crt client.crt client.key          what the client NAME gets, whole
//   issued/SERIAL.crt                                  every certificate ever made: what is listed
//                                                      and revoked, whatever became of the copies
//
// Files are PEM. Keys have mode 0600, other files 0644, folders 0700, whatever the umask. Every
// change is durable, and whole or not there at all, but that a renewal replaces its files one after
// another: where it was stopped in between, it must be done again. Commands that run at the same
// time wait for each other.
#pragma once

#include <ctime>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/x509.h"

namespace cleave {

inline constexpr std::time_t kDay = 86400;   // seconds
inline constexpr int kCertificateDays = 90;  // server's and clients'
inline constexpr int kAuthorityDays = 3653;
inline constexpr int kEndsSoonDays = 14;
// So much before now a certificate begins: the other machine's clock may be slow.
inline constexpr std::time_t kClockSkewSeconds = 3600;

inline constexpr std::string_view kServerUri = "cleave:server";

struct IssuedCertificate {
  CertificateKind kind = CertificateKind::client;
  std::string name;  // the client's; "server", "authority"
  std::string serial;
  std::vector<std::string> names;  // the server's host names and addresses
  std::time_t from = 0;
  std::time_t until = 0;
  std::optional<std::time_t> revoked;
  bool isNewest = false;  // of its kind and name
};

enum class CertificateState { valid, endsSoon, expired, revoked };
CertificateState stateOf(const IssuedCertificate& certificate, std::time_t time);
const char* stateName(CertificateState state);

// All functions throw UsageError: "certs-exist" (something would be overwritten), "no-certs" (init
// has not been run), "no-such-client", "bad-name", "key-readable", "cannot-read",
// "bad-certificate"; RunError: "cannot-write", "openssl-failed".
class CertificateFolder {
 public:
  // `time`: now.
  explicit CertificateFolder(std::string folder, std::time_t time = std::time(nullptr));

  // Makes the folder, with its parents. `names`: host names and addresses of the server, beside
  // those of loopback; empty: this machine's, as serverNamesFrom().
  void init(const std::vector<std::string>& names);
  // A new key and certificate in place of the server's. `names` as above; empty: the same as now.
  void renewServer(const std::vector<std::string>& names);

  // Makes clients/NAME. Refuses a name that has a certificate already, in whatever state.
  void makeClient(const std::string& name);
  // A new key and certificate in place of those in clients/NAME, which need not be there any more.
  // The one before stays valid until its end, unless it is revoked.
  void renewClient(const std::string& name);
  // Revokes all certificates of the client, also those that have expired: clocks may be wrong.
  // Returns how many were not revoked before; the list is written anew where there are any.
  std::size_t revoke(const std::string& name);

  // By kind, name and age: the authority, the server's, the clients'.
  std::vector<IssuedCertificate> list() const;
  // Of the server's newest certificate.
  std::vector<std::string> serverNames() const;

  const std::string& folder() const { return folder_; }
  std::time_t time() const { return time_; }

 private:
  struct Authority;
  Authority openAuthority() const;
  void issue(const Authority& authority, CertificateRequest request, const std::string& into,
             const std::string& name) const;
  void issueServer(const Authority& authority, const std::vector<std::string>& names,
                   const std::string& into) const;
  void issueClient(const Authority& authority, const std::string& name,
                   const std::string& into) const;
  void writeRevoked(const Authority& authority, std::uint64_t number,
                    std::vector<Revocation> revoked) const;
  RevocationList openRevoked() const;
  void checkThere() const;
  void checkKnown(const std::string& client) const;
  std::vector<IssuedCertificate> issuedTo(const std::string& client) const;
  std::string path(const std::string& file) const { return folder_ + "/" + file; }

  const std::string folder_;
  const std::time_t time_;
};

}  // namespace cleave
