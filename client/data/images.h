// Images as bytes in memory, which become samples one at a time: what IDX and CIFAR files have in
// common once they are read. No Torch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "client/data/dataset.h"

namespace cleave {

// Image i is the bytes from first + i x stride on, channel by channel, row by row.
struct ImageStore {
  std::vector<std::uint8_t> bytes;
  std::size_t first = 0;
  std::size_t stride = 0;
  std::vector<std::int64_t> shape;   // {channels, height, width}
  std::vector<std::uint8_t> labels;  // one an image, below `classes`
  int classes = 0;
};

// Throws UsageError: more or fewer means or deviations than channels, padding that the image is too
// small for.
std::unique_ptr<Dataset> makeImages(ImageStore store, const ImageOptions& options);

// Where an image is taken from for one epoch: flipped or not, and moved.
struct Placement {
  bool flip = false;
  int down = 0;   // pixels of black above, or, where negative, rows cut off there
  int right = 0;  // the same on the left, after the flip
};
Placement drawPlacement(const ImageOptions& options, std::uint64_t epoch, std::uint32_t index);

// `in` is [channels, size.height, size.width], `out` [channels, to.height, to.width]; bilinear, the
// centres of corner pixels not aligned, edges repeated.
struct ImageSize {
  std::int64_t height = 0, width = 0;
};
void resizeBilinear(std::span<const float> in, ImageSize from, std::span<float> out, ImageSize to);

}  // namespace cleave
