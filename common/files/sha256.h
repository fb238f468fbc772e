// SHA-256, which identifies weights, checkpoints and groups of replicas.
#pragma once

#include <openssl/types.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace cleave {

inline constexpr std::size_t kSha256Bytes = 32;

// Of bytes that arrive in pieces. Throws RunError "internal-error" if OpenSSL cannot compute it.
class Sha256 {
 public:
  Sha256();
  void add(std::span<const std::byte> bytes);
  // Returns the digest, kSha256Bytes bytes. Call it once, after the last add().
  std::string finish();

 private:
  struct Free {
    void operator()(EVP_MD_CTX* state) const;
  };
  std::unique_ptr<EVP_MD_CTX, Free> state_;
};

// The digest of `bytes`.
std::string sha256Of(std::string_view bytes);
// The digest of a file's content; empty if the file cannot be read.
std::optional<std::string> sha256OfFile(const std::string& path);
// Hexadecimal digits of `bytes`, such as a digest.
std::string hexOf(std::string_view bytes);
// The bytes that these hexadecimal digits stand for; nullopt if they are no such digits.
std::optional<std::string> fromHex(std::string_view digits);

}  // namespace cleave
