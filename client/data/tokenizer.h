// Turns text into token ids as specified by a tokenizer.json of Hugging Face's library
// `tokenizers`. Supports byte-level BPE (GPT-2, RoBERTa, Llama 3, …) and WordPiece (BERT, MiniLM,
// …); files that require anything else are refused with an error that names it. Ids equal those of
// the library for the same text; bytes that are not UTF-8 are read as U+FFFD, as with Python's
// errors="replace".
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "client/data/token_models.h"

namespace cleave {

struct Tokens {
  std::vector<TokenId> ids;
  std::vector<std::uint8_t>
      types;  // per id: 0 for the first text, 1 for the second, in most models
};

// How short samples are padded.
struct TokenPadding {
  TokenId id = 0;
  std::uint8_t type = 0;
  bool isLeft = false;
};

class Tokenizer {
 public:
  // Throws UsageError: data-missing, data-damaged, unsupported-tokenizer.
  explicit Tokenizer(const std::string& path);
  // The same from a file's content; errors use `path` as its name.
  Tokenizer(std::string_view json, const std::string& path);
  Tokenizer(Tokenizer&&) noexcept;
  ~Tokenizer();

  // The functions below may be called by any thread. Throw UsageError "data-damaged" if a pattern
  // of the file needs too many steps for this text.

  // Appends the ids of a text, without those that mark its beginning and end.
  void encode(std::string_view text, std::vector<TokenId>& ids) const;
  // The ids of a sample: one or two texts, with special tokens around them. Texts are truncated,
  // the longer one first, so that the sample has at most `length` ids; `length` is at least
  // specialTokens().
  Tokens encodeSample(std::string_view text, const std::optional<std::string_view>& second,
                      std::size_t length) const;
  std::size_t specialTokens(bool isPair) const;

  // The file's padding, or else a token with a usual name for padding, such as [PAD]; empty if
  // there is neither.
  std::optional<TokenPadding> padding() const;
  std::optional<TokenId> idOf(std::string_view token) const;
  TokenId maxId() const;

 private:
  struct Parts;
  std::unique_ptr<const Parts> parts_;
};

}  // namespace cleave
