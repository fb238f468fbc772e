#include "common/files/sha256.h"

#include <openssl/evp.h>
#include <spdlog/fmt/fmt.h>

#include <charconv>
#include <fstream>
#include <vector>

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

std::optional<std::string> sha256OfFile(const std::string& path) {
  constexpr std::size_t kPiece = std::size_t{1} << 20;
  std::ifstream file(path, std::ios::binary);
  if (!file) return std::nullopt;
  Sha256 digest;
  std::vector<char> piece(kPiece);
  while (file) {
    file.read(piece.data(), static_cast<std::streamsize>(piece.size()));
    digest.add(std::as_bytes(std::span(piece).first(static_cast<std::size_t>(file.gcount()))));
  }
  return file.bad() ? std::nullopt : std::optional(digest.finish());
}

std::string hexOf(std::string_view bytes) {
  std::string hex;
  for (const char c : bytes) hex += fmt::format("{:02x}", static_cast<unsigned char>(c));
  return hex;
}

std::optional<std::string> fromHex(std::string_view digits) {
  std::string bytes;
  if (digits.size() % 2 != 0) return std::nullopt;
  for (std::size_t at = 0; at < digits.size(); at += 2) {
    unsigned value = 0;
    const char* const end = digits.data() + at + 2;
    const auto parsed = std::from_chars(digits.data() + at, end, value, 16);
    if (parsed.ec != std::errc() || parsed.ptr != end) return std::nullopt;
    bytes += static_cast<char>(value);
  }
  return bytes;
}

}  // namespace cleave
