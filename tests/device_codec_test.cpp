// The twins of codecs on a GPU that is emulated: kernels and all around them, byte for byte against
// the codecs themselves.
#include "tests/device_codec_checks.h"
#include "tests/emulated_gpu.h"

using namespace cleave;
using namespace cleave::test;

TEST_CASE("twins of codecs write and read what the codecs do") {
  EmulatedGpu gpu;
  checkDeviceCodecs(gpu, {0, 1, 3, 63, 64, 65, 100, 4095, 4096, 4097});
}

TEST_CASE("twins take tensors of several tiles") {
  EmulatedGpu gpu;
  checkDeviceCodecs(gpu, {3 * device::kTileElements + 1037});
}

TEST_CASE("which codecs have a twin") {
  EmulatedGpu gpu;
  const auto has = [&](const char* spec) {
    return makeDeviceCodec(makeCodec(spec), gpu) != nullptr;
  };
  for (const char* spec :
       {"fp16", "bf16", "uniform:bits=8", "block:bits=4", "sort:q=6,s=2", "topk:ratio=0.1"})
    CHECK(has(spec));
  for (const char* spec : {"none", "fp8", "sort:q=6,s=2,select=exact", "fast:q=6,s=2",
                           "randtopk:ratio=0.1,alpha=0.1", "zstd:level=1(block:bits=4)"})
    CHECK(!has(spec));
}

TEST_CASE("the GPU does the work wherever it can") {
  EmulatedGpu gpu;
  for (const char* spec : {"fp16", "uniform:bits=8", "block:bits=4,rounding=stochastic",
                           "sort:q=6,s=2", "topk:ratio=0.1"}) {
    const std::shared_ptr<const Codec> codec = makeCodec(spec);
    const auto twin = makeDeviceCodec(codec, gpu);
    const Tensor tensor = tensorOf(deviceValues(0, 10000));
    const DeviceTensor there(gpu, tensor.spec, tensor.bytes);
    gpu.launches = 0;
    CutContext cut;
    Bytes out(twin->maxEncodedBytes(tensor.spec));
    out.resize(twin->encode({7, kKey}, nullptr, cut, there.view(), out).bytes);
    CHECK(std::exchange(gpu.launches, 0) > 0);
    twin->decode({7, kKey}, nullptr, cut, out, there.out());
    CHECK(gpu.launches > 0);
  }
}
