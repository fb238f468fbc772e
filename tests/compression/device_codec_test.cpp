// GPU codecs on an emulated GPU: compares the results of kernels and host code with those of the
// CPU codecs, byte for byte.
#include "tests/support/codecs/device_codec_checks.h"
#include "tests/support/codecs/emulated_gpu.h"

using namespace cleave;
using namespace cleave::test;

#ifdef CLEAVE_SANITIZED
const std::vector<std::size_t> kSizes = {0, 1, 65, 4097};
#else
const std::vector<std::size_t> kSizes = {0, 1, 3, 63, 64, 65, 100, 4095, 4096, 4097};
#endif

TEST_CASE("GPU codecs write and read the same bytes as the CPU codecs") {
  EmulatedGpu gpu;
  checkDeviceCodecs(gpu, kSizes);
}

TEST_CASE("GPU codecs accept tensors of several tiles") {
  EmulatedGpu gpu;
  checkDeviceCodecs(gpu, {3 * device::kTileElements + 1037});
}

TEST_CASE("exactly these codecs have a GPU implementation") {
  EmulatedGpu gpu;
  const auto has = [&](const char* spec) {
    return makeDeviceCodec(makeCodec(spec), gpu) != nullptr;
  };
  for (const char* spec :
       {"fp16", "bf16", "uniform:bits=8", "block:bits=4", "sort:q=6,s=2", "topk:ratio=0.1"})
    CHECK(has(spec));
  for (const char* spec :
       {"none", "fp8", "sort:q=6,s=2,select=exact", "fast:q=6,s=2", "randtopk:ratio=0.1,alpha=0.1",
        "zstd:level=1(block:bits=4)", "rans(block:bits=4)", "block:bits=4,rotation=hadamard"})
    CHECK(!has(spec));
}

TEST_CASE("the GPU runs the codec whenever possible") {
  EmulatedGpu gpu;
  for (const char* spec : {"fp16", "uniform:bits=8", "block:bits=4,rounding=stochastic",
                           "sort:q=6,s=2", "topk:ratio=0.1"}) {
    const std::shared_ptr<const Codec> codec = makeCodec(spec);
    const auto gpuCodec = makeDeviceCodec(codec, gpu);
    const Tensor tensor = tensorOf(deviceValues(0, 10000));
    const DeviceTensor there(gpu, tensor.spec, tensor.bytes);
    gpu.launches = 0;
    CutContext cut;
    Bytes out(gpuCodec->maxEncodedBytes(tensor.spec));
    out.resize(gpuCodec->encode({7, kKey}, nullptr, cut, there.view(), out).bytes);
    CHECK(std::exchange(gpu.launches, 0) > 0);
    gpuCodec->decode({7, kKey}, nullptr, cut, out, there.out());
    CHECK(gpu.launches > 0);
  }
}

TEST_CASE("CPU and GPU both refuse forged distances, or both decode the same positions") {
  EmulatedGpu gpu;
  const std::shared_ptr<const Codec> codec = makeCodec("topk:ratio=0.01");
  const auto gpuCodec = makeDeviceCodec(codec, gpu);
  const CodecContext context{7, {Phase::train, 3, 1, activationAt(0)}};
  constexpr std::size_t kElements = 50000;
  constexpr std::size_t kKept = 500;
  const TensorSpec spec{DType::f16, {kElements}};
  constexpr std::size_t kEnd = 1 + 2 * kKept;
  const auto outcome = [&](const std::vector<unsigned>& coded) {
    Bytes payload(kEnd);
    payload[0] = std::byte{2};
    for (const unsigned byte : coded) payload.push_back(static_cast<std::byte>(byte));
    const std::string here = decodeOutcome(*codec, nullptr, gpu, context, {}, payload, spec);
    REQUIRE((here == decodeOutcome(*codec, gpuCodec.get(), gpu, context, {}, payload, spec)));
    return here.substr(0, 7);
  };
  const auto with = [](std::vector<unsigned> coded, std::size_t at,
                       const std::vector<unsigned>& instead) {
    coded.erase(coded.begin() + static_cast<std::ptrdiff_t>(at));
    coded.insert(coded.begin() + static_cast<std::ptrdiff_t>(at), instead.begin(), instead.end());
    return coded;
  };
  const std::vector<unsigned> ones(kKept, 1);
  CHECK(outcome(ones) == "decoded");
  for (const std::size_t at : {std::size_t{0}, std::size_t{31}, std::size_t{32}, kKept - 1}) {
    CAPTURE(at);
    CHECK(outcome(with(ones, at, {0x81, 0x00})) ==
          "decoded");  // a distance of 1, not in its shortest form
    CHECK(outcome(with(ones, at, {0x81, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x00})) ==
          "decoded");
    CHECK(outcome(with(ones, at, {0x81, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x00})) ==
          "refused");
    CHECK(outcome(with(ones, at, {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f})) ==
          "refused");
    CHECK(outcome(with(ones, at, {0x80, 0x80, 0x80, 0x80, 0x10})) ==
          "refused");  // a distance of 2^32
    CHECK(outcome(with(ones, at, std::vector<unsigned>(60, 0x80))) == "refused");
    CHECK(outcome(with(ones, at, {})) == "refused");
    CHECK(outcome(with(ones, at, {1, 1})) == "refused");
  }
  // Distances to the last valid position, and to the position after it.
  const std::size_t max = kElements - 2 * (kKept - 1) - 1;
  const auto coded = [](std::size_t distance) {
    return std::vector<unsigned>{static_cast<unsigned>(distance & 0x7f) | 0x80,
                                 static_cast<unsigned>(distance >> 7 & 0x7f) | 0x80,
                                 static_cast<unsigned>(distance >> 14)};
  };
  for (const std::size_t at : {std::size_t{0}, std::size_t{100}, kKept - 1}) {
    CHECK(outcome(with(ones, at, coded(max))) == "decoded");
    CHECK(outcome(with(ones, at, coded(max + 1))) == "refused");
  }
  // Distances whose sums would wrap around to small numbers.
  CHECK(outcome(std::vector<unsigned>(2 * kKept, 0x7f)) == "refused");
  std::vector<unsigned> far;
  for (std::size_t k = 0; k < kKept; ++k)
    far.insert(far.end(), {0xcf, 0x86, 0x03});  // each distance is 49999
  CHECK(outcome(far) == "refused");
  // Random distances.
  const RandomKey key = randomKey(1, "hostile-distances");
  for (std::uint64_t round = 0; round < 300; ++round) {
    std::vector<unsigned> any;
    std::uint64_t draw = round << 32;
    for (std::size_t k = 0; k < kKept; ++k) {
      const std::uint64_t bits = randomBits(key, draw++);
      for (unsigned more = 0; more < bits % 64 / 62; ++more)
        any.push_back(0x80 | (bits >> 8 & 0x7f));
      any.push_back(bits >> 16 & 0x7f);
    }
    if (round % 3 == 0) any[randomBits(key, draw++) % any.size()] ^= 0x80;
    outcome(any);
  }
}

TEST_CASE("kept elements may be far apart") {
  EmulatedGpu gpu;
  const std::shared_ptr<const Codec> codec = makeCodec("topk:ratio=0.00001");
  const auto gpuCodec = makeDeviceCodec(codec, gpu);
  std::vector<float> values(500000);
  for (const std::size_t at : {3, 20000, 20001, 499999}) values[at] = -2;
  values[20002] = 3;
  checkGpuCodec(codec, *gpuCodec, gpu, tensorOf(values), true);
}
