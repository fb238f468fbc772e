#include "common/record/run_events.h"

#include <algorithm>
#include <utility>

namespace cleave {
namespace {

// The seconds of a step in which this side did not compute, because it waited for the link or the
// server, or encoded or decoded tensors.
double waitSeconds(const StepRow& row) {
  double computed = 0;
  for (const ActionKind kind : {ActionKind::headForward, ActionKind::tailStep,
                                ActionKind::headBackward, ActionKind::update}) {
    computed += row.actions[indexOf(kind)];
  }
  return std::max(0.0, row.seconds.value_or(0) - computed);
}

}  // namespace

void RunEvents::configuration(const std::string& yaml) {
  file_.text("config.yaml", "```\n" + yaml + "\n```\n");
}

void RunEvents::addMetrics(const std::string& prefix,
                           const std::vector<std::optional<double>>& values,
                           std::vector<EventFile::Scalar>& scalars) const {
  for (std::size_t n = 0; n < std::min(values.size(), metrics_.size()); ++n) {
    if (values[n]) scalars.emplace_back(prefix + metrics_[n], *values[n]);
  }
}

void RunEvents::step(const StepRow& row, const LinkTotals& before, const LinkTotals& after) {
  if (!row.step) return;
  const bool isResume = row.phase == "resume";
  if (!isResume && row.phase != "train") return;
  if (!std::exchange(hasBegun_, true)) file_.replaceFrom(*row.step + (isResume ? 1 : 0));
  lastStep_ = *row.step;
  if (isResume) return;
  std::vector<EventFile::Scalar> scalars;
  addMetrics("train/", row.metrics, scalars);
  if (row.learningRate) scalars.emplace_back("train/learning_rate", *row.learningRate);
  if (row.gradientNorm) scalars.emplace_back("train/gradient_norm", *row.gradientNorm);
  if (row.seconds && *row.seconds > 0) {
    scalars.emplace_back("speed/step_seconds", *row.seconds);
    scalars.emplace_back("speed/wait_seconds", waitSeconds(row));
    if (row.at)
      scalars.emplace_back("speed/samples_per_second", row.at->batch.samples / *row.seconds);
  }
  const auto bytes = [&](std::uint64_t LinkTotals::*wire, std::uint64_t LinkTotals::*control) {
    return static_cast<double>(after.*wire - before.*wire + after.*control - before.*control);
  };
  scalars.emplace_back("link/up_bytes", bytes(&LinkTotals::wireUp, &LinkTotals::controlUp));
  scalars.emplace_back("link/down_bytes", bytes(&LinkTotals::wireDown, &LinkTotals::controlDown));
  file_.scalars(lastStep_, scalars);
}

void RunEvents::epoch(const EpochRow& row) {
  std::vector<EventFile::Scalar> scalars;
  addMetrics("epoch/train_", row.trainMetrics, scalars);
  addMetrics("eval/", row.evalMetrics, scalars);
  scalars.emplace_back("epoch/number", static_cast<double>(row.epoch));
  scalars.emplace_back("epoch/train_seconds", row.trainSeconds);
  if (row.evalSeconds) scalars.emplace_back("epoch/eval_seconds", *row.evalSeconds);
  file_.scalars(lastStep_, scalars);
}

}  // namespace cleave
