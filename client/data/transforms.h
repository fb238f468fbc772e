// What happens to an image between its file and the model: crops, resizing, augmentation,
// normalisation. No Torch.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "client/data/dataset.h"
#include "client/data/pixels.h"

namespace cleave {

class ImageTransforms {
 public:
  // Throws UsageError if the options do not fit images with so many channels, or each other.
  ImageTransforms(const ImageOptions& options, std::int64_t channels);

  // The model's input for an image of this size: {channels, height, width}. With `resize` or `crop`
  // it does not depend on the image.
  std::vector<std::int64_t> outputShape(std::int64_t height, std::int64_t width) const;
  bool hasFixedShape() const;

  // Writes the model's input. With an epoch, as training uses it in that epoch; draws are keyed by
  // (seed, "augment", epoch, index). Any thread.
  void apply(const Pixels& image, std::uint32_t index, std::optional<std::uint64_t> epoch,
             std::span<float> out) const;

 private:
  ImageOptions options_;
  std::int64_t channels_;
};

}  // namespace cleave
