// `power:rank=R,iterations=N` and `svd:rank=R`: each sample's matrix as the product of two factors
// of rank R. A sample of [B, C, H, W] is a matrix of C x (H * W), one of [B, S, F] is S x F; the
// rank is at most the smaller side.
//
//   payload = nothing                          for a tensor without elements
//           | 0x00, the tensor's own bytes     unless it has 3 or 4 dimensions; if factors would
//                                              not be shorter; for svd, if both sides exceed 1024
//           | 0x01, features: fp32, others: fp32
//           | 0x01, length: u64, features, others      with a codec for the factors
//
// `features` is [B, R, C] (or [B, R, F]), `others` [B, R, H * W] (or [B, R, S]). With a codec for
// the factors, both are payloads of that codec for fp32 tensors of these shapes; `length` is the
// size of the first payload in bytes. The tensor's spec determines the form, and without a codec
// also the length. An element of a sample is the sum over r of features[r] * others[r], in fp32,
// clamped to the finite values of the tensor's type.
//
// svd: the truncated decomposition, from the eigenvectors of the smaller Gram matrix.
// power: subspace iteration (Vogels et al., "PowerSGD", arXiv 1905.13727) from random `features`:
// others = orthonormalised A * features, features = A^T * others. In training, it starts from the
// same micro-batch's factors of the previous step.
#include <algorithm>
#include <array>
#include <cmath>

#include "common/codec/checkpoint_error.h"
#include "common/core/random.h"
#include "compression/codecs.h"
#include "compression/parts/convert.h"
#include "compression/parts/matrix.h"
#include "compression/parts/payload.h"
#include "compression/parts/strips.h"

namespace cleave {
namespace {

constexpr std::byte kFactors{1};
constexpr std::size_t kLengthBytes = sizeof(std::uint64_t);
constexpr std::size_t kMaxGramSize = 1024;
// Above any feature that encode() returns, which is at most twice the root of a sample's elements.
// With much larger ones, the next factors would not be finite.
constexpr float kMaxFeature = 1e6f;

struct Factors {
  std::size_t rank = 0;
  std::vector<float> features;  // [samples, rank, features of a sample]
  std::vector<float> others;

  bool sameShape(const Factors& other) const {
    return rank == other.rank && features.size() == other.features.size() &&
           others.size() == other.others.size();
  }
};

TensorView viewOf(const std::vector<float>& values, TensorSpec spec) {
  return {reinterpret_cast<const std::byte*>(values.data()), std::move(spec)};
}

// scaled[j] = values[j] * 2^exponent. Requires results within the range of fp32.
void scaleByPowerOfTwo(const float* values, int exponent, std::vector<float>& scaled) {
  if (std::abs(exponent) <= 126) {  // the power of two is a normal fp32 number
    const auto scale = static_cast<float>(std::ldexp(1.0, exponent));
    for (std::size_t j = 0; j < scaled.size(); ++j) scaled[j] = values[j] * scale;
    return;
  }
  const double scale = std::ldexp(1.0, exponent);
  for (std::size_t j = 0; j < scaled.size(); ++j) {
    scaled[j] = static_cast<float>(double{values[j]} * scale);
  }
}

// Calls work(checkpoints, room for a sample's matrix, b) for each sample b. If the context has a
// helper, two threads share samples that need few multiplications per value.
template <typename Work>
void forEachSample(const CodecContext& context, const MatrixShape& shape, std::size_t perValue,
                   const Work& work) {
  const std::size_t values = shape.rows * shape.columns;
  const std::size_t together = Checkpoints::kBetween / std::max<std::size_t>(1, values * perValue);
  std::array<std::vector<float>, 2> rooms;
  rooms[0].resize(values);
  if (context.helper == nullptr || together < 2 || shape.samples < 2) {
    Checkpoints checkpoints(context);
    for (std::size_t b = 0; b < shape.samples; ++b) work(checkpoints, rooms[0], b);
    return;
  }
  rooms[1].resize(values);
  for (std::size_t first = 0; first < shape.samples; first += together) {
    const std::size_t last = std::min(first + together, shape.samples);
    const std::size_t middle = (first + last) / 2;
    const auto each = [&](std::size_t part, std::size_t from, std::size_t to) {
      Checkpoints none;
      for (std::size_t b = from; b < to; ++b) work(none, rooms[part], b);
    };
    context.helper->run([&] { each(0, first, middle); }, [&] { each(1, middle, last); });
    context.checkpoint();
  }
}

class LowRank : public Codec {
 public:
  // `iterations` 0: svd.
  LowRank(std::string name, int rank, int iterations, std::unique_ptr<Codec> inner)
      : name_(std::move(name)), rank_(rank), iterations_(iterations), inner_(std::move(inner)) {}

