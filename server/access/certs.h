// The folder of certificates that cleave-server creates: its own CA, the server's certificate, a
// certificate per client, and the list of revoked certificates.
//
//   ca.crt ca.key server.crt server.key revoked.crl    read by the server (ca.key: only by these
//                                                      commands)
//   clients/NAME/ca.crt client.crt client.key          the complete folder for the client NAME
//   issued/SERIAL.crt                                  every certificate ever issued; used by the
//                                                      commands list and revoke
//
// Files are PEM. Keys have mode 0600, other files 0644, folders 0700, regardless of the umask.
// Every change is durable and atomic, except renewals: they replace their files one after another,
// so an interrupted renewal must be repeated. Concurrent commands wait for each other.
#pragma once

#include <ctime>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/access/x509.h"

namespace cleave {

inline constexpr std::time_t kDay = 86400;   // seconds
inline constexpr int kCertificateDays = 90;  // validity of server and client certificates
inline constexpr int kAuthorityDays = 3653;
inline constexpr int kExpiresSoonDays = 14;
// Certificates become valid this long before they are created, because the peer's clock may be
// slow.
inline constexpr std::time_t kClockSkewSeconds = 3600;

inline constexpr std::string_view kServerUri = "cleave:server";

struct IssuedCertificate {
  CertificateKind kind = CertificateKind::client;
  std::string name;  // the client's name; "server"; "authority"
  std::string serial;
  std::vector<std::string> names;  // the server's host names and addresses
  std::time_t from = 0;
  std::time_t until = 0;
  std::optional<std::time_t> revoked;
  bool isNewest = false;  // the newest certificate of its kind and name
};

enum class CertificateState { valid, expiresSoon, expired, revoked };
CertificateState stateOf(const IssuedCertificate& certificate, std::time_t time);
const char* stateName(CertificateState state);

// All functions throw UsageError: "certs-exist" (something would be overwritten), "no-certs" (init
// has not been run), "no-such-client", "bad-name", "key-readable", "cannot-read",
// "bad-certificate"; RunError: "cannot-write", "openssl-failed".
class CertificateFolder {
 public:
  // `time`: the current time.
  explicit CertificateFolder(std::string folder, std::time_t time = std::time(nullptr));

  // Creates the folder and its parents. `names`: the server's host names and addresses; loopback
  // names are added. Empty: namesOfThisMachine().
  void init(const std::vector<std::string>& names);
  // Replaces the server's key and certificate. `names` as above; empty: the current ones.
  void renewServer(const std::vector<std::string>& names);

  // Creates clients/NAME. Throws if the name already has a certificate, even an expired or revoked
  // one.
  void makeClient(const std::string& name);
  // Replaces the key and certificate in clients/NAME, even if that folder no longer exists. The
  // previous certificate stays valid until it expires, unless it is revoked.
  void renewClient(const std::string& name);
  // Revokes all certificates of the client, including expired ones, since clocks may be wrong.
  // Returns how many had not been revoked before; rewrites the list if there are any.
  std::size_t revoke(const std::string& name);

  // All certificates, sorted by kind (authority, server, clients), name and age.
  std::vector<IssuedCertificate> list() const;
  // The names in the server's newest certificate.
  std::vector<std::string> serverNames() const;

  const std::string& folder() const { return folder_; }
  // For hints. Example: "cleave-server certs client NAME", with the folder if it is not the
  // default.
  std::string command(const std::string& words) const;
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
