// Fuzz target: the small files beside a checkpoint. The first byte of an input selects the kind: c
// for a list of commits, r for the record of a checkpoint, g for a generation. Only RunError is
// allowed. A list of commits must be the same after writing and reading it again.
#include <algorithm>

#include "common/checkpoint/checkpoint_store.h"
#include "common/checkpoint/commits.h"
#include "tests/fuzz/seeds.h"
#include "tests/memory_files.h"

using namespace cleave;
using namespace cleave::fuzz;

namespace {

bool isSame(const RunCommit& a, const RunCommit& b) {
  return a.step == b.step && a.client == b.client && a.servers == b.servers;
}

void readListOfCommits(const std::string& text) {
  MemoryFiles files;
  files.write("run/checkpoints/commits.json", text);
  const std::vector<RunCommit> commits = readCommits(files, "run");
  writeCommits(files, "run", commits);
  if (!std::ranges::equal(readCommits(files, "run"), commits, isSame)) {
    find("commits change when written and read again");
  }
}

void readRecord(const std::string& text) {
  MemoryFiles files;
  files.write("run/checkpoints/000000000007.safetensors", "the state");
  files.write("run/checkpoints/000000000007.json", text);
  CheckpointStore store(files, "run");
  for (const CheckpointInfo& info : store.list()) {
    const auto found = store.find(info.step, info.sha256);
    if (found && sha256Of(found->file) != info.sha256) find("a damaged file was accepted");
  }
  store.removeIncomplete();
  store.removeAll();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  try {
    if (data[0] == 'c') readListOfCommits(text);
    if (data[0] == 'r') readRecord(text);
    if (data[0] == 'g') {
      MemoryFiles files;
      files.write("run/generation", text);
      const CheckpointStore store(files, "run");
      store.generation();
    }
  } catch (const RunError&) {
  }
  return 0;
}

std::vector<Seed> cleave::fuzz::seeds() {
  const std::string digest = hexOf(sha256Of("the state"));
  const std::string commit =
      R"([{"step": 7, "client": ")" + digest + R"(", "servers": [")" + digest + R"("]}])";
  return {{"commits", bytesOf("c" + commit)},
          {"no commits", bytesOf("c[]")},
          {"no list", bytesOf("c{\"step\": 7}")},
          {"record", bytesOf("r"
                             R"({"step": 7, "bytes": 9, "sha256": ")" +
                             digest + R"(", "fingerprint": "cpu"})")},
          {"other step", bytesOf("r"
                                 R"({"step": 8, "bytes": 9, "sha256": ")" +
                                 digest + R"(", "fingerprint": ""})")},
          {"generation", bytesOf("g12\n")},
          {"negative", bytesOf("g-1\n")}};
}
