// Tests the tokenizers. python/tests/test_tokenizer.py compares them with Hugging Face's library.
#include "client/data/tokens/tokenizer.h"

#include <catch2/catch.hpp>
#include <chrono>

#include "client/data/files/unicode.h"
#include "client/data/tokens/split_pattern.h"
#include "tests/support/error_code.h"

namespace cleave::test {
namespace {

using Json = nlohmann::json;
using Ids = std::vector<TokenId>;

Json wordPiece() {
  return Json::parse(R"({
    "added_tokens": [
      {"id": 0, "content": "[PAD]", "special": true, "normalized": false},
      {"id": 1, "content": "[UNK]", "special": true, "normalized": false},
      {"id": 2, "content": "[CLS]", "special": true, "normalized": false},
      {"id": 3, "content": "[SEP]", "special": true, "normalized": false}],
    "normalizer": {"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true,
                   "strip_accents": null, "lowercase": true},
    "pre_tokenizer": {"type": "BertPreTokenizer"},
    "post_processor": {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]},
    "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
              "max_input_chars_per_word": 8,
              "vocab": {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "cafe": 4, "##s": 5,
                        "un": 6, "##aff": 7, "##able": 8, "!": 9, "中": 10}}})");
}

Json byteBpe() {
  return Json::parse(R"({
    "added_tokens": [{"id": 9, "content": "<end>", "special": true, "lstrip": true}],
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false},
    "post_processor": {"type": "ByteLevel"},
    "model": {"type": "BPE", "merges": ["a b", ["b", "c"], "ab c", "Ġ ab"],
              "vocab": {"a": 0, "b": 1, "c": 2, "Ġ": 3, "ab": 4, "bc": 5, "abc": 6, "Ġab": 7,
                        "Ã": 8}}})");
}

Tokenizer tokenizerOf(const Json& json) { return Tokenizer(json.dump(), "t.json"); }

Ids idsOf(const Tokenizer& tokenizer, std::string_view text) {
  Ids ids;
  tokenizer.encode(text, ids);
  return ids;
}

std::string codeOf(const Json& json) {
  return errorCode([&] { tokenizerOf(json); });
}

std::string textOf(const Json& json) {
  return errorText([&] { tokenizerOf(json); });
}

TEST_CASE(
    "WordPiece takes the longest pieces, and [UNK] for a word that cannot be divided into pieces") {
  const Tokenizer tokenizer = tokenizerOf(wordPiece());
  CHECK(idsOf(tokenizer, "CAFÉS!") == Ids{4, 5, 9});
  CHECK(idsOf(tokenizer, "unaff unq") == Ids{6, 7, 1});
  CHECK(idsOf(tokenizer, "unaffable") ==
        Ids{1});  // the word is longer than max_input_chars_per_word
  CHECK(idsOf(tokenizer, "cafe中cafe") == Ids{4, 10, 4});
  CHECK(idsOf(tokenizer, "cafe[SEP]cafe") == Ids{4, 3, 4});
  CHECK(idsOf(tokenizer, "").empty());
  CHECK(idsOf(tokenizer,
              "ca\xFF"
              "fe") == Ids{4});  // U+FFFD is removed
}

TEST_CASE("byte-level BPE merges by rank, after finding added tokens") {
  const Tokenizer tokenizer = tokenizerOf(byteBpe());
  CHECK(idsOf(tokenizer, "abc") == Ids{6});
  CHECK(idsOf(tokenizer, "bcab abc ab") == Ids{5, 4, 3, 6, 7});
  CHECK(idsOf(tokenizer, "ab  <end>c") == Ids{4, 9, 2});
  CHECK(idsOf(tokenizer, "\xC3z") ==
        Ids{});  // the invalid byte becomes U+FFFD, whose bytes have no tokens
  CHECK(idsOf(tokenizer, "é") == Ids{8});  // only one of the two bytes has a token
}

