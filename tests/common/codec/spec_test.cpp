#include "common/codec/spec.h"

#include <catch2/catch.hpp>

#include "common/core/error.h"

using namespace cleave;
using Catch::Matchers::Contains;

namespace {

// Returns the error that `function` throws. Fails the test if it throws none.
template <typename Function>
UsageError errorOf(Function function) {
  try {
    function();
  } catch (const UsageError& error) {
    return error;
  }
  FAIL("no UsageError");
  throw;
}

UsageError parseError(std::string_view text) {
  INFO(text);
  UsageError error = errorOf([&] { parseCodecSpec(text); });
  CHECK(error.code() == "bad-codec-spec");
  CHECK_FALSE(error.hint().empty());
  return error;
}

std::string nested(int levels) {
  std::string text = "a";
  for (int level = 1; level < levels; ++level) text = "a(" + text + ")";
  return text;
}

}  // namespace

TEST_CASE("a spec is a name, parameters in order, and an inner spec") {
  const CodecSpec spec = parseCodecSpec("zstd:level=-3,mode=Fast_1.5(block_2:bits=4)");
  CHECK(spec.name == "zstd");
  REQUIRE(spec.parameters.size() == 2);
  CHECK(spec.parameters[0] == std::pair<std::string, std::string>("level", "-3"));
  CHECK(spec.parameters[1] == std::pair<std::string, std::string>("mode", "Fast_1.5"));
  REQUIRE(spec.inner);
  CHECK(spec.inner->name == "block_2");
  CHECK(spec.inner->parameters.size() == 1);
  CHECK_FALSE(spec.inner->inner);
}

TEST_CASE("a parsed spec is printed in its original form") {
  for (const std::string text :
       {"none", "fp16", "uniform:bits=8", "a:b=1,c=2", "a(b)", "a:b=1(c:d=2(e))"}) {
    CHECK(toString(parseCodecSpec(text)) == text);
  }
}

TEST_CASE("an error shows the spec, the position, and what is expected at that position") {
  const UsageError error = parseError("uniform:bits8");
  CHECK(error.what() ==
        std::string(
            "codec spec 'uniform:bits8', character 14 (the end): expected '=' after 'bits8'"));
  CHECK_THAT(parseError("a:b=1;c=2").what(), Contains("character 6 (';')"));
}

TEST_CASE("a syntax error is reported at its position") {
  const auto [text, place] = GENERATE(table<std::string, int>({
      {"", 1},        {" none", 1},  {"None", 1},      {"8bit", 1},      {"_a", 1},
      {":bits=8", 1}, {"none ", 5},  {"none\n", 5},    {"a-b", 2},       {"a:", 3},
      {"a:=1", 3},    {"a:b", 4},    {"a:b=", 5},      {"a:b=1,", 7},    {"a:b=1,,c=2", 7},
      {"a:b==1", 5},  {"a:b=1 ", 6}, {"a:b=1:c=2", 6}, {"a:b=1,b=2", 7}, {"a(", 3},
      {"a()", 3},     {"a(b", 4},    {"a(b))", 5},     {"a(b)c", 5},     {"a(b):c=1", 5},
      {"a(b,c)", 4},  {"a)", 2},
  }));
  CHECK_THAT(parseError(text).what(), Contains("character " + std::to_string(place) + " ("));
}

TEST_CASE("a NUL, a control character or another script in a spec is refused and not printed") {
  CHECK_THAT(parseError(std::string_view("a\0b", 3)).what(), Contains("'a?b', character 2 ('?')"));
  CHECK_THAT(parseError("\x1b[31m").what(), Contains("'?[31m'"));
  CHECK_THAT(parseError("näme").what(), Contains("'n??me', character 2"));
}

TEST_CASE("four levels are parsed, five are refused") {
  CHECK(toString(parseCodecSpec(nested(4))) == nested(4));
  CHECK_THAT(parseError(nested(5)).what(), Contains("character 9 ('a')") && Contains("4 levels"));
  CHECK_THAT(parseError(nested(60)).what(), Contains("4 levels"));
}

TEST_CASE("256 characters are parsed, 257 are refused") {
  const std::string longest(256, 'a');
  CHECK(parseCodecSpec(longest).name == longest);
  CHECK_THAT(parseError(longest + "a").what(), Contains("257 characters"));
  CHECK_THAT(parseError(std::string(1 << 20, '(')).what(), Contains("1048576 characters"));
}

