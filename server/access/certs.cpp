#include "server/access/certs.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <system_error>
#include <tuple>
#include <utility>

#include "common/core/durable.h"
#include "common/core/names.h"
#include "common/core/open_file.h"
#include "common/program/program.h"
#include "server/access/names.h"

namespace cleave {
namespace {

namespace fs = std::filesystem;

std::string withoutSlash(std::string folder) {
  while (folder.size() > 1 && folder.ends_with('/')) folder.pop_back();
  return folder;
}

std::string readText(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  if (file) return text;
  throw UsageError("cannot-read", path + ": cannot be read: " + std::strerror(errno),
                   "check the path and its permissions");
}

Certificate readCertificate(const std::string& path) {
  return certificateFromPem(readText(path), path);
}

void renameTo(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) throwCannotWrite(to, "cannot be created", errno);
}

void makeFolder(const std::string& folder) {
  if (::mkdir(folder.c_str(), 0700) != 0) throwCannotWrite(folder, "cannot be created", errno);
}

// A new folder with mode 0700 next to `place`. The destructor removes it with the files that are
// still in it.
class NewFolder {
 public:
  explicit NewFolder(const std::string& place) : path_(place + ".new-XXXXXX") {
    if (::mkdtemp(path_.data()) == nullptr) throwCannotWrite(place, "cannot be created", errno);
  }
  ~NewFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;

  const std::string& path() const { return path_; }
  // Atomically renames the folder to `place`. Returns false if `place` exists and is not empty.
  bool becomes(const std::string& place) const {
    syncFolder(path_);
    if (::rename(path_.c_str(), place.c_str()) == 0) {
      syncFolder(fs::path(place).parent_path().string());
      return true;
    }
    if (errno == ENOTEMPTY || errno == EEXIST) return false;
    throwCannotWrite(place, "cannot be created", errno);
  }
  // Moves its files to `folder`, replacing those with the same names.
  void replaceIn(const std::string& folder) const {
    std::vector<fs::path> files;
    for (const auto& entry : fs::directory_iterator(path_)) files.push_back(entry.path());
    for (const fs::path& file : files) {
      renameTo(file.string(), folder + "/" + file.filename().string());
    }
    syncFolder(folder);
  }

 private:
  std::string path_;
};

// Locks the folder while its files change; without the lock, two concurrent commands could lose a
// revocation.
class Lock {
 public:
  explicit Lock(const std::string& folder)
      : folder_(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
    if (!folder_ || ::flock(folder_.get(), LOCK_EX) != 0) {
      throwCannotWrite(folder, "cannot be locked", errno);
    }
  }

 private:
  const OpenFile folder_;
};

IssuedCertificate describe(X509* certificate) {
  IssuedCertificate issued;
  issued.serial = serialOf(certificate);
  issued.from = startOf(certificate);
  issued.until = endOf(certificate);
  issued.names = namesOf(certificate);
  const std::string uri = uriOf(certificate);
  if (isAuthority(certificate)) {
    issued.kind = CertificateKind::authority;
    issued.name = "authority";
  } else if (uri == kServerUri) {
    issued.kind = CertificateKind::server;
    issued.name = "server";
  } else if (uri.starts_with(kClientUri)) {
    issued.name = uri.substr(kClientUri.size());
  }
  return issued;
}

}  // namespace

CertificateState stateOf(const IssuedCertificate& certificate, std::time_t time) {
  if (certificate.revoked) return CertificateState::revoked;
  if (time > certificate.until) return CertificateState::expired;
  return time > certificate.until - kExpiresSoonDays * kDay ? CertificateState::expiresSoon
                                                            : CertificateState::valid;
}

const char* stateName(CertificateState state) {
  switch (state) {
    case CertificateState::valid:
      return "valid";
    case CertificateState::expiresSoon:
      return "expires soon";
    case CertificateState::expired:
      return "expired";
    case CertificateState::revoked:
      return "revoked";
  }
  return "";
}

struct CertificateFolder::Authority {
  Certificate certificate;
  Key key;
  Issuer issuer() const { return {certificate.get(), key.get()}; }
};

CertificateFolder::CertificateFolder(std::string folder, std::time_t time)
    : folder_(withoutSlash(std::move(folder))), time_(time) {}

// ---- Issuing ----

