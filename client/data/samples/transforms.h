// What happens to an image between its file and the model. No Torch.
//
//   training only   flip; the shift by crop_padding (black beyond the edges)
//   always          resize, then the centre crop
//   training only   with crop_scale: a random crop resized to `crop`, which replaces the shift,
//                   the resize and the centre crop
//   training only   brightness, contrast, saturation and hue, in a random order
//   always          (x - mean) / std
//   training only   erasing: the rectangle becomes 0
//
// From the resize on, values are floats and are not rounded to bytes between operations. Pillow
// rounds after each pass, so results differ from Pillow's by up to 1/255.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "client/data/pictures/pixels.h"
#include "client/data/samples/dataset.h"

namespace cleave {

// A view of an image in memory, with its axes in any order: the byte of (channel, y, x) is at
// bytes[channel * channelStep + y * rowStep + x * columnStep].
struct ImageView {
  const std::uint8_t* bytes = nullptr;
  std::int64_t height = 0, width = 0;
  std::ptrdiff_t channelStep = 0, rowStep = 0, columnStep = 0;
};

class ImageTransforms {
 public:
  // Throws UsageError "bad-image-transform" if the options contradict each other, or do not suit
  // images with this number of channels.
  ImageTransforms(const ImageOptions& options, std::int64_t channels);

  // The shape of the model's input for an image of this size: {channels, height, width}. With
  // `resize` or `crop`, the shape does not depend on the image.
  std::vector<std::int64_t> outputShape(std::int64_t height, std::int64_t width) const;
  bool hasFixedShape() const { return options_.resize > 0 || options_.crop > 0; }

  // Writes the model's input. With an epoch, applies that epoch's augmentation, whose random
  // numbers are keyed by (seed, "augment", epoch, index). Any thread.
  void apply(const Pixels& image, std::uint32_t index, std::optional<std::uint64_t> epoch,
             std::span<float> out) const;
  void apply(const ImageView& image, std::uint32_t index, std::optional<std::uint64_t> epoch,
             std::span<float> out) const;

 private:
  // Maps each byte value of a channel to the model's input value.
  using ValueTable = std::array<float, 256>;

  struct Plan;
  Plan planFor(const ImageView& image, std::uint32_t index,
               std::optional<std::uint64_t> epoch) const;
  void checkOptions() const;

  ImageOptions options_;
  std::int64_t channels_;
  bool jitters_ = false;
  std::vector<float> means_, stddevs_;  // one per channel
  std::vector<ValueTable> tables_;      // one per channel
  ValueTable unit_{};                   // x / 255
};

// How an image is flipped and moved in one epoch.
struct Placement {
  bool flip = false;
  int down = 0;   // rows of black above; if negative, rows cut off at the top
  int right = 0;  // likewise for columns on the left, after the flip
};
Placement drawPlacement(const ImageOptions& options, std::uint64_t epoch, std::uint32_t index);

// Draws the part of an image that is resized to `crop` x `crop` in one epoch, as torchvision's
// RandomResizedCrop does. The part is inside the image.
struct ImageBox {
  std::int64_t top = 0, left = 0, height = 0, width = 0;
};
ImageBox drawCrop(const ImageOptions& options, std::uint64_t epoch, std::uint32_t index,
                  std::int64_t height, std::int64_t width);

// Draws the rectangle of the model's input that is erased in one epoch, as torchvision's
// RandomErasing does with its default area and ratio. Height 0: nothing is erased.
ImageBox drawErasing(const ImageOptions& options, std::uint64_t epoch, std::uint32_t index,
                     std::int64_t height, std::int64_t width);

// The colour factors of one image in one epoch.
struct ColorJitter {
  // The order of application: a permutation of 0 (brightness), 1 (contrast), 2 (saturation), 3
  // (hue).
  std::array<int, 4> order = {0, 1, 2, 3};
  float brightness = 1, contrast = 1, saturation = 1;
  float hue = 0;  // in turns of the colour circle
};
ColorJitter drawJitter(const ImageOptions& options, std::uint64_t epoch, std::uint32_t index);
// `pixels` are [channels, height, width] in 0 … 1, and remain in that range. Saturation and hue
// require three channels. An operation whose factor is 1 (hue: 0) changes nothing.
void jitterColors(const ColorJitter& jitter, std::span<float> pixels, std::int64_t channels);

}  // namespace cleave
