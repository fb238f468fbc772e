#include "common/files/sealed.h"

#include <openssl/evp.h>
#include <openssl/rand.h>

#include <algorithm>
#include <cassert>
#include <memory>

#include "common/core/durable.h"
#include "common/core/error.h"
#include "common/files/sha256.h"

namespace cleave {
namespace {

constexpr std::size_t kNonceBytes = 12, kTagBytes = kSealBytes - kNonceBytes;

struct Free {
  void operator()(EVP_CIPHER_CTX* state) const { EVP_CIPHER_CTX_free(state); }
};
using Cipher = std::unique_ptr<EVP_CIPHER_CTX, Free>;

const unsigned char* bytesOf(std::string_view text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}

void check(bool done) {
  if (!done) throw RunError("internal-error", "OpenSSL cannot encrypt or decrypt");
}

// Passes the bytes in pieces, because OpenSSL counts them with an int.
template <typename Update>
void inPieces(const unsigned char* from, std::size_t size, unsigned char* to, Update update) {
  constexpr std::size_t kPiece = std::size_t{1} << 30;
  for (std::size_t done = 0; done < size;) {
    const std::size_t piece = std::min(kPiece, size - done);
    int written = 0;
    check(update(to == nullptr ? nullptr : to + done, &written, from + done,
                 static_cast<int>(piece)) == 1);
    done += piece;
  }
}

}  // namespace

std::vector<std::byte> seal(std::string_view key, std::string_view context,
                            std::span<const std::byte> bytes) {
  assert(key.size() == kSealKeyBytes);
  std::vector<std::byte> sealed(bytes.size() + kSealBytes);
  auto* const nonce = reinterpret_cast<unsigned char*>(sealed.data());
  unsigned char* const text = nonce + kNonceBytes;
  check(RAND_bytes(nonce, kNonceBytes) == 1);
  const Cipher cipher(EVP_CIPHER_CTX_new());
  check(cipher &&
        EVP_EncryptInit_ex(cipher.get(), EVP_aes_256_gcm(), nullptr, bytesOf(key), nonce) == 1);
  const auto update = [&](unsigned char* to, int* written, const unsigned char* from, int size) {
    return EVP_EncryptUpdate(cipher.get(), to, written, from, size);
  };
  inPieces(bytesOf(context), context.size(), nullptr, update);
  inPieces(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(), text, update);
  unsigned char* const tag = text + bytes.size();
  int rest = 0;
  check(EVP_EncryptFinal_ex(cipher.get(), tag, &rest) == 1);
  check(EVP_CIPHER_CTX_ctrl(cipher.get(), EVP_CTRL_GCM_GET_TAG, kTagBytes, tag) == 1);
  return sealed;
}

std::optional<std::vector<std::byte>> openSealed(std::string_view key, std::string_view context,
                                                 std::span<const std::byte> sealed) {
  assert(key.size() == kSealKeyBytes);
  if (sealed.size() < kSealBytes) return std::nullopt;
  std::vector<std::byte> bytes(sealed.size() - kSealBytes);
  const auto* const nonce = reinterpret_cast<const unsigned char*>(sealed.data());
  const unsigned char* const text = nonce + kNonceBytes;
  const Cipher cipher(EVP_CIPHER_CTX_new());
  check(cipher &&
        EVP_DecryptInit_ex(cipher.get(), EVP_aes_256_gcm(), nullptr, bytesOf(key), nonce) == 1);
  const auto update = [&](unsigned char* to, int* written, const unsigned char* from, int size) {
    return EVP_DecryptUpdate(cipher.get(), to, written, from, size);
  };
  inPieces(bytesOf(context), context.size(), nullptr, update);
  inPieces(text, bytes.size(), reinterpret_cast<unsigned char*>(bytes.data()), update);
  std::vector<unsigned char> tag(text + bytes.size(), text + bytes.size() + kTagBytes);
  check(EVP_CIPHER_CTX_ctrl(cipher.get(), EVP_CTRL_GCM_SET_TAG, kTagBytes, tag.data()) == 1);
  int rest = 0;
  if (EVP_DecryptFinal_ex(cipher.get(), tag.data(), &rest) != 1) return std::nullopt;
  return bytes;
}

std::string readSealKey(const std::string& path) {
  std::string text = readPrivateFile(path);
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
  const auto key = fromHex(text);
  if (key && key->size() == kSealKeyBytes) return *key;
  throw UsageError("not-a-key", path + " is not a key of 64 hexadecimal digits",
                   "make one: (umask 077; openssl rand -hex 32 > " + path + ")");
}

}  // namespace cleave
