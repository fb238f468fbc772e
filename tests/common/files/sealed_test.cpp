#include "common/files/sealed.h"

#include <catch2/catch.hpp>

#include "common/core/bytes.h"
#include "common/core/durable.h"
#include "tests/support/error_code.h"
#include "tests/support/files/folder.h"

namespace cleave {
namespace {

const std::string kKey(kSealKeyBytes, 'k');

std::span<const std::byte> bytesOf(const std::string& text) {
  return std::as_bytes(std::span(text));
}

TEST_CASE("sealed bytes are opened with the same key and context only") {
  for (const std::string& text :
       {std::string(), std::string("head and tail"), std::string(5000, 'x')}) {
    const auto sealed = seal(kKey, "step 7", bytesOf(text));
    CHECK(sealed.size() == text.size() + kSealBytes);
    CHECK(textOf(*openSealed(kKey, "step 7", sealed)) == text);
    const auto isRefused = [&](const std::string& key, const std::string& context,
                               std::span<const std::byte> bytes) {
      return !openSealed(key, context, bytes);
    };
    CHECK(isRefused(std::string(kSealKeyBytes, 'l'), "step 7", sealed));
    CHECK(isRefused(kKey, "step 8", sealed));
    CHECK(isRefused(kKey, "step 7", std::span(sealed).first(sealed.size() - 1)));
    CHECK(isRefused(kKey, "step 7", {}));
    for (std::size_t at = 0; at < sealed.size(); at += 1 + sealed.size() / 50) {
      auto changed = sealed;
      changed[at] ^= std::byte{1};
      CHECK(isRefused(kKey, "step 7", changed));
    }
  }
}

TEST_CASE("the same bytes are sealed with another nonce each time") {
  CHECK(seal(kKey, "", bytesOf("text")) != seal(kKey, "", bytesOf("text")));
}

TEST_CASE("a key has 64 hexadecimal digits") {
  const test::Folder folder;
  const auto read = [&](const std::string& text, mode_t mode = kPrivateFile) {
    const std::string path = folder.file("key");
    std::remove(path.c_str());
    writeNewFile(path, text, mode);
    return readSealKey(path);
  };
  CHECK(read(std::string(64, 'a') + "\n") == std::string(32, '\xaa'));
  CHECK(read(std::string(64, 'F')) == std::string(32, '\xff'));
  for (const std::string& text :
       {std::string(), std::string(63, 'a'), std::string(66, 'a'), std::string(64, 'g')}) {
    CHECK(errorCode([&] { read(text); }) == "not-a-key");
  }
  CHECK(errorCode([&] { read(std::string(64, 'a'), 0644); }) == "key-readable");
}

}  // namespace
}  // namespace cleave
