// Fuzz target: the files from which a run resumes. The first byte of an input selects the kind: s
// for the contents of a checkpoint, w for its samples, r for its record, c for a list of commits, n
// for connections, j for a run.json. Only RunError is allowed, and UsageError "no-run" for a
// run.json. What is accepted must be the same after writing and reading it again.
#include <algorithm>

#include "client/run/run_history.h"
#include "common/checkpoint/checkpoint_store.h"
#include "common/checkpoint/commits.h"
#include "common/core/bytes.h"
#include "common/files/sha256.h"
#include "common/run/checkpoint_file.h"
#include "tests/fuzz/seeds.h"
#include "tests/support/copied.h"
#include "tests/support/files/memory_files.h"

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
  files.write("run/checkpoints/000000000007.samples", "the samples");
  files.write("run/checkpoints/000000000007.json", text);
  CheckpointStore store(files, "run");
  for (const CheckpointInfo& info : store.list()) {
    const auto found = store.find(info.step, info.sha256);
    const bool isDamaged =
        found && (found->file != "the state" ||
                  (info.samples.empty() && info.sha256 != sha256Of(found->file)));
    if (isDamaged) find("a damaged file was accepted");
  }
  store.removeIncomplete();
  store.removeAll();
}

const std::string kSpec = sha256Of("the run spec");

bool isSameEntry(const SafetensorsEntry& a, const SafetensorsEntry& b) {
  return a.name == b.name && a.dtype == b.dtype && a.shape == b.shape &&
         std::ranges::equal(a.bytes, b.bytes);
}

bool isSameCodec(const TensorCodecs::SavedState& a, const TensorCodecs::SavedState& b) {
  return a.flow == b.flow && a.i == b.i && std::ranges::equal(a.bytes.span(), b.bytes.span());
}

void readContents(const std::string& file) {
  const CheckpointContent read = readCheckpoint(file, kSpec, "file");
  const Bytes written = checkpointFile(read, writeSafetensors(read.stage));
  const std::string text(reinterpret_cast<const char*>(written.data()), written.size());
  const CheckpointContent again = readCheckpoint(text, kSpec, "again");
  if (again.engine.applied != read.engine.applied ||
      again.engine.evaluated != read.engine.evaluated || again.notes != read.notes ||
      !std::ranges::equal(again.codecs, read.codecs, isSameCodec) ||
      !std::ranges::equal(again.stage, read.stage, isSameEntry)) {
    find("the contents change when written and read again");
  }
}

void readSamplesFile(const std::string& file) {
  PartState state;
  state.codecs = readSamples(held(file), "file");
  const std::vector<HeldBytes> written = samplesFile(state);
  if (state.codecs.empty()
          ? !written.empty()
          : !std::ranges::equal(readSamples(joined(written), "again"), state.codecs, isSameCodec)) {
    find("the samples change when written and read again");
  }
}

void readRunJson(const std::string& text) {
  MemoryFiles files;
  files.write("run/run.json", text);
  RunRecordFile read;
  try {
    read = readRunRecord(files, "run");
  } catch (const UsageError& error) {
    if (error.code() != "no-run") find("a run.json is refused with another error");
    return;
  }
  writeRunRecord(files, "run", read);
  const RunRecordFile again = readRunRecord(files, "run");
  if (again.run != read.run || again.server != read.server || again.steps != read.steps ||
      again.epochs != read.epochs || again.config != read.config || again.train != read.train ||
      again.evaluation != read.evaluation) {
    find("run.json changes when written and read again");
  }
}

Bytes contentsOf(const std::string& state, const std::vector<std::string>& codecs = {}) {
  const Bytes values(24), bytes = bytesOf(state), codecState(5);
  std::vector<SafetensorsEntry> entries = {{"weight/0.weight", "F32", {2, 3}, values}};
  for (const std::string& name : codecs) entries.push_back({name, "U8", {5}, codecState});
  entries.push_back({"run:state", "U8", {static_cast<std::int64_t>(bytes.size())}, bytes});
  Bytes input = bytesOf("s");
  const Bytes file = writeSafetensors(entries);
  input.insert(input.end(), file.begin(), file.end());
  return input;
}

