#include "common/checkpoint/checkpoint_store.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <utility>

#include "common/checkpoint/sha256.h"
#include "common/core/failpoint.h"

namespace cleave {
namespace {

constexpr const char* kState = ".safetensors";
constexpr const char* kRecord = ".json";
constexpr const char* kRows = ".rows";

RunError damaged(const std::string& path, const std::string& what) {
  return RunError("bad-checkpoint", path + ": " + what,
                  "remove it, and continue from an older checkpoint");
}

RunError isDamaged(const std::string& path) {
  return damaged(
      path, "the file is damaged: its SHA-256 does not match the one recorded when it was written");
}

// CheckpointInfo::sha256. `state`: the digest of the .safetensors file.
std::string identityOf(std::string state, const std::vector<RowsFile>& rows) {
  if (rows.empty()) return state;
  for (const RowsFile& each : rows) state += each.sha256;
  return sha256Of(state);
}

nlohmann::ordered_json toJson(const CheckpointInfo& info) {
  nlohmann::ordered_json record = {{"step", info.step},
                                   {"bytes", info.bytes},
                                   {"sha256", hexOf(info.sha256)},
                                   {"fingerprint", info.fingerprint}};
  for (const RowsFile& each : info.rows) {
    record["rows"].push_back(
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
  for (const auto& each : record.value("rows", nlohmann::json::array())) {
    info.rows.push_back(
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

std::string sha256Of(std::string_view bytes) {
  Sha256 digest;
  digest.add(std::as_bytes(std::span(bytes)));
  return digest.finish();
}

std::string hexOf(std::string_view bytes) {
  std::string hex;
  for (const char c : bytes) hex += fmt::format("{:02x}", static_cast<unsigned char>(c));
  return hex;
}

std::string bytesOfHex(const std::string& hex) {
  std::string bytes;
  for (std::size_t at = 0; at < hex.size(); at += 2) {
    unsigned value = 0;
    const char* const end = hex.data() + std::min(at + 2, hex.size());
    const auto parsed = std::from_chars(hex.data() + at, end, value, 16);
    if (hex.size() % 2 != 0 || parsed.ec != std::errc() || parsed.ptr != end) {
      throw RunError("bad-checkpoint", "'" + hex.substr(0, 64) + "' is not a digest");
    }
    bytes += static_cast<char>(value);
  }
  return bytes;
}

std::uint64_t CheckpointInfo::totalBytes() const {
  std::uint64_t total = bytes;
  for (const RowsFile& each : rows) total += each.bytes;
  return total;
}

CheckpointStore::CheckpointStore(Files& files, std::string runFolder)
    : files_(files), runFolder_(std::move(runFolder)), folder_(runFolder_ + "/checkpoints") {}

// Pads the step with zeros, so that names sort by step.
std::string CheckpointStore::pathOf(std::uint64_t step, const char* extension) const {
  return fmt::format("{}/{:012}{}", folder_, step, extension);
}

CheckpointInfo CheckpointStore::write(std::uint64_t step, std::string_view file,
                                      const std::string& fingerprint, const CheckpointRows& rows) {
  CheckpointInfo info{step, file.size(), rows.earlier};
  if (!rows.file.empty()) info.rows.push_back({step, rows.file.size(), sha256Of(rows.file)});
  info.sha256 = identityOf(sha256Of(file), info.rows);
  info.fingerprint = fingerprint;
  try {
    files_.makeFolder(folder_);
    if (!rows.file.empty()) files_.write(pathOf(step, kRows), rows.file);
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
      const auto text = files_.read(folder_ + "/" + name);
      CheckpointInfo info = fromJson(nlohmann::json::parse(text.value_or("")));
      if (info.step == *step) all.push_back(std::move(info));
    } catch (const nlohmann::json::exception&) {
      continue;  // damaged: treated as missing
    } catch (const RunError&) {
      continue;
    }
  }
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.step > b.step; });
  return all;
}

std::string CheckpointStore::read(const CheckpointInfo& info) const {
  const std::string path = pathOf(info.step, kState);
  std::optional<std::string> file = files_.read(path);
  if (!file) throw damaged(path, "the file is missing");
  if (file->size() != info.bytes || identityOf(sha256Of(*file), info.rows) != info.sha256) {
    throw isDamaged(path);
  }
  return std::move(*file);
}

std::string CheckpointStore::read(const RowsFile& rows) const {
  const std::string path = pathOf(rows.step, kRows);
  std::optional<std::string> file = files_.read(path);
  if (!file) throw damaged(path, "the file is missing");
  if (file->size() != rows.bytes || sha256Of(*file) != rows.sha256) throw isDamaged(path);
  return std::move(*file);
}

std::optional<Checkpoint> CheckpointStore::find(std::uint64_t step,
                                                const std::string& sha256) const {
  for (const CheckpointInfo& info : list()) {
    if (info.step != step || info.sha256 != sha256) continue;
    try {
      for (const RowsFile& rows : info.rows) read(rows);
      return Checkpoint{info, read(info)};
    } catch (const RunError&) {
      return std::nullopt;
    }
  }
  return std::nullopt;
}

// Removes the .json file first: without it, the checkpoint counts as incomplete.
std::uint64_t CheckpointStore::removeStep(std::uint64_t step) {
  std::uint64_t bytes = 0;
  for (const char* extension : {kRecord, kState}) bytes += removeFile(pathOf(step, extension));
  return bytes + removeUnusedRows();
}

std::uint64_t CheckpointStore::removeFile(const std::string& path) {
  const std::uint64_t bytes = files_.size(path);
  files_.remove(path);
  return bytes;
}

// Removes the files with rows that no complete checkpoint needs.
std::uint64_t CheckpointStore::removeUnusedRows() {
  std::set<std::uint64_t> written, needed;
  for (const std::string& name : files_.list(folder_)) {
    if (const auto step = stepOfName(name, kRows)) written.insert(*step);
  }
  if (written.empty()) return 0;
  for (const CheckpointInfo& info : list()) {
    for (const RowsFile& rows : info.rows) needed.insert(rows.step);
  }
  std::uint64_t bytes = 0;
  for (const std::uint64_t step : written) {
    if (!needed.contains(step)) bytes += removeFile(pathOf(step, kRows));
  }
  return bytes;
}

std::uint64_t CheckpointStore::removeExcept(const std::vector<std::uint64_t>& steps) {
  std::uint64_t bytes = 0;
  for (const std::string& name : files_.list(folder_)) {
    const auto found = stepOfName(name, kState);
    if (found && std::find(steps.begin(), steps.end(), *found) == steps.end()) {
      bytes += removeStep(*found);
    }
  }
  return bytes;
}

std::uint64_t CheckpointStore::removeIncomplete() {
  std::uint64_t bytes = 0;
  const std::vector<CheckpointInfo> complete = list();
  for (const std::string& name : files_.list(folder_)) {
    const auto step = stepOfName(name, kState);
    const bool isComplete = std::any_of(complete.begin(), complete.end(),
                                        [&](const auto& info) { return info.step == step; });
    const bool isTemporary = name.find(".tmp-") != std::string::npos;
    if (!isTemporary && (!step || isComplete)) continue;
    bytes += removeFile(folder_ + "/" + name);
  }
  return bytes + removeUnusedRows();
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
