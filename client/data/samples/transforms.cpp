#include "client/data/samples/transforms.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <string>
#include <utility>

#include "client/data/pictures/bilinear.h"
#include "common/core/random.h"
#include "common/core/units.h"

namespace cleave {
namespace {

// `key` is the configuration key without its prefix `data.`.
[[noreturn]] void refuseTransform(const std::string& key, const std::string& fault,
                                  const std::string& hint) {
  throw UsageError("bad-image-transform", fault, hint).about("data." + key);
}

// ---- Draws ----

// Counters of the key (seed, "augment", epoch, index).
enum Counter : std::uint64_t {
  kFlip = 0,
  kDown = 1,
  kRight = 2,
  kCrop = 16,   // + 4 * attempt
  kOrder = 64,  // + position
  kFactors = 72,
  kErase = 96,
  kErasing = 128,  // + 4 * attempt
};

constexpr int kAttempts = 10;

// A draw in [0, 1).
double uniform(RandomKey key, std::uint64_t counter) {
  return static_cast<double>(randomBits(key, counter) >> 11) * 0x1p-53;
}

double between(RandomKey key, std::uint64_t counter, double min, double max) {
  return min + (max - min) * uniform(key, counter);
}

// A draw in 0 … count - 1. The modulo bias is below 2^-32.
std::int64_t below(RandomKey key, std::uint64_t counter, std::int64_t count) {
  return static_cast<std::int64_t>(randomBits(key, counter) % static_cast<std::uint64_t>(count));
}

RandomKey augmentKey(const ImageOptions& options, std::uint64_t epoch, std::uint32_t index) {
  return randomKey(options.seed, "augment", {epoch, index});
}

struct BoxRanges {
  double minScale, maxScale;  // area, as a fraction of the image's area
  double minRatio, maxRatio;  // of width to height
};

// Draws a box with a random area, aspect ratio (uniform on a log scale) and position. If the box
// does not fit into [maxHeight, maxWidth], draws again, up to kAttempts times in total. If no box
// fits, the height is 0.
ImageBox drawBox(RandomKey key, std::uint64_t first, const BoxRanges& ranges, std::int64_t height,
                 std::int64_t width, std::int64_t maxHeight, std::int64_t maxWidth) {
  const double area = static_cast<double>(height) * static_cast<double>(width);
  for (int attempt = 0; attempt < kAttempts; ++attempt, first += 4) {
    const double part = area * between(key, first, ranges.minScale, ranges.maxScale);
    const double ratio =
        std::exp(between(key, first + 1, std::log(ranges.minRatio), std::log(ranges.maxRatio)));
    ImageBox box;
    box.height = std::llround(std::sqrt(part / ratio));
    box.width = std::llround(std::sqrt(part * ratio));
    if (box.height < 1 || box.height > maxHeight || box.width < 1 || box.width > maxWidth) continue;
    box.top = below(key, first + 2, height - box.height + 1);
    box.left = below(key, first + 3, width - box.width + 1);
    return box;
  }
  return {};
}

// ---- Geometry ----

// The offset of a centred crop of this size. Halves are rounded to even, as in torchvision. If the
// crop is larger than the image, the offset is negative.
std::int64_t centreOf(std::int64_t size, std::int64_t crop) {
  if (crop > size) return -((crop - size) / 2);
  const std::int64_t half = (size - crop) / 2;
  return (size - crop) % 2 == 0 || half % 2 == 0 ? half : half + 1;
}

// Writes inputs [first, first + count) of row y of a part of the image, flipped or not. Pixels
// beyond the image's edges are black.
void readRow(const ImageView& image, std::int64_t channel, const ImageBox& part, bool flip,
             const std::array<float, 256>& table, std::int64_t y, std::int64_t first,
             std::int64_t count, float* to, std::ptrdiff_t stride) {
  const std::int64_t row = part.top + y;
  const std::int64_t column = part.left + first;  // of to[0]
  const bool isInside = row >= 0 && row < image.height;
  const std::int64_t begin = isInside ? std::clamp<std::int64_t>(-column, 0, count) : count;
  const std::int64_t end = std::clamp<std::int64_t>(image.width - column, begin, count);
  for (std::int64_t x = 0; x < begin; ++x) to[x * stride] = table[0];
  const std::int64_t start = flip ? image.width - 1 - (column + begin) : column + begin;
  const std::ptrdiff_t step = flip ? -image.columnStep : image.columnStep;
  std::ptrdiff_t at = channel * image.channelStep + row * image.rowStep + start * image.columnStep;
  for (std::int64_t x = begin; x < end; ++x, at += step) to[x * stride] = table[image.bytes[at]];
  for (std::int64_t x = end; x < count; ++x) to[x * stride] = table[0];
}

// ---- Colours ----

constexpr float kRed = 0.299f, kGreen = 0.587f, kBlue = 0.114f;  // luminance, ITU-R BT.601

float clampUnit(float value) { return std::min(std::max(value, 0.0f), 1.0f); }

// Each value becomes factor * value + (1 - factor) * other.
void blendWith(float other, float factor, std::span<float> pixels) {
  const float offset = (1 - factor) * other;
  for (float& value : pixels) value = clampUnit(factor * value + offset);
}

struct Planes {
  float *red, *green, *blue;
  std::size_t count;
};

Planes planesOf(std::span<float> pixels) {
  const std::size_t count = pixels.size() / 3;
  return {pixels.data(), pixels.data() + count, pixels.data() + 2 * count, count};
}

double meanLuminance(std::span<float> pixels, std::int64_t channels) {
  double sum = 0;
  if (channels != 3) {
    for (const float value : pixels) sum += double{value};
    return sum / static_cast<double>(pixels.size());
  }
  const Planes planes = planesOf(pixels);
  for (std::size_t n = 0; n < planes.count; ++n) {
    sum += double{kRed * planes.red[n] + kGreen * planes.green[n] + kBlue * planes.blue[n]};
  }
  return sum / static_cast<double>(planes.count);
}

void saturate(float factor, std::span<float> pixels) {
  const Planes planes = planesOf(pixels);
  for (std::size_t n = 0; n < planes.count; ++n) {
    const float grey = kRed * planes.red[n] + kGreen * planes.green[n] + kBlue * planes.blue[n];
    const float offset = (1 - factor) * grey;
    planes.red[n] = clampUnit(factor * planes.red[n] + offset);
    planes.green[n] = clampUnit(factor * planes.green[n] + offset);
    planes.blue[n] = clampUnit(factor * planes.blue[n] + offset);
  }
}

// Shifts the hue in HSV space by `turns` of the colour circle. The maximum and the minimum of the
// three values do not change.
void turnHue(float turns, std::span<float> pixels) {
  const Planes planes = planesOf(pixels);
  for (std::size_t n = 0; n < planes.count; ++n) {
    float& red = planes.red[n];
    float& green = planes.green[n];
    float& blue = planes.blue[n];
    const float max = std::max({red, green, blue});
    const float range = max - std::min({red, green, blue});
    if (range <= 0) continue;  // grey
    float sixths = 0;          // hue, in sixths of the circle from red
    if (max == red) {
      sixths = (green - blue) / range;
    } else if (max == green) {
      sixths = 2 + (blue - red) / range;
    } else {
      sixths = 4 + (red - green) / range;
    }
    sixths += 6 * turns;
    sixths -= 6 * std::floor(sixths / 6);
    // A channel has the maximum value up to one sixth away from its own hue, and falls to the
    // minimum within the next sixth.
    const auto channel = [&](float hue) {
      const float distance = std::abs(sixths - hue);
      const float around = std::min(distance, 6 - distance);
      return max - range * clampUnit(around - 1);
    };
    red = channel(0);
    green = channel(2);
    blue = channel(4);
  }
}

}  // namespace

// Describes the resize: the part of the image that is resized, its new size, and the window of the
// result that becomes the output.
struct ImageTransforms::Plan {
  bool flip = false;
  ImageBox part;               // in the flipped image; may extend beyond its edges
  std::int64_t height, width;  // size of the part after the resize
  ImageBox window;             // in the resized part
};

ImageTransforms::ImageTransforms(const ImageOptions& options, std::int64_t channels)
    : options_(options), channels_(channels) {
  checkOptions();
  jitters_ =
      options.brightness > 0 || options.contrast > 0 || options.saturation > 0 || options.hue > 0;
  const auto tableOf = [](double mean, double stddev) {
    ValueTable values{};
    for (std::size_t x = 0; x < values.size(); ++x) {
      values[x] = static_cast<float>((static_cast<double>(x) / 255 - mean) / stddev);
    }
    return values;
  };
  unit_ = tableOf(0, 1);
  for (std::size_t c = 0; c < static_cast<std::size_t>(channels); ++c) {
    const double mean = options.mean[options.mean.size() == 1 ? 0 : c];
    const double stddev = options.stddev[options.stddev.size() == 1 ? 0 : c];
    means_.push_back(static_cast<float>(mean));
    stddevs_.push_back(static_cast<float>(stddev));
    tables_.push_back(tableOf(mean, stddev));
  }
}

void ImageTransforms::checkOptions() const {
  const std::string channels = countText(static_cast<std::uint64_t>(channels_), "channel");
  const auto checkCount = [&](const std::vector<double>& values, const std::string& key) {
    if (values.size() == 1 || values.size() == static_cast<std::size_t>(channels_)) return;
    refuseTransform(key, std::to_string(values.size()) + " values, but the images have " + channels,
                    "give one value per channel, or one for all channels");
  };
  checkCount(options_.mean, "mean");
  checkCount(options_.stddev, "std");
  if (options_.resize > 0 && options_.crop > options_.resize) {
    refuseTransform("crop",
                    "the crop of " + std::to_string(options_.crop) +
                        " pixels is larger than data.resize, " + std::to_string(options_.resize),
                    "set data.resize to at least data.crop, such as 256 for a crop of 224");
  }
  if (!options_.cropScale.empty()) {
    const auto checkRange = [](const std::vector<double>& range, const std::string& key) {
      if (range.size() == 2 && range[0] <= range[1]) return;
      refuseTransform(key, "data." + key + " is not a minimum and a maximum",
                      "give two numbers, such as [0.75, 1]");
    };
    checkRange(options_.cropScale, "augment.crop_scale");
    checkRange(options_.cropRatio, "augment.crop_ratio");
    if (options_.crop == 0) {
      refuseTransform("augment.crop_scale", "data.augment.crop_scale is set, but data.crop is not",
                      "set data.crop, such as 224");
    }
    if (options_.cropPadding > 0) {
      refuseTransform("augment.crop_padding",
                      "data.augment.crop_padding and data.augment.crop_scale are both set",
                      "remove one of them");
    }
  }
  if ((options_.saturation > 0 || options_.hue > 0) && channels_ != 3) {
    refuseTransform(options_.hue > 0 ? "augment.hue" : "augment.saturation",
                    "colours require 3 channels, but the images have " + channels,
                    "use data.augment.brightness and data.augment.contrast only");
  }
}

std::vector<std::int64_t> ImageTransforms::outputShape(std::int64_t height,
                                                       std::int64_t width) const {
  if (options_.crop > 0) return {channels_, options_.crop, options_.crop};
  if (options_.resize > 0) return {channels_, options_.resize, options_.resize};
  return {channels_, height, width};
}

ImageTransforms::Plan ImageTransforms::planFor(const ImageView& image, std::uint32_t index,
                                               std::optional<std::uint64_t> epoch) const {
  const auto [height, width] = std::pair(image.height, image.width);
  const std::int64_t crop = options_.crop;
  const std::int64_t resize = options_.resize;
  const Placement placement = epoch ? drawPlacement(options_, *epoch, index) : Placement();
  Plan plan;
  plan.flip = placement.flip;
  if (epoch && !options_.cropScale.empty()) {
    plan.part = drawCrop(options_, *epoch, index, height, width);
    plan.height = plan.width = crop;
    plan.window = {0, 0, crop, crop};
    return plan;
  }
  plan.part = {-placement.down, -placement.right, height, width};
  if (crop > 0 && resize == 0) {
    plan.part.top += centreOf(height, crop);
    plan.part.left += centreOf(width, crop);
    plan.part.height = plan.part.width = plan.height = plan.width = crop;
  } else if (crop > 0) {
    plan.height = height <= width ? resize : resize * height / width;
    plan.width = height <= width ? resize * width / height : resize;
    plan.window = {centreOf(plan.height, crop), centreOf(plan.width, crop), crop, crop};
    return plan;
  } else {
    plan.height = resize > 0 ? resize : height;
    plan.width = resize > 0 ? resize : width;
  }
  plan.window = {0, 0, plan.height, plan.width};
  return plan;
}

void ImageTransforms::apply(const Pixels& image, std::uint32_t index,
                            std::optional<std::uint64_t> epoch, std::span<float> out) const {
  assert(image.channels == channels_);
  apply(ImageView{image.bytes.data(), image.height, image.width, 1, image.width * image.channels,
                  image.channels},
        index, epoch, out);
}

void ImageTransforms::apply(const ImageView& image, std::uint32_t index,
                            std::optional<std::uint64_t> epoch, std::span<float> out) const {
  const Plan plan = planFor(image, index, epoch);
  const auto [top, left, height, width] = plan.window;
  const auto planeSize = static_cast<std::size_t>(height * width);
  assert(out.size() == planeSize * static_cast<std::size_t>(channels_));
  const bool jitters = epoch && jitters_;

  const bool resizes = plan.height != plan.part.height || plan.width != plan.part.width;
  std::optional<BilinearAxis> rows, columns;
  if (resizes) {
    rows.emplace(plan.part.height, plan.height, top, height);
    columns.emplace(plan.part.width, plan.width, left, width);
  }
  for (std::int64_t c = 0; c < channels_; ++c) {
    const ValueTable& table = jitters ? unit_ : tables_[static_cast<std::size_t>(c)];
    const std::span<float> plane = out.subspan(static_cast<std::size_t>(c) * planeSize, planeSize);
    if (!resizes) {
      for (std::int64_t y = 0; y < height; ++y) {
        readRow(image, c, plan.part, plan.flip, table, y, 0, width, plane.data() + y * width, 1);
      }
      continue;
    }
    const auto first = static_cast<std::int64_t>(columns->begin());
    const auto count = static_cast<std::int64_t>(columns->end()) - first;
    const auto read = [&](std::size_t y, float* to, std::ptrdiff_t stride) {
      readRow(image, c, plan.part, plan.flip, table, static_cast<std::int64_t>(y), first, count, to,
              stride);
    };
    resizeChannel(*rows, *columns, read, plane);
  }
  if (!epoch) return;
  if (jitters) {
    jitterColors(drawJitter(options_, *epoch, index), out, channels_);
    for (std::size_t c = 0; c < tables_.size(); ++c) {
      const float mean = means_[c];
      const float stddev = stddevs_[c];
      for (float& value : out.subspan(c * planeSize, planeSize)) value = (value - mean) / stddev;
    }
  }
  if (options_.erasing <= 0) return;
  const ImageBox erased = drawErasing(options_, *epoch, index, height, width);
  for (std::int64_t c = 0; c < channels_; ++c) {
    for (std::int64_t y = erased.top; y < erased.top + erased.height; ++y) {
      float* row = out.data() + (c * height + y) * width + erased.left;
      std::fill(row, row + erased.width, 0.0f);
    }
  }
}

Placement drawPlacement(const ImageOptions& options, std::uint64_t epoch, std::uint32_t index) {
  const RandomKey key = augmentKey(options, epoch, index);
  Placement placement;
  placement.flip = options.flip && (randomBits(key, kFlip) & 1) != 0;
  const std::int64_t places = 2 * std::int64_t{options.cropPadding} + 1;
  placement.down = static_cast<int>(below(key, kDown, places)) - options.cropPadding;
  placement.right = static_cast<int>(below(key, kRight, places)) - options.cropPadding;
  return placement;
}

ImageBox drawCrop(const ImageOptions& options, std::uint64_t epoch, std::uint32_t index,
                  std::int64_t height, std::int64_t width) {
  const double minRatio = options.cropRatio.at(0);
  const double maxRatio = options.cropRatio.at(1);
  const BoxRanges ranges = {options.cropScale.at(0), options.cropScale.at(1), minRatio, maxRatio};
  const RandomKey key = augmentKey(options, epoch, index);
  ImageBox box = drawBox(key, kCrop, ranges, height, width, height, width);
  if (box.height > 0) return box;
  // If no box fits, use the largest part at the centre with an allowed ratio.
  box = {0, 0, height, width};
  const double ratio = static_cast<double>(width) / static_cast<double>(height);
  if (ratio < minRatio) {
    box.height = std::llround(static_cast<double>(width) / minRatio);
  } else if (ratio > maxRatio) {
    box.width = std::llround(static_cast<double>(height) * maxRatio);
  }
  box.height = std::clamp<std::int64_t>(box.height, 1, height);
  box.width = std::clamp<std::int64_t>(box.width, 1, width);
  box.top = (height - box.height) / 2;
  box.left = (width - box.width) / 2;
  return box;
}

ImageBox drawErasing(const ImageOptions& options, std::uint64_t epoch, std::uint32_t index,
                     std::int64_t height, std::int64_t width) {
  const RandomKey key = augmentKey(options, epoch, index);
  if (uniform(key, kErase) >= options.erasing) return {};
  // In torchvision's RandomErasing the ratio is height to width.
  const BoxRanges ranges = {0.02, 0.33, 1 / 3.3, 1 / 0.3};
  return drawBox(key, kErasing, ranges, height, width, height - 1, width - 1);
}

ColorJitter drawJitter(const ImageOptions& options, std::uint64_t epoch, std::uint32_t index) {
  const RandomKey key = augmentKey(options, epoch, index);
  ColorJitter jitter;
  for (std::size_t n = jitter.order.size() - 1; n > 0; --n) {
    const auto other = below(key, kOrder + n, static_cast<std::int64_t>(n) + 1);
    std::swap(jitter.order[n], jitter.order[static_cast<std::size_t>(other)]);
  }
  const auto factor = [&](std::uint64_t counter, double strength) {
    return static_cast<float>(
        between(key, kFactors + counter, std::max(0.0, 1 - strength), 1 + strength));
  };
  jitter.brightness = factor(0, options.brightness);
  jitter.contrast = factor(1, options.contrast);
  jitter.saturation = factor(2, options.saturation);
  jitter.hue = static_cast<float>(between(key, kFactors + 3, -options.hue, options.hue));
  return jitter;
}

void jitterColors(const ColorJitter& jitter, std::span<float> pixels, std::int64_t channels) {
  for (const int operation : jitter.order) {
    if (operation == 0 && jitter.brightness != 1) blendWith(0, jitter.brightness, pixels);
    if (operation == 1 && jitter.contrast != 1) {
      const auto mean = static_cast<float>(meanLuminance(pixels, channels));
      blendWith(mean, jitter.contrast, pixels);
    }
    if (operation == 2 && jitter.saturation != 1) saturate(jitter.saturation, pixels);
    if (operation == 3 && jitter.hue != 0) turnHue(jitter.hue, pixels);
  }
}

}  // namespace cleave
