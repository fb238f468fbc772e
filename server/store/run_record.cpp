#include "server/store/run_record.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "common/core/durable.h"

namespace cleave {

void RunRecord::begin(const LinkTotals& totals) {
  const std::lock_guard lock(mutex_);
  StepRow row;
  row.phase = "handshake";
  files_->step(row, totals);
  last_ = now();
  lastTotals_ = totals;
}

std::string RunRecord::notes() const {
  const std::lock_guard lock(mutex_);
  nlohmann::json notes = nlohmann::json::object();
  if (epoch_) {
    notes["epoch"] = {{"epoch", epoch_->epoch},
                      {"steps", epoch_->steps},
                      {"samples", epoch_->samples},
                      {"train_seconds", epoch_->trainSeconds}};
    if (epoch_->evalSeconds) notes["epoch"]["eval_seconds"] = *epoch_->evalSeconds;
  }
  return notes.dump();
}

void RunRecord::resumed(std::uint64_t step, const std::string& notes, const LinkTotals& totals) {
  const std::lock_guard lock(mutex_);
  epoch_.reset();
  const auto json = nlohmann::json::parse(notes);
  if (json.contains("epoch")) {  // not in checkpoints of earlier versions
    const nlohmann::json& saved = json.at("epoch");
    epoch_.emplace();
    epoch_->epoch = saved.at("epoch");
    epoch_->steps = saved.at("steps");
    epoch_->samples = saved.at("samples");
    epoch_->trainSeconds = saved.at("train_seconds");
    if (saved.contains("eval_seconds")) epoch_->evalSeconds = saved.at("eval_seconds");
  }
  StepRow row;
  row.phase = "resume";
  row.step = step;
  files_->step(row, totals);
}

void RunRecord::finishedBatch(const Engine& engine, std::optional<double> betweenSteps,
                              const LinkTotals& totals) {
  const std::lock_guard lock(mutex_);
  if (ended_) return;
  refuseUnwritten();
  const MicroBatch at = engine.ended().computed();
  const double seconds = secondsSince(last_);
  last_ = now();
  const bool train = at.phase == Phase::train;
  const std::uint64_t epoch = epochOf(engine.applied(), stepsPerEpoch_);

  // An epoch includes its evaluation, which is over once a step of the next epoch is done.
  if (train && epoch_ && epoch_->epoch != epoch) writeEpoch();
  if (!epoch_) {
    epoch_.emplace();
    epoch_->epoch = epoch;
  }
  if (train) {
    ++epoch_->steps;
    epoch_->samples += at.batch.samples;
    epoch_->trainSeconds += seconds;
  } else {
    epoch_->evalSeconds = epoch_->evalSeconds.value_or(0) + seconds;
  }
  lastTotals_ = totals;

  StepRow row;
  row.phase = phaseName(at.phase);
  row.step = at.step;
  row.epoch = epoch;
  row.at = at;
  row.seconds = seconds;
  if (train) row.between = betweenSteps;
  row.actions = engine.ended().seconds;
  files_->step(row, totals);
}

void RunRecord::refuseUnwritten() {
  if (files_->isOverBudget()) throw disk_->error();
  const auto failure = writeFailure();
  if (!failure) return;
  isReported_ = true;
  throw RunError("cannot-write", *failure, "free disk space in the server's store").about(kDisk);
}

std::optional<std::string> RunRecord::writeFailure() const {
  const auto failure = files_->writeFailure();
  if (!failure) return std::nullopt;
  const bool isFull = failure->error == ENOSPC || failure->error == EDQUOT;
  return std::string(isFull ? "the server's disk is full" : "the server's disk failed") + ": " +
         std::filesystem::path(failure->path).filename().string() +
         " of this run could not be written: " + std::strerror(failure->error);
}

std::optional<std::string> RunRecord::missing() {
  const std::lock_guard lock(mutex_);
  if (isReported_) return std::nullopt;
  std::optional<std::string> missing = writeFailure();
  const std::uint64_t dropped = files_->droppedRows();
  if (!missing && dropped > 0) {
    missing = std::to_string(dropped) + " rows of this run were dropped: the disk was too slow";
  }
  isReported_ = missing.has_value();
  return missing;
}

void RunRecord::writeEpoch() {
  files_->epoch(*epoch_, lastTotals_);
  epoch_.reset();
}

void RunRecord::end(const LinkTotals& totals) {
  const std::lock_guard lock(mutex_);
  if (std::exchange(ended_, true)) return;
  if (epoch_) writeEpoch();
  StepRow row;
  row.phase = "bye";
  files_->step(row, totals);
}

}  // namespace cleave
