#include "client/data/images.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <string>
#include <utility>

#include "common/core/random.h"

namespace cleave {
namespace {

// Maps each byte value of a channel to the model's input value.
using ValueTable = std::array<float, 256>;

ValueTable valueTable(double mean, double deviation) {
  ValueTable values{};
  for (std::size_t x = 0; x < values.size(); ++x) {
    values[x] = static_cast<float>((static_cast<double>(x) / 255 - mean) / deviation);
  }
  return values;
}

// One value for all channels, or one per channel.
double valueOf(const std::vector<double>& values, std::size_t channel, std::size_t channels,
               const std::string& key) {
  if (values.size() != 1 && values.size() != channels) {
    throw UsageError("bad-config",
                     key + " has " + std::to_string(values.size()) +
                         " values, but the images have " + std::to_string(channels) +
                         (channels == 1 ? " channel" : " channels"),
                     "give one value per channel, or one for all channels");
  }
  return values[values.size() == 1 ? 0 : channel];
}

// The two input coordinates around an output coordinate, with their weights. PyTorch's rule
// (area_pixel_compute_source_index): the centre of pixel x is at x + 0.5.
struct Neighbours {
  std::size_t low, high;
  float lowWeight, highWeight;
};

std::vector<Neighbours> neighboursOf(std::int64_t from, std::int64_t to) {
  const float scale = static_cast<float>(from) / static_cast<float>(to);
  std::vector<Neighbours> all;
  all.reserve(static_cast<std::size_t>(to));
  for (std::int64_t x = 0; x < to; ++x) {
    const float source = std::max(0.0f, scale * (static_cast<float>(x) + 0.5f) - 0.5f);
    const auto low = std::min(static_cast<std::int64_t>(source), from - 1);
    const auto high = std::min(low + 1, from - 1);
    const float weight = std::min(source - static_cast<float>(low), 1.0f);
    all.push_back(
        {static_cast<std::size_t>(low), static_cast<std::size_t>(high), 1.0f - weight, weight});
  }
  return all;
}

class Images final : public LabeledDataset {
 public:
  Images(ImageStore store, const ImageOptions& options)
      : store_(std::move(store)), options_(options) {
    const std::size_t channels = static_cast<std::size_t>(store_.shape.at(0));
    for (std::size_t c = 0; c < channels; ++c) {
      tables_.push_back(valueTable(valueOf(options.mean, c, channels, "data.mean"),
                                   valueOf(options.deviation, c, channels, "data.deviation")));
    }
    if (options.cropPadding > std::min(store_.shape.at(1), store_.shape.at(2))) {
      throw UsageError("bad-config",
                       "data.augment.crop_padding is " + std::to_string(options.cropPadding) +
                           ", more than the images' " + std::to_string(store_.shape[1]) + " x " +
                           std::to_string(store_.shape[2]) + " pixels",
                       "pad with fewer pixels, such as 4");
    }
    shape_ = store_.shape;
    if (options.resize > 0) shape_[1] = shape_[2] = options.resize;
  }

  std::uint32_t size() const override { return static_cast<std::uint32_t>(store_.labels.size()); }
  std::vector<std::int64_t> sampleShape() const override { return shape_; }
  int classes() const override { return store_.classes; }

  std::int64_t read(std::uint32_t index, std::span<float> out) const override {
    return draw(index, Placement(), out);
  }
  std::int64_t readForTraining(std::uint32_t index, std::uint64_t epoch,
                               std::span<float> out) const override {
    return draw(index, drawPlacement(options_, epoch, index), out);
  }

 private:
  std::int64_t draw(std::uint32_t index, const Placement& placement, std::span<float> out) const {
    assert(index < size());
    if (shape_ == store_.shape) {
      place(index, placement, out);
    } else {
      std::vector<float> placed(static_cast<std::size_t>(store_.shape[0] * store_.shape[1]) *
                                static_cast<std::size_t>(store_.shape[2]));
      place(index, placement, placed);
      resizeBilinear(placed, {store_.shape[1], store_.shape[2]}, out, {shape_[1], shape_[2]});
    }
    return store_.labels[index];
  }

  // Writes the image in its original size as floats.
  void place(std::uint32_t index, const Placement& placement, std::span<float> out) const {
    const std::int64_t height = store_.shape[1];
    const std::int64_t width = store_.shape[2];
    const std::uint8_t* pixels = store_.bytes.data() + store_.first + index * store_.stride;
    float* to = out.data();
    for (const ValueTable& table : tables_) {
      for (std::int64_t y = 0; y < height; ++y, to += width) {
        const std::int64_t row = y - placement.down;
        if (row < 0 || row >= height) {
          std::fill(to, to + width, table[0]);
          continue;
        }
        const std::uint8_t* from = pixels + row * width;
        for (std::int64_t x = 0; x < width; ++x) {
          const std::int64_t column = x - placement.right;
          const bool inside = column >= 0 && column < width;
          to[x] = table[!inside ? 0 : from[placement.flip ? width - 1 - column : column]];
        }
      }
      pixels += height * width;
    }
  }

  ImageStore store_;
  ImageOptions options_;
  std::vector<std::int64_t> shape_;  // of a sample
  std::vector<ValueTable> tables_;   // one per channel
};

}  // namespace

std::unique_ptr<LabeledDataset> makeImages(ImageStore store, const ImageOptions& options) {
  return std::make_unique<Images>(std::move(store), options);
}

Placement drawPlacement(const ImageOptions& options, std::uint64_t epoch, std::uint32_t index) {
  const RandomKey key = randomKey(options.seed, "augment", {epoch, index});
  Placement placement;
  placement.flip = options.flip && (randomBits(key, 0) & 1) != 0;
  const auto places = 2 * static_cast<std::uint64_t>(options.cropPadding) + 1;
  // The modulo bias is below 2^-50.
  placement.down = static_cast<int>(randomBits(key, 1) % places) - options.cropPadding;
  placement.right = static_cast<int>(randomBits(key, 2) % places) - options.cropPadding;
  return placement;
}

void resizeBilinear(std::span<const float> in, ImageSize from, std::span<float> out, ImageSize to) {
  const std::vector<Neighbours> rows = neighboursOf(from.height, to.height);
  const std::vector<Neighbours> columns = neighboursOf(from.width, to.width);
  const auto width = static_cast<std::size_t>(to.width);
  const std::size_t inRows =
      in.size() / static_cast<std::size_t>(from.width);  // rows of all channels
  // Interpolates horizontally, then vertically. The products and sums are the same as in a single
  // pass, but the horizontal ones are computed only once per input row.
  std::vector<float> wide(inRows * width);
  for (std::size_t row = 0; row < inRows; ++row) {
    const float* source = in.data() + row * static_cast<std::size_t>(from.width);
    float* target = wide.data() + row * width;
    for (std::size_t x = 0; x < width; ++x) {
      const Neighbours& column = columns[x];
      target[x] = column.lowWeight * source[column.low] + column.highWeight * source[column.high];
    }
  }
  float* target = out.data();
  for (std::size_t first = 0; first < inRows; first += static_cast<std::size_t>(from.height)) {
    for (const Neighbours& row : rows) {
      const float* low = wide.data() + (first + row.low) * width;
      const float* high = wide.data() + (first + row.high) * width;
      for (std::size_t x = 0; x < width; ++x) {
        target[x] = row.lowWeight * low[x] + row.highWeight * high[x];
      }
      target += width;
    }
  }
}

}  // namespace cleave