  std::string spec() const override { return name_; }

  std::size_t maxEncodedBytes(const TensorSpec& spec) const override {
    return isRaw(spec) ? rawPayloadBytes(spec) : withFactors(spec);
  }

  CodecMemory memory(const TensorSpec& spec) const override {
    if (spec.elements() == 0 || isRaw(spec)) return {};
    const MatrixShape shape = *matrixShape(spec);
    const TensorSpec first = factorSpec(shape, features(shape));
    const TensorSpec second = factorSpec(shape, others(shape));
    const std::size_t factors = first.bytes() + second.bytes();
    CodecMemory memory;
    // A sample's matrix on each of two threads, and the factors twice.
    memory.working = 2 * shape.rows * shape.columns * sizeof(float) + 2 * factors;
    if (iterations_ == 0) {  // svd: the Gram matrix, its eigenvectors and working memory
      const std::size_t n = std::min(shape.rows, shape.columns);
      memory.working += 2 * (4 * n * n * sizeof(double));
    }
    if (inner_) {
      memory.working += std::max(inner_->memory(first).working, inner_->memory(second).working);
    }
    if (iterations_ > 0) memory.state = sizeof(Factors) + factors;
    return memory;
  }

  Encoded encode(const CodecContext& context, const CodecState& state, CutContext&,
                 const TensorView& view, std::span<std::byte> out) const override {
    if (view.spec.elements() == 0) return {};
    if (isRaw(view.spec)) return encodeFiniteRaw(context, view, out);
    const FloatReader values(view);
    const kernels::Range range = rangeOf(context, view);
    if (!range.finite) throw NonFiniteError(context.key);
    const MatrixShape shape = *matrixShape(view.spec);
    const bool train = context.key.phase == Phase::train;
    auto factors = std::make_shared<Factors>(emptyFactors(shape));
    if (iterations_ > 0) start(context, train ? state : nullptr, *factors);

    // Scales by a power of two, so that no product exceeds the range of fp32.
    const float magnitude = std::max(std::abs(range.min), std::abs(range.max));
    const int exponent = magnitude > 0 ? std::ilogb(magnitude) : 0;
    const std::size_t products = 2 * static_cast<std::size_t>(std::max(1, iterations_));
    forEachSample(context, shape, products * factors->rank,
                  [&](Checkpoints& checkpoints, std::vector<float>& sample, std::size_t b) {
                    const float* const read =
                        values.read(b * sample.size(), sample.size(), sample.data());
                    scaleByPowerOfTwo(read, -exponent, sample);
                    factorise(checkpoints, sample.data(), shape, *factors, b);
                  });
    const std::size_t bytes = write(context, *factors, exponent, shape, out);
    const bool remembers = train && iterations_ > 0;
    return {bytes, remembers ? std::shared_ptr<const void>(std::move(factors)) : nullptr};
  }