void CertificateFolder::init(const std::vector<std::string>& names) {
  const std::vector<std::string> all = serverNamesFrom(names);
  std::error_code error;
  const auto refuse = [&] {
    throw UsageError("certs-exist", folder_ + " already exists and is not empty",
                     "use its certificates ('" + command("list") + "' lists them, '" +
                         command("init --renew") +
                         "' renews the server's), or give another --folder");
  };
  if (fs::exists(folder_, error) && !fs::is_empty(folder_, error)) refuse();
  const std::string parent = fs::path(folder_).parent_path().string();
  if (!parent.empty()) fs::create_directories(parent, error);
  if (error) throwCannotWrite(parent, "cannot be created", error.value());

  const NewFolder made(folder_);
  const CertificateFolder inside(made.path(), time_);
  makeFolder(inside.path("issued"));
  makeFolder(inside.path("clients"));
  CertificateRequest request;
  request.kind = CertificateKind::authority;
  request.commonName = "Cleave authority";
  request.from = time_ - kClockSkewSeconds;
  request.until = time_ + kAuthorityDays * kDay;
  Authority authority;
  authority.key = makeKey();
  authority.certificate = makeCertificate(request, authority.key.get(), nullptr);
  writeNewFile(inside.path("ca.key"), pemOf(authority.key.get()), kPrivateFile);
  writeNewFile(inside.path("ca.crt"), pemOf(authority.certificate.get()), kPublicFile);
  inside.issueServer(authority, all, made.path());
  inside.writeRevoked(authority, 1, {});
  if (!made.becomes(folder_)) refuse();
}

void CertificateFolder::issue(const Authority& authority, CertificateRequest request,
                              const std::string& into, const std::string& file) const {
  request.from = time_ - kClockSkewSeconds;
  request.until = std::min(time_ + kCertificateDays * kDay, endOf(authority.certificate.get()));
  const Key key = makeKey();
  const Issuer issuer = authority.issuer();
  const Certificate certificate = makeCertificate(request, key.get(), &issuer);
  // The record is written first, so that every existing certificate can be revoked.
  writeNewFile(path("issued/" + serialOf(certificate.get()) + ".crt"), pemOf(certificate.get()),
               kPublicFile);
  syncFolder(path("issued"));
  writeNewFile(into + "/" + file + ".key", pemOf(key.get()), kPrivateFile);
  writeNewFile(into + "/" + file + ".crt", pemOf(certificate.get()), kPublicFile);
}

void CertificateFolder::issueServer(const Authority& authority,
                                    const std::vector<std::string>& names,
                                    const std::string& into) const {
  CertificateRequest request;
  request.kind = CertificateKind::server;
  request.commonName = "Cleave server";
  request.uri = kServerUri;
  request.names = names;
  issue(authority, std::move(request), into, "server");
}

void CertificateFolder::issueClient(const Authority& authority, const std::string& name,
                                    const std::string& into) const {
  CertificateRequest request;
  request.commonName = name;
  request.uri = std::string(kClientUri) + name;
  issue(authority, std::move(request), into, "client");
  writeNewFile(into + "/ca.crt", pemOf(authority.certificate.get()), kPublicFile);
}

void CertificateFolder::renewServer(const std::vector<std::string>& names) {
  const Authority authority = openAuthority();
  const Lock lock(folder_);
  const std::vector<std::string> all = names.empty() ? serverNames() : serverNamesFrom(names);
  const NewFolder made(path(""));
  issueServer(authority, all, made.path());
  made.replaceIn(folder_);
}

void CertificateFolder::makeClient(const std::string& name) {
  checkClientName(name);
  const Authority authority = openAuthority();
  const Lock lock(folder_);
  const std::string place = path("clients/" + name);
  const auto refuse = [&] {
    throw UsageError("certs-exist", "the client " + name + " already has a certificate",
                     "copy " + place + " to the client; to make a new one, run '" +
                         command("client " + name + " --renew") + "'");
  };
  if (!issuedTo(name).empty()) refuse();
  const NewFolder made(path("clients/"));
  issueClient(authority, name, made.path());
  if (!made.becomes(place)) refuse();
}

void CertificateFolder::renewClient(const std::string& name) {
  checkClientName(name);
  const Authority authority = openAuthority();
  const Lock lock(folder_);
  checkKnown(name);
  const std::string place = path("clients/" + name);
  const NewFolder made(path("clients/"));
  issueClient(authority, name, made.path());
  if (!made.becomes(place)) made.replaceIn(place);
}

// ---- Revoking ----

