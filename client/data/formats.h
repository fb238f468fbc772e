// The table of data formats (`data.format`). To add one, write a Dataset and a row in formats.cpp.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>

#include "client/data/dataset.h"
#include "common/core/config.h"

namespace cleave {

enum class DataSplit : std::uint8_t { train, test };

struct DataFormatRow {
  // Opens a split as configured. Throws UsageError if it is missing or damaged.
  using Open = std::function<std::unique_ptr<Dataset>(DataSplit split)>;

  std::string_view name;         // "idx"
  std::string_view description;  // one line
  // Reads the format's own keys, all below `data`, and opens nothing. `seed` is the run's. Throws
  // UsageError.
  Open (*read)(Config& config, std::uint64_t seed);
};
std::span<const DataFormatRow> dataFormatTable();
// Throws UsageError with the nearest known name.
const DataFormatRow& findDataFormat(std::string_view name);

}  // namespace cleave
