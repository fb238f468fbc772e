#include "common/checkpoint/checkpoint_store.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "common/core/bytes.h"
#include "common/core/durable.h"
#include "common/core/failpoint.h"
#include "common/files/sha256.h"

namespace cleave {
namespace {

constexpr const char* kState = ".safetensors";
constexpr const char* kRecord = ".json";
constexpr const char* kSamples = ".samples";

RunError damaged(const std::string& path, const std::string& what) {
  return RunError(
             "bad-checkpoint", path + ": " + what,
             "continue from an older checkpoint; if none is intact, start over with --from-start")
      .about("--resume");
}

RunError otherDigest(const std::string& path) {
  return damaged(
      path, "the file is damaged: its SHA-256 does not match the one recorded when it was written");
}

// CheckpointInfo::sha256. `state`: the digest of the .safetensors file.
std::string identityOf(std::string state, const std::vector<SamplesFile>& samples) {
  if (samples.empty()) return state;
  for (const SamplesFile& each : samples) state += each.sha256;
  return sha256Of(state);
}

nlohmann::ordered_json toJson(const CheckpointInfo& info) {
  nlohmann::ordered_json record = {{"step", info.step},
                                   {"bytes", info.bytes},
                                   {"sha256", hexOf(info.sha256)},
                                   {"fingerprint", info.fingerprint}};
  for (const SamplesFile& each : info.samples) {
    record["samples"].push_back(
        {{"step", each.step}, {"bytes", each.bytes}, {"sha256", hexOf(each.sha256)}});
  }
  return record;
}

CheckpointInfo fromJson(const nlohmann::json& record) {
  CheckpointInfo info;
  info.step = record.at("step");
  info.bytes = record.at("bytes");
  info.sha256 = bytesOfHex(record.at("sha256").get<std::string>());
  info.fingerprint = record.at("fingerprint");
  for (const auto& each : record.value("samples", nlohmann::json::array())) {
    info.samples.push_back(
        {each.at("step"), each.at("bytes"), bytesOfHex(each.at("sha256").get<std::string>())});
  }
  return info;
}

// The step in the name of a checkpoint's file; nullopt for any other file.
std::optional<std::uint64_t> stepOfName(const std::string& name, std::string_view extension) {
  if (!name.ends_with(extension)) return std::nullopt;
  std::uint64_t step = 0;
  const char* const end = name.data() + name.size() - extension.size();
  const auto parsed = std::from_chars(name.data(), end, step);
  return parsed.ec == std::errc() && parsed.ptr == end ? std::optional(step) : std::nullopt;
}

}  // namespace

std::string bytesOfHex(const std::string& hex) {
  if (auto bytes = fromHex(hex)) return *std::move(bytes);
  throw RunError("bad-checkpoint", "'" + hex.substr(0, 64) + "' is not a digest").about("--resume");
}

std::uint64_t CheckpointInfo::totalBytes() const {
  std::uint64_t total = bytes;
  for (const SamplesFile& each : samples) total += each.bytes;
  return total;
}

CheckpointStore::CheckpointStore(Files& files, std::string runFolder)
    : files_(files), runFolder_(std::move(runFolder)), folder_(runFolder_ + "/checkpoints") {}

// Pads the step with zeros, so that names sort by step.
std::string CheckpointStore::pathOf(std::uint64_t step, const char* extension) const {
  return fmt::format("{}/{:012}{}", folder_, step, extension);
}

CheckpointInfo CheckpointStore::write(std::uint64_t step, std::string_view file,
                                      const std::string& fingerprint,
                                      const CheckpointSamples& samples) {
  CheckpointInfo info{step, file.size(), samples.earlier};
  std::vector<std::string_view> pieces;
  if (!samples.file.empty()) {
    SamplesFile written;
    written.step = step;
    Sha256 digest;
    for (const HeldBytes& piece : samples.file) {
      pieces.push_back(textOf(piece.span()));
      written.bytes += piece.size();
      digest.add(piece.span());
    }
    written.sha256 = digest.finish();
    info.samples.push_back(std::move(written));
  }
  info.sha256 = identityOf(sha256Of(file), info.samples);
  info.fingerprint = fingerprint;
  try {
    files_.makeFolder(folder_);
    if (!pieces.empty()) files_.writePieces(pathOf(step, kSamples), pieces);
    failpoint("checkpoint-state");
    files_.write(pathOf(step, kState), file);
    failpoint("checkpoint-record");
    files_.write(pathOf(step, kRecord), toJson(info).dump() + "\n");
    failpoint("checkpoint-written");
  } catch (...) {
    try {
      removeStep(step);
    } catch (const Error&) {
      // The first error is more informative.
    }
    throw;
  }
  return info;
}

std::vector<CheckpointInfo> CheckpointStore::list() const {
  std::vector<CheckpointInfo> all;
  for (const std::string& name : files_.list(folder_)) {
    const auto step = stepOfName(name, kRecord);
    if (!step) continue;
    try {
      if (auto info = readRecord(*step)) all.push_back(*std::move(info));
    } catch (const RunError&) {
      continue;  // treated as missing
    }
  }
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.step > b.step; });
  return all;
}

std::optional<CheckpointInfo> CheckpointStore::readRecord(std::uint64_t step) const {
  const std::optional<std::string> text = files_.read(pathOf(step, kRecord));
  try {
    CheckpointInfo info = fromJson(nlohmann::json::parse(text.value_or("")));
    if (info.step == step) return info;
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  } catch (const RunError&) {
    return std::nullopt;  // a digest is not hexadecimal
  }
  return std::nullopt;
}

