// Images stored as bytes, converted to samples one at a time. IDX and CIFAR files share this code.
// No Torch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "client/data/dataset.h"

namespace cleave {

// Image i starts at byte first + i x stride, channel by channel, row by row.
struct ImageStore {
  std::vector<std::uint8_t> bytes;
  std::size_t first = 0;
  std::size_t stride = 0;
  std::vector<std::int64_t> shape;   // {channels, height, width}
  std::vector<std::uint8_t> labels;  // one per image, below `classes`
  int classes = 0;
};

// Throws UsageError if the number of means or stds does not fit the channels, or the padding is too
// large for the image.
std::unique_ptr<LabeledDataset> makeImages(ImageStore store, const ImageOptions& options);

// How an image is augmented in one epoch: flipped or not, and moved.
struct Placement {
  bool flip = false;
  int down = 0;   // rows of black above; if negative, rows cut off at the top
  int right = 0;  // the same for columns on the left, after the flip
};
Placement drawPlacement(const ImageOptions& options, std::uint64_t epoch, std::uint32_t index);

// `in` is [channels, from.height, from.width], `out` is [channels, to.height, to.width]. Bilinear
// without aligned corners; edges are repeated.
struct ImageSize {
  std::int64_t height = 0, width = 0;
};
void resizeBilinear(std::span<const float> in, ImageSize from, std::span<float> out, ImageSize to);

}  // namespace cleave
