#include "common/core/metric_titles.h"

#include <array>

namespace cleave {

std::span<const MetricTitle> metricTitleTable() {
  static const std::array kTable = {
      MetricTitle{"loss", "Loss", false, false},
      MetricTitle{"top1", "Accuracy", true, true},
      MetricTitle{"top5", "Accuracy, top-5", true, true},
      MetricTitle{"accuracy", "Accuracy", true, true},
      MetricTitle{"matthews", "Matthews correlation", false, true},
      MetricTitle{"f1", "F1", true, true},
      MetricTitle{"auroc", "AUROC", true, true},
      MetricTitle{"perplexity", "Perplexity", false, false},
      MetricTitle{"rmse", "Root mean squared error", false, false},
  };
  return kTable;
}

MetricTitle metricTitle(const std::string& name) {
  for (const MetricTitle& row : metricTitleTable()) {
    if (row.name == name) return row;
  }
  return {name, name, false, true};
}

}  // namespace cleave
