// No codec uses more memory than it declares. Memory is measured in operator new; Zstandard's own
// memory comes from malloc and is not included.
#include <malloc.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <cstring>
#include <new>

#include "common/core/random.h"
#include "tests/support/codecs/codec_specs.h"
#include "tests/support/codecs/codec_tensors.h"

namespace {

std::atomic<std::size_t> current = 0;
std::atomic<std::size_t> peak = 0;

void* counted(void* memory) {
  if (memory == nullptr) throw std::bad_alloc();
  const std::size_t now = current += malloc_usable_size(memory);
  std::size_t max = peak;
  while (now > max && !peak.compare_exchange_weak(max, now)) {
  }
  return memory;
}

void release(void* memory) {
  if (memory == nullptr) return;
  current -= malloc_usable_size(memory);
  std::free(memory);
}

}  // namespace

void* operator new(std::size_t size) { return counted(std::malloc(size)); }
void* operator new(std::size_t size, std::align_val_t align) {
  const auto boundary = static_cast<std::size_t>(align);
  return counted(std::aligned_alloc(boundary, (size + boundary - 1) / boundary * boundary));
}
void operator delete(void* memory) noexcept { release(memory); }
void operator delete(void* memory, std::size_t) noexcept { release(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { release(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { release(memory); }

namespace cleave::test {
namespace {

constexpr std::size_t kTables = std::size_t{8} << 20;  // the allowance in common/run/plan.cpp

// The tensor is so large that undeclared memory that grows with its size would exceed the
// allowance. Values are within `spread` of 1; with a small `spread`, they all fall into the same
// bin of every histogram.
Tensor largeTensor(float spread) {
  Tensor tensor{{DType::f32, {16, 64, 64, 64}, MemoryOrder::channelsLast}, {}};
  tensor.bytes.resize(tensor.spec.bytes());
  std::vector<float> values(tensor.spec.elements());
  const RandomKey key = randomKey(1, "codec memory");
  for (std::size_t j = 0; j < values.size(); ++j) {
    values[j] = 1 + spread * (static_cast<float>(randomBits(key, j) >> 40) * 0x1p-23f - 1);
  }
  std::memcpy(tensor.bytes.data(), values.data(), tensor.bytes.size());
  return tensor;
}

template <typename Work>
std::size_t peakOf(const Work& work) {
  const std::size_t before = current;
  peak = before;
  work();
  return peak - before;
}

void checkCodecs(const Tensor& tensor) {
  for (const std::string& spec : contractSpecs()) {
    if (spec.starts_with("zstd:level=19")) continue;  // uses the same code as level 1, but is slow
    CAPTURE(spec);
    const auto codec = makeCodec(spec);
    const CodecMemory memory = codec->memory(tensor.spec);
    const std::size_t max = memory.working + memory.cut + memory.state + kTables;
    Bytes out(codec->maxEncodedBytes(tensor.spec));
    Bytes decoded(tensor.spec.bytes());
    const Key key{Phase::train, 3, 1, activationAt(0)};
    CutContext here, there;
    Encoded encoded;
    CHECK(peakOf([&] {
            encoded = codec->encode({7, key, nullptr}, nullptr, here, tensor.view(), out);
          }) <= max);
    CHECK(peakOf([&] {
            codec->decode({7, key, nullptr}, nullptr, there, {out.data(), encoded.bytes},
                          {decoded.data(), tensor.spec});
          }) <= max);
    // Memory that the codec keeps after the call is counted separately.
    const std::size_t kept = current;
    here = {};
    encoded.state.reset();
    CHECK(kept - current <= memory.cut + memory.state + 1024);
  }
}

TEST_CASE("no codec uses more memory than declared, encoding or decoding") {
  checkCodecs(largeTensor(2));
}

TEST_CASE("no codec uses more memory than declared for nearly equal values") {
  checkCodecs(largeTensor(0.001f));
}

}  // namespace
}  // namespace cleave::test