TEST_CASE("samples include special tokens, and the longer text is truncated first") {
  const Tokenizer tokenizer = tokenizerOf(wordPiece());
  CHECK(tokenizer.specialTokens(false) == 2);
  CHECK(tokenizer.specialTokens(true) == 3);
  CHECK(tokenizer.encodeSample("cafes!", std::nullopt, 8).ids == Ids{2, 4, 5, 9, 3});
  CHECK(tokenizer.encodeSample("cafes!", std::nullopt, 4).ids == Ids{2, 4, 5, 3});
  const Tokens pair = tokenizer.encodeSample("!", "cafes cafes", 6);
  CHECK(pair.ids == Ids{2, 9, 3, 4, 5, 3});
  CHECK(pair.types == std::vector<std::uint8_t>{0, 0, 0, 1, 1, 1});
  CHECK(tokenizer.encodeSample("cafes!", "cafes!", 7).ids == Ids{2, 4, 5, 3, 4, 5, 3});
  CHECK(tokenizer.encodeSample("cafe", std::nullopt, 2).ids == Ids{2, 3});
}

TEST_CASE("the padding token is the one in the file, or a token with a usual name") {
  CHECK(tokenizerOf(wordPiece()).padding()->id == 0);
  CHECK_FALSE(tokenizerOf(byteBpe()).padding());
  Json json = wordPiece();
  json["padding"] = {{"direction", "Left"}, {"pad_id", 1}, {"pad_type_id", 2}};
  const auto padding = tokenizerOf(json).padding();
  CHECK(padding->id == 1);
  CHECK(padding->type == 2);
  CHECK(padding->isLeft);
  CHECK(tokenizerOf(byteBpe()).idOf("<end>") == 9U);
  CHECK(tokenizerOf(byteBpe()).maxId() == 9);
}

TEST_CASE("unsupported parts are refused by name") {
  const auto with = [](Json json, const char* path, const Json& value) {
    json[Json::json_pointer(path)] = value;
    CHECK(codeOf(json) == "unsupported-tokenizer");
    return textOf(json);
  };
  const auto has = [](const char* text) { return Catch::Contains(text); };
  CHECK_THAT(with(byteBpe(), "/model/type", "Unigram"), has("Unigram"));
  CHECK_THAT(with(byteBpe(), "/pre_tokenizer/type", "Metaspace"), has("Metaspace"));
  CHECK_THAT(with(byteBpe(), "/pre_tokenizer", nullptr), has("ByteLevel"));
  CHECK_THAT(with(byteBpe(), "/model/byte_fallback", true), has("byte_fallback"));
  CHECK_THAT(with(byteBpe(), "/model/dropout", 0.1), has("dropout"));
  CHECK_THAT(with(byteBpe(), "/added_tokens/0/single_word", true), has("single_word"));
  CHECK_THAT(with(wordPiece(), "/normalizer/type", "Replace"), has("Replace"));
  CHECK_THAT(with(wordPiece(), "/post_processor/type", "Other"), has("Other"));
  const Json twice = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
  CHECK_THAT(with(wordPiece(), "/post_processor",
                  {{"type", "TemplateProcessing"},
                   {"single", Json::array({twice, twice})},
                   {"pair", Json::array({twice})},
                   {"special_tokens", Json::object()}}),
             has("template"));
}

