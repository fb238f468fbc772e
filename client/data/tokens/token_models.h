// The models that turn a word into token ids: byte-level BPE (Sennrich et al., "Neural machine
// translation of rare words with subword units", ACL 2016) and WordPiece, as specified in a
// tokenizer.json.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace cleave {

using TokenId = std::uint32_t;

struct TextHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const {
    return std::hash<std::string_view>()(text);
  }
};
using Vocabulary = std::unordered_map<std::string, TokenId, TextHash, std::equal_to<>>;

class TokenModel {
 public:
  virtual ~TokenModel() = default;
  // Appends the ids of a word, which is not empty. Any thread.
  virtual void encode(std::string_view word, std::vector<TokenId>& ids) const = 0;
};

// These functions parse the key "model" of a tokenizer.json. They throw UsageError
// "unsupported-tokenizer" or "data-damaged", with a message that begins with `path`.
TokenId readTokenId(const nlohmann::json& id, const std::string& path);
Vocabulary readVocabulary(const nlohmann::json& model, const std::string& path);
std::unique_ptr<TokenModel> makeByteBpe(const nlohmann::json& model, const Vocabulary& vocabulary,
                                        const std::string& path);
std::unique_ptr<TokenModel> makeWordPiece(const nlohmann::json& model, const Vocabulary& vocabulary,
                                          const std::string& path);

[[noreturn]] void throwUnsupportedTokenizer(const std::string& path, const std::string& what);
[[noreturn]] void throwDamagedTokenizer(const std::string& path, const std::string& fault);

}  // namespace cleave
