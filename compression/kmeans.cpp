// `kmeans:bits=B,iterations=N`: each element as the nearest of 2^B centroids, found by Lloyd's
// algorithm (Lloyd, "Least squares quantization in PCM", 1982).
//
//   payload = nothing                          for a tensor without elements
//           | 0x00, the tensor's own bytes     if packing would not make it shorter
//           | 0x01, 2^B centroids: fp32, ascending, codes
//                                              B bits per code, lowest bit and byte first
//
// The tensor's spec determines the form of the payload, and so its length. An element decodes to
// its code's centroid; of two equally near centroids, the larger is used. -0 counts as +0.
//
// Lloyd's algorithm runs on a histogram, so that iterations need not access the values. Its 65536
// bins are the top 16 bits of keys that sort like the values, so the width of a bin is at most
// 1/128 of its values. Each bin has a count and the sum of its values. Initial centroids divide the
// integral of the square root of the density into equal parts. A centroid that is nearest to no bin
// moves to the bin with the largest squared distance from its centroid, weighted by the bin's
// count.
#include <algorithm>
#include <array>
#include <cmath>

#include "compression/codecs.h"
#include "compression/packed_codec.h"
#include "compression/parts/bins.h"
#include "compression/parts/convert.h"
#include "compression/parts/look_up.h"
#include "compression/parts/piece_codes.h"

namespace cleave {
namespace {

constexpr std::size_t kFineBins = 65536;

struct Bin {
  double sum = 0;
  std::uint64_t count = 0;
};

std::uint32_t fineBinOf(float value) { return orderKey(value) >> 16; }

// The non-empty bins, ascending. sums[b] and counts[b] are totals over the bins below b.
struct Histogram {
  std::vector<double> means;       // of each bin
  std::vector<double> sums = {0};  // means.size() + 1
  std::vector<std::uint64_t> counts = {0};

  std::size_t size() const { return means.size(); }
  double count(std::size_t b) const { return static_cast<double>(counts[b + 1] - counts[b]); }
};

Histogram histogramOf(const FloatReader& values) {
  // Alternates between two sets of bins, because neighbours often fall into the same bin, and an
  // addition to it would have to wait for the previous one.
  std::vector<Bin> bins(2 * kFineBins);
  forEachStrip(values, [&](std::size_t, std::size_t count, const float* strip) {
    for (std::size_t j = 0; j < count; ++j) {
      Bin& bin = bins[std::size_t{2} * fineBinOf(strip[j]) + j % 2];
      bin.sum += double{strip[j]};
      ++bin.count;
    }
  });
  Histogram histogram;
  for (std::size_t b = 0; b < kFineBins; ++b) {
    const double sum = bins[2 * b].sum + bins[2 * b + 1].sum;
    const std::uint64_t count = bins[2 * b].count + bins[2 * b + 1].count;
    if (count == 0) continue;
    histogram.means.push_back(sum / static_cast<double>(count));
    histogram.sums.push_back(histogram.sums.back() + sum);
    histogram.counts.push_back(histogram.counts.back() + count);
  }
  return histogram;
}

std::vector<double> initialCentroids(const Histogram& histogram, std::size_t count) {
  // A bin extends halfway to its neighbours; if there is only one, its width does not matter.
  std::vector<double> integral = {0};
  for (std::size_t b = 0; b < histogram.size(); ++b) {
    const double below = histogram.means[b > 0 ? b - 1 : b];
    const double above = histogram.means[std::min(b + 1, histogram.size() - 1)];
    integral.push_back(integral.back() + std::sqrt(histogram.count(b) * (above / 2 - below / 2)));
  }
  std::vector<double> centroids;
  for (std::size_t c = 0; c < count; ++c) {
    const double target =
        integral.back() * (static_cast<double>(c) + 0.5) / static_cast<double>(count);
    const auto place = std::upper_bound(integral.begin() + 1, integral.end() - 1, target);
    centroids.push_back(histogram.means[static_cast<std::size_t>(place - integral.begin() - 1)]);
  }
  return centroids;
}

// The first bin of each cluster; finally, the number of bins.
std::vector<std::size_t> assign(const Histogram& histogram, const std::vector<double>& centroids) {
  std::vector<std::size_t> first = {0};
  for (std::size_t c = 1; c < centroids.size(); ++c) {
    const double bound = centroids[c - 1] / 2 + centroids[c] / 2;
    const auto from = histogram.means.begin() + static_cast<std::ptrdiff_t>(first.back());
    const auto place = std::lower_bound(from, histogram.means.end(), bound);
    first.push_back(static_cast<std::size_t>(place - histogram.means.begin()));
  }
  first.push_back(histogram.size());
  return first;
}

// Moves each empty cluster to one of the bins with the largest errors. If there are no errors,
// empty clusters stay.
void placeEmpty(const Histogram& histogram, const std::vector<std::size_t>& first,
                std::vector<double>& centroids, const std::vector<std::size_t>& empty) {
  std::vector<std::pair<double, std::size_t>> errors;
  for (std::size_t c = 0; c < centroids.size(); ++c) {
    for (std::size_t b = first[c]; b < first[c + 1]; ++b) {
      const double distance = histogram.means[b] - centroids[c];
      const double error = histogram.count(b) * (distance * distance);
      if (error > 0) errors.emplace_back(-error, b);
    }
  }
  const std::size_t placed = std::min(errors.size(), empty.size());
  std::partial_sort(errors.begin(), errors.begin() + static_cast<std::ptrdiff_t>(placed),
                    errors.end());
  for (std::size_t k = 0; k < placed; ++k) {
    centroids[empty[k]] = histogram.means[errors[k].second];
  }
}

std::vector<double> lloyd(const CodecContext& context, const Histogram& histogram,
                          std::size_t count, int iterations) {
  std::vector<double> centroids = initialCentroids(histogram, count);
  std::vector<std::size_t> before;
  for (int iteration = 0; iteration < iterations; ++iteration) {
    const std::vector<std::size_t> first = assign(histogram, centroids);
    if (first == before) break;
    std::vector<std::size_t> empty;
    for (std::size_t c = 0; c < count; ++c) {
      const std::size_t low = first[c];
      const std::size_t high = first[c + 1];
      if (low == high) {
        empty.push_back(c);
      } else if (high - low == 1) {
        centroids[c] = histogram.means[low];
      } else {
        centroids[c] = (histogram.sums[high] - histogram.sums[low]) /
                       static_cast<double>(histogram.counts[high] - histogram.counts[low]);
      }
    }
    // After the last iteration, centroids stay at the means of their values.
    if (!empty.empty() && iteration + 1 < iterations) {
      placeEmpty(histogram, first, centroids, empty);
    }
    std::sort(centroids.begin(), centroids.end());
    before = first;
    context.checkpoint();
  }
  return centroids;
}

class KMeans : public PackedCodec {
 public:
  KMeans(int bits, int iterations) : bits_(bits), iterations_(iterations) {}

