// Measures the time per image of the transforms that turn a decoded image into the model's input,
// on one thread. "decoded" is an image as large as a typical JPEG, in the form that a decoder
// returns; "idx" and "cifar" are images held in memory.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <vector>

#include "client/data/samples/images.h"
#include "client/data/samples/transforms.h"

namespace {

using namespace cleave;

ImageOptions imagenet() {
  ImageOptions options;
  options.mean = {0.485, 0.456, 0.406};
  options.stddev = {0.229, 0.224, 0.225};
  return options;
}

void decoded(benchmark::State& state, const ImageOptions& options, bool isTraining) {
  Pixels image{400, 500, 3, {}};
  for (std::uint32_t n = 0; n < 400 * 500 * 3; ++n) {
    image.bytes.push_back(static_cast<std::uint8_t>(n * 2654435761u >> 24));
  }
  const ImageTransforms transforms(options, 3);
  std::vector<float> out(3 * 224 * 224);
  std::uint32_t index = 0;
  for (auto _ : state) {
    transforms.apply(image, index, isTraining ? std::optional<std::uint64_t>(1) : std::nullopt,
                     out);
    benchmark::DoNotOptimize(out.data());
    index = (index + 1) % 1000;
  }
}

void stored(benchmark::State& state, std::vector<std::int64_t> shape, const ImageOptions& options) {
  constexpr std::uint32_t kImages = 256;
  ImageStore store;
  store.shape = std::move(shape);
  store.stride = static_cast<std::size_t>(store.shape[0] * store.shape[1] * store.shape[2]);
  store.classes = 1;
  store.labels.resize(kImages);
  for (std::uint32_t n = 0; n < kImages * store.stride; ++n) {
    store.bytes.push_back(static_cast<std::uint8_t>(n * 2654435761u >> 24));
  }
  const auto data = makeImages(std::move(store), options);
  std::size_t elements = 1;
  for (const std::int64_t dimension : data->sampleShape()) {
    elements *= static_cast<std::size_t>(dimension);
  }
  std::vector<float> out(elements);
  std::uint32_t index = 0;
  for (auto _ : state) {
    data->readForTraining(index, 1, out);
    benchmark::DoNotOptimize(out.data());
    index = (index + 1) % kImages;
  }
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  const auto add = [](const char* name, auto function) {
    benchmark::RegisterBenchmark(name, function)->Unit(benchmark::kMicrosecond);
  };
  ImageOptions options = imagenet();
  options.resize = 256;
  options.crop = 224;
  add("decoded/resize_crop", [=](auto& state) { decoded(state, options, false); });
  options.cropScale = {0.08, 1};
  options.flip = true;
  add("decoded/random_crop", [=](auto& state) { decoded(state, options, true); });
  options.brightness = options.contrast = options.saturation = 0.4;
  add("decoded/random_crop/jitter", [=](auto& state) { decoded(state, options, true); });
  options.hue = 0.1;
  add("decoded/random_crop/jitter_hue", [=](auto& state) { decoded(state, options, true); });

  ImageOptions small;
  add("idx", [=](auto& state) { stored(state, {1, 28, 28}, small); });
  small.resize = 224;
  add("idx/resize", [=](auto& state) { stored(state, {1, 28, 28}, small); });
  small = imagenet();
  small.flip = true;
  small.cropPadding = 4;
  add("cifar/augment", [=](auto& state) { stored(state, {3, 32, 32}, small); });
  small.resize = 224;
  add("cifar/augment/resize", [=](auto& state) { stored(state, {3, 32, 32}, small); });
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
