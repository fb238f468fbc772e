// Fuzz target. The input is a configuration up to the first zero byte, and one override after each.
// Only UsageError is allowed. The resolved configuration must be the same after writing it as YAML
// and reading it again.
#include <string>

#include "common/config/config.h"
#include "common/core/yaml.h"
#include "tests/fuzz/seeds.h"

using namespace cleave;
using namespace cleave::fuzz;

namespace {

constexpr const char* kKeys[] = {"a", "b", "list", "data.train.images", "train.batch"};

// Reads each key with the first type that accepts it.
void readAll(Config& config) {
  for (const std::string key : kKeys) {
    const auto fits = [&](auto read) {
      try {
        read();
        return true;
      } catch (const UsageError&) {
        return false;
      }
    };
    if (!config.has(key) || config.isMap(key)) continue;
    static_cast<void>(fits([&] { config.integer(key, -1000, 1000); }) ||
                      fits([&] { config.number(key, -1e300, 1e300); }) ||
                      fits([&] { config.boolean(key); }) || fits([&] { config.text(key); }) ||
                      fits([&] { config.numbers(key, -1e300, 1e300); }) ||
                      fits([&] { config.texts(key); }));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::vector<std::string> parts(1);
  for (std::size_t j = 0; j < size; ++j) {
    if (data[j] == 0) {
      parts.emplace_back();
    } else {
      parts.back() += static_cast<char>(data[j]);
    }
  }
  const std::string text = parts.front();
  parts.erase(parts.begin());
  try {
    Config config = Config::parse(text, "file", parts);
    readAll(config);
    const std::string resolved = config.resolved();
    Config again = Config::parse(resolved, "resolved", {});
    readAll(again);
    if (again.resolved() != resolved) find("changes when written and read again:\n" + resolved);
    config.refuseUnknown();
  } catch (const UsageError& error) {
    if (error.code().empty()) find("an error without a code");
  }
  return 0;
}

std::vector<Seed> cleave::fuzz::seeds() {
  const auto seed = [](const std::string& name, const std::string& text) {
    return Seed{name, bytesOf(text)};
  };
  using std::string_literals::operator""s;
  return {
      seed("scalars", "a: 1\nb: 'x: y'\ndata:\n  train: {images: \"f\\n\"}\n"),
      seed("lists", "list: [1, 2.5, -3e9]\na:\n  - x\n  - ~\nb: true\n"),
      seed("overrides", "train: {batch: 64}\n\0train.batch=32\0data.train.images=x y\0a={b: 1}"s),
      seed("blocks", "a: |\n  one\n  two\nb: >-\n  three\n  four\n"),
      seed("refused", "a: &x 1\nb: *x\n? [1]\n: 2\n!!int c: 3\n")};
}
