#include "client/codecs/quality_watch.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>

namespace cleave {
namespace {

// Smaller losses count as this one: relative to a loss near 0, any change would be large.
constexpr double kSmallLoss = 0.1;

// nullopt if a loss is unknown, or if the one without codecs is not finite either.
std::optional<double> increaseOf(const QualityCheck& check) {
  if (!check.lossWithout || !check.lossWith || !std::isfinite(*check.lossWithout)) {
    return std::nullopt;
  }
  return (*check.lossWith - *check.lossWithout) / std::max(*check.lossWithout, kSmallLoss);
}

const char* levelText(CodecLevel level) {
  return level == CodecLevel::eight ? "block:bits=8" : "no codec";
}

}  // namespace

std::optional<std::string> QualityWatch::faultOf(const QualityCheck& check) const {
  if (const auto increase = increaseOf(check);
      increase && !(*increase <= settings_.maxLossIncrease)) {
    return fmt::format("a batch has a loss of {:.4f} with the codecs, and of {:.4f} without them",
                       *check.lossWith, *check.lossWithout);
  }
  if (snrDb_ && *snrDb_ < settings_.minSnr) {
    return fmt::format("the signal-to-noise ratio of a tensor is {:.1f} dB", *snrDb_);
  }
  return std::nullopt;
}

std::optional<std::string> QualityWatch::check(const QualityCheck& check) {
  ++checks_;
  if (const auto increase = increaseOf(check); increase && std::isfinite(*increase)) {
    highestIncrease_ = std::max(highestIncrease_.value_or(*increase), *increase);
  }
  const std::optional<std::string> fault = faultOf(check);
  snrDb_.reset();
  if (!fault) return std::nullopt;
  level_ = level_ == CodecLevel::own && hasEightBits_ ? CodecLevel::eight : CodecLevel::raw;
  const std::string reason =
      fmt::format("{} from step {}, because {}", levelText(level_), check.step + 1, *fault);
  fallbacks_.push_back(
      {{"step", check.step + 1}, {"codec", levelText(level_)}, {"reason", *fault}});
  return reason;
}

nlohmann::json QualityWatch::summary() const {
  if (checks_ == 0) return nullptr;
  nlohmann::json summary = {{"checks", checks_}, {"fallbacks", fallbacks_}};
  summary["highest_loss_increase"] =
      highestIncrease_ ? nlohmann::json(*highestIncrease_) : nlohmann::json();
  return summary;
}

nlohmann::json QualityWatch::save() const {
  nlohmann::json saved = {
      {"level", static_cast<int>(level_)}, {"checks", checks_}, {"fallbacks", fallbacks_}};
  if (snrDb_) saved["snr_db"] = *snrDb_;
  if (highestIncrease_) saved["highest_loss_increase"] = *highestIncrease_;
  return saved;
}

void QualityWatch::restore(const nlohmann::json& saved) {
  level_ = static_cast<CodecLevel>(
      std::clamp(saved.at("level").get<int>(), 0, static_cast<int>(kCodecLevels) - 1));
  checks_ = saved.at("checks");
  fallbacks_ = saved.at("fallbacks");
  snrDb_.reset();
  if (saved.contains("snr_db")) snrDb_ = saved.at("snr_db").get<double>();
  highestIncrease_.reset();
  if (saved.contains("highest_loss_increase")) {
    highestIncrease_ = saved.at("highest_loss_increase").get<double>();
  }
}

}  // namespace cleave