  CodecState decode(const CodecContext& context, const CodecState&, CutContext&,
                    std::span<const std::byte> bytes, MutableTensorView out) const override {
    if (decodeRaw(bytes, out)) return nullptr;
    if (bytes.empty() || isRaw(out.spec)) {
      throwBadPayload(*this, context.key, "it does not match " + toString(out.spec));
    }
    const MatrixShape shape = *matrixShape(out.spec);
    Factors factors = emptyFactors(shape);
    read(context, bytes, shape, out.spec, factors);
    const auto& left = shape.featuresAreRows ? factors.features : factors.others;
    const auto& right = shape.featuresAreRows ? factors.others : factors.features;
    const DType dtype = out.spec.dtype;
    forEachSample(context, shape, factors.rank,
                  [&](Checkpoints& checkpoints, std::vector<float>& sample, std::size_t b) {
                    std::byte* const place = out.data + b * sample.size() * dtypeBytes(dtype);
                    const bool inPlace = isAlignedFloat(place, dtype);
                    float* const to = inPlace ? reinterpret_cast<float*>(place) : sample.data();
                    outerProduct(checkpoints, &left[b * factors.rank * shape.rows], shape.rows,
                                 &right[b * factors.rank * shape.columns], shape.columns,
                                 factors.rank, largestOf(dtype), to);
                    if (!inPlace) fromFloat(to, sample.size(), dtype, place);
                  });
    return nullptr;
  }

  // rank, number of features, number of others (u64 each), then the values of both (f32).
  std::vector<std::byte> saveState(const CodecState& state) const override {
    const auto* const factors = static_cast<const Factors*>(state.get());
    if (factors == nullptr) return {};
    const std::uint64_t sizes[] = {factors->rank, factors->features.size(), factors->others.size()};
    std::vector<std::byte> bytes(sizeof sizes + sizeof(float) * (sizes[1] + sizes[2]));
    std::memcpy(bytes.data(), sizes, sizeof sizes);
    std::byte* const features = bytes.data() + sizeof sizes;
    std::memcpy(features, factors->features.data(), sizeof(float) * sizes[1]);
    std::memcpy(features + sizeof(float) * sizes[1], factors->others.data(),
                sizeof(float) * sizes[2]);
    return bytes;
  }

  CodecState restoreState(std::span<const std::byte> bytes) const override {
    std::uint64_t sizes[3];
    const auto refuse = [&] { throw badCheckpoint("the bytes are not a state of codec " + name_); };
    if (iterations_ == 0 || bytes.size() < sizeof sizes) refuse();
    std::memcpy(sizes, bytes.data(), sizeof sizes);
    const std::uint64_t values = (bytes.size() - sizeof sizes) / sizeof(float);
    if ((bytes.size() - sizeof sizes) % sizeof(float) != 0 || sizes[1] > values ||
        sizes[2] != values - sizes[1] || sizes[0] > static_cast<std::uint64_t>(rank_)) {
      refuse();
    }
    auto factors = std::make_shared<Factors>(
        Factors{sizes[0], std::vector<float>(sizes[1]), std::vector<float>(sizes[2])});
    const std::byte* const features = bytes.data() + sizeof sizes;
    std::memcpy(factors->features.data(), features, sizeof(float) * sizes[1]);
    std::memcpy(factors->others.data(), features + sizeof(float) * sizes[1],
                sizeof(float) * sizes[2]);
    const auto isValid = [](float x) { return std::abs(x) <= kMaxFeature; };
    if (!std::ranges::all_of(factors->features, isValid)) refuse();
    return factors;
  }

 private:
  static std::size_t features(const MatrixShape& shape) {
    return shape.featuresAreRows ? shape.rows : shape.columns;
  }
  static std::size_t others(const MatrixShape& shape) {
    return shape.featuresAreRows ? shape.columns : shape.rows;
  }
  std::size_t rankOf(const MatrixShape& shape) const {
    return std::min({static_cast<std::size_t>(rank_), shape.rows, shape.columns});
  }
  TensorSpec factorSpec(const MatrixShape& shape, std::size_t side) const {
    return {DType::f32,
            {static_cast<std::int64_t>(shape.samples), static_cast<std::int64_t>(rankOf(shape)),
             static_cast<std::int64_t>(side)}};
  }
  Factors emptyFactors(const MatrixShape& shape) const {
    const std::size_t rank = rankOf(shape);
    return {rank, std::vector<float>(shape.samples * rank * features(shape)),
            std::vector<float>(shape.samples * rank * others(shape))};
  }

