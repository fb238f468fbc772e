#include "client/data/samples/inspect.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "client/data/samples/sample_buffer.h"

namespace cleave {
namespace {

// Mean and variance in one pass (Welford).
class FigureSum {
 public:
  void add(double value) {
    if (!std::isfinite(value)) {
      ++figures_.notFinite;
      return;
    }
    ++figures_.values;
    const double before = value - figures_.mean;
    figures_.mean += before / static_cast<double>(figures_.values);
    squares_ += before * (value - figures_.mean);
    figures_.min = figures_.values == 1 ? value : std::min(figures_.min, value);
    figures_.max = figures_.values == 1 ? value : std::max(figures_.max, value);
  }
  ValueFigures figures() const {
    ValueFigures figures = figures_;
    if (figures.values > 0) figures.std = std::sqrt(squares_ / static_cast<double>(figures.values));
    return figures;
  }

 private:
  ValueFigures figures_;
  double squares_ = 0;
};

// ---- Contact sheet ----

using SheetImage = std::vector<float>;  // [channels, height, width]

std::size_t imageArray(const std::vector<SampleArray>& arrays) {
  for (std::size_t a = 0; a + 1 < arrays.size(); ++a) {
    const std::vector<std::int64_t>& shape = arrays[a].shape;
    if (arrays[a].dtype == DType::f32 && shape.size() == 3 && (shape[0] == 1 || shape[0] == 3)) {
      return a;
    }
  }
  throw UsageError("no-images", "the samples have no images, only " + toString(arrays.front()),
                   "omit --sheet, which needs an array of shape [1 or 3 channels, height, width]");
}

// Reverts the normalisation, so that values are in 0 … 1.
void revert(std::vector<SheetImage>& images, std::int64_t channels, const SheetOptions& options) {
  if (options.mean.empty()) {
    float min = std::numeric_limits<float>::max(), max = std::numeric_limits<float>::lowest();
    for (const SheetImage& image : images) {
      for (const float value : image) {
        if (!std::isfinite(value)) continue;
        min = std::min(min, value);
        max = std::max(max, value);
      }
    }
    const float range = max > min ? max - min : 1;
    for (SheetImage& image : images) {
      for (float& value : image) value = (value - min) / range;
    }
    return;
  }
  const auto of = [](const std::vector<double>& values, std::size_t channel) {
    return values[values.size() == 1 ? 0 : channel];
  };
  for (SheetImage& image : images) {
    const std::size_t perChannel = image.size() / static_cast<std::size_t>(channels);
    for (std::size_t n = 0; n < image.size(); ++n) {
      const std::size_t channel = n / perChannel;
      image[n] = static_cast<float>(double{image[n]} * of(options.stddev, channel) +
                                    of(options.mean, channel));
    }
  }
}

// The size of images in the sheet: enlarged or reduced by an integer factor.
struct TileSize {
  std::int64_t enlarge = 1, reduce = 1;
  std::int64_t of(std::int64_t side) const { return (side * enlarge + reduce - 1) / reduce; }
};

TileSize tileSizeFor(std::int64_t height, std::int64_t width) {
  constexpr std::int64_t kMin = 96, kMax = 256;
  const std::int64_t side = std::max(height, width);
  if (side < kMin) return {kMin / side, 1};
  return {1, (side + kMax - 1) / kMax};
}

class SheetPainter {
 public:
  static constexpr std::int64_t kGap = 4;

  SheetPainter(const std::vector<std::int64_t>& shape, std::uint32_t columns, std::uint32_t rows)
      : rows_(rows),
        channels_(shape[0]),
        width_(shape[2]),
        height_(shape[1]),
        size_(tileSizeFor(height_, width_)) {
    constexpr std::uint8_t kGrey = 64;
    sheet_.channels = channels_;
    sheet_.width = columns * stepX() + kGap;
    sheet_.height = std::int64_t{2} * rows * stepY() + 3 * kGap;
    sheet_.bytes.assign(static_cast<std::size_t>(sheet_.width * sheet_.height * channels_), kGrey);
    const auto begin = static_cast<std::size_t>((rows * stepY() + kGap) * sheet_.width * channels_);
    std::fill_n(sheet_.bytes.begin() + static_cast<std::ptrdiff_t>(begin),
                kGap * sheet_.width * channels_, std::uint8_t{255});
  }

