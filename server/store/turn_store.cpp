#include "server/store/turn_store.h"

#include <spdlog/fmt/fmt.h>

#include <boost/asio/post.hpp>
#include <nlohmann/json.hpp>
#include <utility>

#include "common/checkpoint/checkpoint_store.h"
#include "common/checkpoint/files.h"
#include "common/codec/checkpoint_error.h"
#include "common/cohort/roster_json.h"
#include "common/core/bytes.h"
#include "common/files/sha256.h"
#include "server/store/on_thread.h"
#include "server/store/run_checkpoints.h"

namespace cleave {
namespace {

constexpr const char* kRecord = "/turns.json";
constexpr std::string_view kState = ".state";

}  // namespace

std::optional<TurnRecord> readTurnRecord(const std::string& folder) {
  const auto text = diskFiles().read(folder + kRecord);
  if (!text) return std::nullopt;
  try {
    const auto json = nlohmann::json::parse(*text);
    TurnRecord record;
    record.step = json.at("step");
    record.sha256 = bytesOfHex(json.at("sha256").get<std::string>());
    record.evaluated = json.at("evaluated");
    record.roster = rosterFromJson(json.at("cohort"));
    record.agreed = json.at("agreed").get<std::map<std::string, std::string>>();
    return record;
  } catch (const nlohmann::json::exception&) {
    throw badCheckpoint(folder + kRecord + " is damaged");
  }
}

void TurnStore::save(TurnRecord record, Blob state, std::function<void(const Saved&)> done) {
  boost::asio::post(thread_, [self = shared_from_this(), record = std::move(record),
                              state = std::move(state), done = std::move(done)]() mutable {
    const Saved saved = self->write(record, state);
    state = {};
    done(saved);
  });
}

Saved TurnStore::write(const TurnRecord& record, const Blob& state) {
  Saved saved;
  saved.step = record.step;
  try {
    const std::size_t bytes = state.bytes.size();
    if (!disk_->take(bytes)) throw disk_->error("what the next member continues from", bytes);
    try {
      diskFiles().write(stateFile(record.step), textOf(state.bytes));
      const nlohmann::json json = {{"step", record.step},
                                   {"sha256", hexOf(record.sha256)},
                                   {"evaluated", record.evaluated},
                                   {"cohort", toJson(record.roster)},
                                   {"agreed", record.agreed}};
      diskFiles().write(folder_ + kRecord, json.dump(2) + "\n");
    } catch (...) {
      diskFiles().remove(stateFile(record.step));
      disk_->giveBack(bytes);
      throw;
    }
    saved.sha256 = sha256Of(textOf(state.bytes));
    saved.bytes = bytes;
    removeOthers(record.step);
  } catch (...) {
    setFailure(saved);
  }
  return saved;
}

std::string TurnStore::stateFile(std::uint64_t step) const {
  return folder_ + "/" + std::to_string(step) + std::string(kState);
}

// Those of earlier turns, and what a crash has left. If one cannot be removed, the next turn tries.
void TurnStore::removeOthers(std::uint64_t step) {
  for (const std::string& name : diskFiles().list(folder_)) {
    const std::string path = folder_ + "/" + name;
    if (!name.ends_with(kState) || path == stateFile(step)) continue;
    const std::uint64_t bytes = diskFiles().size(path);
    try {
      diskFiles().remove(path);
      disk_->giveBack(bytes);
    } catch (const RunError&) {
      return;
    }
  }
}

void TurnStore::keepUntilWritten(std::shared_ptr<const void> held) {
  boost::asio::post(thread_, [held = std::move(held)]() mutable { held.reset(); });
}

boost::asio::awaitable<Blob> TurnStore::load(boost::asio::any_io_executor io, std::uint64_t step,
                                             std::uint64_t maxBytes) const {
  std::shared_ptr<const std::string> content;
  const auto onDisk = [&] {
    const std::uint64_t bytes = diskFiles().size(stateFile(step));
    if (bytes > maxBytes) {
      throw badCheckpoint(fmt::format(
          "what the last turn has left has {} bytes, but {} are possible", bytes, maxBytes));
    }
    auto read = diskFiles().read(stateFile(step));
    if (!read) throw badCheckpoint("what the last turn has left is missing");
    content = std::make_shared<const std::string>(std::move(*read));
  };
  const auto toThread = [this](auto task) { boost::asio::post(thread_, std::move(task)); };
  co_await runThrough(io, toThread, onDisk);
  co_return Blob{kStateClient, std::as_bytes(std::span(*content)), content};
}

}  // namespace cleave