Bytes samplesOf(const std::vector<std::string>& names) {
  const Bytes samples(16);
  std::vector<SafetensorsEntry> entries;
  for (const std::string& name : names) entries.push_back({name, "U8", {16}, samples});
  Bytes input = bytesOf("w");
  const Bytes file = writeSafetensors(entries);
  input.insert(input.end(), file.begin(), file.end());
  return input;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  try {
    if (data[0] == 's') readContents(text);
    if (data[0] == 'w') readSamplesFile(text);
    if (data[0] == 'j') readRunJson(text);
    if (data[0] == 'c') readListOfCommits(text);
    if (data[0] == 'r') readRecord(text);
    if (data[0] == 'n') {
      MemoryFiles files;
      files.write("run/connections", text);
      const CheckpointStore store(files, "run");
      store.connections();
    }
  } catch (const Error&) {
  }
  return 0;
}

std::vector<Seed> cleave::fuzz::seeds() {
  const std::string digest = hexOf(sha256Of("the state"));
  const std::string commit =
      R"([{"step": 7, "client": ")" + digest + R"(", "servers": [")" + digest + R"("]}])";
  const std::string state = R"({"applied": 7, "evaluated": 2, "spec": ")" + hexOf(kSpec) +
                            R"(", "notes": {"steps": 7, "last_eval": [0.5, null]}})";
  // Deep enough to overflow the stack of a recursive function.
  constexpr std::size_t kDepth = 200000;
  const std::string deep = state.substr(0, state.find("{\"steps\"")) + std::string(kDepth, '[') +
                           std::string(kDepth, ']') + "}";
  return {{"contents", contentsOf(state)},
          {"codec", contentsOf(state, {"codec:gradient/1:3", "codec:activation/0.1:0"})},
          {"one state under two names",
           contentsOf(state, {"codec:gradient/1:3", "codec:gradient/1:03"})},
          {"samples", samplesOf({"codec:activation/0:0", "codec:activation/1:0"})},
          {"no samples", samplesOf({})},
          {"other tensors", samplesOf({"weight"})},
          {"no number", contentsOf(state, {"codec:gradient/1"})},
          {"another run spec", contentsOf(R"({"applied": 7, "evaluated": 0, "spec": "00",
                                              "notes": {}})")},
          {"deep notes", contentsOf(deep)},
          {"run.json", bytesOf(R"(j{"run": "a-1", "server": "host:1", "steps": 9, "epochs": 3})")},
          {"short run.json", bytesOf(R"(j{"run": "a-1", "server": ""})")},
          {"other run.json", bytesOf(R"(j{"run": 1, "server": "", "steps": -1, "epochs": 1e300})")},
          {"commits", bytesOf("c" + commit)},
          {"no commits", bytesOf("c[]")},
          {"no list", bytesOf("c{\"step\": 7}")},
          {"record", bytesOf("r"
                             R"({"step": 7, "bytes": 9, "sha256": ")" +
                             digest + R"(", "fingerprint": "cpu"})")},
          {"record with samples",
           bytesOf("r"
                   R"({"step": 7, "bytes": 9, "sha256": ")" +
                   hexOf(sha256Of(sha256Of("the state") + sha256Of("the samples"))) +
                   R"(", "fingerprint": "cpu", "samples": [{"step": 7, "bytes": 8, "sha256": ")" +
                   hexOf(sha256Of("the samples")) + R"("}]})")},
          {"other step", bytesOf("r"
                                 R"({"step": 8, "bytes": 9, "sha256": ")" +
                                 digest + R"(", "fingerprint": ""})")},
          {"connections", bytesOf("n12\n0 accepted 00000000000000ab\n1 sent ffffffffffffffff\n")},
          {"negative", bytesOf("n-1\n")}};
}
