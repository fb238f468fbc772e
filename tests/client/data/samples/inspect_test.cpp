// The results of `cleave-client data show`: statistics, class counts, and the contact sheet.
#include "client/data/samples/inspect.h"

#include <catch2/catch.hpp>
#include <limits>
#include <utility>

#include "tests/support/error_code.h"

namespace cleave::test {
namespace {

// Sample i has the values i, i + 1, … in an array of this shape, and the class i % 3. As training
// reads it, each value is larger by 100 x epoch.
class Counting final : public LabeledDataset {
 public:
  Counting(std::uint32_t size, std::vector<std::int64_t> shape, bool hasLabels)
      : size_(size), shape_(std::move(shape)), hasLabels_(hasLabels) {}
  std::uint32_t size() const override { return size_; }
  int classes() const override { return 3; }
  std::vector<std::int64_t> sampleShape() const override { return shape_; }
  std::optional<std::int64_t> label(std::uint32_t index) const override {
    if (!hasLabels_) return std::nullopt;
    return index % 3;
  }
  std::int64_t read(std::uint32_t index, std::span<float> out) const override {
    for (std::size_t n = 0; n < out.size(); ++n) out[n] = static_cast<float>(index + n);
    return index % 3;
  }
  std::int64_t readForTraining(std::uint32_t index, std::uint64_t epoch,
                               std::span<float> out) const override {
    read(index, out);
    for (float& value : out) value += 100 * static_cast<float>(epoch);
    return index % 3;
  }

 private:
  std::uint32_t size_;
  std::vector<std::int64_t> shape_;
  bool hasLabels_;
};

class NotFinite final : public Dataset {
 public:
  std::uint32_t size() const override { return 2; }
  int classes() const override { return 0; }
  std::vector<SampleArray> arrays() const override {
    return {{"ids", DType::i64, {3}}, {"score", DType::f32}};
  }
  void write(std::uint32_t index, std::optional<std::uint64_t>, SampleMemory out) const override {
    const std::int64_t ids[] = {5, 6, 7 + index};
    const float score = index == 0 ? std::numeric_limits<float>::infinity() : 2.0f;
    std::copy_n(reinterpret_cast<const std::byte*>(ids), sizeof ids, out[0].begin());
    std::copy_n(reinterpret_cast<const std::byte*>(&score), sizeof score, out[1].begin());
  }
};

TEST_CASE(
    "statistics use evenly spaced samples, and class counts use all samples if labels are cheap") {
  CHECK(spreadIndices(10, 4) == std::vector<std::uint32_t>{0, 2, 5, 7});
  CHECK(spreadIndices(3, 8) == std::vector<std::uint32_t>{0, 1, 2});
  for (const bool hasLabels : {true, false}) {
    const Counting data(10, {2}, hasLabels);
    const DataFigures figures = inspectData(data, 4);  // the values are 0 1, 2 3, 5 6, 7 8
    CHECK(figures.figureSamples == 4);
    REQUIRE(figures.figures.size() == 2);
    CHECK(figures.figures[0].min == 0);
    CHECK(figures.figures[0].max == 8);
    CHECK(figures.figures[0].mean == Approx(4));
    CHECK(figures.figures[0].std == Approx(std::sqrt(60.0 / 8)));
    CHECK(figures.figures[1].max == 2);
    CHECK(figures.countedSamples == (hasLabels ? 10u : 4u));
    CHECK(figures.counts ==
          (hasLabels ? std::vector<std::uint64_t>{4, 3, 3} : std::vector<std::uint64_t>{1, 1, 2}));
  }
}

TEST_CASE("values that are not finite are counted separately, and integers are accepted") {
  const NotFinite data;
  const DataFigures figures = inspectData(data, 10);
  CHECK(figures.counts.empty());
  CHECK(figures.figures[0].max == 8);
  CHECK(figures.figures[0].notFinite == 0);
  CHECK(figures.figures[1].notFinite == 1);
  CHECK(figures.figures[1].mean == 2);
  CHECK(readIntegers(data, 1, 0) == std::vector<std::int64_t>{5, 6, 8});
}

std::uint8_t pixelAt(const Pixels& sheet, std::int64_t y, std::int64_t x) {
  return sheet.bytes[static_cast<std::size_t>((y * sheet.width + x) * sheet.channels)];
}

TEST_CASE("a sheet shows training samples above evaluation samples") {
  const Counting data(9, {1, 1, 1}, true);
  const ContactSheet sheet = makeContactSheet(data, {});
  CHECK(sheet.samples == std::vector<std::uint32_t>{0, 1, 2, 3, 4, 5, 6, 7, 8});
  const Pixels& pixels = sheet.pixels;
  CHECK(pixels.channels == 1);
  // 8 columns of 2 + 2 images, enlarged to 96 pixels, with gaps of 4 pixels.
  REQUIRE(pixels.width == 8 * 100 + 4);
  REQUIRE(pixels.height == 4 * 100 + 12);
  // Training values are 100 to 108, evaluation values 0 to 8. So 0 is black and 108 is white.
  for (std::int64_t n = 0; n < 9; ++n) {
    const std::int64_t y = 50 + n / 8 * 100, x = 50 + n % 8 * 100;
    CHECK(pixelAt(pixels, y, x) == std::lround(255.0 * static_cast<double>(100 + n) / 108));
    CHECK(pixelAt(pixels, y + 208, x) == std::lround(255.0 * static_cast<double>(n) / 108));
  }
  CHECK(pixelAt(pixels, 206, 400) == 255);  // the line between training and evaluation
}

TEST_CASE("a sheet reverts a known normalisation, and shrinks large images") {
  const Counting data(1, {3, 600, 2}, true);
  const ContactSheet sheet = makeContactSheet(data, {.mean = {0.5, 0.5, -1}, .stddev = {0.0001}});
  CHECK(sheet.pixels.channels == 3);
  CHECK(sheet.pixels.width == 1 + 8);
  CHECK(sheet.pixels.height == 2 * (200 + 4) + 12);
  // In evaluation, the pixel's value is y * 2 of the first column.
  const std::int64_t top = 3 * 4 + 204;
  CHECK(pixelAt(sheet.pixels, top + 100, 4) == std::lround(255 * (0.5 + 600 * 0.0001)));
  CHECK(sheet.pixels.bytes[static_cast<std::size_t>((top + 100) * 9 + 4) * 3 + 2] == 0);  // clamped
}

TEST_CASE("data without images is refused for a sheet") {
  CHECK(errorCode([] { makeContactSheet(Counting(4, {5}, true), {}); }) == "no-images");
  CHECK(errorCode([] { makeContactSheet(NotFinite(), {}); }) == "no-images");
}

}  // namespace
}  // namespace cleave::test
