// Watches what a run's lossy codecs cost in quality, and decides on the level at which tensors are
// sent (CodecLevel). Decisions depend only on values that are the same in every run of a
// configuration, never on times.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "common/topology/codec_level.h"

namespace cleave {

struct QualitySettings {
  std::uint64_t every = 0;        // steps between two checks; 0: no checks
  double maxLossIncrease = 0.05;  // relative
  double minSnr = 3;              // dB

  bool operator==(const QualitySettings&) const = default;
};

// What a check has found: the loss of the same batch, evaluated with the same weights. Nullopt if
// no target counts.
struct QualityCheck {
  std::uint64_t step = 0;                       // after this training step
  std::optional<double> lossWithout, lossWith;  // without codecs, and with those of the level
};

class QualityWatch {
 public:
  // `hasEightBits`: whether CodecLevel::eight differs from CodecLevel::own in the run.
  QualityWatch(const QualitySettings& settings, bool hasEightBits)
      : settings_(settings), hasEightBits_(hasEightBits) {}

  // The level of the next batch.
  CodecLevel level() const { return level_; }
  // Whether a check follows this training step. With CodecLevel::raw, nothing is left to check.
  bool isDue(std::uint64_t step) const {
    return settings_.every > 0 && step > 0 && step % settings_.every == 0 &&
           level_ != CodecLevel::raw;
  }
  // The lowest SNR of the client's and the servers' tensors in the step that the next check
  // follows; nullopt: none had an error.
  void measuredSnr(std::optional<double> snrDb) { snrDb_ = snrDb; }
  // If the quality is too low, changes to the next level, and returns the reason as a sentence.
  std::optional<std::string> check(const QualityCheck& check);

  // {"checks": …, "highest_loss_increase": …, "fallbacks": [{"step", "codec", "reason"}, …]};
  // null if there was no check.
  nlohmann::json summary() const;
  nlohmann::json save() const;
  void restore(const nlohmann::json& saved);  // throws nlohmann::json::exception

 private:
  std::optional<std::string> faultOf(const QualityCheck& check) const;

  const QualitySettings settings_;
  const bool hasEightBits_;
  CodecLevel level_ = CodecLevel::own;
  std::optional<double> snrDb_;
  std::uint64_t checks_ = 0;
  std::optional<double> highestIncrease_;
  nlohmann::json fallbacks_ = nlohmann::json::array();
};

}  // namespace cleave
