#include "common/core/sha256.h"

#include <openssl/evp.h>

#include "common/core/error.h"

namespace cleave {
namespace {

void need(int result) {
  if (result != 1) throw RunError("internal-error", "SHA-256 cannot be computed");
}

}  // namespace

void Sha256::Free::operator()(EVP_MD_CTX* state) const { EVP_MD_CTX_free(state); }

Sha256::Sha256() : state_(EVP_MD_CTX_new()) {
  need(state_ ? EVP_DigestInit_ex(state_.get(), EVP_sha256(), nullptr) : 0);
}

void Sha256::add(std::span<const std::byte> bytes) {
  need(EVP_DigestUpdate(state_.get(), bytes.data(), bytes.size()));
}

std::string Sha256::finish() {
  std::string digest(kSha256Bytes, '\0');
  need(EVP_DigestFinal_ex(state_.get(), reinterpret_cast<unsigned char*>(digest.data()), nullptr));
  return digest;
}

std::string sha256Of(std::string_view bytes) {
  Sha256 digest;
  digest.add(std::as_bytes(std::span(bytes)));
  return digest.finish();
}

}  // namespace cleave
