// Bytes that only those who have a key can read or change: AES-256-GCM, with a random nonce before
// the bytes and a tag after them.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace cleave {

inline constexpr std::size_t kSealKeyBytes = 32;
inline constexpr std::size_t kSealBytes = 12 + 16;  // that sealing adds: nonce and tag

// `key`: kSealKeyBytes. `context`: any text, such as what the bytes are; they can be opened only
// with the same text. Throws RunError "internal-error" if OpenSSL fails.
std::vector<std::byte> seal(std::string_view key, std::string_view context,
                            std::span<const std::byte> bytes);
// Nullopt unless `sealed` is unchanged, and was sealed with this key and context.
std::optional<std::vector<std::byte>> openSealed(std::string_view key, std::string_view context,
                                                 std::span<const std::byte> sealed);

// Reads a key from a file with 64 hexadecimal digits. Throws UsageError "not-a-key", or the errors
// of readPrivateFile().
std::string readSealKey(const std::string& path);

}  // namespace cleave