std::string CheckpointStore::read(const CheckpointInfo& info) const {
  const std::string path = pathOf(info.step, kState);
  std::optional<std::string> file = files_.read(path);
  if (!file) throw damaged(path, "the file is missing");
  if (file->size() != info.bytes || identityOf(sha256Of(*file), info.samples) != info.sha256) {
    throw otherDigest(path);
  }
  return std::move(*file);
}

// Reads the file in pieces. Throws RunError "bad-checkpoint" or "cannot-read".
void CheckpointStore::verify(const SamplesFile& samples) const {
  constexpr std::uint64_t kPiece = 1 << 20;
  const std::string path = pathOf(samples.step, kSamples);
  std::vector<std::byte> piece;
  Sha256 digest;
  for (std::uint64_t at = 0; at < samples.bytes; at += piece.size()) {
    piece.resize(std::min(kPiece, samples.bytes - at));
    if (!files_.readAt(path, at, piece)) throw damaged(path, "the file is missing or too short");
    digest.add(piece);
  }
  if (files_.size(path) != samples.bytes || digest.finish() != samples.sha256) {
    throw otherDigest(path);
  }
}

HeldBytes CheckpointStore::read(const SamplesFile& samples) const {
  verify(samples);
  const std::string path = pathOf(samples.step, kSamples);
  const std::optional<HeldBytes> file = files_.view(path);
  if (!file || file->size() != samples.bytes) throw damaged(path, "the file has changed");
  return *file;
}

std::optional<Checkpoint> CheckpointStore::find(std::uint64_t step,
                                                const std::string& sha256) const {
  for (const CheckpointInfo& info : list()) {
    if (info.step != step || info.sha256 != sha256) continue;
    try {
      for (const SamplesFile& samples : info.samples) {
        if (intact_.contains({samples.step, samples.sha256})) continue;
        verify(samples);
        intact_.emplace(samples.step, samples.sha256);
      }
      return Checkpoint{info, read(info)};
    } catch (const RunError&) {
      return std::nullopt;
    }
  }
  return std::nullopt;
}

std::uint64_t CheckpointStore::removeStep(std::uint64_t step) {
  const std::uint64_t bytes = removeStateOf(step);
  return bytes + removeUnusedSamples();
}

std::uint64_t CheckpointStore::removeAfter(std::uint64_t step) {
  std::vector<std::uint64_t> kept;
  for (const CheckpointInfo& each : list()) {
    if (each.step <= step) kept.push_back(each.step);
  }
  return removeExcept(kept);
}

// Removes the .json file first: without it, the checkpoint counts as incomplete.
std::uint64_t CheckpointStore::removeStateOf(std::uint64_t step) {
  const std::uint64_t bytes = removeFile(pathOf(step, kRecord));
  return bytes + removeFile(pathOf(step, kState));
}

std::uint64_t CheckpointStore::removeFile(const std::string& path) {
  const std::uint64_t bytes = files_.size(path);
  files_.remove(path);
  return bytes;
}

// Removes the files with samples that no complete checkpoint needs. If a record cannot be read,
// throws instead of removing what it may need.
std::uint64_t CheckpointStore::removeUnusedSamples() {
  const std::vector<std::string> names = files_.list(folder_);
  std::set<std::uint64_t> written, needed;
  for (const std::string& name : names) {
    if (const auto step = stepOfName(name, kSamples)) written.insert(*step);
  }
  if (written.empty()) return 0;
  for (const std::string& name : names) {
    const auto step = stepOfName(name, kRecord);
    const auto info = step ? readRecord(*step) : std::nullopt;
    if (!info) continue;
    for (const SamplesFile& samples : info->samples) needed.insert(samples.step);
  }
  std::uint64_t bytes = 0;
  for (const std::uint64_t step : written) {
    if (!needed.contains(step)) bytes += removeFile(pathOf(step, kSamples));
  }
  return bytes;
}

std::uint64_t CheckpointStore::removeExcept(const std::vector<std::uint64_t>& steps) {
  std::set<std::uint64_t> found;
  for (const std::string& name : files_.list(folder_)) {
    for (const char* extension : {kState, kRecord}) {
      if (const auto step = stepOfName(name, extension)) found.insert(*step);
    }
  }
  std::uint64_t bytes = 0;
  for (const std::uint64_t step : found) {
    if (std::find(steps.begin(), steps.end(), step) == steps.end()) bytes += removeStateOf(step);
  }
  return bytes + removeUnusedSamples();
}

std::uint64_t CheckpointStore::removeIncomplete() {
  std::uint64_t bytes = 0;
  for (const std::string& name : files_.list(folder_)) {
    const auto step = stepOfName(name, kState);
    if (!isTemporaryName(name) && (!step || readRecord(*step))) continue;
    bytes += removeFile(folder_ + "/" + name);
  }
  return bytes + removeUnusedSamples();
}

std::optional<RunConnections> CheckpointStore::connections() const {
  const auto text = files_.read(runFolder_ + "/connections");
  return text ? parseConnections(*text) : RunConnections();
}

void CheckpointStore::setConnections(const RunConnections& connections) {
  failpoint("connections");
  files_.write(runFolder_ + "/connections", toText(connections));
}

}  // namespace cleave
