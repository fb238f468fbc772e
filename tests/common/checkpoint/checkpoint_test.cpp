// The checkpoint store and the list of commits, including damaged files and a failing disk.

#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>

#include "common/checkpoint/checkpoint_store.h"
#include "common/checkpoint/commits.h"
#include "common/checkpoint/samples_base.h"
#include "common/files/sha256.h"
#include "tests/support/copied.h"
#include "tests/support/error_code.h"
#include "tests/support/files/folder.h"
#include "tests/support/files/memory_files.h"

namespace cleave {
namespace {

namespace fs = std::filesystem;
using test::Folder;

std::string contentOf(std::uint64_t step) {
  std::string content;
  for (int j = 0; j < 300; ++j) content += "step " + std::to_string(step) + ", ";
  return content;
}

std::string readAll(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void overwrite(const std::string& path, const std::string& content) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << content;
}

std::vector<std::uint64_t> stepsOf(const CheckpointStore& store) {
  std::vector<std::uint64_t> steps;
  for (const CheckpointInfo& info : store.list()) steps.push_back(info.step);
  return steps;
}

TEST_CASE("a checkpoint that is read equals the one that was written") {
  const Folder folder;
  CheckpointStore store(diskFiles(), folder.path.string());
  CHECK(store.list().empty());
  for (const std::uint64_t step : {5, 1'000'000, 7}) {
    store.write(step, contentOf(step), "here");
  }
  CHECK(stepsOf(store) == std::vector<std::uint64_t>{1'000'000, 7, 5});
  const CheckpointInfo info = store.list()[1];
  CHECK(info.bytes == contentOf(7).size());
  CHECK(info.sha256 == sha256Of(contentOf(7)));
  CHECK(info.fingerprint == "here");
  CHECK(store.read(info) == contentOf(7));
  CHECK(store.find(7, info.sha256));
  CHECK_FALSE(store.find(5, info.sha256));

  // Another checkpoint of the same step replaces the first.
  store.write(7, "other", "there");
  CHECK_FALSE(store.find(7, info.sha256));
  CHECK(store.read(store.list()[1]) == "other");
}

TEST_CASE("old checkpoints are removed, and their bytes are counted") {
  const Folder folder;
  CheckpointStore store(diskFiles(), folder.path.string());
  for (std::uint64_t step = 1; step <= 4; ++step) store.write(step, contentOf(step), "");
  CHECK(store.removeExcept({3, 4}) >= contentOf(1).size() + contentOf(2).size());
  CHECK(stepsOf(store) == std::vector<std::uint64_t>{4, 3});
  store.removeAll();
  CHECK(stepsOf(store).empty());
  CHECK(fs::is_empty(folder.path.string() + "/checkpoints"));
}

TEST_CASE("every truncation and every flipped bit of a checkpoint is detected") {
  const Folder folder;
  CheckpointStore store(diskFiles(), folder.path.string());
  const CheckpointInfo info = store.write(3, contentOf(3), "");
  for (const char* name : {"000000000003.safetensors", "000000000003.json"}) {
    const std::string path = folder.path.string() + "/checkpoints/" + name;
    const std::string whole = readAll(path);
    REQUIRE(whole.size() > 100);
    const auto isIntact = [&] { return store.find(3, info.sha256).has_value(); };
    for (std::size_t size = 0; size + 1 < whole.size(); ++size) {
      overwrite(path, whole.substr(0, size));
      if (isIntact()) FAIL(name << " is accepted with " << size << " of " << whole.size());
    }
    for (std::size_t at = 0; at < whole.size(); at += 7) {
      std::string flipped = whole;
      flipped[at] = static_cast<char>(flipped[at] ^ 0x10);
      overwrite(path, flipped);
      // A flipped bit in white space, or in the fingerprint's name or value, leaves the state
      // intact.
      if (isIntact() && std::string(name).ends_with(".safetensors")) FAIL(name << " at " << at);
      if (isIntact()) CHECK(store.read(*store.find(3, info.sha256)) == contentOf(3));
    }
    overwrite(path, whole);
    CHECK(isIntact());
  }
  fs::remove(folder.path.string() + "/checkpoints/000000000003.safetensors");
  CHECK(errorCode([&] { store.read(info); }) == "bad-checkpoint");
}

TEST_CASE("a file in pieces has their bytes in order, and can be mapped") {
  const Folder folder;
  const std::string path = folder.path.string() + "/file";
  CHECK_FALSE(diskFiles().view(path));
  const std::string first(100'000, 'a'), second = "b";
  diskFiles().writePieces(path, std::vector<std::string_view>{first, "", second});
  CHECK(readAll(path) == first + second);
  const std::optional<HeldBytes> view = diskFiles().view(path);
  REQUIRE(view);
  diskFiles().remove(path);
  CHECK(textOf(view->span()) == first + second);
  diskFiles().writePieces(path, {});
  CHECK(diskFiles().view(path)->empty());
  CHECK(errorCode([&] { diskFiles().view(folder.path.string()); }) == "run-unreadable");
}

TEST_CASE("the remains of an interrupted write do not count as a checkpoint, and are removed") {
  const Folder folder;
  CheckpointStore store(diskFiles(), folder.path.string());
  store.write(1, contentOf(1), "");
  overwrite(folder.path.string() + "/checkpoints/000000000002.safetensors", contentOf(2));
  overwrite(folder.path.string() + "/checkpoints/000000000003.safetensors.tmp-1-0", "abc");
  CHECK(stepsOf(store) == std::vector<std::uint64_t>{1});
  CHECK(store.removeIncomplete() == contentOf(2).size() + 3);
  CHECK(stepsOf(store) == std::vector<std::uint64_t>{1});
  CHECK(diskFiles().list(folder.path.string() + "/checkpoints").size() == 2);
}

// A store with the samples of step 1, changes of steps 2 and 3, and a checkpoint without changes.
class StoreWithSamples {
 public:
  StoreWithSamples() {
    for (std::uint64_t step = 1; step <= 4; ++step) write(step, step < 4 ? samplesOf(step) : "");
  }
  static std::string samplesOf(std::uint64_t step) { return "samples of " + std::to_string(step); }
  void write(std::uint64_t step, const std::string& samples) {
    CheckpointSamples all;
    if (step > 1) all.earlier = store.list().front().samples;
    const std::vector<HeldBytes> file = {
        held(samples.substr(0, 3)), held(samples.substr(std::min<std::size_t>(3, samples.size())))};
    if (!samples.empty()) all.file = file;
    store.write(step, contentOf(step), "", all);
  }
  bool isIntact(std::uint64_t step) const {
    for (const CheckpointInfo& info : store.list()) {
      if (info.step == step) return store.find(step, info.sha256).has_value();
    }
    return false;
  }
  std::vector<std::string> names() { return files.list("run/checkpoints"); }

  MemoryFiles files;
  CheckpointStore store{files, "run"};
};

TEST_CASE(
    "the samples of a checkpoint are those of several files, which remain while it needs them") {
  StoreWithSamples all;
  const CheckpointInfo newest = all.store.list().front();
  CHECK(newest.samples.size() == 3);
  for (const SamplesFile& each : newest.samples) {
    CHECK(textOf(all.store.read(each).span()) == StoreWithSamples::samplesOf(each.step));
  }
  CHECK(newest.totalBytes() == contentOf(4).size() + 3 * std::string("samples of 1").size());
  CHECK(newest.sha256 != sha256Of(contentOf(4)));

  CHECK(all.store.removeExcept({4, 2}) >= contentOf(1).size() + contentOf(3).size());
  CHECK(all.names().size() == 7);  // the samples' files of steps 1 to 3 are still needed
  CHECK(all.isIntact(4));
  CHECK(all.isIntact(2));
  all.store.removeExcept({2});
  CHECK(all.names().size() == 4);
  CHECK(all.isIntact(2));
  all.store.removeAll();
  CHECK(all.names().empty());
}

TEST_CASE("a checkpoint whose samples are missing or damaged is damaged") {
  for (std::uint64_t damaged = 1; damaged <= 3; ++damaged) {
    const std::string path = "run/checkpoints/00000000000" + std::to_string(damaged) + ".samples";
    for (const bool isMissing : {true, false}) {
      StoreWithSamples all;
      if (isMissing) {
        all.files.remove(path);
      } else {
        all.files.write(path, StoreWithSamples::samplesOf(damaged + 1));
      }
      for (std::uint64_t step = 1; step <= 4; ++step) {
        INFO(step << " without the samples of " << damaged);
        CHECK(all.isIntact(step) == (step < damaged));
      }
    }
  }
}

TEST_CASE(
    "samples of an interrupted write are removed, and a failed one leaves those of the others") {
  StoreWithSamples all;
  const auto before = all.names();
  all.files.write("run/checkpoints/000000000005.samples", "abc");
  CHECK(all.store.removeIncomplete() == 3);
  CHECK(all.names() == before);
  for (int failAt = 1; failAt <= 4; ++failAt) {
    all.files.failAt(failAt);
    CHECK(errorCode([&] { all.write(5, "samples"); }) == "cannot-write");
    CHECK(all.names() == before);
  }
  all.write(5, "samples");
  CHECK(all.isIntact(5));
}

TEST_CASE("files with samples remain if a record cannot be read, and go with the last record") {
  StoreWithSamples all;
  all.files.failReads("run/checkpoints/000000000004.json");
  CHECK(errorCode([&] { all.store.removeExcept({4}); }) == "run-unreadable");
  CHECK(errorCode([&] { all.store.removeIncomplete(); }) == "run-unreadable");
  all.files.failReads("");
  CHECK(all.isIntact(4));
  for (std::uint64_t step = 1; step <= 4; ++step) {
    all.files.remove("run/checkpoints/00000000000" + std::to_string(step) + ".safetensors");
  }
  all.store.removeAll();
  CHECK(all.names().empty());
}

TEST_CASE("samples are saved relative to the newest commit, and from time to time as a whole") {
  SamplesBase base;
  const auto known = [](std::uint64_t step, const std::vector<std::uint64_t>& sizes) {
    CheckpointInfo info;
    info.step = step;
    for (const std::uint64_t size : sizes) info.samples.push_back({step, size, ""});
    return info;
  };
  const auto baseOf = [&](const std::vector<std::uint64_t>& committed) {
    return base.choose(committed).step;
  };
  CHECK(baseOf({}) == 0);
  base.add(known(1, {100}));
  CHECK(baseOf({}) == 0);  // not committed
  CHECK(baseOf({1}) == 1);
  base.add(known(2, {100, 60}));
  CHECK(baseOf({1}) == 1);
  CHECK(baseOf({2, 1}) == 2);
  CHECK(baseOf({9, 2}) == 0);  // this process has not written 9
  base.add(known(3, {100, 60, 40}));
  CHECK(baseOf({3, 2}) == 0);  // the changes are as large as the whole
  base.add(known(4, {}));      // of an earlier version, or without samples
  CHECK(baseOf({4, 3}) == 0);
  base.add(known(5, std::vector<std::uint64_t>(64, 1)));
  CHECK(baseOf({5}) == 0);
}

TEST_CASE("a full disk does not affect existing checkpoints") {
  for (int failAt = 1; failAt <= 3; ++failAt) {
    INFO("change " << failAt);
    MemoryFiles files;
    CheckpointStore store(files, "run");
    store.write(1, contentOf(1), "");
    files.failAt(failAt);
    CHECK(errorCode([&] { store.write(2, contentOf(2), ""); }) == "cannot-write");
    CHECK(stepsOf(store) == std::vector<std::uint64_t>{1});
    CHECK(files.list("run/checkpoints").size() == 2);
    store.write(2, contentOf(2), "");
    CHECK(stepsOf(store) == std::vector<std::uint64_t>{2, 1});
  }
}

TEST_CASE("a run's connections survive writing and reading") {
  const Folder folder;
  CheckpointStore store(diskFiles(), folder.path.string());
  CHECK(store.connections() == RunConnections());
  const RunConnections some{
      12, {{.accepted = {~std::uint64_t{0}, 1}, .sent = {}}, {.accepted = {}, .sent = {2, 3}}}};
  store.setConnections(some);
  CHECK(CheckpointStore(diskFiles(), folder.path.string()).connections() == some);
  const std::string id = "0 sent 00000000000000ab\n";
  overwrite(folder.path.string() + "/connections", "12\n" + id);
  CHECK(store.connections() == RunConnections{12, {{.accepted = {}, .sent = {0xab}}}});
  std::string tooMany = "12\n";
  for (std::size_t i = 0; i <= kMaxConnectionIds; ++i) tooMany += id;
  for (const std::string& damaged :
       {std::string(), std::string("12"), std::string("12x\n"), "-1\n" + id,
        "9223372036854775808\n" + id, "12\n\n" + id, std::string("12\n0 sent 00000000000000ab"),
        std::string("12\n0 sent 0000000000000000\n"), std::string("12\n0 sent xyz\n"),
        std::string("12\n0 sent 100000000000000ab\n"), std::string("12\n64 sent ab\n"),
        std::string("12\n0 lost ab\n"), std::string("12\n00000000000000ab\n"), tooMany}) {
    INFO(damaged.substr(0, 40));
    overwrite(folder.path.string() + "/connections", damaged);
    CHECK_FALSE(store.connections());
  }
}

TEST_CASE("each Hello has an id of its own, and the accepted one is kept") {
  RunConnections own;
  addHello(own, 1);
  REQUIRE(own.servers.size() == 2);
  const std::uint64_t first = own.servers[1].sent.at(0);
  CHECK(first != 0);
  CHECK(own == RunConnections{1, {{}, {.accepted = {}, .sent = {first}}}});
  acceptHello(own, 1);
  CHECK(own == RunConnections{1, {{}, {.accepted = {first}, .sent = {}}}});
  // Hellos that are not accepted, to either server, do not displace it.
  for (std::size_t i = 0; i < 2 * kMaxConnectionIds; ++i) addHello(own, i % 2);
  CHECK(own.generation == 1 + 2 * kMaxConnectionIds);
  for (std::size_t i = 0; i < 2; ++i) addHello(own, 1);
  const std::vector<std::uint64_t> all = own.servers[1].all();
  CHECK(all.size() == kMaxConnectionIds + 1);
  CHECK(all.front() == own.servers[1].sent.front());
  CHECK(all.back() == first);
  CHECK(std::set(all.begin(), all.end()).size() == all.size());
  acceptHello(own, 1);
  CHECK(own.servers[1].all() == std::vector{all.front(), first});
  CHECK(parseConnections(toText(own)) == own);
}

TEST_CASE("commits are read newest first") {
  const Folder folder;
  CHECK(readCommits(diskFiles(), folder.path.string()).empty());
  fs::create_directory(folder.path.string() + "/checkpoints");
  const std::string a(32, '\x01');
  const std::string b(32, '\xfe');
  writeCommits(diskFiles(), folder.path.string(), {{5, a, {b}}, {9, b, {a, b}}});
  const auto commits = readCommits(diskFiles(), folder.path.string());
  REQUIRE(commits.size() == 2);
  CHECK(commits[0].step == 9);
  CHECK(commits[0].client == b);
  CHECK(commits[0].servers == std::vector<std::string>{a, b});
  CHECK(commits[1].step == 5);

  // Either of the two files is enough if the other one is damaged.
  const std::string path = folder.path.string() + "/checkpoints/commits.json";
  const std::string copy = folder.path.string() + "/checkpoints/commits.copy.json";
  const std::string whole = readAll(path);
  CHECK(readAll(copy) == whole);
  for (std::size_t size = 0; size + 1 < whole.size(); ++size) {
    overwrite(path, whole.substr(0, size));
    CHECK(readCommits(diskFiles(), folder.path.string()).size() == 2);
  }
  overwrite(copy, whole.substr(0, 20));
  CHECK(errorCode([&] { readCommits(diskFiles(), folder.path.string()); }) == "bad-checkpoint");
  fs::remove(path);
  CHECK(errorCode([&] { readCommits(diskFiles(), folder.path.string()); }) == "bad-checkpoint");
  overwrite(path, whole);
  CHECK(readCommits(diskFiles(), folder.path.string()).size() == 2);
}

TEST_CASE("a commit log keeps the newest commits, and forgets those of repeated steps") {
  const Folder folder;
  const std::string path = folder.path.string();
  fs::create_directory(path + "/checkpoints");
  const auto commitOf = [](std::uint64_t step) {
    return RunCommit{step, std::string(32, '\x01'), {std::string(32, '\x02')}};
  };
  CommitLog log(diskFiles(), path, {commitOf(9), commitOf(5)}, 2);
  using Steps = std::vector<std::uint64_t>;
  const auto add = [&](std::uint64_t step) {
    log.add(commitOf(step));
    Steps stored;
    for (const RunCommit& commit : readCommits(diskFiles(), path)) stored.push_back(commit.step);
    CHECK(log.steps() == stored);
    return stored;
  };
  CHECK(log.steps() == Steps{9, 5});
  CHECK(add(12) == Steps{12, 9});
  CHECK(add(10) == Steps{10, 9});  // the run went back to step 9
  fs::remove_all(path + "/checkpoints");
  CHECK(errorCode([&] { log.add(commitOf(14)); }) == "cannot-write");
  CHECK(log.steps() == Steps{10, 9});
}

}  // namespace
}  // namespace cleave
