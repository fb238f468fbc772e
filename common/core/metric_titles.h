// How to display a metric: its title, whether it is a share, and which direction is better.
#pragma once

#include <span>
#include <string>

namespace cleave {

struct MetricTitle {
  std::string name;      // as in train.metrics and in the files' columns: "top1"
  std::string title;     // "Accuracy"
  bool isShare = false;  // shown in percent
  bool isBetterIfGreater = true;
};

// A row per metric of train.metrics, and one for "loss".
std::span<const MetricTitle> metricTitleTable();
// For a name that is not in the table, returns the name as the title.
MetricTitle metricTitle(const std::string& name);

}  // namespace cleave
