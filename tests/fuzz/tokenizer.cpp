// Fuzz target: a tokenizer.json, a zero byte, and a text. Only UsageError is allowed. Ids must not
// exceed the tokenizer's maximum id, and a sample must not exceed the requested length.
#include "client/data/tokens/tokenizer.h"

#include <algorithm>

#include "common/core/error.h"
#include "tests/fuzz/seeds.h"

using namespace cleave;
using namespace cleave::fuzz;

namespace {

constexpr std::size_t kLength = 16;

void check(const Tokenizer& tokenizer, std::string_view text) {
  std::vector<TokenId> ids;
  tokenizer.encode(text, ids);
  for (const TokenId id : ids) {
    if (id > tokenizer.maxId()) find("an id is greater than the tokenizer's");
  }
  for (const bool isPair : {false, true}) {
    if (tokenizer.specialTokens(isPair) > kLength) continue;
    const auto second = isPair ? std::optional<std::string_view>(text) : std::nullopt;
    const Tokens tokens = tokenizer.encodeSample(text, second, kLength);
    if (tokens.ids.size() > kLength) find("a sample is too long");
    if (tokens.types.size() != tokens.ids.size()) find("not every id has a type");
  }
}

constexpr const char* kWordPiece = R"({"normalizer":{"type":"BertNormalizer"},
"pre_tokenizer":{"type":"BertPreTokenizer"},
"post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"c","type_id":0}},
{"Sequence":{"id":"A","type_id":0}}],"pair":[{"Sequence":{"id":"B","type_id":1}},
{"Sequence":{"id":"A","type_id":2}}],
"special_tokens":{"c":{"ids":[2]}}},
"model":{"type":"WordPiece","unk_token":"u","vocab":{"u":0,"a":1,"##b":2,"!":3}}})";

constexpr const char* kBpe = R"({"added_tokens":[{"id":4,"content":"<s>","lstrip":true}],
"normalizer":{"type":"NFKC"},"pre_tokenizer":{"type":"Sequence","pretokenizers":[
{"type":"Split","pattern":{"Regex":"\\p{L}+|\\s+(?!\\S)|[^\\s\\p{N}]"},"behavior":"Isolated"},
{"type":"ByteLevel","add_prefix_space":true}]},"padding":{"pad_id":1},
"model":{"type":"BPE","vocab":{"a":0,"b":1,"ab":2,"aba":3},"merges":["a b",["ab","a"]],
"ignore_merges":true}})";

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const std::size_t end = std::min(input.find('\0'), size);
  try {
    check(Tokenizer(input.substr(0, end), "tokenizer.json"), input.substr(std::min(end + 1, size)));
  } catch (const UsageError&) {
    return 0;
  }
  return 0;
}

std::vector<Seed> cleave::fuzz::seeds() {
  const std::string end(1, '\0');
  return {
      {"word piece", bytesOf(kWordPiece + end + "a ab!\xC3\xA9 \xE4\xB8\xAD\xFF u")},
      {"bpe", bytesOf(kBpe + end + "abab <s> x\xF0\x9F\x98\x80\n\n12")},
      {"no text", bytesOf(kBpe)},
      {"no model", bytesOf("{}" + end + "a")},
      {"another model", bytesOf(R"({"model":{"type":"Unigram"}})" + end)},
  };
}