TEST_CASE("integer parameters are accepted within their range") {
  const CodecSpec spec = parseCodecSpec("c:low=-3,high=16");
  CodecParameters parameters(spec);
  CHECK(parameters.integer("low", -3, 4) == -3);
  CHECK(parameters.integer("high", 1, 16, 8) == 16);
  CHECK(parameters.integer("absent", 1, 16, 8) == 8);
  CHECK_NOTHROW(parameters.finish());
}

TEST_CASE("a parameter that is not an integer in its range is refused") {
  const std::string value =
      GENERATE("0", "17", "-1", "8.0", "8x", "x", "0x8", "1e1", "99999999999999999999");
  const CodecSpec spec = parseCodecSpec("c:bits=" + value);
  const UsageError error = errorOf([&] { CodecParameters(spec).integer("bits", 1, 16); });
  CHECK(error.code() == "bad-codec-spec");
  CHECK(error.what() == "codec c: bits=" + value + " is not an integer from 1 to 16");
  const UsageError optional = errorOf([&] { CodecParameters(spec).integer("bits", 1, 16, 8); });
  CHECK(optional.code() == "bad-codec-spec");
}

TEST_CASE("a missing parameter is refused with an example") {
  const CodecSpec spec = parseCodecSpec("c");
  const UsageError error = errorOf([&] { CodecParameters(spec).integer("bits", 1, 16); });
  CHECK(error.code() == "bad-codec-spec");
  CHECK(error.what() == std::string("codec c needs bits, an integer from 1 to 16"));
  CHECK(error.hint() == "write c:bits=16");
}

TEST_CASE("a misspelt parameter is refused with the missing one that it resembles") {
  const CodecSpec spec = parseCodecSpec("c:bit=4");
  const UsageError error = errorOf([&] { CodecParameters(spec).integer("bits", 1, 16); });
  CHECK(error.code() == "bad-codec-spec");
  CHECK(error.what() == std::string("codec c has no parameter 'bit'"));
  CHECK(error.hint() == "did you mean bits? write c:bits=16");
}

TEST_CASE("an unknown parameter is refused with the nearest known one") {
  const CodecSpec spec = parseCodecSpec("c:bist=8");
  CodecParameters parameters(spec);
  parameters.integer("bits", 1, 16, 8);
  const UsageError error = errorOf([&] { parameters.finish(); });
  CHECK(error.code() == "bad-codec-spec");
  CHECK_THAT(error.what(), Contains("no parameter 'bist'"));
  CHECK(error.hint() == "did you mean bits? use one of bits");
  const UsageError none = errorOf([&] { CodecParameters(spec).finish(); });
  CHECK(none.hint() == "remove it: this codec has no parameters");
}

TEST_CASE("a codec that wraps no other codec refuses an inner spec") {
  const CodecSpec spec = parseCodecSpec("c(d:e=1)");
  const UsageError error = errorOf([&] { CodecParameters(spec).finish(); });
  CHECK(error.code() == "bad-codec-spec");
  CHECK_THAT(error.what(), Contains("cannot wrap 'd:e=1'"));
}

TEST_CASE("a word parameter accepts only the words that the codec lists") {
  const std::vector<std::string_view> choices = {"bf16", "fp16"};
  const CodecSpec spec = parseCodecSpec("c:header=fp16,other=fp17");
  CodecParameters parameters(spec);
  CHECK(parameters.choice("header", choices, 0) == 1);
  CHECK(parameters.choice("absent", choices, 0) == 0);
  const UsageError error = errorOf([&] { parameters.choice("other", choices, 0); });
  CHECK(error.code() == "bad-codec-spec");
  CHECK(error.what() == std::string("codec c: other=fp17 is not one of bf16, fp16"));
  CHECK(error.hint() == "did you mean fp16? use one of bf16, fp16");
}

TEST_CASE("a codec may wrap another one only if it says so") {
  const CodecSpec spec = parseCodecSpec("c:e=1(d:f=2)");
  CodecParameters parameters(spec);
  parameters.integer("e", 1, 2);
  const UsageError error = errorOf([&] { parameters.finish(); });
  CHECK(error.what() == std::string("codec c cannot wrap 'd:f=2'"));
  parameters.mayWrap();
  CHECK_NOTHROW(parameters.finish());
}
