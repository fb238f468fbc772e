// Compares `sort` and `fast` with a simple implementation that sorts all values.
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

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLargest = std::numeric_limits<float>::max();

std::unique_ptr<Codec> sortCodec(int q, int s, const std::string& select) {
  return makeCodec("sort:q=" + std::to_string(q) + ",s=" + std::to_string(s) + ",select=" + select);
}

std::vector<float> normal(std::size_t elements, std::uint64_t seed = 0) {
  std::vector<float> values(elements);
  fillNormal(randomKey(seed, "sort-test"), values);
  return values;
}

// Kinds of data: Gaussian, many ties, half zeros, heavy tails, ReLU6, almost all values equal.
constexpr int kKinds = 6;
std::vector<float> sample(int kind, std::size_t elements, std::uint64_t seed) {
  std::vector<float> values = normal(elements, seed);
  for (std::size_t j = 0; j < elements; ++j) {
    float& x = values[j];
    if (kind == 1) x = std::nearbyint(2 * x);
    if (kind == 2) x = x < 0 ? -0.0f : x;
    if (kind == 3) x = x * x * x * x * x;
    if (kind == 4) x = std::min(std::max(3 * x, 0.0f), 6.0f);
    if (kind == 5) x = j % 50 == 7 ? x : 1.5f;
  }
  return values;
}

struct Piece {
  float min, step;
};

std::vector<Piece> headerOf(const Bytes& bytes, int s) {
  std::vector<Piece> header(std::size_t{1} << s);
  std::memcpy(header.data(), &bytes[1], header.size() * sizeof(Piece));
  return header;
}

// Writes the format of compression/sort.cpp by sorting all values, one bit at a time.
Bytes oracle(const std::vector<float>& values, int q, int s) {
  const std::size_t count = std::size_t{1} << s;
  const int top = (1 << q) - 1;
  std::vector<float> sorted = values;
  for (float& x : sorted) x += 0.0f;
  std::sort(sorted.begin(), sorted.end());
  Bytes bytes(1 + 8 * count + (values.size() * static_cast<std::size_t>(q + s) + 7) / 8);
  bytes[0] = std::byte{1};
  std::vector<Piece> pieces;
  std::size_t rank = 0;
  for (std::size_t p = 0; p < count; ++p) {
    const std::size_t size = values.size() / count + (p < values.size() % count ? 1 : 0);
    const float min = sorted[rank];
    const float max = sorted[rank + size - 1];
    rank += size;
    pieces.push_back({min, (max - min) / static_cast<float>(top)});
    std::memcpy(&bytes[1 + 8 * p], &pieces.back(), 8);
  }
  for (std::size_t j = 0; j < values.size(); ++j) {
    std::size_t p = count - 1;
    while (p > 0 && values[j] < pieces[p].min) --p;
    const float exact = (values[j] - pieces[p].min) / pieces[p].step;
    const int step =
        pieces[p].step == 0 ? 0 : static_cast<int>(std::nearbyint(std::min(exact, float(top))));
    const std::size_t code = p << q | static_cast<std::size_t>(step);
    for (int bit = 0; bit < q + s; ++bit) {
      const std::size_t place = j * static_cast<std::size_t>(q + s) + static_cast<std::size_t>(bit);
      if (code >> bit & 1) bytes[1 + 8 * count + place / 8] |= std::byte{1} << (place % 8);
    }
  }
  return bytes;
}

}  // namespace

TEST_CASE("a small tensor is encoded in the documented layout") {
  std::vector<float> values;
  for (int j = 0; j < 16; ++j) values.push_back(static_cast<float>(j < 8 ? j % 4 : 100 + j % 4));
  const Bytes bytes = encode(*sortCodec(2, 1, "exact"), tensorOf(values));
  CHECK(bytes.size() == 1 + 16 + 6);
  const std::vector<Piece> header = headerOf(bytes, 1);
  CHECK(header[0].min == 0);
  CHECK(header[0].step == 1);
  CHECK(header[1].min == 100);
  CHECK(header[1].step == 1);
  // The codes 0 1 2 3 0 1 2 3 4 5 6 7 4 5 6 7, with three bits each.
  std::uint64_t stream = 0;
  std::memcpy(&stream, &bytes[17], 6);
  for (int j = 0; j < 16; ++j)
    CHECK(static_cast<int>(stream >> 3 * j & 7) == (j < 8 ? j % 4 : 4 + j % 4));
}

