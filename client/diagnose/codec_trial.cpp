#include "client/diagnose/codec_trial.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "common/core/error.h"
#include "compression/parts/convert.h"

namespace cleave {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
// Seed of the codec's random numbers. tryCodec() combines it with the key of a run's first step.
constexpr std::uint64_t kSeed = 1;

// Returns the minimum duration of a call. A short call is repeated, because the first one runs with
// cold caches.
template <typename Call>
double timed(Call call) {
  constexpr double kEnoughSeconds = 0.005;
  constexpr int kMaxCalls = 20;
  double min = kInfinity;
  double sum = 0;
  for (int j = 0; j < kMaxCalls && sum < kEnoughSeconds; ++j) {
    const Clock::time_point start = Clock::now();
    call();
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    min = std::min(min, seconds);
    // The first call is excluded from the sum, unless it is so slow that the user would notice a
    // repetition.
    if (j > 0 || seconds > 0.5) sum += seconds;
  }
  return min;
}

void compareValues(std::span<const std::byte> in, std::span<const std::byte> out, DType dtype,
                   CodecFigures& figures) {
  figures.exact = in.empty() || std::memcmp(in.data(), out.data(), in.size()) == 0;
  constexpr std::size_t kPiece = 4096;
  std::vector<float> x(kPiece);
  std::vector<float> y(kPiece);
  const std::size_t width = dtypeBytes(dtype);
  const std::size_t elements = in.size() / width;
  for (std::size_t begin = 0; begin < elements; begin += kPiece) {
    const std::size_t count = std::min(kPiece, elements - begin);
    toFloat(in.data() + begin * width, dtype, count, x.data());
    toFloat(out.data() + begin * width, dtype, count, y.data());
    for (std::size_t j = 0; j < count; ++j) {
      const double value = x[j];
      if (std::isfinite(value)) figures.signal += value * value;
      if (x[j] == y[j] || (std::isnan(x[j]) && std::isnan(y[j]))) continue;
      double error = std::abs(value - double{y[j]});
      if (std::isnan(error)) error = kInfinity;
      figures.noise += error * error;
      figures.largestError = std::max(figures.largestError, error);
    }
  }
}

// The error for a tensor that the codec cannot encode. `where`: the names of file and tensor.
RunError cannotEncode(const Codec& codec, const std::string& where) {
  return {"non-finite",
          where + " contains NaN or infinity, which the codec " + codec.spec() + " cannot encode",
          "use none, fp16 or bf16, or check the program that wrote the file: a training run that "
          "diverged produces such values"};
}

}  // namespace

// ---- Figures ----

void CodecFigures::add(const CodecFigures& other) {
  tensors += other.tensors;
  rawBytes += other.rawBytes;
  wireBytes += other.wireBytes;
  encodeSeconds += other.encodeSeconds;
  decodeSeconds += other.decodeSeconds;
  signal += other.signal;
  noise += other.noise;
  largestError = std::max(largestError, other.largestError);
  exact = exact && other.exact;
}

std::optional<double> CodecFigures::ratio() const {
  if (rawBytes == 0) return std::nullopt;
  return static_cast<double>(wireBytes) / static_cast<double>(rawBytes);
}

std::optional<double> CodecFigures::rate(double seconds) const {
  if (rawBytes == 0 || seconds <= 0) return std::nullopt;
  return static_cast<double>(rawBytes) / seconds * 1e-9;
}

double CodecFigures::snr() const {
  if (noise == 0) return kInfinity;
  return signal == 0 ? -kInfinity : 10 * std::log10(signal / noise);
}

// ---- Encoding and decoding a tensor ----

std::optional<DType> floatOf(const SafetensorsEntry& entry) {
  if (entry.dtype == "F32") return DType::f32;
  if (entry.dtype == "F16") return DType::f16;
  if (entry.dtype == "BF16") return DType::bf16;
  return std::nullopt;
}

CodecFigures tryCodec(const Codec& codec, BufferPool& pool, const SafetensorsEntry& entry,
                      std::uint32_t index, const std::string& file, std::byte* out) {
  const TensorSpec spec{*floatOf(entry), entry.shape};
  const std::size_t size = entry.bytes.size();
  // The values are copied to an aligned buffer. Tensors in a file may be unaligned, but those of a
  // run never are.
  Buffer in = pool.acquire(size);
  Buffer decoded = pool.acquire(size);
  if (size > 0) std::memcpy(in.data(), entry.bytes.data(), size);
  Buffer wire = pool.acquire(codec.maxEncodedBytes(spec));
  const CodecContext context{kSeed, Key{Phase::train, 1, index, activationAt(0)}};

  CodecFigures figures;
  figures.tensors = 1;
  figures.rawBytes = size;
  try {
    figures.encodeSeconds = timed([&] {
      CutContext cut;
      figures.wireBytes =
          codec.encode(context, nullptr, cut, TensorView{in.data(), spec}, wire.span()).bytes;
    });
  } catch (const NonFiniteError&) {
    throw cannotEncode(codec, file + ": tensor \"" + inAscii(entry.name) + '"');
  }
  wire.shrink(figures.wireBytes);
  figures.decodeSeconds = timed([&] {
    CutContext cut;
    codec.decode(context, nullptr, cut, std::as_const(wire).span(),
                 MutableTensorView{decoded.data(), spec});
  });
  compareValues(std::as_const(in).span(), std::as_const(decoded).span(), spec.dtype, figures);
  if (out != nullptr && size > 0) std::memcpy(out, decoded.data(), size);
  return figures;
}

}  // namespace cleave
