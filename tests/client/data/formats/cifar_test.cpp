// Reading CIFAR files, and the error for each kind of damage.
#include <zlib.h>

#include <catch2/catch.hpp>

#include "client/data/samples/dataset.h"
#include "tests/support/error_code.h"
#include "tests/support/files/cifar_files.h"
#include "tests/support/files/samples.h"
#include "tests/support/refused.h"

namespace cleave::test {
namespace {

using Bytes = std::vector<std::uint8_t>;

CifarOptions cifarOptions(const CifarFolder& files, CifarKind kind = CifarKind::cifar10,
                          bool train = true) {
  CifarOptions options;
  options.folder = files.folder();
  options.kind = kind;
  options.train = train;
  return options;
}

Bytes joined(const std::vector<Bytes>& parts) {
  Bytes all;
  for (const Bytes& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

TEST_CASE("CIFAR-10's training images are five files in order, and its test images are one file") {
  const CifarFolder files("ten");
  files.writeCifar10(3);
  const auto train = openCifar(cifarOptions(files));
  REQUIRE(train->size() == 15);
  CHECK(train->classes() == 10);
  CHECK(train->sampleShape() == std::vector<std::int64_t>{3, 32, 32});
  for (std::uint32_t index = 0; index < 15; ++index) CHECK(labelOf(*train, index) == index % 10);
  const auto test = openCifar(cifarOptions(files, CifarKind::cifar10, false));
  REQUIRE(test->size() == 3);
  CHECK(labelOf(*test, 0) == 15 % 10);
}

TEST_CASE("each channel has its own mean and std") {
  const CifarFolder files("channels");
  files.writeCifar10(2);
  CifarOptions options = cifarOptions(files);
  options.image.mean = {0.1, 0.2, 0.3};
  options.image.stddev = {0.5, 1, 2};
  const auto data = openCifar(options);
  const Bytes record = cifarRecord({7}, 7);
  std::vector<float> sample(kCifarPixels);
  CHECK(data->read(7, sample) == 7);
  for (std::size_t j = 0; j < kCifarPixels; ++j) {
    const std::size_t c = j / 1024;
    const double value = (record[1 + j] / 255.0 - options.image.mean[c]) / options.image.stddev[c];
    REQUIRE(sample[j] == static_cast<float>(value));
  }
}

TEST_CASE("a single mean applies to all channels, and a list of two is refused") {
  const CifarFolder files("means");
  files.writeCifar10(1);
  CifarOptions options = cifarOptions(files);
  options.image.mean = {0.5};
  CHECK_NOTHROW(openCifar(options));
  options.image.mean = {0.5, 0.5};
  CHECK(errorCode([&] { openCifar(options); }) == "bad-image-transform");
  options.image.mean = {};
  CHECK_THROWS_AS(openCifar(options), UsageError);
}

TEST_CASE("CIFAR-100 has fine or coarse labels") {
  const CifarFolder files("hundred");
  files.write("train.bin", joined({cifarRecord({3, 99}, 0), cifarRecord({19, 5}, 1)}));
  files.write("test.bin", cifarRecord({1, 2}, 2));
  const auto fine = openCifar(cifarOptions(files, CifarKind::cifar100Fine));
  CHECK(fine->classes() == 100);
  CHECK(labelOf(*fine, 0) == 99);
  CHECK(labelOf(*fine, 1) == 5);
  const auto coarse = openCifar(cifarOptions(files, CifarKind::cifar100Coarse));
  CHECK(coarse->classes() == 20);
  CHECK(labelOf(*coarse, 0) == 3);
  std::vector<float> sample(kCifarPixels);
  CHECK(coarse->read(1, sample) == 19);
  const Bytes record = cifarRecord({19, 5}, 1);
  for (std::size_t j = 0; j < kCifarPixels; ++j) {
    REQUIRE(sample[j] == static_cast<float>(record[2 + j] / 255.0));
  }
  CHECK(openCifar(cifarOptions(files, CifarKind::cifar100Fine, false))->size() == 1);
}

TEST_CASE("a gzip file is used if the plain one is missing") {
  const CifarFolder files("packed");
  const Bytes plain = joined({cifarRecord({0, 42}, 0), cifarRecord({1, 43}, 1)});
  Bytes packed(compressBound(plain.size()) + 64);
  z_stream stream = {};
  REQUIRE(deflateInit2(&stream, 6, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY) == Z_OK);
  stream.next_in = const_cast<Bytef*>(plain.data());
  stream.avail_in = static_cast<uInt>(plain.size());
  stream.next_out = packed.data();
  stream.avail_out = static_cast<uInt>(packed.size());
  REQUIRE(deflate(&stream, Z_FINISH) == Z_STREAM_END);
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  files.write("train.bin.gz", packed);
  const auto data = openCifar(cifarOptions(files, CifarKind::cifar100Fine));
  REQUIRE(data->size() == 2);
  CHECK(labelOf(*data, 1) == 43);
}

TEST_CASE("the error for a missing file names the file and its source") {
  const CifarFolder files("missing");
  files.writeCifar10(1);
  std::filesystem::remove(files.path("data_batch_4.bin"));
  checkRefused([&] { openCifar(cifarOptions(files)); }, files.path("data_batch_4.bin"),
               "data-missing", "there is no such file, and no data_batch_4.bin.gz");
  CHECK_NOTHROW(openCifar(cifarOptions(files, CifarKind::cifar10, false)));
  try {
    openCifar(cifarOptions(files, CifarKind::cifar100Fine));
    FAIL("nothing was thrown");
  } catch (const UsageError& error) {
    CHECK_THAT(error.hint(), Catch::Contains("binary version of CIFAR-100"));
  }
}

TEST_CASE("a truncated, overlong or empty file is refused") {
  const CifarFolder files("truncated");
  files.writeCifar10(2);
  Bytes bytes = joined({cifarRecord({0}, 0), cifarRecord({1}, 1)});
  bytes.pop_back();
  files.write("data_batch_2.bin", bytes);
  checkRefused([&] { openCifar(cifarOptions(files)); }, files.path("data_batch_2.bin"),
               "data-damaged", "6145 bytes are not a whole number of records of 3073 bytes");
  bytes.resize(6147);
  files.write("data_batch_2.bin", bytes);
  checkRefused([&] { openCifar(cifarOptions(files)); }, files.path("data_batch_2.bin"),
               "data-damaged", "6147 bytes");
  files.write("data_batch_2.bin", {});
  checkRefused([&] { openCifar(cifarOptions(files)); }, files.path("data_batch_2.bin"),
               "data-empty", "is empty");
}

TEST_CASE("a file in the other CIFAR format, or with a label out of range, is refused") {
  const CifarFolder files("labels");
  files.writeCifar10(2);
  files.write("data_batch_5.bin", joined({cifarRecord({9}, 0), cifarRecord({10}, 1)}));
  checkRefused([&] { openCifar(cifarOptions(files)); }, files.path("data_batch_5.bin"),
               "data-damaged", "image 1 has the label 10, but the largest label is 9");
  files.write("data_batch_5.bin", cifarRecord({1, 57}, 0));  // a record of CIFAR-100
  checkRefused([&] { openCifar(cifarOptions(files)); }, files.path("data_batch_5.bin"),
               "data-damaged", "3074 bytes");
  files.write("train.bin", cifarRecord({20, 57}, 0));
  checkRefused([&] { openCifar(cifarOptions(files, CifarKind::cifar100Coarse)); },
               files.path("train.bin"), "data-damaged",
               "the label 20, but the largest label is 19");
  CHECK_NOTHROW(openCifar(cifarOptions(files, CifarKind::cifar100Fine)));
}

}  // namespace
}  // namespace cleave::test
