// TLS 1.3 with both sides authenticated: who we are and whom we trust, from a folder of PEM files.
// There is no way to connect without a check of the peer's certificate.
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

// Bytes that a key may protect before it is replaced: 2^22 records, of the 2^24.5 that AES-GCM is
// good for (RFC 8446, 5.5).
inline constexpr std::uint64_t kBytesPerTlsKey = std::uint64_t{64} << 30;

// What is read once and used by many connections. Immutable; any thread.
class TlsContext {
 public:
  // Reads ca.crt (the CAs we trust), and NAME.crt and NAME.key, our own, where NAME is "client" or
  // "server"; a server also revoked.crl, lists of certificates that its CAs have revoked. Throws
  // UsageError: "no-certificates" (a file cannot be read), "bad-certificate-file" (not what it
  // should be), "key-mismatch" (the key is of another certificate), "key-readable" (others than its
  // owner may read or write the key). `bytesPerKey`: for tests.
  static std::shared_ptr<const TlsContext> load(const std::string& folder, TlsRole role,
                                                std::uint64_t bytesPerKey = kBytesPerTlsKey);
  ~TlsContext();
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;

  TlsRole role() const { return role_; }
  // Of our own certificate or a CA's: a sentence from 14 days before it ends on; else empty.
  std::string warning() const;
  // When our own certificate and the CAs' end, each with its file.
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