  // Requires a tensor that consists of matrices.
  std::size_t withFactors(const TensorSpec& spec) const {
    const MatrixShape shape = *matrixShape(spec);
    const TensorSpec first = factorSpec(shape, features(shape));
    const TensorSpec second = factorSpec(shape, others(shape));
    if (!inner_) return kFormatBytes + first.bytes() + second.bytes();
    return kFormatBytes + kLengthBytes + inner_->maxEncodedBytes(first) +
           inner_->maxEncodedBytes(second);
  }

  bool isRaw(const TensorSpec& spec) const {
    const std::optional<MatrixShape> shape = matrixShape(spec);
    if (!shape) return true;
    if (iterations_ == 0 && std::min(shape->rows, shape->columns) > kMaxGramSize) return true;
    return withFactors(spec) >= kFormatBytes + spec.bytes();
  }

  // Sets the initial features: those of the previous step, or random ones.
  void start(const CodecContext& context, const CodecState& state, Factors& factors) const {
    const Key& key = context.key;
    fillNormal(
        randomKey(context.seed, "power",
                  {static_cast<std::uint64_t>(key.phase), key.step, key.i, flowNumber(key.flow)}),
        factors.features);
    const auto* before = static_cast<const Factors*>(state.get());
    if (!before || !before->sameShape(factors)) return;
    // Adds small random values, because a feature that has become 0 would otherwise stay 0.
    for (std::size_t j = 0; j < factors.features.size(); ++j) {
      factors.features[j] = before->features[j] + 1e-3f * factors.features[j];
    }
  }

  void factorise(Checkpoints& checkpoints, const float* a, const MatrixShape& shape,
                 Factors& factors, std::size_t b) const {
    const std::size_t rank = factors.rank;
    float* const x = &factors.features[b * rank * features(shape)];
    float* const y = &factors.others[b * rank * others(shape)];
    const auto toOthers = shape.featuresAreRows ? timesRows : timesColumns;
    const auto toFeatures = shape.featuresAreRows ? timesColumns : timesRows;
    for (int iteration = 0; iteration < iterations_; ++iteration) {
      toOthers(checkpoints, a, shape.rows, shape.columns, x, rank, y);
      orthonormalise(checkpoints, y, others(shape), rank);
      toFeatures(checkpoints, a, shape.rows, shape.columns, y, rank, x);
    }
    if (iterations_ > 0) return;
    const bool byRows = shape.rows <= shape.columns;
    const std::size_t n = std::min(shape.rows, shape.columns);
    std::vector<double> gram = gramMatrix(checkpoints, a, shape.rows, shape.columns);
    const std::vector<float> vectors = eigenvectors(checkpoints, gram, n, rank);
    const bool areFeatures = byRows == shape.featuresAreRows;
    std::copy(vectors.begin(), vectors.end(), areFeatures ? x : y);
    if (areFeatures) {
      toOthers(checkpoints, a, shape.rows, shape.columns, x, rank, y);
    } else {
      toFeatures(checkpoints, a, shape.rows, shape.columns, y, rank, x);
    }
  }

  // Writes the factors of matrices that were scaled by 2^-exponent. Scales each factor back by half
  // the exponent, so that neither exceeds the range of fp32.
  std::size_t write(const CodecContext& context, Factors factors, int exponent,
                    const MatrixShape& shape, std::span<std::byte> out) const {
    const int half = exponent / 2;
    const auto scaleOthers = static_cast<float>(std::ldexp(1.0, half));
    const auto scaleFeatures = static_cast<float>(std::ldexp(1.0, exponent - half));
    for (float& x : factors.features) x *= scaleFeatures;
    for (float& x : factors.others) x *= scaleOthers;
    out[0] = kFactors;
    if (!inner_) {
      const std::size_t bytes = factors.features.size() * sizeof(float);
      std::memcpy(out.data() + kFormatBytes, factors.features.data(), bytes);
      std::memcpy(out.data() + kFormatBytes + bytes, factors.others.data(),
                  factors.others.size() * sizeof(float));
      return kFormatBytes + bytes + factors.others.size() * sizeof(float);
    }
    const TensorView first = viewOf(factors.features, factorSpec(shape, features(shape)));
    const TensorView second = viewOf(factors.others, factorSpec(shape, others(shape)));
    CutContext none;
    std::span<std::byte> rest = out.subspan(kFormatBytes + kLengthBytes);
    const std::uint64_t length =
        inner_
            ->encode(context, nullptr, none, first, rest.first(inner_->maxEncodedBytes(first.spec)))
            .bytes;
    std::memcpy(out.data() + kFormatBytes, &length, kLengthBytes);
    CutContext noneEither;
    rest = rest.subspan(length);
    return kFormatBytes + kLengthBytes + length +
           inner_
               ->encode(context, nullptr, noneEither, second,
                        rest.first(inner_->maxEncodedBytes(second.spec)))
               .bytes;
  }

