// The access file: the limits it grants, how errors are reported, and reloading.
#include "server/access/access.h"

#include <stdlib.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

#include "common/core/log.h"
#include "tests/support/error_code.h"

namespace cleave {
namespace {

using Catch::Matchers::Contains;
using Models = std::vector<std::string>;

const Models kModels = {"mlp", "small_cnn"};

// A file with the given text; the destructor removes the file.
class AccessFile {
 public:
  explicit AccessFile(const std::string& text) {
    std::string name = (std::filesystem::temp_directory_path() / "cleave-access-XXXXXX").string();
    const int file = ::mkstemp(name.data());
    REQUIRE(file >= 0);
    ::close(file);
    path = name;
    write(text);
  }
  ~AccessFile() { std::filesystem::remove(path); }
  void write(const std::string& text) const { std::ofstream(path) << text; }

  std::string path;
};

struct Refusal {
  std::string code, sentence, hint;
};

Refusal refusalOf(const std::string& text) {
  const AccessFile file(text);
  try {
    const Access access(file.path, kModels);
  } catch (const UsageError& error) {
    return {error.code(), error.what(), error.hint()};
  }
  return {};
}

}  // namespace

TEST_CASE("configs/access.yaml allows what its comments say") {
  const Access access(CLEAVE_SOURCE_DIR "/configs/access.yaml",
                      {"mlp", "small_cnn", "mobilenet_v2"});
  const Allowance& first = access.of("clinic-a");
  CHECK(first.models == Models{"small_cnn", "mobilenet_v2"});
  CHECK(first.sessions == 4u);
  CHECK(first.memoryBytes == std::size_t{4096} << 20);
  CHECK(first.rate == 200e6 / 8);
  CHECK(first.runs == std::vector<std::string>{"clinic-a-*"});

  const Allowance& second = access.of("clinic-b");
  CHECK_FALSE(second.models);
  CHECK_FALSE(second.sessions);
  CHECK_FALSE(second.memoryBytes);
  CHECK(second.rate == 0);
  CHECK(second.runs.empty());

  const Allowance& others = access.of("clinic-c");
  CHECK(others.models == Models{"small_cnn"});
  CHECK(others.sessions == 1u);
  CHECK(others.memoryBytes == std::size_t{1024} << 20);
  CHECK(others.rate == 20e6 / 8);

  CHECK(errorCode([&] { access.checkRun("clinic-a", "clinic-a-1"); }).empty());
  CHECK(errorCode([&] { access.checkRun("clinic-b", "clinic-a-1"); }) == "others-run");
}

TEST_CASE("without an access file every client may do what the server allows") {
  Access access("", kModels);
  for (const char* identity : {"local", "clinic-a"}) {
    const Allowance& allowance = access.of(identity);
    CHECK_FALSE(allowance.models);
    CHECK_FALSE(allowance.sessions);
    CHECK_FALSE(allowance.memoryBytes);
    CHECK_FALSE(allowance.diskBytes);
    CHECK_FALSE(allowance.runsPerHour);
    CHECK_FALSE(allowance.idleSeconds);
    access.checkRun(identity, "run-1");
    CHECK(access.throttle(identity)->rate() == 0);
  }
  access.reload();
}

TEST_CASE("a listed identity has the rights of its entry, and any other has the default's") {
  const AccessFile file(
      "clinic-a:\n  models: [mlp]\n  sessions: 4\n  memory_mib: 512\n  rate: 80Mbit/s\n"
      "  disk_mib: 100\n  runs_per_hour: 7\n  idle_seconds: 1.5\n"
      "clinic-b: {}\n"
      "default: {sessions: 1}\n");
  Access access(file.path, kModels);
  CHECK(access.of("clinic-a").models == Models{"mlp"});
  CHECK(access.of("clinic-a").sessions == 4u);
  CHECK(access.of("clinic-a").memoryBytes == std::size_t{512} << 20);
  CHECK(access.of("clinic-a").rate == 10e6);
  CHECK(access.of("clinic-a").diskBytes == std::size_t{100} << 20);
  CHECK(access.of("clinic-a").runsPerHour == 7u);
  CHECK(access.of("clinic-a").idleSeconds == 1.5);
  CHECK_FALSE(access.of("clinic-b").sessions);
  CHECK(access.of("stranger").sessions == 1u);
  CHECK(access.of("local").sessions == 1u);
}

TEST_CASE("an identity that is not listed is refused if there is no default") {
  const AccessFile file("clinic-a: {}\n");
  Access access(file.path, kModels);
  for (const char* identity : {"clinic-b", "local", "default"}) {
    CHECK(errorCode([&] { access.of(identity); }) == "unknown-identity");
    CHECK(errorCode([&] { access.throttle(identity); }) == "unknown-identity");
    CHECK(errorCode([&] { access.checkRun(identity, "a"); }) == "unknown-identity");
  }
  CHECK_THAT(errorText([&] { access.of("clinic-b"); }), Contains("clinic-b"));
  CHECK_THAT(errorText([&] { access.of("clinic-b"); }),
             !Contains(file.path));  // the text is sent to the peer
}

TEST_CASE("run id patterns limit an identity to its own run ids and exclude others") {
  const AccessFile file(
      "a: {runs: [a-*, 'shared-?']}\n"
      "b: {runs: [shared-1]}\n"
      "c: {}\n");
  const Access access(file.path, kModels);
  const auto allowed = [&](const std::string& identity, const std::string& run) {
    return errorCode([&] { access.checkRun(identity, run); }).empty();
  };
  CHECK(allowed("a", "a-1"));
  CHECK(allowed("a", "shared-1"));
  CHECK(allowed("b", "shared-1"));
  CHECK(allowed("c", "c-1"));
  CHECK_FALSE(allowed("a", "c-1"));
  CHECK_FALSE(allowed("b", "shared-2"));
  CHECK_FALSE(allowed("c", "a-1"));
  CHECK_FALSE(allowed("c", "shared-1"));
  CHECK(errorCode([&] { access.checkRun("c", "a-1"); }) == "others-run");
  CHECK(errorCode([&] { access.checkRun("b", "b-1"); }) == "others-run");
}

TEST_CASE("an invalid access file is refused with the line and the nearest key") {
  Refusal refusal = refusalOf("clinic-a:\n  sesions: 4\n");
  CHECK(refusal.code == "config-unknown-key");
  CHECK_THAT(refusal.sentence, Contains(":2: clinic-a.sesions is not a known key") &&
                                   Contains("did you mean clinic-a.sessions?"));
  refusal = refusalOf("clinic-a:\n  models: [small_cmm]\n");
  CHECK_THAT(refusal.sentence,
             Contains(":2: clinic-a.models has small_cmm") && Contains("did you mean small_cnn?"));
  refusal = refusalOf("clinic-a: {}\nClinic: {}\n");
  CHECK_THAT(refusal.sentence, Contains(":2: this is not the name of an identity"));
  CHECK_THAT(refusalOf("clinic-a: 4\n").sentence, Contains(":1: clinic-a has no map of limits"));
  CHECK_THAT(refusalOf("clinic-a:\n").hint, Contains("clinic-a: {}"));
  CHECK_THAT(refusalOf("a: {sessions: -1}\n").sentence, Contains("a.sessions is '-1'"));
  CHECK_THAT(refusalOf("a: {idle_seconds: 0}\n").sentence, Contains("a.idle_seconds is '0'"));
  CHECK_THAT(refusalOf("a: {rate: 10}\n").sentence, Contains(":1: a.rate: '10' is not a rate"));
  CHECK_THAT(refusalOf("a: {rate: 999kbit/s}\n").sentence, Contains("too low"));
  CHECK_THAT(refusalOf("a: {}\na: {}\n").sentence, Contains("appears twice"));
  CHECK(refusalOf("a: {rate: 1Mbit/s}\nb: {rate: unlimited}\n").code.empty());
  CHECK(errorCode([] { Access("/none/access.yaml", kModels); }) == "config-file");
}

TEST_CASE("the connections of an identity share a throttle, and a reload changes it") {
  const AccessFile file("a: {rate: 8Mbit/s}\nb: {rate: 8Mbit/s}\n");
  Access access(file.path, kModels);
  const auto first = access.throttle("a");
  CHECK(access.throttle("a") == first);
  CHECK(access.throttle("b") != first);
  CHECK(first->rate() == 1e6);
  file.write("a: {rate: 16Mbit/s, sessions: 2}\n");
  access.reload();
  CHECK(first->rate() == 2e6);
  CHECK(access.of("a").sessions == 2u);
  CHECK(errorCode([&] { access.of("b"); }) == "unknown-identity");
}

TEST_CASE("if a reloaded access file is invalid, the previous one stays in force") {
  const AccessFile file("a: {sessions: 3}\n");
  Access access(file.path, kModels);
  for (const char* bad : {"a: {sessions: many}\n", "a: {sesions: 1}\n", "{", ":"}) {
    file.write(bad);
    access.reload();
    CHECK(access.of("a").sessions == 3u);
  }
  std::filesystem::remove(file.path);
  access.reload();
  CHECK(access.of("a").sessions == 3u);
}

}  // namespace cleave
