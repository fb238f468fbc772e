#include "common/model/scores.h"

#include <ATen/core/Reduction.h>
#include <ATen/ops/cross_entropy_loss.h>

#include <algorithm>
#include <cstddef>

namespace cleave {
namespace {

// -log(softmax(logits)[label]), summed.
at::Tensor crossEntropy(const at::Tensor& logits, const at::Tensor& labels) {
  return at::cross_entropy_loss(logits, labels, {}, at::Reduction::Sum);
}

constexpr LossRow kLosses[] = {
    {"cross_entropy", "cross entropy of the classes' softmax, for one label per sample",
     crossEntropy},
};

template <std::int64_t k>
double amongFirst(const MicroBatchScores& scores) {
  return static_cast<double>(std::count_if(scores.ranks.begin(), scores.ranks.end(),
                                           [](std::int64_t rank) { return rank < k; }));
}

constexpr BatchMetricRow kMetrics[] = {
    {"loss", "mean loss", [](const MicroBatchScores& scores) { return scores.lossSum; }},
    {"top1", "share of samples whose class had the highest score", amongFirst<1>},
    {"top5", "share of samples whose class was among the five highest", amongFirst<5>},
};

std::int64_t rankOf(std::span<const float> logits, std::int64_t label) {
  const auto right = static_cast<std::size_t>(label);
  std::int64_t rank = 0;
  for (std::size_t c = 0; c < logits.size(); ++c) {
    const bool isBehind = c < right ? logits[c] < logits[right] : logits[c] <= logits[right];
    if (c != right && !isBehind) ++rank;
  }
  return rank;
}

}  // namespace

std::span<const LossRow> lossTable() { return kLosses; }

std::vector<std::int64_t> ranksOf(const at::Tensor& logits, std::span<const std::int64_t> labels) {
  const at::Tensor rows = logits.detach().cpu().contiguous();
  const auto classes = static_cast<std::size_t>(rows.size(1));
  std::vector<std::int64_t> ranks;
  ranks.reserve(labels.size());
  for (std::size_t sample = 0; sample < labels.size(); ++sample) {
    ranks.push_back(
        rankOf({rows.const_data_ptr<float>() + sample * classes, classes}, labels[sample]));
  }
  return ranks;
}

std::span<const BatchMetricRow> batchMetricTable() { return kMetrics; }

}  // namespace cleave