  void read(const CodecContext& context, std::span<const std::byte> bytes, const MatrixShape& shape,
            const TensorSpec& spec, Factors& factors) const {
    if (!inner_) {
      checkPayloadSize(*this, context.key, bytes.size(), withFactors(spec));
      if (bytes[0] != kFactors) throwBadFormat(*this, context.key, bytes, spec);
      const std::size_t first = factors.features.size() * sizeof(float);
      std::memcpy(factors.features.data(), bytes.data() + kFormatBytes, first);
      std::memcpy(factors.others.data(), bytes.data() + kFormatBytes + first,
                  factors.others.size() * sizeof(float));
    } else {
      if (bytes[0] != kFactors) throwBadFormat(*this, context.key, bytes, spec);
      if (bytes.size() < kFormatBytes + kLengthBytes) {
        throwBadPayload(*this, context.key, "the length of its first factor is missing");
      }
      std::uint64_t length = 0;
      std::memcpy(&length, bytes.data() + kFormatBytes, kLengthBytes);
      const std::span<const std::byte> rest = bytes.subspan(kFormatBytes + kLengthBytes);
      if (length > rest.size()) {
        throwBadPayload(*this, context.key,
                        "its first factor claims " + std::to_string(length) + " bytes, but only " +
                            std::to_string(rest.size()) + " remain");
      }
      readInner(context, rest.first(length), factorSpec(shape, features(shape)), factors.features);
      readInner(context, rest.subspan(length), factorSpec(shape, others(shape)), factors.others);
    }
    if (!allFinite(factors.features) || !allFinite(factors.others)) {
      throwBadPayload(*this, context.key, "a factor is not finite");
    }
  }

  void readInner(const CodecContext& context, std::span<const std::byte> bytes, TensorSpec spec,
                 std::vector<float>& factor) const {
    CutContext none;
    try {
      inner_->decode(context, nullptr, none, bytes,
                     {reinterpret_cast<std::byte*>(factor.data()), std::move(spec)});
    } catch (const ProtocolError& error) {
      throwBadPayload(*this, context.key, std::string("a factor: ") + error.what());
    }
  }

  const std::string name_;
  const int rank_;
  const int iterations_;
  const std::unique_ptr<Codec> inner_;  // nullptr: fp32
};

constexpr int kMaxFactorRank = 4096;

std::unique_ptr<Codec> make(const CodecSpec& spec, int rank, int iterations, std::string name) {
  std::unique_ptr<Codec> inner =
      spec.inner ? makePlainInner(spec, spec.name + ":rank=2(fp16)") : nullptr;
  if (inner) name += "(" + inner->spec() + ")";
  return std::make_unique<LowRank>(std::move(name), rank, iterations, std::move(inner));
}

}  // namespace

std::unique_ptr<Codec> makePower(const CodecSpec& spec) {
  CodecParameters parameters(spec);
  const int rank = parameters.integer("rank", 1, kMaxFactorRank);
  const int iterations = parameters.integer("iterations", 1, 100, 2);
  parameters.mayWrap();
  parameters.finish();
  return make(spec, rank, iterations,
              "power:rank=" + std::to_string(rank) + ",iterations=" + std::to_string(iterations));
}

std::unique_ptr<Codec> makeSvd(const CodecSpec& spec) {
  CodecParameters parameters(spec);
  const int rank = parameters.integer("rank", 1, kMaxFactorRank);
  parameters.mayWrap();
  parameters.finish();
  return make(spec, rank, 0, "svd:rank=" + std::to_string(rank));
}

}  // namespace cleave
