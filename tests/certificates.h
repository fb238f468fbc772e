// Certificates for tests, whole or with a chosen fault, in folders as the daemons read them.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace cleave::test {

struct CertificateRequest {
  // Subject alternative names, as OpenSSL's configuration has them.
  std::string names = "URI:cleave:client/alice";
  std::string usage = "clientAuth";  // extended key usage; empty: none
  int beginsInDays = -1;
  int endsInDays = 30;
  long serial = 2;
};

inline CertificateRequest clientRequest(const std::string& name = "alice") {
  return {.names = "URI:cleave:client/" + name};
}
inline CertificateRequest serverRequest(
    const std::string& names = "URI:cleave:server,DNS:localhost,IP:127.0.0.1") {
  return {.names = names, .usage = "serverAuth"};
}

// A CA of its own; all have the same name.
class TestAuthority {
 public:
  explicit TestAuthority(int endsInDays = 365);
  ~TestAuthority();
  TestAuthority(const TestAuthority&) = delete;
  TestAuthority& operator=(const TestAuthority&) = delete;

  // Makes ca.crt, NAME.crt and NAME.key in `folder`; NAME is "client" or "server".
  void write(const std::string& folder, const std::string& name,
             const CertificateRequest& request) const;
  void writeRevoked(const std::string& folder, const std::vector<long>& serials = {}) const;
  // A server's whole folder.
  void writeServer(const std::string& folder,
                   const CertificateRequest& request = serverRequest()) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// A folder that goes when this does.
class CertificateFolder {
 public:
  CertificateFolder();
  ~CertificateFolder();
  CertificateFolder(const CertificateFolder&) = delete;
  CertificateFolder& operator=(const CertificateFolder&) = delete;
  // Of a part of it, made.
  std::string path(const std::string& name) const;

 private:
  std::filesystem::path folder_;
};

}  // namespace cleave::test
