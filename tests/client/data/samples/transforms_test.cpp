// The transforms that are applied to an image before it is the model's input.
#include "client/data/samples/transforms.h"

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <cmath>
#include <fstream>
#include <iterator>
#include <map>
#include <numeric>
#include <set>
#include <string>

#include "client/data/pictures/bilinear.h"
#include "common/core/random.h"
#include "tests/support/error_code.h"

namespace cleave::test {
namespace {

// ---- Bilinear resizing ----

struct ImageSize {
  std::int64_t height = 0, width = 0;
};

std::vector<float> resized(const std::vector<float>& in, ImageSize from, ImageSize to) {
  const auto inSize = static_cast<std::size_t>(from.height * from.width);
  const auto outSize = static_cast<std::size_t>(to.height * to.width);
  std::vector<float> out(in.size() / inSize * outSize);
  const BilinearAxis rows(from.height, to.height), columns(from.width, to.width);
  for (std::size_t c = 0; c < in.size() / inSize; ++c) {
    const auto read = [&](std::size_t y, float* row, std::ptrdiff_t stride) {
      for (std::size_t x = columns.begin(); x < columns.end(); ++x, row += stride) {
        *row = in[c * inSize + y * static_cast<std::size_t>(from.width) + x];
      }
    };
    resizeChannel(rows, columns, read, std::span(out).subspan(c * outSize, outSize));
  }
  return out;
}

std::vector<float> normalValues(ImageSize size) {
  std::vector<float> values(static_cast<std::size_t>(3 * size.height * size.width));
  fillNormal(randomKey(1, "resize"), values);
  return values;
}

double worstDifference(const std::vector<float>& out, const std::vector<double>& expected) {
  REQUIRE(out.size() == expected.size());
  double worst = 0;
  for (std::size_t j = 0; j < out.size(); ++j) {
    worst = std::max(worst, std::abs(double{out[j]} - expected[j]));
  }
  return worst;
}

// Bilinear interpolation by its definition: each output separately, in double.
std::vector<double> referenceResize(const std::vector<float>& in, ImageSize from, ImageSize to) {
  std::vector<double> out;
  const auto at = [&](std::size_t c, std::int64_t y, std::int64_t x) {
    y = std::clamp<std::int64_t>(y, 0, from.height - 1);
    x = std::clamp<std::int64_t>(x, 0, from.width - 1);
    return double{in[c * static_cast<std::size_t>(from.height * from.width) +
                     static_cast<std::size_t>(y * from.width + x)]};
  };
  const std::size_t channels = in.size() / static_cast<std::size_t>(from.height * from.width);
  for (std::size_t c = 0; c < channels; ++c) {
    for (std::int64_t y = 0; y < to.height; ++y) {
      for (std::int64_t x = 0; x < to.width; ++x) {
        const double sy = (static_cast<double>(y) + 0.5) * static_cast<double>(from.height) /
                              static_cast<double>(to.height) -
                          0.5;
        const double sx = (static_cast<double>(x) + 0.5) * static_cast<double>(from.width) /
                              static_cast<double>(to.width) -
                          0.5;
        const auto top = static_cast<std::int64_t>(std::floor(sy));
        const auto left = static_cast<std::int64_t>(std::floor(sx));
        const double fy = sy - static_cast<double>(top);
        const double fx = sx - static_cast<double>(left);
        out.push_back((1 - fy) * ((1 - fx) * at(c, top, left) + fx * at(c, top, left + 1)) +
                      fy * ((1 - fx) * at(c, top + 1, left) + fx * at(c, top + 1, left + 1)));
      }
    }
  }
  return out;
}

TEST_CASE("enlarging is bilinear interpolation") {
  const std::vector<std::pair<ImageSize, ImageSize>> cases = {
      {{32, 32}, {224, 224}}, {{5, 7}, {12, 9}}, {{1, 1}, {3, 5}},
      {{1, 6}, {4, 6}},       {{6, 6}, {6, 6}},  {{28, 28}, {96, 96}}};
  for (const auto& [from, to] : cases) {
    INFO(from.height << "x" << from.width << " to " << to.height << "x" << to.width);
    const std::vector<float> in = normalValues(from);
    const std::vector<float> out = resized(in, from, to);
    CHECK(worstDifference(out, referenceResize(in, from, to)) < 2e-5);
    if (from.height == to.height && from.width == to.width) CHECK(out == in);
  }
}

// The weights of one output when an axis is shortened, according to the definition of the filter.
std::vector<double> triangle(std::int64_t from, std::int64_t to, std::int64_t x) {
  const double scale = static_cast<double>(from) / static_cast<double>(to);
  const double centre = scale * (static_cast<double>(x) + 0.5);
  std::vector<double> weights;
  for (std::int64_t n = 0; n < from; ++n) {
    const double distance = std::abs(static_cast<double>(n) + 0.5 - centre) / scale;
    weights.push_back(std::max(0.0, 1 - distance));
  }
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  for (double& weight : weights) weight /= sum;
  return weights;
}

TEST_CASE("shrinking averages with a triangle filter that is two outputs wide") {
  const std::vector<std::pair<ImageSize, ImageSize>> cases = {
      {{9, 8}, {4, 3}}, {{100, 75}, {32, 32}}, {{17, 50}, {16, 1}}, {{3, 2}, {1, 1}}};
  for (const auto& [from, to] : cases) {
    INFO(from.height << "x" << from.width << " to " << to.height << "x" << to.width);
    const std::vector<float> in = normalValues(from);
    std::vector<double> expected;
    for (std::int64_t c = 0; c < 3; ++c) {
      for (std::int64_t y = 0; y < to.height; ++y) {
        for (std::int64_t x = 0; x < to.width; ++x) {
          const std::vector<double> rows = triangle(from.height, to.height, y);
          const std::vector<double> columns = triangle(from.width, to.width, x);
          double sum = 0;
          for (std::size_t n = 0; n < rows.size() * columns.size(); ++n) {
            sum += rows[n / columns.size()] * columns[n % columns.size()] *
                   double{in[static_cast<std::size_t>(c) * rows.size() * columns.size() + n]};
          }
          expected.push_back(sum);
        }
      }
    }
    CHECK(worstDifference(resized(in, from, to), expected) < 2e-6);
  }
}

TEST_CASE("resizing part of an axis uses the same weights as resizing the whole axis") {
  for (const auto& [from, to] : {std::pair<std::int64_t, std::int64_t>{50, 20}, {20, 50}}) {
    const BilinearAxis whole(from, to);
    const BilinearAxis part(from, to, 7, 9);
    REQUIRE(part.outputs() == 9);
    CHECK(part.begin() > 0);
    CHECK(part.end() < static_cast<std::size_t>(from));
    for (std::size_t x = 0; x < 9; ++x) {
      CHECK(part.begin() + part.low(x) == whole.low(x + 7));
      for (std::size_t k = 0; k < 2; ++k) CHECK(part.weights(x)[k] == whole.weights(x + 7)[k]);
    }
  }
}

// ---- Compared with torchvision ----

// Generates the images of tests/oracle/resized_images.py.
std::uint32_t mixed(std::uint32_t value) {
  value *= 2654435761u;
  return (value ^ value >> 15) * 2246822519u;
}

std::uint32_t pixelOf(std::uint32_t number, std::uint32_t height, std::uint32_t width,
                      std::uint32_t y, std::uint32_t x, std::uint32_t c) {
  switch (number % 5) {
    case 0:
      return mixed((y * width + x) * 3 + c + number) >> 24;
    case 1:
      return (x * 255 / width + y * (c + 1) * 100 / height) % 256;
    case 2:
      return (x / (1 + number % 7) + y / (1 + number % 3) + c) % 2 * 255;
    case 3: {
      const std::uint32_t dx = x - width / 2;  // wraps around, but squares are the same modulo 2^32
      const std::uint32_t dy = y - height / 2;
      return (dx * dx + dy * dy + c * 50) / (4 + number % 31) % 256;
    }
    default:
      return mixed((y / 8 * 100 + x / 8) * 3 + c + number) >> 24;
  }
}

Pixels imageOf(std::uint32_t number) {
  const std::uint32_t height = 1 + mixed(2 * number) % 400;
  const std::uint32_t width = 1 + mixed(2 * number + 1) % 500;
  Pixels image{height, width, 3, {}};
  for (std::uint32_t y = 0; y < height; ++y) {
    for (std::uint32_t x = 0; x < width; ++x) {
      for (std::uint32_t c = 0; c < 3; ++c) {
        image.bytes.push_back(static_cast<std::uint8_t>(pixelOf(number, height, width, y, x, c)));
      }
    }
  }
  return image;
}

std::vector<float> transformed(const ImageOptions& options, const Pixels& image,
                               std::optional<std::uint64_t> epoch = std::nullopt,
                               std::uint32_t index = 0) {
  const ImageTransforms transforms(options, image.channels);
  std::size_t size = 1;
  for (const std::int64_t each : transforms.outputShape(image.height, image.width)) {
    size *= static_cast<std::size_t>(each);
  }
  std::vector<float> out(size, -1e9f);
  transforms.apply(image, index, epoch, out);
  return out;
}

TEST_CASE("resizing and the centre crop differ from torchvision's with Pillow by at most 1/255") {
  std::ifstream file(CLEAVE_SOURCE_DIR "/tests/data/torchvision_resized.bin", std::ios::binary);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
  constexpr std::uint32_t kImages = 100;
  constexpr std::size_t kPixels = 64;
  REQUIRE(bytes.size() == kImages * kPixels * 3);
  constexpr std::pair<int, int> kSizes[] = {{256, 224}, {40, 32}, {64, 64}, {232, 224},
                                            {9, 7},     {0, 64},  {48, 0},  {224, 0}};
  double worst = 0;
  double sum = 0;
  auto expected = bytes.begin();
  for (std::uint32_t number = 0; number < kImages; ++number) {
    ImageOptions options;
    std::tie(options.resize, options.crop) = kSizes[number % std::size(kSizes)];
    const std::vector<float> out = transformed(options, imageOf(number));
    const std::size_t pixels = out.size() / 3;
    for (std::size_t n = 0; n < kPixels; ++n) {
      for (std::size_t c = 0; c < 3; ++c) {
        const double value = double{out[c * pixels + n * pixels / kPixels]} * 255;
        const double difference = std::abs(value - static_cast<unsigned char>(*expected++));
        worst = std::max(worst, difference);
        sum += difference;
      }
    }
  }
  CAPTURE(sum / static_cast<double>(bytes.size()));
  CHECK(worst <= 1.001);  // 1 plus the rounding errors of floats
}

// ---- Geometry ----

// Pixel (y, x) is 10 y + x + 1 in the first channel, and 1 more in each further channel.
Pixels numbered(std::int64_t height, std::int64_t width, std::int64_t channels = 1) {
  Pixels image{height, width, channels, {}};
  for (std::int64_t y = 0; y < height; ++y) {
    for (std::int64_t x = 0; x < width; ++x) {
      for (std::int64_t c = 0; c < channels; ++c) {
        image.bytes.push_back(static_cast<std::uint8_t>(10 * y + x + 1 + c));
      }
    }
  }
  return image;
}

ImageOptions bytesOut() {
  ImageOptions options;
  options.stddev = {1.0 / 255};
  return options;
}

std::vector<int> rounded(const std::vector<float>& values) {
  std::vector<int> all;
  for (const float value : values) all.push_back(static_cast<int>(std::lround(value)));
  return all;
}

TEST_CASE("the output has the shape given by the options") {
  ImageOptions options;
  const auto shapeOf = [&] { return ImageTransforms(options, 3).outputShape(50, 70); };
  CHECK(shapeOf() == std::vector<std::int64_t>{3, 50, 70});
  CHECK_FALSE(ImageTransforms(options, 3).hasFixedShape());
  options.resize = 40;
  CHECK(shapeOf() == std::vector<std::int64_t>{3, 40, 40});
  CHECK(ImageTransforms(options, 3).hasFixedShape());
  options.crop = 32;
  CHECK(shapeOf() == std::vector<std::int64_t>{3, 32, 32});
  options.resize = 0;
  CHECK(shapeOf() == std::vector<std::int64_t>{3, 32, 32});
  CHECK(ImageTransforms(options, 3).hasFixedShape());
}

TEST_CASE("interleaved and planar pixels give the same result") {
  const Pixels image = imageOf(0);
  std::vector<std::uint8_t> planar;
  for (std::size_t c = 0; c < 3; ++c) {
    for (std::size_t n = c; n < image.bytes.size(); n += 3) planar.push_back(image.bytes[n]);
  }
  ImageOptions options;
  options.resize = 50;
  options.crop = 40;
  options.cropScale = {0.2, 1};
  options.flip = true;
  std::vector<float> out(3 * 40 * 40);
  const ImageView view{
      planar.data(), image.height, image.width, image.height * image.width, image.width, 1};
  ImageTransforms(options, 3).apply(view, 5, 2, out);
  CHECK(out == transformed(options, image, 2, 5));
}

TEST_CASE("a crop without a resize is cut from the centre, and padded with black if needed") {
  ImageOptions options = bytesOut();
  options.crop = 2;
  CHECK(rounded(transformed(options, numbered(4, 4))) == std::vector{12, 13, 22, 23});
  CHECK(rounded(transformed(options, numbered(3, 5))) == std::vector{3, 4, 13, 14});
  options.crop = 3;
  CHECK(rounded(transformed(options, numbered(1, 2))) == std::vector{0, 0, 0, 1, 2, 0, 0, 0, 0});
}

TEST_CASE("a random crop is a resized part of the image, which may be flipped") {
  ImageOptions options = bytesOut();
  options.crop = 4;
  options.flip = true;
  options.cropScale = {0.1, 0.9};
  const Pixels image = numbered(8, 9);
  int flips = 0;
  for (std::uint32_t index = 0; index < 100; ++index) {
    const ImageBox box = drawCrop(options, 3, index, 8, 9);
    REQUIRE(box.top >= 0);
    REQUIRE(box.left >= 0);
    REQUIRE(box.top + box.height <= 8);
    REQUIRE(box.left + box.width <= 9);
    const bool flip = drawPlacement(options, 3, index).flip;
    flips += flip ? 1 : 0;
    std::vector<float> part;
    for (std::int64_t y = box.top; y < box.top + box.height; ++y) {
      for (std::int64_t x = box.left; x < box.left + box.width; ++x) {
        part.push_back(static_cast<float>(10 * y + (flip ? 8 - x : x) + 1));
      }
    }
    const std::vector<float> expected = resized(part, {box.height, box.width}, {4, 4});
    const std::vector<float> out = transformed(options, image, 3, index);
    for (std::size_t n = 0; n < out.size(); ++n) CHECK(std::abs(out[n] - expected[n]) < 1e-4f);
    CHECK(transformed(options, image, std::nullopt, index) ==
          transformed(options, image, std::nullopt, 0));
  }
  CHECK(std::abs(flips - 50) < 30);
}

TEST_CASE("random crops have the areas and ratios of the options, and cover the image") {
  ImageOptions options;
  options.crop = 4;
  options.cropScale = {0.08, 1};
  double minArea = 1, maxArea = 0, sumArea = 0, minRatio = 9, maxRatio = 0;
  std::set<std::int64_t> tops;
  constexpr int kDraws = 4000;
  for (std::uint32_t index = 0; index < kDraws; ++index) {
    const ImageBox box = drawCrop(options, 1, index, 400, 500);
    const double area = static_cast<double>(box.height * box.width) / (400.0 * 500.0);
    const double ratio = static_cast<double>(box.width) / static_cast<double>(box.height);
    minArea = std::min(minArea, area);
    maxArea = std::max(maxArea, area);
    sumArea += area;
    minRatio = std::min(minRatio, ratio);
    maxRatio = std::max(maxRatio, ratio);
    tops.insert(box.top);
  }
  CHECK(minArea > 0.078);
  CHECK(minArea < 0.09);
  CHECK(maxArea > 0.9);
  CHECK(std::abs(sumArea / kDraws - 0.5) <
        0.05);  // the mean deviates from 0.5, because large parts with extreme ratios do not fit
  CHECK(minRatio > 0.74);
  CHECK(minRatio < 0.78);
  CHECK(maxRatio < 1.35);
  CHECK(maxRatio > 1.28);
  CHECK(tops.size() > 200);

  options.cropScale = {
      1, 1};  // such a part does not fit into a long image, so the largest allowed part is used
  const ImageBox box = drawCrop(options, 1, 0, 30, 300);
  CHECK(box.height == 30);
  CHECK(box.width == 40);
  CHECK(box.left == 130);
  const ImageBox tall = drawCrop(options, 1, 0, 300, 30);
  CHECK(tall.width == 30);
  CHECK(tall.height == 40);
  CHECK(tall.top == 130);
  const ImageBox tiny = drawCrop(options, 1, 0, 1, 1);
  CHECK(tiny.height == 1);
}

// ---- Colours ----

ColorJitter only(int operation, float value) {
  ColorJitter jitter;
  std::swap(jitter.order[0], jitter.order[static_cast<std::size_t>(operation)]);
  if (operation == 0) jitter.brightness = value;
  if (operation == 1) jitter.contrast = value;
  if (operation == 2) jitter.saturation = value;
  if (operation == 3) jitter.hue = value;
  return jitter;
}

// The expected values were computed with torchvision.transforms.v2.functional for this image of 1 x
// 2 pixels.
void checkJitter(const ColorJitter& jitter, std::array<float, 6> expected) {
  std::array<float, 6> pixels = {0.1f, 0.8f, 0.5f, 0.4f, 0.9f, 0.0f};
  jitterColors(jitter, pixels, 3);
  for (std::size_t n = 0; n < 6; ++n) {
    INFO(n);
    CHECK(std::abs(pixels[n] - expected[n]) < 1e-4f);
  }
}

TEST_CASE("colour changes give the same values as in torchvision") {
  checkJitter(only(0, 1.5f), {0.15f, 1, 0.75f, 0.6f, 1, 0});
  checkJitter(only(0, 0.3f), {0.03f, 0.24f, 0.15f, 0.12f, 0.27f, 0});
  checkJitter(only(1, 1.5f), {0, 0.97502f, 0.52502f, 0.37502f, 1, 0});
  checkJitter(only(1, 0.3f), {0.34497f, 0.55497f, 0.46497f, 0.43497f, 0.58497f, 0.31497f});
  checkJitter(only(2, 1.5f), {0, 0.96304f, 0.53701f, 0.36304f, 1, 0});
  checkJitter(only(2, 0.3f), {0.32819f, 0.57174f, 0.44819f, 0.45174f, 0.56819f, 0.33174f});
  checkJitter(only(3, 0.1f), {0.18f, 0.72f, 0.1f, 0.8f, 0.9f, 0});
  checkJitter(only(3, -0.25f), {0.1f, 0.8f, 0.9f, 0, 0.1f, 0.8f});
  checkJitter(only(3, 0.5f), {0.9f, 0, 0.5f, 0.4f, 0.1f, 0.8f});
}

TEST_CASE("colour changes are applied in the order drawn by the jitter") {
  ColorJitter jitter;
  jitter.order = {1, 2, 0, 3};
  jitter.contrast = 1.2f;
  jitter.saturation = 0.5f;
  jitter.brightness = 1.3f;
  jitter.hue = 0.2f;
  checkJitter(jitter, {0.73009f, 0.51674f, 0.29329f, 0.88334f, 0.91729f, 0.31784f});
}

TEST_CASE("brightness and contrast can be changed in images of one channel") {
  std::array<float, 2> pixels = {0.2f, 0.6f};
  jitterColors(only(1, 0.5f), pixels, 1);
  CHECK(std::abs(pixels[0] - 0.3f) < 1e-6f);
  CHECK(std::abs(pixels[1] - 0.5f) < 1e-6f);
}

TEST_CASE("jitter is drawn uniformly, with every order, and depends only on epoch and image") {
  ImageOptions options;
  options.brightness = 0.4;
  options.contrast = 2;
  options.hue = 0.1;
  std::map<std::array<int, 4>, int> orders;
  float minBrightness = 9, maxBrightness = 0, minContrast = 9, maxContrast = 0, minHue = 1,
        maxHue = -1;
  for (std::uint32_t index = 0; index < 2400; ++index) {
    const ColorJitter jitter = drawJitter(options, 1, index);
    ++orders[jitter.order];
    minBrightness = std::min(minBrightness, jitter.brightness);
    maxBrightness = std::max(maxBrightness, jitter.brightness);
    minContrast = std::min(minContrast, jitter.contrast);
    maxContrast = std::max(maxContrast, jitter.contrast);
    minHue = std::min(minHue, jitter.hue);
    maxHue = std::max(maxHue, jitter.hue);
    REQUIRE(jitter.saturation == 1);
  }
  CHECK(orders.size() == 24);
  for (const auto& [order, count] : orders) CHECK(std::abs(count - 100) < 60);
  CHECK((minBrightness >= 0.6f && minBrightness < 0.61f));
  CHECK((maxBrightness <= 1.4f && maxBrightness > 1.39f));
  CHECK((minContrast >= 0 && minContrast < 0.01f));
  CHECK((maxContrast <= 3 && maxContrast > 2.98f));
  CHECK((minHue >= -0.1f && minHue < -0.099f));
  CHECK((maxHue <= 0.1f && maxHue > 0.099f));
}

TEST_CASE("jitter changes the image before normalisation, and only in training") {
  ImageOptions options;
  options.mean = {0.4, 0.5, 0.6};
  options.stddev = {0.2, 0.3, 0.4};
  const Pixels image = imageOf(1);
  const std::vector<float> plain = transformed(options, image);
  options.brightness = 0.4;
  options.saturation = 0.4;
  CHECK(transformed(options, image) == plain);
  ImageOptions unit;
  std::vector<float> expected = transformed(unit, image);
  jitterColors(drawJitter(options, 2, 7), expected, 3);
  const std::vector<float> out = transformed(options, image, 2, 7);
  REQUIRE(out.size() == expected.size());
  const std::size_t plane = out.size() / 3;
  double worst = 0;
  for (std::size_t n = 0; n < out.size(); ++n) {
    const double value =
        (double{expected[n]} - options.mean[n / plane]) / options.stddev[n / plane];
    worst = std::max(worst, std::abs(value - double{out[n]}));
  }
  CHECK(worst < 1e-5);
}

// ---- Erasing ----

TEST_CASE("erasing sets a rectangle to 0 after normalisation, with the given probability") {
  ImageOptions options;
  options.mean = {0.4};
  options.stddev = {0.2};
  options.erasing = 0.25;
  const Pixels image = numbered(20, 30, 2);
  const std::vector<float> plain = transformed(options, image);
  int erased = 0;
  for (std::uint32_t index = 0; index < 400; ++index) {
    const ImageBox box = drawErasing(options, 1, index, 20, 30);
    erased += box.height > 0 ? 1 : 0;
    std::vector<float> expected = plain;
    for (std::int64_t c = 0; c < 2; ++c) {
      for (std::int64_t y = box.top; y < box.top + box.height; ++y) {
        for (std::int64_t x = box.left; x < box.left + box.width; ++x) {
          expected.at(static_cast<std::size_t>((c * 20 + y) * 30 + x)) = 0;
        }
      }
    }
    REQUIRE(transformed(options, image, 1, index) == expected);
    const double area = static_cast<double>(box.height * box.width) / 600;
    if (box.height > 0) {
      CHECK(area > 0.01);
      CHECK(area < 0.36);
      CHECK(box.height < 20);
      CHECK(box.width < 30);
    }
  }
  CHECK(std::abs(erased - 100) < 40);
  options.erasing = 1;
  CHECK(transformed(options, image) == plain);
}

// ---- Options ----

TEST_CASE("options that do not fit are refused") {
  const auto codeOf = [](ImageOptions options, std::int64_t channels = 3) {
    return errorCode([&] { ImageTransforms(options, channels); });
  };
  CHECK(codeOf({}) == "");
  CHECK(codeOf({.mean = {1, 2}}) == "bad-image-transform");
  CHECK(codeOf({.stddev = {1, 2, 3}}, 1) == "bad-image-transform");
  CHECK(codeOf({.resize = 20, .crop = 21}) == "bad-image-transform");
  CHECK(codeOf({.resize = 20, .crop = 20}) == "");
  CHECK(codeOf({.cropScale = {0.1, 1}}) == "bad-image-transform");
  CHECK(codeOf({.cropScale = {0.1, 1}, .crop = 8}) == "");
  CHECK(codeOf({.cropScale = {1, 0.1}, .crop = 8}) == "bad-image-transform");
  CHECK(codeOf({.cropScale = {0.1}, .crop = 8}) == "bad-image-transform");
  CHECK(codeOf({.cropScale = {0.1, 1}, .cropRatio = {2, 1}, .crop = 8}) == "bad-image-transform");
  CHECK(codeOf({.cropPadding = 4, .cropScale = {0.1, 1}, .crop = 8}) == "bad-image-transform");
  CHECK(codeOf({.hue = 0.1}, 1) == "bad-image-transform");
  CHECK(codeOf({.saturation = 0.1}, 1) == "bad-image-transform");
  CHECK(codeOf({.brightness = 0.1, .contrast = 0.1}, 1) == "");
}

}  // namespace
}  // namespace cleave::test