void CertificateFolder::writeRevoked(const Authority& authority, std::uint64_t number,
                                     std::vector<Revocation> revoked) const {
  RevocationRequest request;
  request.number = number;
  request.revoked = std::move(revoked);
  request.from = time_ - kClockSkewSeconds;
  // Revocation lists are not reissued on a schedule, so they are valid as long as the CA.
  request.until = endOf(authority.certificate.get());
  writeFileDurably(path("revoked.crl"),
                   pemOf(makeRevocationList(request, authority.issuer()).get()), kPublicFile);
}

std::size_t CertificateFolder::revoke(const std::string& name) {
  checkClientName(name);
  const Authority authority = openAuthority();
  const Lock lock(folder_);
  checkKnown(name);
  const RevocationList before = openRevoked();
  std::vector<Revocation> revoked = revokedOf(before.get());
  const std::size_t old = revoked.size();
  for (const IssuedCertificate& issued : issuedTo(name)) {
    if (!issued.revoked) revoked.push_back({issued.serial, time_});
  }
  const std::size_t added = revoked.size() - old;
  if (added > 0) writeRevoked(authority, numberOf(before.get()) + 1, std::move(revoked));
  return added;
}

// ---- Reading ----

CertificateFolder::Authority CertificateFolder::openAuthority() const {
  checkThere();
  Authority authority;
  authority.key = keyFromPem(readPrivateFile(path("ca.key")), path("ca.key"));
  authority.certificate = readCertificate(path("ca.crt"));
  if (X509_check_private_key(authority.certificate.get(), authority.key.get()) == 1)
    return authority;
  throw UsageError("bad-certificate", path("ca.key") + " is not the key of " + path("ca.crt"),
                   "restore the original pair of files, or give another folder with --folder");
}

RevocationList CertificateFolder::openRevoked() const {
  return revocationListFromPem(readText(path("revoked.crl")), path("revoked.crl"));
}

std::string CertificateFolder::command(const std::string& words) const {
  return "cleave-server certs " + words +
         (folder_ == "certs" ? "" : " --folder " + shellWord(folder_));
}

void CertificateFolder::checkThere() const {
  std::error_code error;
  if (fs::is_directory(path("issued"), error)) return;
  throw UsageError(
      "no-certs", folder_ + " has no certificates made by 'certs init'",
      "run '" + command("init") + "', or give the folder of the certificates with --folder");
}

void CertificateFolder::checkKnown(const std::string& name) const {
  if (!issuedTo(name).empty()) return;
  std::vector<std::string> clients;
  for (const IssuedCertificate& issued : list()) {
    if (issued.kind == CertificateKind::client) clients.push_back(issued.name);
  }
  const std::string meant = nearestName(name, clients);
  throw UsageError("no-such-client",
                   "no certificate was made for the client " + name +
                       (meant.empty() ? "" : "; did you mean " + meant + "?"),
                   "run '" + command("list") + "' to list all clients, or '" +
                       command("client " + name) + "' to add this one");
}

std::vector<IssuedCertificate> CertificateFolder::issuedTo(const std::string& client) const {
  std::vector<IssuedCertificate> all = list();
  std::erase_if(all, [&](const IssuedCertificate& issued) {
    return issued.kind != CertificateKind::client || issued.name != client;
  });
  return all;
}

std::vector<IssuedCertificate> CertificateFolder::list() const {
  checkThere();
  std::map<std::string, std::time_t> revoked;
  for (const Revocation& entry : revokedOf(openRevoked().get())) revoked[entry.serial] = entry.date;
  std::vector<IssuedCertificate> all = {describe(readCertificate(path("ca.crt")).get())};
  for (const auto& entry : fs::directory_iterator(path("issued"))) {
    if (entry.path().extension() != ".crt") continue;
    all.push_back(describe(readCertificate(entry.path().string()).get()));
    const auto found = revoked.find(all.back().serial);
    if (found != revoked.end()) all.back().revoked = found->second;
  }
  const auto order = [](const IssuedCertificate& issued) {
    return std::tie(issued.kind, issued.name, issued.from, issued.serial);
  };
  std::sort(all.begin(), all.end(),
            [&](const auto& one, const auto& other) { return order(one) < order(other); });
  for (std::size_t j = 0; j < all.size(); ++j) {
    all[j].isNewest =
        j + 1 == all.size() || all[j + 1].kind != all[j].kind || all[j + 1].name != all[j].name;
  }
  return all;
}

std::vector<std::string> CertificateFolder::serverNames() const {
  return namesOf(readCertificate(path("server.crt")).get());
}

}  // namespace cleave
