// Computes what the command `data show` reports about a dataset. No Torch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "client/data/pictures/pixels.h"
#include "client/data/samples/dataset.h"

namespace cleave {

// At most `count` indices, evenly distributed over 0 … size - 1.
std::vector<std::uint32_t> spreadIndices(std::uint32_t size, std::uint32_t count);

// Statistics of one array over several samples. Non-finite values are counted but otherwise
// excluded.
struct ValueFigures {
  double min = 0, mean = 0, max = 0, std = 0;
  std::uint64_t values = 0, notFinite = 0;
};

struct DataFigures {
  std::uint32_t figureSamples = 0;    // number of samples in `figures`
  std::vector<ValueFigures> figures;  // per array, without augmentation
  // Number of samples in `counts`; all samples if labels can be read quickly.
  std::uint32_t countedSamples = 0;
  std::vector<std::uint64_t> counts;  // per class; empty if the target is not a class
};
// Reads at most `maxSamples` whole samples.
DataFigures inspectData(const Dataset& data, std::uint32_t maxSamples);

// The values of an array of integers in the sample `index`.
std::vector<std::int64_t> readIntegers(const Dataset& data, std::uint32_t index, std::size_t array);

// A picture of the model's input. Above a white line: samples with the training augmentation of
// epoch 1; below it: the same samples without augmentation.
struct SheetOptions {
  // The normalisation to revert, as in ImageOptions. Empty: unknown; the minimum of all images then
  // becomes black, and the maximum white.
  std::vector<double> mean = {}, stddev = {};
};
struct ContactSheet {
  static constexpr std::uint32_t kColumns = 8;
  Pixels pixels;
  std::vector<std::uint32_t> samples;  // indices, row by row; a row has kColumns samples
};
// Shows the first array of shape [1 or 3 channels, height, width]. Throws UsageError "no-images" if
// there is none.
ContactSheet makeContactSheet(const Dataset& data, const SheetOptions& options);

}  // namespace cleave
