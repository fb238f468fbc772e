#include "client/data/tokens/token_models.h"

#include <algorithm>
#include <bit>
#include <span>
#include <utility>

#include "client/data/files/damage.h"
#include "client/data/files/unicode.h"
#include "common/core/error.h"
#include "common/core/printable.h"

namespace cleave {
namespace {

using Json = nlohmann::json;

constexpr std::uint32_t kNone = 0xFFFFFFFF;

// The characters with which byte-level tokenizers represent the 256 bytes: printable bytes
// represent themselves, and the others are represented by U+0100 and the following characters.
std::array<std::string, 256> byteAlphabet() {
  std::array<std::string, 256> alphabet;
  char32_t next = 0x100;
  for (unsigned byte = 0; byte < 256; ++byte) {
    const bool isPrintable = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte != 0xAD);
    appendCharacter(alphabet[byte], isPrintable ? static_cast<char32_t>(byte) : next++);
  }
  return alphabet;
}

// Maps a pair of adjacent tokens to its merge. Hash table with open addressing, at most half full.
class MergeTable {
 public:
  struct Merge {
    std::uint64_t pair = ~std::uint64_t{0};
    std::uint32_t rank = kNone;  // merges with smaller ranks are applied first
    TokenId merged = 0;
  };

  explicit MergeTable(std::size_t count)
      : merges_(std::bit_ceil(std::max<std::size_t>(2 * count, 2))) {}

  void set(TokenId left, TokenId right, std::uint32_t rank, TokenId merged) {
    Merge& merge = merges_[slotOf(pairOf(left, right))];
    merge = {pairOf(left, right), rank, merged};
  }
  // Returns a merge of rank kNone if the pair has no merge.
  const Merge& find(TokenId left, TokenId right) const {
    return merges_[slotOf(pairOf(left, right))];
  }

 private:
  static std::uint64_t pairOf(TokenId left, TokenId right) {
    return std::uint64_t{left} << 32 | right;
  }
  std::size_t slotOf(std::uint64_t pair) const {
    std::uint64_t hash = pair * 0x9E3779B97F4A7C15;
    hash ^= hash >> 32;
    std::size_t slot = hash & (merges_.size() - 1);
    while (merges_[slot].pair != pair && merges_[slot].rank != kNone)
      slot = (slot + 1) & (merges_.size() - 1);
    return slot;
  }

  std::vector<Merge> merges_;
};

// Merges the tokens of a word in O(n log n) for n bytes, with a linked list and a heap of the
// possible merges.
class WordMerger {
 public:
  std::vector<TokenId> tokens;  // the input of merge(), then its result

  void merge(const MergeTable& table) {
    const auto size = static_cast<std::uint32_t>(tokens.size());
    links_.resize(size);
    candidates_.clear();
    for (std::uint32_t n = 0; n < size; ++n) {
      links_[n] = {n == 0 ? kNone : n - 1, n + 1 == size ? kNone : n + 1};
      if (n + 1 < size) addCandidate(table, n, n + 1);
    }
    std::make_heap(candidates_.begin(), candidates_.end(), isLater);
    while (!candidates_.empty()) {
      std::pop_heap(candidates_.begin(), candidates_.end(), isLater);
      const Candidate best = candidates_.back();
      candidates_.pop_back();
      apply(table, best);
    }
    std::size_t count = 0;
    for (std::uint32_t n = 0; n < size; ++n) {
      if (tokens[n] != kNone) tokens[count++] = tokens[n];
    }
    tokens.resize(count);
  }

 private:
  struct Link {
    std::uint32_t before, after;
  };
  struct Candidate {
    std::uint64_t order;  // rank, then position
    TokenId merged;
  };
  static bool isLater(const Candidate& a, const Candidate& b) { return a.order > b.order; }

  bool addCandidate(const MergeTable& table, std::uint32_t left, std::uint32_t right) {
    const MergeTable::Merge& merge = table.find(tokens[left], tokens[right]);
    if (merge.rank == kNone) return false;
    candidates_.push_back({std::uint64_t{merge.rank} << 32 | left, merge.merged});
    return true;
  }
  void pushCandidate(const MergeTable& table, std::uint32_t left, std::uint32_t right) {
    if (addCandidate(table, left, right))
      std::push_heap(candidates_.begin(), candidates_.end(), isLater);
  }

  void apply(const MergeTable& table, const Candidate& candidate) {
    const auto left = static_cast<std::uint32_t>(candidate.order & 0xFFFFFFFF);
    if (tokens[left] == kNone) return;  // already merged
    const std::uint32_t right = links_[left].after;
    if (right == kNone) return;
    const MergeTable::Merge& merge = table.find(tokens[left], tokens[right]);
    if (merge.rank == kNone || merge.merged != candidate.merged) return;
    tokens[left] = candidate.merged;
    tokens[right] = kNone;
    links_[left].after = links_[right].after;
    if (links_[left].after != kNone) {
      links_[links_[left].after].before = left;
      pushCandidate(table, left, links_[left].after);
    }
    if (links_[left].before != kNone) pushCandidate(table, links_[left].before, left);
  }

