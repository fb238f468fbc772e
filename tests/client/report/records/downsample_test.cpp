// Series and distributions of a report, in bounded memory.
#include "client/report/records/downsample.h"

#include <catch2/catch.hpp>
#include <cmath>

#include "common/core/random.h"

namespace cleave::test {
namespace {

TEST_CASE("downsampling keeps minimum, maximum and mean, in bounded memory") {
  constexpr std::size_t kMax = 100, kValues = 100000;
  BucketAxis grid(1, kMax);
  Series series(grid), late(grid);
  std::vector<float> noise(kValues);
  fillNormal(randomKey(1, "report"), noise);
  noise[54321] = 1000;
  noise[54322] = -1000;
  late.add(0, 1);
  double sum = 0;
  for (std::size_t x = 0; x < kValues; ++x) {
    series.add(static_cast<double>(x), noise[x]);
    sum += noise[x];
  }
  late.add(kValues - 1, 3);
  CHECK(grid.width() == 1024);
  REQUIRE(series.buckets().size() <= kMax);
  CHECK(late.buckets().size() == series.buckets().size());  // both have the same bucket boundaries
  double got = 0;
  for (std::size_t k = 0; k < series.buckets().size(); ++k) {
    const Series::Bucket& bucket = series.buckets()[k];
    const auto begin = noise.begin() + static_cast<std::ptrdiff_t>(1024 * k);
    const auto end =
        noise.begin() + static_cast<std::ptrdiff_t>(std::min<std::size_t>(1024 * (k + 1), kValues));
    CHECK(bucket.min == *std::min_element(begin, end));
    CHECK(bucket.max == *std::max_element(begin, end));
    CHECK(bucket.values == static_cast<std::uint64_t>(end - begin));
    got += bucket.sum;
  }
  CHECK(got == Approx(sum));
  CHECK(series.buckets()[54321 / 1024].max == 1000);
  CHECK(late.buckets().front().mean() == 1);
  CHECK(late.buckets().back().mean() == 3);
}

TEST_CASE("quantiles are accurate within six percent, and no value is lost") {
  Histogram histogram;
  for (int i = 1; i <= 10000; ++i) histogram.add(i * 1e-6);
  histogram.add(1e-30);  // a value below the smallest bin
  histogram.add(1e30);
  histogram.add(0);
  CHECK(histogram.values() == 10003);
  for (const double share : {0.05, 0.5, 0.95}) {
    CHECK(histogram.quantile(share) == Approx(share * 1e-2).epsilon(0.06));
  }
  std::uint64_t counted = 0;
  for (const auto& one : histogram.classes(2)) counted += one.values;
  CHECK(counted == 10002);
}

TEST_CASE("a transfer's bytes are spread over its seconds") {
  BytesBySecond bytes;
  bytes.add(3.5, 2, 100);  // a transfer from 1.5 s to 3.5 s
  bytes.add(0.25, 1, 40);  // a transfer that started before the run's first second
  bytes.add(3.9, 0.1, 10);
  REQUIRE(bytes.seconds().size() == 4);
  CHECK(bytes.seconds()[0] == Approx(40));
  CHECK(bytes.seconds()[1] == Approx(25));
  CHECK(bytes.seconds()[2] == Approx(50));
  CHECK(bytes.seconds()[3] == Approx(35));
}

}  // namespace
}  // namespace cleave::test
