// A placeholder until the branch wip-transforms is merged: resizing, flips and normalisation only.
#include "client/data/transforms.h"

#include <cassert>

#include "client/data/images.h"

namespace cleave {

ImageTransforms::ImageTransforms(const ImageOptions& options, std::int64_t channels)
    : options_(options), channels_(channels) {
  for (const auto* values : {&options.mean, &options.deviation}) {
    if (values->size() == 1 || values->size() == static_cast<std::size_t>(channels)) continue;
    throw UsageError("bad-config", "data.mean or data.deviation does not fit the channels",
                     "give one value per channel, or one for all channels");
  }
}

std::vector<std::int64_t> ImageTransforms::outputShape(std::int64_t height,
                                                       std::int64_t width) const {
  if (hasFixedShape()) return {channels_, options_.resize, options_.resize};
  return {channels_, height, width};
}

bool ImageTransforms::hasFixedShape() const { return options_.resize > 0; }

void ImageTransforms::apply(const Pixels& image, std::uint32_t index,
                            std::optional<std::uint64_t> epoch, std::span<float> out) const {
  assert(image.channels == channels_);
  const bool flip = epoch && drawPlacement(options_, *epoch, index).flip;
  std::vector<float> planes(image.bytes.size());
  std::size_t at = 0;
  for (std::int64_t c = 0; c < channels_; ++c) {
    const auto of = [&](const std::vector<double>& values) {
      return values[values.size() == 1 ? 0 : static_cast<std::size_t>(c)];
    };
    for (std::int64_t y = 0; y < image.height; ++y) {
      for (std::int64_t x = 0; x < image.width; ++x, ++at) {
        const std::int64_t column = flip ? image.width - 1 - x : x;
        const auto pixel =
            image.bytes[static_cast<std::size_t>((y * image.width + column) * channels_ + c)];
        planes[at] =
            static_cast<float>((pixel / 255.0 - of(options_.mean)) / of(options_.deviation));
      }
    }
  }
  const std::vector<std::int64_t> shape = outputShape(image.height, image.width);
  resizeBilinear(planes, {image.height, image.width}, out, {shape[1], shape[2]});
}

}  // namespace cleave
