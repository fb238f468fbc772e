// SHA-256 of bytes that arrive in pieces.
#pragma once

#include <openssl/types.h>

#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace cleave {

class Sha256 {
 public:
  Sha256();
  void add(std::span<const std::byte> bytes);
  // Returns the digest, 32 bytes. Call it once, after the last add().
  std::string finish();

 private:
  struct Free {
    void operator()(EVP_MD_CTX* state) const;
  };
  std::unique_ptr<EVP_MD_CTX, Free> state_;
};

}  // namespace cleave
