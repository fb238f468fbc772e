// What the command `data show` reports about a dataset. No Torch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "client/data/dataset.h"
#include "client/data/pixels.h"

namespace cleave {

// At most `count` indices, evenly distributed over 0 … size - 1.
std::vector<std::uint32_t> spreadIndices(std::uint32_t size, std::uint32_t count);

// Of all values of an array in some samples; numbers that are not finite are only counted.
struct ValueFigures {
  double min = 0, mean = 0, max = 0, std = 0;
  std::uint64_t values = 0, notFinite = 0;
};

struct DataFigures {
  std::uint32_t figureSamples = 0;    // samples that the figures are of
  std::vector<ValueFigures> figures;  // by array, of samples as evaluation reads them
  std::uint32_t countedSamples = 0;   // samples that the counts are of: all if labels are cheap
  std::vector<std::uint64_t> counts;  // by class; empty if the target is no class
};
// Reads at most `maxSamples` samples.
DataFigures inspectData(const Dataset& data, std::uint32_t maxSamples);

// The values of an array of integers.
std::vector<std::int64_t> readIntegers(const Dataset& data, std::uint32_t index, std::size_t array);

// A grid of what the model receives: above a white line, samples as training reads them in epoch 1;
// below, the same samples as evaluation reads them.
struct SheetOptions {
  // How pixels were normalised, as in ImageOptions; empty: unknown. Then the smallest and the
  // largest value of the images become black and white.
  std::vector<double> mean = {}, deviation = {};
};
struct ContactSheet {
  static constexpr std::uint32_t kColumns = 8;
  Pixels pixels;
  std::vector<std::uint32_t> samples;  // in rows of kColumns
};
// Of the first array of [1 or 3 channels, height, width]. Throws UsageError "no-images" if there is
// none.
ContactSheet makeContactSheet(const Dataset& data, const SheetOptions& options);

}  // namespace cleave