TEST_CASE("exact selection gives the same pieces as sorting, and the same bytes as the oracle") {
  const int tensors = 1000;
  for (int k = 0; k < tensors; ++k) {
    const std::uint64_t bits = randomBits(randomKey(5, "shapes"), static_cast<std::uint64_t>(k));
    // Every 20th tensor is large enough for the histogram.
    const std::size_t elements = k % 20 == 0 ? 16385 + bits % 40000 : 40 + bits % 3000;
    const int q = 1 + static_cast<int>(bits >> 20 & 7);
    const int s = static_cast<int>((bits >> 24) % 5);
    const std::vector<float> values = sample(k % kKinds, elements, static_cast<std::uint64_t>(k));
    INFO("tensor " << k << ", " << elements << " elements, q " << q << ", s " << s);
    if (8 * (1 << s) + elements * static_cast<std::size_t>(q + s) / 8 + 1 >= 4 * elements) continue;
    const bool same = encode(*sortCodec(q, s, "exact"), tensorOf(values)) == oracle(values, q, s);
    REQUIRE(same);
  }
}

TEST_CASE("with many pieces and wide codes, the bytes match the oracle's") {
  for (const auto& [q, s] : {std::pair(8, 8), std::pair(1, 8), std::pair(16, 0), std::pair(11, 5),
                             std::pair(4, 4), std::pair(5, 3)}) {
    for (int kind = 0; kind < kKinds; ++kind) {
      INFO(q << " " << s << " kind " << kind);
      const std::vector<float> values = sample(kind, 20011, 3);
      const bool same = encode(*sortCodec(q, s, "exact"), tensorOf(values)) == oracle(values, q, s);
      REQUIRE(same);
    }
  }
}

TEST_CASE("every instruction set produces the same bytes") {
  const std::int64_t sets = instructionSets();
  for (const auto& [q, s] : {std::pair(6, 2), std::pair(3, 1), std::pair(7, 0), std::pair(5, 3),
                             std::pair(3, 5), std::pair(8, 8)}) {
    for (int kind = 0; kind < kKinds; ++kind) {
      const Tensor tensor = tensorOf(sample(kind, 5003, 4));
      for (const char* select : {"exact", "sampled"}) {
        const Bytes bytes = encode(*sortCodec(q, s, select), tensor);
        for (std::int64_t set = 1; set != 0 && set <= sets; set <<= 1) {
          if (!(sets & set)) continue;
          chooseInstructionSets(set);
          const bool same = encode(*sortCodec(q, s, select), tensor) == bytes;
          chooseInstructionSets(0);
          INFO("instruction set " << set);
          REQUIRE(same);
        }
      }
    }
  }
}

TEST_CASE("16-bit inputs are encoded as their fp32 values") {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    const Tensor tensor = tensorOf(normal(20000), dtype);
    const bool same = encode(*sortCodec(5, 2, "exact"), tensor) == oracle(valuesOf(tensor), 5, 2);
    CHECK(same);
  }
}

TEST_CASE("sampled boundaries lose at most 0.5 dB") {
  for (const int kind : {0, 3, 4}) {
    for (const auto& [q, s] :
         {std::pair(6, 2), std::pair(3, 1), std::pair(2, 2), std::pair(4, 4)}) {
      for (std::uint64_t seed = 0; seed < 3; ++seed) {
        INFO("kind " << kind << ", q " << q << ", s " << s << ", seed " << seed);
        const Tensor tensor = tensorOf(sample(kind, 200000, seed));
        const double exact = snr(*sortCodec(q, s, "exact"), tensor);
        CHECK(snr(*sortCodec(q, s, "sampled"), tensor) >= exact - 0.5);
      }
    }
  }
}

