// What a server keeps between two turns of a cohort whose members train one after the other: which
// checkpoint the next member continues from, and the sealed part of it that the last one has handed
// on. In the folder of the run:
//
//   turns.json    TurnRecord
//   STEP.state    what the client has sealed
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "common/engine/messages.h"
#include "common/topology/cohort.h"
#include "server/store/disk_share.h"

namespace cleave {

struct TurnRecord {
  std::uint64_t step = 0;       // the last one of the turn
  std::string sha256;           // Saved::sha256 of the body's checkpoint
  std::uint64_t evaluated = 0;  // evaluation batches before it
  Roster roster;                // whose last attendance is the turn
  // The settings that all members must have alike, as the one that has handed on announced them.
  std::map<std::string, std::string> agreed;
};

// The record in the folder of a run; nullopt: no turn has ended. Throws RunError "bad-checkpoint"
// if it is damaged, or "run-unreadable".
std::optional<TurnRecord> readTurnRecord(const std::string& folder);

// Files are written and read on the store's thread, in the order of the calls.
class TurnStore : public std::enable_shared_from_this<TurnStore> {
 public:
  TurnStore(std::string folder, std::shared_ptr<DiskShare> disk,
            boost::asio::any_io_executor thread)
      : folder_(std::move(folder)), disk_(std::move(disk)), thread_(std::move(thread)) {}

  // Any thread. Calls `done` on the store's thread when both are durable, or could not be written.
  void save(TurnRecord record, Blob state, std::function<void(const Saved&)> done);
  // Keeps `held` until all that save() was called for has been written.
  void keepUntilWritten(std::shared_ptr<const void> held);
  // The state that belongs to a record. Resumes on `io`. Throws RunError "bad-checkpoint" if it is
  // missing or larger than `maxBytes`.
  boost::asio::awaitable<Blob> load(boost::asio::any_io_executor io, std::uint64_t step,
                                    std::uint64_t maxBytes) const;

 private:
  Saved write(const TurnRecord& record, const Blob& state);
  std::string stateFile(std::uint64_t step) const;
  void removeOthers(std::uint64_t step);

  const std::string folder_;
  const std::shared_ptr<DiskShare> disk_;
  const boost::asio::any_io_executor thread_;
};

}  // namespace cleave