  std::string spec() const override {
    return "kmeans:bits=" + std::to_string(bits_) + ",iterations=" + std::to_string(iterations_);
  }

 private:
  std::size_t centroidCount() const { return std::size_t{1} << bits_; }
  std::size_t headerBytes() const { return centroidCount() * sizeof(float); }
  std::size_t packedPayloadBytes(const TensorSpec& spec) const override {
    return kFormatBytes + headerBytes() + packedBytes(spec.elements(), bits_);
  }

  void encodePacked(const CodecContext& context, const TensorView& view,
                    std::byte* out) const override {
    const kernels::Range range = rangeOf(context, view);
    if (!range.finite) throw NonFiniteError(context.key);
    const FloatReader values(view);
    const std::vector<double> centroids =
        lloyd(context, histogramOf(values), centroidCount(), iterations_);
    PieceGrids grids;
    grids.pieceBits = bits_;
    for (std::size_t c = 0; c < centroidCount(); ++c) {
      // Rounding a mean must not move it out of the values' range.
      const float centroid =
          std::clamp(static_cast<float>(centroids[c]), range.min, range.max) + 0.0f;
      grids.mins[c] = centroid;
      putFloat(out + c * sizeof(float), centroid);
      if (c == 0) continue;
      grids.bounds[c] = static_cast<float>(double{grids.mins[c - 1]} / 2 + double{centroid} / 2);
    }
    grids.prepare();
    packCodes<std::uint8_t>(context, values, grids, out + headerBytes());
  }

  void decodePacked(const CodecContext& context, const std::byte* bytes,
                    MutableTensorView out) const override {
    std::array<float, PieceGrids::kMaxPieces> table{};
    std::memcpy(table.data(), bytes, headerBytes());
    const std::span<float> centroids(table.data(), centroidCount());
    if (!std::is_sorted(centroids.begin(), centroids.end())) {
      throwBadPayload(*this, context.key, "its centroids are not in ascending order");
    }
    roundTo(out.spec.dtype, centroids);  // as writing the output would
    if (!allFinite(centroids)) throwBadPayload(*this, context.key, "a centroid is not finite");
    lookUp(context, bytes + headerBytes(), bits_, centroids, out);
  }

  const int bits_;
  const int iterations_;
};

}  // namespace

std::unique_ptr<Codec> makeKMeans(const CodecSpec& spec) {
  CodecParameters parameters(spec);
  const int bits = parameters.integer("bits", 1, 8, 4);
  const int iterations = parameters.integer("iterations", 1, 1000, 20);
  parameters.finish();
  return std::make_unique<KMeans>(bits, iterations);
}

}  // namespace cleave
