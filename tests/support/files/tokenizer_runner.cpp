// Tokenizes lines, so that tests in Python can compare the ids with those of Hugging Face's
// library:
//
//   tokenizer_runner TOKENIZER.json LENGTH < LINES > IDS
// A line has one text, or two texts separated by a tab. For each line, the program writes three
// lists, separated by semicolons: the ids, padded to LENGTH, the mask and the types. With LENGTH 0,
// it writes all ids, without special tokens. The escapes \n, \t, \r and \\ represent those
// characters.
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>

#include "client/data/tokens/tokenizer.h"
#include "common/core/error.h"

namespace cleave {
namespace {

std::string unescaped(std::string_view text) {
  std::string result;
  for (std::size_t n = 0; n < text.size(); ++n) {
    if (text[n] != '\\' || n + 1 == text.size()) {
      result += text[n];
      continue;
    }
    const char letter = text[++n];
    result += letter == 'n' ? '\n' : letter == 't' ? '\t' : letter == 'r' ? '\r' : letter;
  }
  return result;
}

void print(const Tokens& tokens, const TokenPadding& padding, std::size_t length) {
  const std::size_t count = tokens.ids.size();
  const std::size_t before = padding.isLeft ? length - count : 0;
  std::string ids, mask, types;
  for (std::size_t n = 0; n < length; ++n) {
    const bool isToken = n >= before && n - before < count;
    ids += std::to_string(isToken ? tokens.ids[n - before] : padding.id) + ' ';
    mask += isToken ? "1 " : "0 ";
    types += std::to_string(isToken ? tokens.types[n - before] : padding.type) + ' ';
  }
  std::printf("%s;%s;%s\n", ids.c_str(), mask.c_str(), types.c_str());
}

int run(const std::string& path, std::size_t length) {
  const Tokenizer tokenizer(path);
  for (std::string line; std::getline(std::cin, line);) {
    const std::size_t tab = line.find('\t');
    const std::string first = unescaped(line.substr(0, tab));
    if (length == 0) {
      std::vector<TokenId> ids;
      tokenizer.encode(first, ids);
      for (const TokenId id : ids) std::printf("%u ", id);
      std::printf("\n");
      continue;
    }
    const std::string second =
        tab == std::string::npos ? std::string() : unescaped(line.substr(tab + 1));
    print(tokenizer.encodeSample(
              first,
              tab == std::string::npos ? std::nullopt : std::optional<std::string_view>(second),
              length),
          tokenizer.padding().value_or(TokenPadding{}), length);
  }
  return 0;
}

}  // namespace
}  // namespace cleave

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: tokenizer_runner TOKENIZER.json LENGTH < LINES\n");
    return 2;
  }
  try {
    return cleave::run(argv[1], std::strtoull(argv[2], nullptr, 10));
  } catch (const cleave::Error& error) {
    std::fprintf(stderr, "tokenizer_runner: %s: %s\nhint: %s\n", error.code().c_str(), error.what(),
                 error.hint().c_str());
    return 1;
  }
}
