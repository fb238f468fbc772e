// Images stored as bytes, converted to samples one at a time. IDX and CIFAR files share this code.
// No Torch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "client/data/samples/dataset.h"

namespace cleave {

// Image i starts at byte first + i x stride, channel by channel, row by row.
struct ImageStore {
  std::vector<std::uint8_t> bytes;
  std::size_t first = 0;
  std::size_t stride = 0;
  std::vector<std::int64_t> shape;    // {channels, height, width}
  std::vector<std::uint32_t> labels;  // one per image, below `classes`
  int classes = 0;
};

// Throws UsageError "bad-image-transform" for the reasons that ImageTransforms has, or if the
// padding is larger than the image.
std::unique_ptr<LabeledDataset> makeImages(ImageStore store, const ImageOptions& options);

}  // namespace cleave
