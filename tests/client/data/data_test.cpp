// Reading data files, the error for each kind of damage, synthetic data, and slices.
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <thread>

#include "client/data/files/unpack.h"
#include "client/data/formats/formats.h"
#include "client/data/samples/dataset.h"
#include "tests/support/error_code.h"
#include "tests/support/files/samples.h"
#include "tests/support/refused.h"

namespace cleave::test {
namespace {

using Bytes = std::vector<std::uint8_t>;

Bytes idx(const std::vector<std::uint32_t>& dimensions, const Bytes& elements,
          std::uint8_t type = 0x08) {
  Bytes bytes = {0, 0, type, static_cast<std::uint8_t>(dimensions.size())};
  for (const std::uint32_t dimension : dimensions) {
    for (int shift = 24; shift >= 0; shift -= 8) {
      bytes.push_back(static_cast<std::uint8_t>(dimension >> shift));
    }
  }
  bytes.insert(bytes.end(), elements.begin(), elements.end());
  return bytes;
}

Bytes counting(std::size_t size) {
  Bytes bytes(size);
  for (std::size_t j = 0; j < size; ++j) bytes[j] = static_cast<std::uint8_t>(j * 7);
  return bytes;
}

Bytes gzip(const Bytes& plain) {
  z_stream stream = {};
  REQUIRE(deflateInit2(&stream, 6, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY) == Z_OK);
  Bytes packed(deflateBound(&stream, plain.size()));
  stream.next_in = const_cast<Bytef*>(plain.data());
  stream.avail_in = static_cast<uInt>(plain.size());
  stream.next_out = packed.data();
  stream.avail_out = static_cast<uInt>(packed.size());
  REQUIRE(deflate(&stream, Z_FINISH) == Z_STREAM_END);
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  return packed;
}

// Three images of 2 x 4 pixels and their labels, in files of its own that each test can damage.
class Files {
 public:
  Files()
      : folder_(std::filesystem::temp_directory_path() /
                ("cleave_data_" + std::to_string(getpid()))) {
    std::filesystem::create_directories(folder_);
    writeImages(goodImages());
    writeLabels(goodLabels());
  }
  ~Files() { std::filesystem::remove_all(folder_); }

  static Bytes goodImages() { return idx({3, 2, 4}, counting(24)); }
  static Bytes goodLabels() { return idx({3}, {2, 0, 9}); }
  void writeImages(const Bytes& bytes) const { write("images", bytes); }
  void writeLabels(const Bytes& bytes) const { write("labels", bytes); }
  std::string path(const std::string& name) const { return folder_ / name; }
  IdxOptions options() const {
    IdxOptions options;
    options.images = path("images");
    options.labels = path("labels");
    return options;
  }