TEST_CASE("a damaged tokenizer.json is refused") {
  CHECK(errorCode([] { Tokenizer("/nonexistent/tokenizer.json"); }) == "data-missing");
  const std::string whole = wordPiece().dump();
  for (std::size_t size = 0; size < whole.size(); size += 7) {
    CHECK(errorCode([&] { Tokenizer(std::string_view(whole).substr(0, size), "t"); }) ==
          "data-damaged");
  }
  const auto with = [](Json json, const char* path, const Json& value) {
    json[Json::json_pointer(path)] = value;
    return codeOf(json);
  };
  CHECK(with(byteBpe(), "/model/merges/0", "a") == "data-damaged");
  CHECK(with(byteBpe(), "/model/merges/0", "a x") == "data-damaged");
  CHECK(with(byteBpe(), "/model/merges/0", "a c") == "data-damaged");  // "ac" is not a token
  CHECK(with(byteBpe(), "/model/merges", 3) == "data-damaged");
  CHECK(with(byteBpe(), "/model/vocab", nullptr) == "data-damaged");
  CHECK(with(byteBpe(), "/model/vocab/a", -1) == "data-damaged");
  CHECK(with(byteBpe(), "/model/vocab/a", "0") == "data-damaged");
  CHECK(with(byteBpe(), "/model", 3) == "data-damaged");
  CHECK(with(byteBpe(), "/added_tokens/0/id", 5'000'000'000) == "data-damaged");
  CHECK(with(byteBpe(), "/added_tokens/0/id", 9.5) == "data-damaged");
  CHECK(with(wordPiece(), "/post_processor/sep/1", -1) == "data-damaged");
  CHECK(with(wordPiece(), "/added_tokens/0/id", 7) == "data-damaged");
  CHECK(with(wordPiece(), "/model/unk_token", "?") == "data-damaged");
  CHECK(with(wordPiece(), "/padding", {{"pad_id", 99}}) == "data-damaged");
  CHECK(with(wordPiece(), "/post_processor/sep", 3) == "data-damaged");
  CHECK(errorCode([] { Tokenizer("[1]", "t"); }) == "data-damaged");
}

TEST_CASE("patterns split text, and syntax whose meaning differs is refused") {
  const auto pieces = [](const SplitPattern& pattern, std::string_view text) {
    std::string all;
    pattern.split(text, [&](std::string_view piece, bool isMatch) {
      all += std::string(isMatch ? "<" : "(") + std::string(piece) + (isMatch ? ">" : ")");
    });
    return all;
  };
  CHECK(pieces(SplitPattern::ofRegex(R"(\p{L}+|\s)"), "ab, c") == "<ab>(,)< ><c>");
  CHECK(pieces(SplitPattern::ofRegex("x*"), "axé") == "(a)<x>(é)");
  CHECK(pieces(SplitPattern::ofRegex(R"([^\s])"), "a\u180e \u3000") == "<a><\u180e>( \u3000)");
  CHECK(pieces(SplitPattern::ofText("."), "a.b") == "(a)<.>(b)");
  for (const char* regex : {"(", "a{,3}", "[a&&b]", "[[:alpha:]]", R"(\w)", R"(\h)", "(?m:a)", "[a",
                            "a{2}+", R"(\)", "(*FAIL)", R"(\p{Nonsense})"}) {
    CAPTURE(regex);
    CHECK(errorCode([&] { SplitPattern::ofRegex(regex); }) == "unsupported-tokenizer");
  }
}

TEST_CASE("a pattern that needs too many steps is an error, not a hang") {
  const SplitPattern pattern = SplitPattern::ofRegex("(?:a+)+$");
  const std::string text = std::string(40, 'a') + '!';
  CHECK(errorCode([&] { pattern.split(text, [](std::string_view, bool) {}); }) == "data-damaged");
}

TEST_CASE("invalid UTF-8 is replaced as in Python") {
  CHECK(replaceInvalidUtf8("a\xFF"
                           "b") == "a\uFFFDb");
  CHECK(replaceInvalidUtf8("\xE2\x82") == "\uFFFD");  // a truncated character is replaced once
  CHECK(replaceInvalidUtf8("\xE2\x82x") == "\uFFFDx");
  CHECK(replaceInvalidUtf8("\xC0\x80") == "\uFFFD\uFFFD");            // overlong
  CHECK(replaceInvalidUtf8("\xED\xA0\x80") == "\uFFFD\uFFFD\uFFFD");  // a surrogate
  CHECK(replaceInvalidUtf8("\xF4\x90\x80\x80") == "\uFFFD\uFFFD\uFFFD\uFFFD");
  CHECK(replaceInvalidUtf8("\xF0\x9F\x98") == "\uFFFD");
  CHECK(isUtf8("é中😀"));
  CHECK_FALSE(isUtf8("\xF0\x9F\x98"));
}

TEST_CASE("a word of many bytes takes little time") {
  const Tokenizer tokenizer = tokenizerOf(byteBpe());
  std::string word;
  for (std::size_t n = 0; n < 300'000; ++n) word += "abc"[(n * n + n / 7) % 3];
  const auto start = std::chrono::steady_clock::now();
  CHECK(idsOf(tokenizer, word).size() > 30'000);
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(5));
}

}  // namespace
}  // namespace cleave::test
