// Compares the codes of `kmeans` with a plain search for the nearest centroid, and its centroids
// with those of Lloyd's algorithm on the values.
#include <cmath>
#include <cstring>
#include <limits>

#include "common/core/random.h"
#include "compression/kernels/pieces.h"
#include "compression/registry.h"
#include "tests/support/codecs/codec_tensors.h"

using namespace cleave;
using namespace cleave::test;

namespace {

constexpr float kLargest = std::numeric_limits<float>::max();

std::unique_ptr<Codec> kmeans(int bits, int iterations = 20) {
  return makeCodec("kmeans:bits=" + std::to_string(bits) +
                   ",iterations=" + std::to_string(iterations));
}

std::vector<float> sample(int kind, std::size_t elements) {
  std::vector<float> values(elements);
  fillNormal(randomKey(9, "kmeans-test"), values);
  for (float& x : values) {
    if (kind == 1) x = std::nearbyint(x);
    if (kind == 2) x = x < 0 ? -0.0f : x;
    if (kind == 3) x = x * x * x * x * x;
  }
  return values;
}

std::vector<float> centroidsOf(const Bytes& bytes, int bits) {
  std::vector<float> centroids(std::size_t{1} << bits);
  std::memcpy(centroids.data(), &bytes[1], centroids.size() * sizeof(float));
  return centroids;
}

double meanSquareError(const std::vector<float>& values, const std::vector<float>& decoded) {
  double error = 0;
  for (std::size_t j = 0; j < values.size(); ++j) {
    error += std::pow(double{values[j]} - double{decoded[j]}, 2);
  }
  return error / static_cast<double>(values.size());
}

// Lloyd's algorithm on the values. The initial centroids are evenly spaced quantiles.
double plainError(std::vector<float> values, int bits, int iterations) {
  std::sort(values.begin(), values.end());
  const std::size_t count = std::size_t{1} << bits;
  std::vector<double> centroids;
  for (std::size_t c = 0; c < count; ++c) {
    centroids.push_back(double{values[(2 * c + 1) * values.size() / (2 * count)]});
  }
  double error = 0;
  for (int iteration = 0; iteration <= iterations; ++iteration) {
    std::vector<double> sums(count), counts(count);
    error = 0;
    std::size_t c = 0;
    for (const float value : values) {
      const double x = double{value};
      while (c + 1 < count && std::abs(x - centroids[c + 1]) <= std::abs(x - centroids[c])) ++c;
      sums[c] += x;
      ++counts[c];
      error += (x - centroids[c]) * (x - centroids[c]);
    }
    for (std::size_t k = 0; k < count; ++k) {
      if (counts[k] > 0) centroids[k] = sums[k] / counts[k];
    }
  }
  return error / static_cast<double>(values.size());
}

}  // namespace

TEST_CASE("every element decodes to the nearest centroid") {
  for (int bits = 1; bits <= 8; ++bits) {
    for (int kind = 0; kind < 4; ++kind) {
      const Tensor tensor = tensorOf(sample(kind, 3001));
      const Bytes bytes = encode(*kmeans(bits), tensor);
      REQUIRE(bytes[0] == std::byte{1});
      const std::vector<float> centroids = centroidsOf(bytes, bits);
      CHECK(std::is_sorted(centroids.begin(), centroids.end()));
      const std::vector<float> values = valuesOf(tensor);
      const std::vector<float> decoded = valuesOf(decode(*kmeans(bits), bytes, tensor.spec));
      for (std::size_t j = 0; j < values.size(); ++j) {
        float nearest = std::abs(values[j] - decoded[j]);
        for (const float centroid : centroids) {
          nearest = std::min(nearest, std::abs(values[j] - centroid));
        }
        REQUIRE(std::abs(values[j] - decoded[j]) <= nearest * 1.00001f + 1e-6f);
      }
    }
  }
}

TEST_CASE("the error is at most that of Lloyd's algorithm on the values") {
  for (const int bits : {1, 2, 3, 4, 6}) {
    for (const int kind : {0, 2, 3}) {
      INFO(bits << " bits, kind " << kind);
      const Tensor tensor = tensorOf(sample(kind, 20000));
      const std::vector<float> values = valuesOf(tensor);
      const Bytes bytes = encode(*kmeans(bits, 50), tensor);
      const double error =
          meanSquareError(values, valuesOf(decode(*kmeans(bits, 50), bytes, tensor.spec)));
      CHECK(error <= plainError(values, bits, 50) * 1.05);
    }
  }
}

TEST_CASE("a tensor with no more distinct values than centroids is restored exactly") {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    std::vector<float> values(2000);
    for (std::size_t j = 0; j < values.size(); ++j) values[j] = static_cast<float>(j * j % 11) - 3;
    const Tensor tensor = tensorOf(values, dtype);
    const bool same =
        decode(*kmeans(4), encode(*kmeans(4), tensor), tensor.spec).bytes == tensor.bytes;
    CHECK(same);
  }
}

TEST_CASE("a constant is restored exactly") {
  for (const float constant : {0.0f, 0.1f, -7.5f, kLargest, -kLargest}) {
    const Tensor tensor = tensorOf(std::vector<float>(500, constant));
    CHECK((decode(*kmeans(3), encode(*kmeans(3), tensor), tensor.spec).bytes == tensor.bytes));
  }
}

TEST_CASE("values near the limits of fp32 stay finite") {
  std::vector<float> values = sample(0, 1000);
  for (float& value : values) value *= 5e37f;
  values[7] = -kLargest;
  values[8] = kLargest;
  const Tensor tensor = tensorOf(values);
  for (const int bits : {1, 4, 7}) {
    for (const float x :
         valuesOf(decode(*kmeans(bits), encode(*kmeans(bits), tensor), tensor.spec)))
      REQUIRE(std::isfinite(x));
  }
}

TEST_CASE("every instruction set produces the same bytes") {
  const std::int64_t sets = instructionSets();
  for (const int bits : {1, 4, 8}) {
    const Tensor tensor = tensorOf(sample(0, 5003));
    const Bytes bytes = encode(*kmeans(bits), tensor);
    for (std::int64_t set = 1; set != 0 && set <= sets; set <<= 1) {
      if (!(sets & set)) continue;
      chooseInstructionSets(set);
      const bool same = encode(*kmeans(bits), tensor) == bytes;
      chooseInstructionSets(0);
      REQUIRE(same);
    }
  }
}

TEST_CASE("centroids that are not finite or do not ascend are refused") {
  const Tensor tensor = tensorOf(sample(0, 200));
  const Bytes good = encode(*kmeans(2), tensor);
  for (const float bad :
       {std::nanf(""), kLargest, -kLargest, std::numeric_limits<float>::infinity()}) {
    Bytes bytes = good;
    std::memcpy(&bytes[1 + 4], &bad, sizeof bad);
    CHECK_THROWS_AS(decode(*kmeans(2), bytes, tensor.spec), ProtocolError);
  }
  const float tooLarge = 1e6f;
  Bytes bytes = encode(*kmeans(2), tensorOf(sample(0, 200), DType::f16));
  std::memcpy(&bytes[1 + 12], &tooLarge, sizeof tooLarge);
  CHECK_THROWS_AS(decode(*kmeans(2), bytes, tensorOf(sample(0, 200), DType::f16).spec),
                  ProtocolError);
}