  std::vector<Link> links_;
  std::vector<Candidate> candidates_;
};

class ByteBpe final : public TokenModel {
 public:
  ByteBpe(const Json& model, const Vocabulary& vocabulary, const std::string& path)
      : path_(path), vocabulary_(&vocabulary), merges_(countMerges(model, path)) {
    checkOptions(model);
    if (const auto unknown = model.find("unk_token");
        unknown != model.end() && unknown->is_string()) {
      const auto found = vocabulary.find(unknown->get_ref<const std::string&>());
      if (found != vocabulary.end()) unknown_ = found->second;
    }
    fuses_ = model.value("fuse_unk", false);
    const std::array<std::string, 256> alphabet = byteAlphabet();
    for (std::size_t byte = 0; byte < 256; ++byte) {
      const auto found = vocabulary.find(alphabet[byte]);
      bytes_[byte] = found == vocabulary.end() ? unknown_ : found->second;
      isKnown_[byte] = found != vocabulary.end();
    }
    readMerges(model);
    if (model.value("ignore_merges", false)) readWords(alphabet);
    vocabulary_ = nullptr;
  }

  void encode(std::string_view word, std::vector<TokenId>& ids) const override {
    if (!words_.empty()) {
      if (const auto found = words_.find(word); found != words_.end()) {
        ids.push_back(found->second);
        return;
      }
    }
    thread_local WordMerger merger;
    merger.tokens.clear();
    bool followsUnknown = false;
    for (const char each : word) {
      const auto byte = static_cast<unsigned char>(each);
      const bool isFused = fuses_ && followsUnknown && !isKnown_[byte];
      if (bytes_[byte] != kNone && !isFused) merger.tokens.push_back(bytes_[byte]);
      followsUnknown = !isKnown_[byte];
    }
    if (merger.tokens.size() > 1) merger.merge(merges_);
    ids.insert(ids.end(), merger.tokens.begin(), merger.tokens.end());
    constexpr std::size_t kKeptBytes = 1 << 20;
    if (word.size() > kKeptBytes) merger = {};
  }

 private:
  static std::size_t countMerges(const Json& model, const std::string& path) {
    const auto merges = model.find("merges");
    if (merges == model.end() || !merges->is_array())
      throwDamagedTokenizer(path, "its model has no list 'merges'");
    return merges->size();
  }

  void checkOptions(const Json& model) const {
    if (const auto dropout = model.find("dropout");
        dropout != model.end() && dropout->is_number() && dropout->get<double>() > 0) {
      throwUnsupportedTokenizer(path_, "BPE with dropout");
    }
    if (model.value("byte_fallback", false))
      throwUnsupportedTokenizer(path_, "BPE with byte_fallback");
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      const auto affix = model.find(key);
      if (affix != model.end() && affix->is_string() &&
          !affix->get_ref<const std::string&>().empty())
        throwUnsupportedTokenizer(path_, std::string("BPE with ") + key);
    }
  }

  TokenId idOf(std::string_view token) const {
    const auto found = vocabulary_->find(token);
    if (found != vocabulary_->end()) return found->second;
    throwDamagedTokenizer(path_, "its merges have the token '" + printable(token, 100) +
                                     "', which is not in its vocabulary");
  }

  // A merge is "LEFT RIGHT" or ["LEFT", "RIGHT"].
  void readMerges(const Json& model) {
    std::uint32_t rank = 0;
    std::string left, right;
    for (const Json& merge : model["merges"]) {
      if (merge.is_string()) {
        const std::string& both = merge.get_ref<const std::string&>();
        const std::size_t space = both.find(' ');
        if (space == std::string::npos || both.find(' ', space + 1) != std::string::npos)
          throwDamagedTokenizer(path_, "merge " + std::to_string(rank) + " is not two tokens");
        left = both.substr(0, space);
        right = both.substr(space + 1);
      } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() &&
                 merge[1].is_string()) {
        left = merge[0];
        right = merge[1];
      } else {
        throwDamagedTokenizer(path_, "merge " + std::to_string(rank) + " is not two tokens");
      }
      const TokenId first = idOf(left), second = idOf(right);
      merges_.set(first, second, rank++, idOf(left + right));
    }
  }

  // The vocabulary keyed by bytes. Used if the file requires that a word in the vocabulary becomes
  // one token.
  void readWords(const std::array<std::string, 256>& alphabet) {
    std::unordered_map<char32_t, char> bytes;
    for (std::size_t byte = 0; byte < 256; ++byte) {
      std::size_t position = 0;
      bytes[nextCharacter(alphabet[byte], position)] = static_cast<char>(byte);
    }
    for (const auto& [token, id] : *vocabulary_) {
      std::string word;
      std::size_t position = 0;
      while (position < token.size()) {
        const auto found = bytes.find(nextCharacter(token, position));
        if (found == bytes.end()) break;
        word += found->second;
        if (position == token.size()) words_[word] = id;
      }
    }
  }

  std::string path_;
  const Vocabulary* vocabulary_;  // only during construction
  MergeTable merges_;
  TokenId unknown_ = kNone;
  bool fuses_ = false;
  std::array<TokenId, 256> bytes_{};
  std::array<bool, 256> isKnown_{};
  Vocabulary words_;
};

