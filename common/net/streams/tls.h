// TLS 1.3 with mutual authentication. Our own certificate and the trusted CAs are read from a
// folder of PEM files. The peer's certificate is always checked.
#pragma once

#include <cstdint>
#include <ctime>
#include <memory>
#include <string>
#include <utility>
#include <vector>

struct ssl_ctx_st;  // OpenSSL's SSL_CTX

namespace cleave {

enum class TlsRole : std::uint8_t { client, server };

// Bytes encrypted with one key before it is replaced: 2^22 records; AES-GCM allows 2^24.5 (RFC
// 8446, 5.5).
inline constexpr std::uint64_t kBytesPerTlsKey = std::uint64_t{64} << 30;

// Loaded once and used by many connections. Immutable; any thread.
class TlsContext {
 public:
  // Reads ca.crt (the trusted CAs), and our own NAME.crt and NAME.key; NAME is "client" or
  // "server". A server also reads revoked.crl, lists of certificates that its CAs have revoked.
  // Throws UsageError: "no-certificates" (a file cannot be read), "bad-certificate-file" (invalid
  // contents), "key-mismatch" (the key belongs to another certificate), "key-readable" (users other
  // than the owner may read or write the key). `bytesPerKey`: for tests.
  static std::shared_ptr<const TlsContext> load(const std::string& folder, TlsRole role,
                                                std::uint64_t bytesPerKey = kBytesPerTlsKey);
  ~TlsContext();
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;

  TlsRole role() const { return role_; }
  const std::string& folder() const { return folder_; }
  // A warning if our own certificate or a CA's has expired, or expires within 14 days; otherwise
  // empty.
  std::string warning() const;
  // The expiry times of our own certificate and of the CAs', each with its file.
  const std::vector<std::pair<std::time_t, std::string>>& ends() const { return ends_; }
  ssl_ctx_st* native() const { return native_; }
  std::uint64_t bytesPerKey() const { return bytesPerKey_; }

 private:
  TlsContext(std::string folder, TlsRole role, std::uint64_t bytesPerKey);
  void readAuthorities();
  void readOwn(const std::string& name);
  void readRevoked();
  std::string path(const std::string& file) const { return folder_ + "/" + file; }

  const std::string folder_;
  const TlsRole role_;
  const std::uint64_t bytesPerKey_;
  ssl_ctx_st* const native_;
  std::vector<std::pair<std::time_t, std::string>> ends_;
};

}  // namespace cleave
