// Certificates for tests, valid or with a chosen fault, in the folder layout of --tls and
// tls.folder.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace cleave::test {

struct CertificateRequest {
  // Subject alternative names in the syntax of OpenSSL's configuration.
  std::string names = "URI:cleave:client/alice";
  std::string usage = "clientAuth";  // the extended key usage; empty: no such extension
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

// A separate CA; all test CAs have the same name.
class TestAuthority {
 public:
  explicit TestAuthority(int endsInDays = 365);
  ~TestAuthority();
  TestAuthority(const TestAuthority&) = delete;
  TestAuthority& operator=(const TestAuthority&) = delete;

  // Writes ca.crt, NAME.crt and NAME.key to `folder`; NAME is "client" or "server".
  void write(const std::string& folder, const std::string& name,
             const CertificateRequest& request) const;
  void writeRevoked(const std::string& folder, const std::vector<long>& serials = {}) const;
  // Writes the complete folder of a server.
  void writeServer(const std::string& folder,
                   const CertificateRequest& request = serverRequest()) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// A folder that the destructor removes.
class CertificateFolder {
 public:
  CertificateFolder();
  ~CertificateFolder();
  CertificateFolder(const CertificateFolder&) = delete;
  CertificateFolder& operator=(const CertificateFolder&) = delete;
  // The path of a subfolder, which it creates.
  std::string path(const std::string& name) const;

 private:
  std::filesystem::path folder_;
};

}  // namespace cleave::test