class WordPiece final : public TokenModel {
 public:
  WordPiece(const Json& model, const Vocabulary& vocabulary, const std::string& path)
      : starts_(vocabulary) {
    const std::string unknown = model.value("unk_token", "[UNK]");
    const auto found = vocabulary.find(unknown);
    if (found == vocabulary.end()) {
      throwDamagedTokenizer(
          path, "its vocabulary does not have the unknown token '" + printable(unknown, 100) + "'");
    }
    unknown_ = found->second;
    maxCharacters_ = model.value("max_input_chars_per_word", std::size_t{100});
    const std::string prefix = model.value("continuing_subword_prefix", "##");
    for (const auto& [token, id] : vocabulary) {
      if (token.starts_with(prefix)) continued_[token.substr(prefix.size())] = id;
      maxBytes_ = std::max(maxBytes_, token.size());
    }
  }

  void encode(std::string_view word, std::vector<TokenId>& ids) const override {
    const std::size_t before = ids.size();
    const auto characters = static_cast<std::size_t>(
        std::count_if(word.begin(), word.end(), [](char c) { return !isInside(c); }));
    bool isFound = characters <= maxCharacters_;
    for (std::size_t begin = 0; isFound && begin < word.size();) {
      const std::size_t length = longestPiece(word.substr(begin), begin == 0, ids);
      isFound = length > 0;
      begin += length;
    }
    if (isFound) return;
    ids.resize(before);
    ids.push_back(unknown_);
  }

 private:
  static bool isInside(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) == 0x80; }

  // Appends the longest piece at the beginning of the word. Returns its length, or 0 if the
  // vocabulary has no such piece.
  std::size_t longestPiece(std::string_view word, bool isStart, std::vector<TokenId>& ids) const {
    const Vocabulary& pieces = isStart ? starts_ : continued_;
    for (std::size_t length = std::min(word.size(), maxBytes_); length > 0; --length) {
      if (length < word.size() && isInside(word[length])) continue;
      const auto found = pieces.find(word.substr(0, length));
      if (found == pieces.end()) continue;
      ids.push_back(found->second);
      return length;
    }
    return 0;
  }

  Vocabulary starts_, continued_;
  TokenId unknown_ = 0;
  std::size_t maxCharacters_ = 100;
  std::size_t maxBytes_ = 0;  // length of the longest token
};

}  // namespace

void throwUnsupportedTokenizer(const std::string& path, const std::string& what) {
  throw UsageError("unsupported-tokenizer",
                   path + " has " + printable(what, 300) + ", which is not supported",
                   "tokenize in Python and write the ids with cleave_split.save_dataset");
}

void throwDamagedTokenizer(const std::string& path, const std::string& fault) {
  throw DataError("data-damaged", path + " is not a valid tokenizer.json: " + fault,
                  "save it again in Python: tokenizer.save_pretrained(FOLDER)");
}

TokenId readTokenId(const Json& id, const std::string& path) {
  constexpr std::int64_t kMaxId = std::int64_t{1} << 30;
  if (!id.is_number_integer() || id < 0 || id > kMaxId)
    throwDamagedTokenizer(path, "the token id " + printable(id.dump(), 60) + " is not valid");
  return id.get<TokenId>();
}

Vocabulary readVocabulary(const Json& model, const std::string& path) {
  const auto entries = model.find("vocab");
  if (entries == model.end() || !entries->is_object() || entries->empty())
    throwDamagedTokenizer(path, "its model has no vocabulary");
  Vocabulary vocabulary;
  vocabulary.reserve(entries->size());
  for (const auto& [token, id] : entries->items()) vocabulary.emplace(token, readTokenId(id, path));
  return vocabulary;
}

std::unique_ptr<TokenModel> makeByteBpe(const Json& model, const Vocabulary& vocabulary,
                                        const std::string& path) {
  return std::make_unique<ByteBpe>(model, vocabulary, path);
}

std::unique_ptr<TokenModel> makeWordPiece(const Json& model, const Vocabulary& vocabulary,
                                          const std::string& path) {
  return std::make_unique<WordPiece>(model, vocabulary, path);
}

}  // namespace cleave
