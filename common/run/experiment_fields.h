// The table of the fields of an Experiment: each is a configuration key of the client and a field
// of the run spec that it sends to servers.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "common/model/experiment.h"

namespace cleave {

// A number outside [min, max] is refused.
struct FieldRange {
  double min = 0, max = 0x1p62;
};

struct ExperimentField {
  std::string_view name;  // of the key, and in the run spec
  std::variant<bool Experiment::*, std::uint32_t Experiment::*, std::uint64_t Experiment::*,
               double Experiment::*, std::string Experiment::*, Precision Experiment::*,
               std::vector<std::string> Experiment::*, ParsedCodecs Experiment::*,
               ModelSpec Experiment::*, OptimizerSpec Experiment::*,
               std::vector<InsertSpec> Experiment::*, Cohort Experiment::*>
      member;
  FieldRange range = {};
  // For the documentation of the key. Empty: the client has rows of its own to read this field.
  std::string_view unit = {};
  std::string meaning = {};  // Markdown
  std::string type = {};     // of a text
  // Throws UsageError if the value does not fit those of earlier rows. Null: there is no check.
  void (*check)(const Experiment& experiment) = nullptr;
};

std::span<const ExperimentField> experimentFields();

}  // namespace cleave
