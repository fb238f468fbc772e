// Converts text to token ids as specified by a tokenizer.json of the Hugging Face library
// `tokenizers`. Supports byte-level BPE (GPT-2, RoBERTa, Llama 3, …) and WordPiece (BERT, MiniLM,
// …). Files with unsupported parts are refused with an error that names the part. The ids equal the
// library's for the same text. Invalid UTF-8 is read as U+FFFD, as with Python's errors="replace".
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "client/data/tokens/token_models.h"

namespace cleave {

struct Tokens {
  std::vector<TokenId> ids;
  // Per id; in most models 0 for the first text and 1 for the second.
  std::vector<std::uint8_t> types;
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
  // Parses the content of a tokenizer.json; errors name `path`.
  Tokenizer(std::string_view json, const std::string& path);
  Tokenizer(Tokenizer&&) noexcept;
  ~Tokenizer();

  // Any thread may call the functions below. encode() and encodeSample() throw UsageError
  // "data-damaged" if a pattern of the file needs too many steps for the text.

  // Appends the ids of a text, without the special tokens that mark its start and end.
  void encode(std::string_view text, std::vector<TokenId>& ids) const;
  // Returns the ids of a sample: one or two texts, with special tokens around them. Texts are
  // truncated, the longer text first, so that the sample has at most `length` ids. `length` must be
  // at least specialTokens().
  Tokens encodeSample(std::string_view text, const std::optional<std::string_view>& second,
                      std::size_t length) const;
  std::size_t specialTokens(bool isPair) const;

  // The file's padding; if it has none, a token with a usual name for padding, such as [PAD]; empty
  // if there is no such token.
  std::optional<TokenPadding> padding() const;
  std::optional<TokenId> idOf(std::string_view token) const;
  TokenId maxId() const;

 private:
  struct Parts;
  std::unique_ptr<const Parts> parts_;
};

}  // namespace cleave