  void paint(const SheetImage& image, std::uint32_t column, std::uint32_t row, bool isUpper) {
    const std::int64_t left = kGap + column * stepX();
    const std::int64_t half = isUpper ? kGap : rows_ * stepY() + 3 * kGap;
    const std::int64_t top = half + row * stepY();
    for (std::int64_t y = 0; y < size_.of(height_); ++y) {
      for (std::int64_t x = 0; x < size_.of(width_); ++x) {
        const std::int64_t fromY = y * size_.reduce / size_.enlarge;
        const std::int64_t fromX = x * size_.reduce / size_.enlarge;
        for (std::int64_t c = 0; c < channels_; ++c) {
          const float value =
              image[static_cast<std::size_t>((c * height_ + fromY) * width_ + fromX)];
          // Values that are not finite are black.
          const float light = std::isfinite(value) ? std::clamp(value, 0.0f, 1.0f) : 0;
          sheet_.bytes[static_cast<std::size_t>(((top + y) * sheet_.width + left + x) * channels_ +
                                                c)] =
              static_cast<std::uint8_t>(std::lround(255 * light));
        }
      }
    }
  }

  Pixels take() { return std::move(sheet_); }

 private:
  std::int64_t stepX() const { return size_.of(width_) + kGap; }
  std::int64_t stepY() const { return size_.of(height_) + kGap; }

  std::int64_t rows_, channels_, width_, height_;
  TileSize size_;
  Pixels sheet_;
};

}  // namespace

std::vector<std::uint32_t> spreadIndices(std::uint32_t size, std::uint32_t count) {
  count = std::min(size, count);
  std::vector<std::uint32_t> indices;
  for (std::uint64_t n = 0; n < count; ++n) {
    indices.push_back(static_cast<std::uint32_t>(n * size / count));
  }
  return indices;
}

DataFigures inspectData(const Dataset& data, std::uint32_t maxSamples) {
  DataFigures result;
  SampleBuffer sample(data);
  const std::size_t arrays = sample.arrays().size();
  std::vector<FigureSum> sums(arrays);
  const auto classes = static_cast<std::size_t>(data.classes());
  const bool hasLabels = classes > 0 && data.label(0).has_value();
  result.counts.resize(classes);
  const auto count = [&](std::int64_t label) {
    if (label >= 0 && static_cast<std::size_t>(label) < classes) {
      ++result.counts[static_cast<std::size_t>(label)];
    }
  };
  for (const std::uint32_t index : spreadIndices(data.size(), maxSamples)) {
    sample.read(data, index);
    ++result.figureSamples;
    for (std::size_t a = 0; a < arrays; ++a) {
      sample.visit(a, [&](auto value) { sums[a].add(static_cast<double>(value)); });
    }
    if (hasLabels || classes == 0) continue;
    sample.visit(arrays - 1, [&](auto value) { count(static_cast<std::int64_t>(value)); });
  }
  for (const FigureSum& sum : sums) result.figures.push_back(sum.figures());
  result.countedSamples = hasLabels ? data.size() : result.figureSamples;
  if (hasLabels) {
    for (std::uint32_t index = 0; index < data.size(); ++index) count(data.label(index).value());
  }
  return result;
}

std::vector<std::int64_t> readIntegers(const Dataset& data, std::uint32_t index,
                                       std::size_t array) {
  SampleBuffer sample(data);
  sample.read(data, index);
  std::vector<std::int64_t> values;
  sample.visit(array, [&](auto value) { values.push_back(static_cast<std::int64_t>(value)); });
  return values;
}

ContactSheet makeContactSheet(const Dataset& data, const SheetOptions& options) {
  constexpr std::uint32_t kRows = 4;  // per half
  SampleBuffer sample(data);
  const std::size_t array = imageArray(sample.arrays());
  const std::vector<std::int64_t>& shape = sample.arrays()[array].shape;
  ContactSheet sheet;
  sheet.samples = spreadIndices(data.size(), ContactSheet::kColumns * kRows);
  std::vector<SheetImage> images;  // the upper half's, then the lower half's
  for (const bool isTraining : {true, false}) {
    for (const std::uint32_t index : sheet.samples) {
      sample.read(data, index, isTraining ? std::optional<std::uint64_t>(1) : std::nullopt);
      sample.visit(array, [&, image = &images.emplace_back()](auto value) {
        image->push_back(static_cast<float>(value));
      });
    }
  }
  revert(images, shape[0], options);
  const auto count = static_cast<std::uint32_t>(sheet.samples.size());
  const std::uint32_t columns = std::min(count, ContactSheet::kColumns);
  SheetPainter painter(shape, columns, (count + columns - 1) / columns);
  for (std::uint32_t n = 0; n < 2 * count; ++n) {
    painter.paint(images[n], n % count % columns, n % count / columns, n < count);
  }
  sheet.pixels = painter.take();
  return sheet;
}

}  // namespace cleave