TEST_CASE("fast with boundaries=all equals sort, and boundaries=first uses the first sample") {
  const std::vector<float> values = sample(0, 8 * 3000, 1);
  Tensor tensor = tensorOf(values);
  tensor.spec.shape = {8, 3000};
  const Bytes all = encode(*makeCodec("fast:q=4,s=2,boundaries=all"), tensor);
  CHECK((all == encode(*sortCodec(4, 2, "exact"), tensor)));
  const Bytes first = encode(*makeCodec("fast:q=4,s=2,boundaries=first"), tensor);
  std::vector<float> sorted(values.begin(), values.begin() + 3000);
  std::sort(sorted.begin(), sorted.end());
  const std::vector<Piece> header = headerOf(first, 2);
  CHECK(header[0].min == *std::min_element(values.begin(), values.end()));
  for (std::size_t p = 1; p < 4; ++p) CHECK(header[p].min == sorted[750 * p]);
  const float max = *std::max_element(values.begin(), values.end());
  CHECK(header[3].step == (max - header[3].min) / 15);
}

TEST_CASE("a constant, and values that fill whole pieces, are restored exactly") {
  for (const char* select : {"exact", "sampled"}) {
    for (const float constant : {0.0f, 0.1f, -7.5f, kLargest, -kLargest}) {
      const Tensor tensor = tensorOf(std::vector<float>(9000, constant));
      const Bytes bytes = encode(*sortCodec(4, 2, select), tensor);
      for (const Piece& piece : headerOf(bytes, 2)) CHECK(piece.step == 0);
      CHECK((decode(*sortCodec(4, 2, select), bytes, tensor.spec).bytes == tensor.bytes));
    }
  }
}

TEST_CASE("values whose range overflows fp32 stay finite, with an error of at most half a step") {
  for (const char* select : {"exact", "sampled"}) {
    for (const auto& [q, s] : {std::pair(8, 0), std::pair(3, 1), std::pair(1, 0)}) {
      std::vector<float> values = normal(6000);
      for (float& value : values) value *= 5e37f;
      values[7] = -kLargest;
      values[8] = kLargest;
      const Tensor tensor = tensorOf(values);
      const Bytes bytes = encode(*sortCodec(q, s, select), tensor);
      float widest = 0;
      for (const Piece& piece : headerOf(bytes, s)) widest = std::max(widest, piece.step);
      const std::vector<float> decoded =
          valuesOf(decode(*sortCodec(q, s, select), bytes, tensor.spec));
      for (std::size_t j = 0; j < values.size(); ++j) {
        REQUIRE(std::isfinite(decoded[j]));
        if (q > 1) REQUIRE(std::abs(double{values[j]} - double{decoded[j]}) <= widest * 0.5001);
      }
    }
  }
}

TEST_CASE("rounding of the step moves no value beyond the largest float") {
  for (int q = 1; q <= 8; ++q) {
    for (const float min : {0.0f, 1e38f, -1.0f, -kLargest / 3}) {
      std::vector<float> values(200, kLargest);
      for (std::size_t j = 0; j < 150; ++j) values[j] = min;
      const Tensor tensor = tensorOf(values);
      const Bytes bytes = encode(*sortCodec(q, 1, "exact"), tensor);
      for (const float x : valuesOf(decode(*sortCodec(q, 1, "exact"), bytes, tensor.spec)))
        REQUIRE(std::isfinite(x));
    }
  }
}

TEST_CASE("a piece with an invalid min or step is refused") {
  const Tensor tensor = tensorOf(normal(100));
  const std::unique_ptr<Codec> codec = sortCodec(4, 2, "exact");
  const Bytes good = encode(*codec, tensor);
  for (std::size_t p = 0; p < 4; ++p) {
    for (const Piece bad : {Piece{std::nanf(""), 1}, Piece{kInfinity, 1}, Piece{0, kInfinity},
                            Piece{0, -1}, Piece{0, std::nanf("")}, Piece{0, kLargest / 14}}) {
      Bytes bytes = good;
      std::memcpy(&bytes[1 + 8 * p], &bad, sizeof bad);
      CHECK_THROWS_AS(decode(*codec, bytes, tensor.spec), ProtocolError);
    }
  }
}

TEST_CASE("a format byte that does not match the tensor is refused") {
  for (const std::size_t elements : {1, 100}) {
    const Tensor tensor = tensorOf(normal(elements));
    Bytes bytes = encode(*sortCodec(4, 2, "exact"), tensor);
    for (const int format : {elements == 1 ? 1 : 0, 2, 255}) {
      bytes[0] = static_cast<std::byte>(format);
      CHECK_THROWS_AS(decode(*sortCodec(4, 2, "exact"), bytes, tensor.spec), ProtocolError);
    }
  }
}
