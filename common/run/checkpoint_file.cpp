#include "common/run/checkpoint_file.h"

#include <spdlog/fmt/fmt.h>

#include <charconv>
#include <iterator>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "common/codec/checkpoint_error.h"
#include "common/files/sha256.h"

namespace cleave {
namespace {

constexpr const char* kStateName = "run:state";
constexpr std::string_view kCodecPrefix = "codec:";
constexpr int kMaxDepth = 32;

SafetensorsEntry bytesEntry(std::string name, std::span<const std::byte> bytes) {
  return {std::move(name), "U8", {static_cast<std::int64_t>(bytes.size())}, bytes};
}

// "codec:activation/1:3", or "codec:activation/1:3@2" of the third member of a cohort.
std::string nameOf(const TensorCodecs::SavedState& state) {
  return fmt::format("{}{}:{}{}", kCodecPrefix, flowName(state.flow), state.i,
                     state.member == 0 ? "" : fmt::format("@{}", state.member));
}

// Removes the part of `text` after the last `mark`, and returns it as a number; 0 if there is none.
std::uint32_t takeNumberAfter(char mark, std::string_view& text) {
  const std::size_t at = text.rfind(mark);
  if (at == std::string_view::npos) return 0;
  std::uint32_t number = 0;
  std::from_chars(text.data() + at + 1, text.data() + text.size(), number);
  text = text.substr(0, at);
  return number;
}

// The codec's state that the entry has, without its bytes.
TensorCodecs::SavedState stateNamed(const SafetensorsEntry& entry) {
  TensorCodecs::SavedState state;
  std::string_view rest = std::string_view(entry.name).substr(kCodecPrefix.size());
  state.member = takeNumberAfter('@', rest);
  state.i = takeNumberAfter(':', rest);
  const auto flow = flowFromName(rest);
  state.flow = flow.value_or(Flow{});
  // Another name of the same state, such as "codec:activation/1:03", could give it twice.
  if (!flow || entry.name != nameOf(state)) {
    throw badCheckpoint("it has a tensor '" + inAscii(entry.name) + "'");
  }
  return state;
}

void readState(const SafetensorsEntry& entry, PartState& state) {
  const auto* const text = reinterpret_cast<const char*>(entry.bytes.data());
  // dump() below is recursive.
  const auto checkDepth = [](int depth, nlohmann::json::parse_event_t, nlohmann::json&) {
    if (depth > kMaxDepth) throw badCheckpoint("its run:state nests too deeply");
    return true;
  };
  const auto json = nlohmann::json::parse(text, text + entry.bytes.size(), checkDepth);
  state.engine = {json.at("applied"), json.at("evaluated")};
  state.spec = bytesOfHex(json.at("spec").get<std::string>());
  state.notes = json.at("notes").dump();
}

}  // namespace

std::vector<std::byte> checkpointFile(const PartState& state, const std::vector<std::byte>& stage) {
  const nlohmann::ordered_json json = {
      {"applied", state.engine.applied},
      {"evaluated", state.engine.evaluated},
      {"spec", hexOf(state.spec)},
      {"notes", nlohmann::json::parse(state.notes.empty() ? "{}" : state.notes)}};
  const std::string text = json.dump();
  std::vector<SafetensorsEntry> entries = readSafetensors(stage, "stage");
  for (const TensorCodecs::SavedState& codec : state.codecs) {
    if (codec.isSamples) continue;
    entries.push_back(bytesEntry(nameOf(codec), codec.bytes.span()));
  }
  entries.push_back(bytesEntry(kStateName, std::as_bytes(std::span(text.data(), text.size()))));
  return writeSafetensors(entries);
}

std::vector<HeldBytes> samplesFile(const PartState& state) {
  std::vector<SafetensorsEntry> entries;
  std::vector<HeldBytes> pieces = {{}};
  for (const TensorCodecs::SavedState& codec : state.codecs) {
    if (!codec.isSamples) continue;
    entries.push_back(bytesEntry(nameOf(codec), codec.bytes.span()));
    pieces.push_back(codec.bytes);
  }
  if (entries.empty()) return {};
  pieces.front() = safetensorsHeader(entries);
  return pieces;
}

std::vector<TensorCodecs::SavedState> readSamples(const HeldBytes& file, const std::string& name) {
  std::vector<TensorCodecs::SavedState> samples;
  try {
    for (const SafetensorsEntry& entry : readSafetensors(file.span(), name)) {
      if (!entry.name.starts_with(kCodecPrefix)) {
        throw badCheckpoint(name + " has a tensor '" + inAscii(entry.name) + "'");
      }
      TensorCodecs::SavedState state = stateNamed(entry);
      state.bytes = file.part(entry.bytes);
      state.isSamples = true;
      samples.push_back(std::move(state));
    }
  } catch (const UsageError& error) {
    throw badCheckpoint(error.what());
  }
  return samples;
}

CheckpointContent readCheckpoint(std::string_view file, const std::string& spec,
                                 const std::string& name) {
  CheckpointContent content;
  bool hasState = false;
  try {
    for (SafetensorsEntry& entry :
         readSafetensors(std::as_bytes(std::span(file.data(), file.size())), name)) {
      if (entry.name == kStateName) {
        readState(entry, content);
        hasState = true;
      } else if (entry.name.starts_with(kCodecPrefix)) {
        TensorCodecs::SavedState state = stateNamed(entry);
        state.bytes = std::vector(entry.bytes.begin(), entry.bytes.end());
        content.codecs.push_back(std::move(state));
      } else {
        content.stage.push_back(std::move(entry));
      }
    }
  } catch (const UsageError& error) {
    throw badCheckpoint(error.what());
  } catch (const nlohmann::json::exception& error) {
    throw badCheckpoint(name + ": " + kStateName + ": " + error.what());
  }
  if (!hasState) throw badCheckpoint(name + " has no " + kStateName);
  if (content.spec != spec) {
    throw UsageError(
        "other-run-spec", name + " is a checkpoint of a run with a different run spec",
        "continue with the run's original configuration, and the version of Cleave that began it")
        .about("--resume");
  }
  return content;
}

CheckpointContent readCheckpoint(const CheckpointStore& store, const Checkpoint& checkpoint,
                                 const std::string& spec) {
  const std::string name = fmt::format("the checkpoint of step {}", checkpoint.step);
  CheckpointContent content = readCheckpoint(checkpoint.file, spec, name);
  for (const SamplesFile& file : checkpoint.samples) {
    auto samples = readSamples(store.read(file), fmt::format("{}.samples", file.step));
    std::move(samples.begin(), samples.end(), std::back_inserter(content.codecs));
  }
  return content;
}

}  // namespace cleave