 private:
  void write(const std::string& name, const Bytes& bytes) const {
    std::ofstream file(path(name), std::ios::binary);
    file.write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
  }
  std::filesystem::path folder_;
};

void checkImagesRefused(const Bytes& bytes, const std::string& code, const std::string& fault) {
  const Files files;
  files.writeImages(bytes);
  checkRefused([&] { openIdx(files.options()); }, files.path("images"), code, fault);
}

void checkLabelsRefused(const Bytes& bytes, const std::string& code, const std::string& fault) {
  const Files files;
  files.writeLabels(bytes);
  checkRefused([&] { openIdx(files.options()); }, files.path("labels"), code, fault);
}

TEST_CASE("IDX pixels become (x / 255 - mean) / std, and each image has its label") {
  const Files files;
  IdxOptions options = files.options();
  options.image.mean = {0.25};
  options.image.stddev = {0.5};
  const auto data = openIdx(options);
  CHECK(data->size() == 3);
  CHECK(data->classes() == 10);
  CHECK(data->sampleShape() == std::vector<std::int64_t>{1, 2, 4});
  const Bytes pixels = counting(24);
  for (std::uint32_t index = 0; index < 3; ++index) {
    const std::vector<float> sample = readSample(*data, index);
    for (std::size_t j = 0; j < 8; ++j) {
      CHECK(sample[j] == static_cast<float>((pixels[index * 8 + j] / 255.0 - 0.25) / 0.5));
    }
  }
  CHECK(labelOf(*data, 0) == 2);
  CHECK(labelOf(*data, 1) == 0);
  CHECK(labelOf(*data, 2) == 9);
}

TEST_CASE("IDX images of rank 4 have channels") {
  const Files files;
  files.writeImages(idx({3, 3, 1, 2}, counting(18)));
  const auto data = openIdx(files.options());
  CHECK(data->sampleShape() == std::vector<std::int64_t>{3, 1, 2});
  CHECK(readSample(*data, 2).size() == 6);
}

TEST_CASE("gzip is detected by content, and gives the same data as a plain file") {
  const Files files;
  const auto plain = openIdx(files.options());
  files.writeImages(gzip(Files::goodImages()));
  files.writeLabels(gzip(Files::goodLabels()));
  const auto unpacked = openIdx(files.options());
  REQUIRE(unpacked->size() == plain->size());
  for (std::uint32_t index = 0; index < plain->size(); ++index) {
    CHECK(readSample(*unpacked, index) == readSample(*plain, index));
    CHECK(labelOf(*unpacked, index) == labelOf(*plain, index));
  }
}

TEST_CASE(
    "gzip data is unpacked completely, even if it is larger than a chunk or has several members") {
  const Files files;
  const Bytes plain = counting(3'000'001);
  Bytes packed = gzip(Bytes(plain.begin(), plain.begin() + 2'000'000));
  const Bytes second = gzip(Bytes(plain.begin() + 2'000'000, plain.end()));
  packed.insert(packed.end(), second.begin(), second.end());
  files.writeImages(packed);
  CHECK((readUnpacked(files.path("images"), plain.size(), Needs::twice) ==
         plain));  // too long to print
}

TEST_CASE("a file larger than the limit is refused, whether plain or after unpacking") {
  const Files files;
  const Bytes bytes(3'000'000);
  for (const Bytes& content : {bytes, gzip(bytes)}) {
    files.writeImages(content);
    CHECK((readUnpacked(files.path("images"), bytes.size(), Needs::twice) ==
           bytes));  // too long to print
    CHECK_THROWS_WITH(readUnpacked(files.path("images"), bytes.size() - 1, Needs::twice),
                      Catch::Contains("more than the maximum of 2999999 bytes"));
  }
}

TEST_CASE("the limit of a packed file depends on its size and on the memory available") {
  constexpr std::size_t kMiB = 1 << 20;
  const auto limitOf = [](std::size_t packed, Needs needs, std::uint64_t available) {
    return unpackLimit(packed, kMaxDataBytes, needs, available).bytes;
  };
  CHECK(limitOf(1000, Needs::twice, std::uint64_t{64} << 30) == kAnyRatio);
  CHECK(limitOf(kMiB, Needs::twice, std::uint64_t{64} << 30) == 200 * kMiB);
  CHECK(limitOf(100 * kMiB, Needs::twice, std::uint64_t{64} << 30) == kMaxDataBytes);
  CHECK(limitOf(100 * kMiB, Needs::twice, std::uint64_t{4} << 30) == 2048 * kMiB);
  CHECK(limitOf(100 * kMiB, Needs::eightTimes, std::uint64_t{4} << 30) == 512 * kMiB);
  CHECK(limitOf(~std::size_t{0}, Needs::twice, ~std::uint64_t{0}) == kMaxDataBytes);
}

TEST_CASE("a packed file of any declared size is refused beyond its limit") {
  const Files files;
  Bytes bomb = gzip(Bytes(kAnyRatio + 1));  // zeros: 1000 times smaller
  REQUIRE(bomb.size() * kMaxRatio < kAnyRatio);
  const auto readBomb = [&] { readUnpacked(files.path("images"), kMaxDataBytes, Needs::twice); };
  for (const std::uint8_t declared : {bomb[bomb.size() - 1], std::uint8_t{0}, std::uint8_t{255}}) {
    CAPTURE(declared);
    bomb.back() = declared;  // the most significant byte of the size
    files.writeImages(bomb);
    CHECK(errorCode(readBomb) == "data-too-large");
    CHECK_THROWS_WITH(readBomb(), Catch::Contains("200 times its own size"));
  }
}

TEST_CASE("the error for a missing file names the file") {
  const Files files;
  IdxOptions options = files.options();
  options.images = files.path("absent");
  checkRefused([&] { openIdx(options); }, options.images, "data-missing", "there is no such file");
  options = files.options();
  options.labels = files.path("");
  checkRefused([&] { openIdx(options); }, options.labels, "data-missing",
               "it is not a regular file");
}

TEST_CASE("if Fashion-MNIST is missing, a hint says what to install") {
  IdxOptions options;
  options.images = "/nowhere/fashion-mnist/train-images-idx3-ubyte.gz";
  try {
    openIdx(options);
    FAIL("nothing was thrown");
  } catch (const UsageError& error) {
    CHECK(error.code() == "data-missing");
    CHECK(error.hint() == "install Debian's dataset-fashion-mnist with scripts/setup.sh");
  }
}

TEST_CASE("an empty file is refused") {
  checkImagesRefused({}, "data-empty", "is empty");
  checkLabelsRefused({}, "data-empty", "is empty");
  checkImagesRefused(gzip({}), "data-damaged", "is not an IDX file");
}

TEST_CASE("a file without samples is refused") {
  checkImagesRefused(idx({0, 2, 4}, {}), "data-empty", "contains no images");
  checkLabelsRefused(idx({0}, {}), "data-empty", "contains no labels");
}

TEST_CASE("a file that is not IDX is refused") {
  const std::string text = "label,pixel\n";
  checkImagesRefused(Bytes(text.begin(), text.end()), "data-damaged", "is not an IDX file");
  checkImagesRefused({0, 0, 8}, "data-damaged", "is not an IDX file");
}

TEST_CASE("an unknown element type is refused, and so are labels that are not integers") {
  checkImagesRefused(idx({3, 2, 4}, counting(96), 0x0A), "data-damaged", "type 10");
  checkLabelsRefused(idx({3}, counting(12), 0x0D), "data-damaged", "not integers");
}

TEST_CASE("IDX samples may be vectors, and of any type") {
  const Files files;
  files.writeImages(idx({3, 2}, counting(6)));
  const auto vectors = openIdx(files.options());
  CHECK(vectors->sampleShape() == std::vector<std::int64_t>{2});
  CHECK(readSample(*vectors, 1) == std::vector<float>{14 / 255.F, 21 / 255.F});
  CHECK(labelOf(*vectors, 2) == 9);

  const auto valuesOf = [&](std::uint8_t type, const Bytes& bytes, std::uint32_t count) {
    files.writeImages(idx({1, count}, bytes, type));
    files.writeLabels(idx({1}, {0, 0, 0, 1}, 0x0C));
    IdxOptions options = files.options();
    options.image.mean = {1};
    options.image.stddev = {2};
    const auto data = openIdx(options);
    CHECK(labelOf(*data, 0) == 1);
    return readSample(*data, 0);
  };
  CHECK(valuesOf(0x09, {0xFF, 3}, 2) == std::vector<float>{-1, 1});
  CHECK(valuesOf(0x0B, {0xFF, 0xFF, 0x01, 0x01}, 2) == std::vector<float>{-1, 128});
  CHECK(valuesOf(0x0C, {0xFF, 0xFF, 0xFF, 0xFD}, 1) == std::vector<float>{-2});
  CHECK(valuesOf(0x0D, {0x40, 0x40, 0, 0}, 1) == std::vector<float>{1});
  CHECK(valuesOf(0x0E, {0x40, 0x08, 0, 0, 0, 0, 0, 0}, 1) == std::vector<float>{1});

  files.writeImages(idx({1}, {0x40, 0x40, 0, 0}, 0x0D));
  CHECK(openIdx(files.options())->sampleShape() == std::vector<std::int64_t>{1});
  files.writeImages(idx({1, 2, 1}, counting(8), 0x0D));
  CHECK(openIdx(files.options())->sampleShape() == std::vector<std::int64_t>{1, 2, 1});
  IdxOptions flipped = files.options();
  flipped.image.flip = true;
  CHECK_THROWS_AS(openIdx(flipped), UsageError);
  IdxOptions cropped = files.options();
  cropped.image.crop = 1;
  CHECK_THROWS_AS(openIdx(cropped), UsageError);
  files.writeImages(idx({1, 2}, counting(7), 0x0D));
  CHECK_THROWS_WITH(openIdx(files.options()), Catch::Contains("truncated"));
}

TEST_CASE("a file of the wrong rank is refused") {
  checkImagesRefused(Files::goodLabels(), "data-damaged", "has rank 1, like a file of labels");
  checkLabelsRefused(Files::goodImages(), "data-damaged", "has rank 3, but labels have rank 1");
}

TEST_CASE("a truncated header is refused") {
  Bytes bytes = Files::goodImages();
  bytes.resize(15);
  checkImagesRefused(bytes, "data-damaged",
                     "its IDX header needs 16 bytes, but the file has only 15");
}

TEST_CASE("a header that declares more bytes than the file has is refused") {
  Bytes bytes = Files::goodImages();
  bytes.pop_back();
  checkImagesRefused(
      bytes, "data-damaged",
      "is truncated: its header declares 3 images of 2x4 (40 bytes), but the file has 39 bytes");
  checkLabelsRefused(idx({60000}, {1}), "data-damaged",
                     "its header declares 60000 labels (60008 bytes), but the file has 9 bytes");
}

TEST_CASE("a header whose dimensions overflow when multiplied is refused") {
  const std::uint32_t max = 0xFFFFFFFF;
  checkImagesRefused(idx({max, max, max}, {}), "data-damaged", "more than 4 GiB");
  // The product is 2^64, which wraps around to 0 in 64 bits, as for an empty file.
  checkImagesRefused(idx({1u << 16, 1u << 16, 1u << 16, 1u << 16}, {}), "data-damaged",
                     "more than 4 GiB");
}

TEST_CASE("a dimension of 0 is refused") {
  checkImagesRefused(idx({3, 0, 4}, {}), "data-damaged", "3 images of 0x4, which have no pixels");
}

TEST_CASE("trailing bytes are refused") {
  Bytes bytes = Files::goodImages();
  bytes.push_back(0);
  checkImagesRefused(bytes, "data-damaged", "has trailing bytes");
}

TEST_CASE("a gzip file that is truncated at any byte is refused") {
  const Bytes packed = gzip(Files::goodImages());
  for (std::size_t size = 2; size < packed.size(); ++size) {
    checkImagesRefused(Bytes(packed.begin(), packed.begin() + static_cast<std::ptrdiff_t>(size)),
                       "data-damaged", "is truncated: its gzip data ends in the middle");
  }
}

TEST_CASE("gzip data with garbage inside is refused") {
  Bytes packed = gzip(Files::goodImages());
  std::fill(packed.begin() + 10, packed.end() - 8, 0xFF);
  checkImagesRefused(packed, "data-damaged", "its gzip data cannot be unpacked");
}

TEST_CASE("gzip data with a wrong checksum is refused") {
  Bytes packed = gzip(Files::goodImages());
  packed[packed.size() - 8] ^= 1;
  checkImagesRefused(packed, "data-damaged",
                     "its gzip data cannot be unpacked (incorrect data check)");
}

TEST_CASE("garbage after gzip data is refused") {
  Bytes packed = gzip(Files::goodImages());
  packed.insert(packed.end(), {1, 2, 3});
  checkImagesRefused(packed, "data-damaged", "has 3 bytes after the end of its gzip data");
}

TEST_CASE("a label out of range is refused") {
  checkLabelsRefused(idx({3}, {2, 10, 9}), "data-damaged", "gives sample 1 the label 10");
  Bytes labels = idx({3}, {2, 0xFF, 9});
  labels[2] = 0x09;  // signed bytes
  checkLabelsRefused(labels, "data-damaged", "the label -1, but classes are numbered from 0");
}

TEST_CASE("different numbers of images and labels are refused") {
  const Files files;
  files.writeLabels(idx({2}, {2, 0}));
  checkRefused([&] { openIdx(files.options()); }, files.path("images"), "data-damaged",
               "contains 3 images, but ");
}

TEST_CASE("Fashion-MNIST has 60000 and 10000 samples, the same number of each class") {
  const std::string folder = "/usr/share/datasets/fashion-mnist/";
  if (!std::filesystem::exists(folder)) {
    WARN("left out: Debian's dataset-fashion-mnist is not installed (scripts/setup.sh)");
    return;
  }
  for (const auto& [split, size] : {std::pair{"train", 60000u}, std::pair{"t10k", 10000u}}) {
    IdxOptions options;
    options.images = folder + split + "-images-idx3-ubyte.gz";
    options.labels = folder + split + "-labels-idx1-ubyte.gz";
    const auto data = openIdx(options);
    REQUIRE(data->size() == size);
    CHECK(data->sampleShape() == std::vector<std::int64_t>{1, 28, 28});
    std::vector<std::uint32_t> counts(10);
    std::vector<float> sample(28 * 28);
    double sum = 0;
    for (std::uint32_t index = 0; index < size; ++index) {
      ++counts[static_cast<std::size_t>(data->read(index, sample))];
      for (const float value : sample) sum += value;
    }
    CHECK(counts == std::vector<std::uint32_t>(10, size / 10));
    CHECK(sum / (784.0 * size) == Approx(0.2865).margin(0.001));  // the known mean of its pixels
  }
}

SyntheticOptions syntheticOptions(std::uint64_t split = 0) {
  return {.shape = {2, 5, 5}, .classes = 7, .size = 500, .seed = 11, .split = split, .noise = 1};
}

TEST_CASE("synthetic samples do not depend on the order of reads or on threads") {
  const auto data = makeSynthetic(syntheticOptions());
  const auto again = makeSynthetic(syntheticOptions());
  std::vector<std::vector<float>> forwards(data->size()), backwards(data->size());
  std::thread other([&] {
    for (std::uint32_t index = 0; index < data->size(); ++index)
      forwards[index] = readSample(*data, index);
  });
  for (std::uint32_t index = data->size(); index-- > 0;)
    backwards[index] = readSample(*data, index);
  other.join();
  CHECK(forwards == backwards);
  for (const std::uint32_t index : {499u, 0u, 250u})
    CHECK(readSample(*again, index) == forwards[index]);
}

TEST_CASE("synthetic samples differ by index, split and seed") {
  const auto data = makeSynthetic(syntheticOptions());
  const auto sample = readSample(*data, 3);
  CHECK(readSample(*data, 4) != sample);
  CHECK(readSample(*makeSynthetic(syntheticOptions(1)), 3) != sample);
  SyntheticOptions options = syntheticOptions();
  options.seed = 12;
  CHECK(readSample(*makeSynthetic(options), 3) != sample);
}

TEST_CASE("synthetic labels are balanced and in random order") {
  const auto data = makeSynthetic(syntheticOptions());
  std::vector<std::uint32_t> counts(7);
  std::vector<std::int64_t> labels;
  for (std::uint32_t index = 0; index < data->size(); ++index) {
    labels.push_back(labelOf(*data, index));
    REQUIRE(labels.back() >= 0);
    REQUIRE(labels.back() < 7);
    ++counts[static_cast<std::size_t>(labels.back())];
  }
  const auto [min, max] = std::minmax_element(counts.begin(), counts.end());
  CHECK(*max - *min <= 1);
  std::vector<std::int64_t> first(labels.begin(), labels.begin() + 7);
  std::sort(first.begin(), first.end());
  CHECK(first != std::vector<std::int64_t>{0, 1, 2, 3, 4, 5, 6});
}

TEST_CASE("without noise, every synthetic sample equals its class's pattern, in both splits") {
  SyntheticOptions options = syntheticOptions();
  options.noise = 0;
  const auto data = makeSynthetic(options);
  options.split = 1;
  const auto other = makeSynthetic(options);
  std::vector<std::vector<float>> patterns(7);
  for (std::uint32_t index = 0; index < data->size(); ++index) {
    patterns[static_cast<std::size_t>(labelOf(*data, index))] = readSample(*data, index);
  }
  for (std::uint32_t index = 0; index < other->size(); ++index) {
    CHECK(readSample(*other, index) == patterns[static_cast<std::size_t>(labelOf(*other, index))]);
  }
}

TEST_CASE("the class means of one synthetic split classify the other split") {
  const auto train = makeSynthetic(syntheticOptions(0));
  const auto test = makeSynthetic(syntheticOptions(1));
  std::vector<std::vector<double>> means(7, std::vector<double>(50));
  std::vector<double> counts(7);
  std::vector<float> sample(50);
  for (std::uint32_t index = 0; index < train->size(); ++index) {
    const auto label = static_cast<std::size_t>(train->read(index, sample));
    ++counts[label];
    for (std::size_t j = 0; j < 50; ++j) means[label][j] += sample[j];
  }
  std::uint32_t right = 0;
  for (std::uint32_t index = 0; index < test->size(); ++index) {
    const auto label = static_cast<std::size_t>(test->read(index, sample));
    std::vector<double> distances(7);
    for (std::size_t c = 0; c < 7; ++c) {
      for (std::size_t j = 0; j < 50; ++j) {
        const double difference = sample[j] - means[c][j] / counts[c];
        distances[c] += difference * difference;
      }
    }
    const auto nearest = std::min_element(distances.begin(), distances.end()) - distances.begin();
    right += static_cast<std::size_t>(nearest) == label ? 1 : 0;
  }
  CHECK(right > 475);  // 500 samples; guessing gives 71
}

TEST_CASE("synthetic data without samples, classes or a shape are refused") {
  SyntheticOptions options = syntheticOptions();
  options.size = 0;
  CHECK_THROWS_WITH(makeSynthetic(options), Catch::Contains("0 samples"));
  options = syntheticOptions();
  options.classes = 0;
  CHECK_THROWS_AS(makeSynthetic(options), UsageError);
  for (const std::vector<std::int64_t>& shape :
       std::vector<std::vector<std::int64_t>>{{}, {2, 0}, {-1}}) {
    options = syntheticOptions();
    options.shape = shape;
    CHECK_THROWS_AS(makeSynthetic(options), UsageError);
  }
}

TEST_CASE("a slice has the samples of its range") {
  const std::shared_ptr<const Dataset> data = makeSynthetic(syntheticOptions());
  const auto slice = sliceDataset(data, 100, 20);
  CHECK(slice->size() == 20);
  CHECK(slice->classes() == 7);
  CHECK(slice->arrays() == data->arrays());
  for (const std::uint32_t index : {0u, 19u}) {
    CHECK(readSample(*slice, index) == readSample(*data, 100 + index));
    CHECK(labelOf(*slice, index) == labelOf(*data, 100 + index));
  }
}

TEST_CASE("a slice beyond the end is refused") {
  const std::shared_ptr<const Dataset> data = makeSynthetic(syntheticOptions());
  CHECK(sliceDataset(data, 499, 1)->size() == 1);
  CHECK_THROWS_WITH(sliceDataset(data, 499, 2), Catch::Contains("data with 500 samples"));
  CHECK_THROWS_AS(sliceDataset(data, 2, 0xFFFFFFFF), UsageError);  // the sum overflows 32 bits
}

TEST_CASE("every data format has a row that reads its keys and opens both splits") {
  const auto read = [](const std::string& name, const std::string& keys) {
    Config config = Config::parse("data:\n" + keys, "data.yaml", {});
    const DataFormatRow& row = findDataFormat(name);
    DataFormatKeys values;
    values.dataSeed = 3;
    row.keys().readInto(config, values);
    config.refuseUnknown();
    return [&row, values](DataSplit split) { return row.open(values, split); };
  };
  const auto synthetic = read("synthetic",
                              "  shape: [2, 3]\n  classes: 4\n"
                              "  train:\n    size: 20\n  test:\n    size: 7\n");
  const auto train = synthetic(DataSplit::train), test = synthetic(DataSplit::test);
  CHECK(train->size() == 20);
  CHECK(test->size() == 7);
  CHECK(train->arrays().front().shape == std::vector<std::int64_t>{2, 3});
  CHECK(train->classes() == 4);
  // The splits have different samples of the same classes, drawn from data.seed.
  CHECK(readSample(*train, 0) != readSample(*test, 0));
  SyntheticOptions options;
  options.shape = {2, 3};
  options.classes = 4;
  options.size = 20;
  options.seed = 3;
  CHECK(readSample(*makeSynthetic(options), 0) == readSample(*train, 0));

  // Reading the keys opens no file; the error of opening names the file.
  const auto files = read("idx",
                          "  train:\n    images: no-a\n    labels: no-b\n"
                          "  test:\n    images: no-c\n    labels: no-d\n");
  CHECK_THROWS_WITH(files(DataSplit::train), Catch::Contains("no-a"));
  CHECK_THROWS_WITH(files(DataSplit::test), Catch::Contains("no-c"));
  for (const std::string name : {"cifar10", "cifar100"}) {
    const auto cifar = read(name, "  folder: no-folder\n");
    const bool isTen = name == "cifar10";
    CHECK_THROWS_WITH(cifar(DataSplit::train),
                      Catch::Contains(isTen ? "data_batch_1" : "train.bin"));
    CHECK_THROWS_WITH(cifar(DataSplit::test), Catch::Contains(isTen ? "test_batch" : "test.bin"));
  }
  CHECK(dataFormatTable().size() == 10);
  CHECK_THROWS_AS(findDataFormat("idz"), UsageError);
}

}  // namespace
}  // namespace cleave::test
