#include "client/data/formats.h"

#include <string>

#include "common/core/names.h"

namespace cleave {
namespace {

constexpr std::int64_t kMany = std::int64_t{1} << 31;

ImageOptions readImage(Config& config, std::uint64_t seed) {
  constexpr int kMostPixels = 4096;
  ImageOptions image;
  image.mean = config.numbers("data.mean", -1e6, 1e6, image.mean);
  image.deviation = config.numbers("data.deviation", 1e-6, 1e6, image.deviation);
  image.resize = config.integer("data.resize", 0, kMostPixels, 0);
  image.flip = config.boolean("data.augment.flip", false);
  image.cropPadding =
      static_cast<int>(config.integer("data.augment.crop_padding", 0, kMostPixels, 0));
  image.seed = seed;
  return image;
}

int readClasses(Config& config) {
  return static_cast<int>(config.integer("data.classes", 2, 1 << 20, 10));
}

DataFormatRow::Open readIdx(Config& config, std::uint64_t seed) {
  IdxOptions train;
  train.classes = readClasses(config);
  train.image = readImage(config, seed);
  IdxOptions test = train;
  train.images = config.text("data.train.images");
  train.labels = config.text("data.train.labels");
  test.images = config.text("data.test.images");
  test.labels = config.text("data.test.labels");
  return
      [train, test](DataSplit split) { return openIdx(split == DataSplit::train ? train : test); };
}

DataFormatRow::Open cifar(Config& config, std::uint64_t seed, const std::string& folder,
                          CifarKind kind) {
  const CifarOptions options{.folder = folder, .kind = kind, .image = readImage(config, seed)};
  return [options](DataSplit split) {
    CifarOptions own = options;
    own.train = split == DataSplit::train;
    return openCifar(own);
  };
}

DataFormatRow::Open readCifar10(Config& config, std::uint64_t seed) {
  return cifar(config, seed, config.text("data.folder"), CifarKind::cifar10);
}

DataFormatRow::Open readCifar100(Config& config, std::uint64_t seed) {
  const std::string folder = config.text("data.folder");
  const bool coarse = config.text("data.labels", "fine", {"fine", "coarse"}) == "coarse";
  return cifar(config, seed, folder, coarse ? CifarKind::cifar100Coarse : CifarKind::cifar100Fine);
}

DataFormatRow::Open readSynthetic(Config& config, std::uint64_t seed) {
  SyntheticOptions train;
  train.classes = readClasses(config);
  train.shape = config.integers("data.shape", 1, 1 << 16);
  train.seed = static_cast<std::uint64_t>(
      config.integer("data.seed", 0, kMany, static_cast<std::int64_t>(seed)));
  train.noise = config.number("data.noise", 0, 1e3, 1);
  SyntheticOptions test = train;
  train.size = static_cast<std::uint32_t>(config.integer("data.train.size", 1, kMany, 1024));
  test.size = static_cast<std::uint32_t>(config.integer("data.test.size", 1, kMany, 256));
  test.split = 1;
  return [train, test](DataSplit split) {
    return makeSynthetic(split == DataSplit::train ? train : test);
  };
}

constexpr DataFormatRow kFormats[] = {
    {"idx", "IDX images and labels, as of MNIST and Fashion-MNIST, plain or gzip", readIdx},
    {"cifar10", "the binary files of CIFAR-10", readCifar10},
    {"cifar100", "the binary files of CIFAR-100, with its 100 classes or its 20", readCifar100},
    {"synthetic", "learnable data generated from a seed", readSynthetic},
};

}  // namespace

std::span<const DataFormatRow> dataFormatTable() { return kFormats; }

const DataFormatRow& findDataFormat(std::string_view name) {
  return findByName(dataFormatTable(), name, "unknown-data-format", "a data format");
}

}  // namespace cleave
