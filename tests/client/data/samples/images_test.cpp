// Images in memory: augmentation, compared with a simple reference implementation, and labels.
#include "client/data/samples/images.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <set>

#include "client/data/pictures/bilinear.h"
#include "client/data/samples/loader.h"
#include "client/data/samples/transforms.h"
#include "common/core/random.h"
#include "tests/support/error_code.h"
#include "tests/support/files/samples.h"

namespace cleave::test {
namespace {

constexpr std::uint32_t kImages = 40;
const std::vector<std::int64_t> kShape = {2, 5, 7};
constexpr std::size_t kPixels = 2 * 5 * 7;

ImageStore store() {
  ImageStore images;
  images.first = 3;  // as if the pixels followed a header
  images.stride = kPixels + 1;
  images.shape = kShape;
  images.classes = 4;
  for (std::uint32_t j = 0; j < 3 + kImages * (kPixels + 1); ++j) {
    images.bytes.push_back(static_cast<std::uint8_t>(
        1 + j * 37 % 255));  // no pixel is black, so that padding can be recognised
  }
  for (std::uint32_t j = 0; j < kImages; ++j) images.labels.push_back(j % 4);
  return images;
}

std::uint8_t pixelOf(std::uint32_t index, std::int64_t c, std::int64_t y, std::int64_t x) {
  static const ImageStore images = store();
  return images.bytes[3 + index * (kPixels + 1) + static_cast<std::size_t>((c * 5 + y) * 7 + x)];
}

ImageOptions augmenting(bool flip, int padding, std::uint64_t seed = 3) {
  ImageOptions options;
  options.flip = flip;
  options.cropPadding = padding;
  options.seed = seed;
  options.mean = {0.4, 0.6};
  options.stddev = {0.5, 0.25};
  return options;
}

std::vector<float> sample(const Dataset& data, std::uint32_t index, std::uint64_t epoch) {
  const Sample sample = sampleOf(data, index, epoch);
  CHECK(sample.label == index % 4);
  return sample.values;
}

// The reference implementation: pads the image and cuts out the crop.
std::vector<float> referenceCrop(const ImageOptions& options, std::uint32_t index,
                                 const Placement& placement) {
  const std::int64_t p = options.cropPadding;
  std::vector<float> out;
  for (std::int64_t c = 0; c < 2; ++c) {
    std::vector<double> padded(static_cast<std::size_t>((5 + 2 * p) * (7 + 2 * p)), 0);
    for (std::int64_t y = 0; y < 5; ++y) {
      for (std::int64_t x = 0; x < 7; ++x) {
        padded[static_cast<std::size_t>((y + p) * (7 + 2 * p) + x + p)] =
            pixelOf(index, c, y, placement.flip ? 6 - x : x);
      }
    }
    for (std::int64_t y = 0; y < 5; ++y) {
      for (std::int64_t x = 0; x < 7; ++x) {
        const std::int64_t row = y + p - placement.down;
        const std::int64_t column = x + p - placement.right;
        const double pixel = padded[static_cast<std::size_t>(row * (7 + 2 * p) + column)];
        const auto channel = static_cast<std::size_t>(c);
        out.push_back(
            static_cast<float>((pixel / 255 - options.mean[channel]) / options.stddev[channel]));
      }
    }
  }
  return out;
}

TEST_CASE("an augmented image is a crop of the padded and possibly flipped image") {
  const ImageOptions options = augmenting(true, 2);
  const auto data = makeImages(store(), options);
  for (std::uint32_t index = 0; index < kImages; ++index) {
    for (const std::uint64_t epoch : {1u, 2u}) {
      CHECK(sample(*data, index, epoch) ==
            referenceCrop(options, index, drawPlacement(options, epoch, index)));
    }
  }
}

TEST_CASE("evaluation uses images without augmentation") {
  const auto augmented = makeImages(store(), augmenting(true, 2));
  const auto plain = makeImages(store(), augmenting(false, 0));
  std::vector<float> one(kPixels), other(kPixels);
  for (std::uint32_t index = 0; index < kImages; ++index) {
    augmented->read(index, one);
    plain->read(index, other);
    CHECK(one == other);
    CHECK(sample(*plain, index, 1) == other);
  }
}

TEST_CASE("a random placement depends only on seed, epoch and image, and covers every position") {
  const ImageOptions options = augmenting(true, 2);
  const auto data = makeImages(store(), options);
  const auto again = makeImages(store(), options);
  CHECK(sample(*data, 7, 4) == sample(*again, 7, 4));
  const auto otherSeed = makeImages(store(), augmenting(true, 2, 4));
  int sameEpoch = 0;
  int sameSeed = 0;
  for (std::uint32_t index = 0; index < kImages; ++index) {
    sameEpoch += sample(*data, index, 1) == sample(*data, index, 2);
    sameSeed += sample(*data, index, 1) == sample(*otherSeed, index, 1);
  }
  CHECK(sameEpoch < 10);  // by chance, 1 in 50 placements is the same
  CHECK(sameSeed < 10);

  std::set<int> downs, rights;
  int flips = 0;
  constexpr std::uint32_t kDraws = 2000;
  for (std::uint32_t index = 0; index < kDraws; ++index) {
    const Placement placement = drawPlacement(options, 1, index);
    downs.insert(placement.down);
    rights.insert(placement.right);
    flips += placement.flip ? 1 : 0;
  }
  CHECK(downs == std::set<int>{-2, -1, 0, 1, 2});
  CHECK(rights == downs);
  CHECK(std::abs(flips - 1000) < 150);  // 6.7 standard deviations
}

TEST_CASE("an image in a slice is augmented as in the whole dataset") {
  const std::shared_ptr<const Dataset> data = makeImages(store(), augmenting(true, 2));
  const auto slice = sliceDataset(data, 12, 8);
  CHECK(sample(*slice, 4, 3) == sample(*data, 16, 3));
}

TEST_CASE("a loader augments in training passes only, for any batch size") {
  const std::shared_ptr<const Dataset> data = makeImages(store(), augmenting(true, 2));
  for (const std::uint32_t size : {1u, 7u, 40u}) {
    Loader loader(data, std::make_shared<BufferPool>(), {.batch = size, .epoch = 5});
    Loader plain(data, std::make_shared<BufferPool>(), {.batch = size});
    std::uint32_t index = 0;
    while (const auto batch = loader.next()) {
      const auto plainBatch = plain.next();
      const float* values = valuesOf(*batch).data();
      const float* plainValues = valuesOf(*plainBatch).data();
      for (std::uint32_t j = 0; j < batch->samples(); ++j, ++index) {
        const auto expected = sample(*data, index, 5);
        CHECK(std::equal(expected.begin(), expected.end(), values + j * kPixels));
        const std::vector<float> unchanged = readSample(*data, index);
        CHECK(std::equal(unchanged.begin(), unchanged.end(), plainValues + j * kPixels));
      }
    }
    CHECK(index == kImages);
  }
}

TEST_CASE("a resized dataset reports the resized shape, and resizes after augmenting") {
  ImageOptions options = augmenting(true, 2);
  const auto small = makeImages(store(), options);
  options.resize = 16;
  const auto large = makeImages(store(), options);
  CHECK(large->sampleShape() == std::vector<std::int64_t>{2, 16, 16});
  std::vector<float> resized(2 * 16 * 16), expected(2 * 16 * 16);
  CHECK(large->readForTraining(9, 2, resized) == 1);
  const std::vector<float> before = sample(*small, 9, 2);
  const BilinearAxis rows(5, 16), columns(7, 16);
  for (std::size_t c = 0; c < 2; ++c) {
    const auto read = [&](std::size_t y, float* to, std::ptrdiff_t) {
      std::copy_n(before.begin() + static_cast<std::ptrdiff_t>((c * 5 + y) * 7), 7, to);
    };
    resizeChannel(rows, columns, read, std::span(expected).subspan(c * 256, 256));
  }
  CHECK(resized == expected);
}

TEST_CASE("padding beyond the image is refused") {
  CHECK_NOTHROW(makeImages(store(), augmenting(false, 5)));
  CHECK(errorCode([] { makeImages(store(), augmenting(false, 6)); }) == "bad-image-transform");
}

}  // namespace
}  // namespace cleave::test
