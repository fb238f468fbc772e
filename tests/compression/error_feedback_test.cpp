// ef(CODEC): adds the error that CODEC made in one tensor to the next tensor.
#include <limits>
#include <string>

#include "common/core/random.h"
#include "compression/registry.h"
#include "tests/support/codec_tensors.h"
#include "tests/support/error_code.h"

namespace cleave::test {
namespace {

constexpr std::size_t kElements = 8 * 100;

std::vector<float> normal(std::uint64_t number, std::size_t elements = kElements) {
  std::vector<float> values(elements);
  fillNormal(randomKey(number, "error-feedback-test"), values);
  return values;
}

// Sends tensors through a codec and keeps its state, as a link does.
class Sender {
 public:
  explicit Sender(const std::string& spec) : codec_(makeCodec(spec)) {}

  const Codec& codec() const { return *codec_; }
  const CodecState& state() const { return state_; }
  void setState(CodecState state) { state_ = std::move(state); }

  Bytes encode(const Tensor& tensor, Phase phase = Phase::train) {
    Key key = kKey;
    key.phase = phase;
    key.step = ++step_;
    CutContext cut;
    Bytes bytes(codec_->maxEncodedBytes(tensor.spec));
    Encoded encoded = codec_->encode({7, key}, state_, cut, tensor.view(), bytes);
    bytes.resize(encoded.bytes);
    if (phase == Phase::train) state_ = std::move(encoded.state);
    return bytes;
  }
  std::vector<float> send(const std::vector<float>& values, DType dtype = DType::f32) {
    const Tensor tensor = tensorOf(values, dtype);
    return valuesOf(decode(*codec_, encode(tensor), tensor.spec));
  }
  std::vector<float> residual() const {
    const std::vector<std::byte> saved = codec_->saveState(state_);
    std::uint64_t count = 0;
    std::memcpy(&count, saved.data(), sizeof count);
    std::vector<float> residual(count);
    std::memcpy(residual.data(), saved.data() + sizeof count, count * sizeof(float));
    return residual;
  }

 private:
  const std::unique_ptr<Codec> codec_;
  CodecState state_;
  std::uint64_t step_ = 0;
};

// The norm of the sum of everything that was not received so far.
double missing(const std::vector<double>& sent, const std::vector<double>& received) {
  double squares = 0;
  for (std::size_t j = 0; j < sent.size(); ++j) squares += std::pow(sent[j] - received[j], 2);
  return std::sqrt(squares);
}

TEST_CASE("the sum of all decoded tensors is the sum of all tensors less the last residual") {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const std::string inner : {"block:bits=2", "topk:ratio=0.1", "uniform:bits=4"}) {
      INFO(inner << " " << dtypeName(dtype));
      Sender with("ef(" + inner + ")"), without(inner);
      std::vector<double> sent(kElements), decoded(kElements), plain(kElements);
      for (std::uint64_t step = 1; step <= 40; ++step) {
        // A part of each gradient is the same in every step.
        std::vector<float> values = normal(step);
        const std::vector<float> common = normal(0);
        for (std::size_t j = 0; j < kElements; ++j) values[j] += common[j];
        values = valuesOf(tensorOf(values, dtype));
        const std::vector<float> one = with.send(values, dtype);
        const std::vector<float> other = without.send(values, dtype);
        for (std::size_t j = 0; j < kElements; ++j) {
          sent[j] += double{values[j]};
          decoded[j] += double{one[j]};
          plain[j] += double{other[j]};
        }
      }
      const std::vector<float> residual = with.residual();
      REQUIRE(residual.size() == kElements);
      for (std::size_t j = 0; j < kElements; ++j) {
        // The margin covers the rounding of 40 sums. With bf16, the residual also includes rounding
        // to bf16.
        REQUIRE(decoded[j] + double{residual[j]} == Approx(sent[j]).margin(1e-4));
      }
      CHECK(missing(sent, decoded) < 0.5 * missing(sent, plain));
    }
  }
}

TEST_CASE("the payload is that of CODEC for the tensor with its residual") {
  Sender sender("ef(block:bits=3)");
  const auto inner = makeCodec("block:bits=3");
  sender.send(normal(1));
  std::vector<float> sum = normal(2);
  const std::vector<float> residual = sender.residual();
  for (std::size_t j = 0; j < sum.size(); ++j) sum[j] += residual[j];
  CHECK((sender.encode(tensorOf(normal(2))) == encode(*inner, tensorOf(sum))));
}

TEST_CASE("evaluation neither uses nor changes the residual") {
  Sender sender("ef(block:bits=3)");
  sender.send(normal(1));
  const CodecState before = sender.state();
  const Tensor tensor = tensorOf(normal(2));
  CHECK((sender.encode(tensor, Phase::eval) == encode(*makeCodec("block:bits=3"), tensor)));
  CHECK(sender.state() == before);
}

TEST_CASE("a shorter tensor uses and replaces the beginning of the residual") {
  Sender sender("ef(block:bits=3)"), prefix("ef(block:bits=3)");
  const std::vector<float> first = normal(1);
  sender.send(first);
  const std::vector<float> residual = sender.residual();
  const std::vector<float> shorter = normal(2, 256);
  sender.send(shorter);
  const std::vector<float> after = sender.residual();
  REQUIRE(after.size() == kElements);
  CHECK(std::equal(after.begin() + 256, after.end(), residual.begin() + 256));

  prefix.send({first.begin(), first.begin() + 256});  // whole blocks
  prefix.send(shorter);
  CHECK(std::equal(after.begin(), after.begin() + 256, prefix.residual().begin()));
}

TEST_CASE("after saving and restoring the residual, the codec writes the same bytes") {
  for (const std::string spec :
       {"ef(block:bits=2)", "ef(power:rank=1,iterations=1)", "zstd:level=1(ef(block:bits=2))"}) {
    INFO(spec);
    const auto shaped = [](std::uint64_t number) {
      Tensor tensor = tensorOf(normal(number));
      tensor.spec.shape = {2, 4, 10, 10};
      return tensor;
    };
    Sender whole(spec);
    whole.encode(shaped(1));
    const std::vector<std::byte> saved = whole.codec().saveState(whole.state());
    Sender resumed(spec), fresh(spec);
    for (Sender* each : {&resumed, &fresh}) each->encode(shaped(5));  // advances the step
    resumed.setState(resumed.codec().restoreState(saved));
    fresh.setState(nullptr);
    const Bytes next = whole.encode(shaped(2));
    CHECK((resumed.encode(shaped(2)) == next));
    CHECK((fresh.encode(shaped(2)) != next));
    CHECK((resumed.codec().saveState(resumed.state()) == whole.codec().saveState(whole.state())));
    CHECK(whole.codec().saveState(nullptr).empty());

    for (std::size_t length = 0; length < saved.size(); length += 13) {
      const auto part = std::span(saved).first(length);
      CHECK(errorCode([&] { whole.codec().restoreState(part); }) == "bad-checkpoint");
    }
    std::vector<std::byte> huge = saved;
    std::fill_n(huge.begin(), 8, std::byte{0xff});
    CHECK(errorCode([&] { whole.codec().restoreState(huge); }) == "bad-checkpoint");
    std::vector<std::byte> infinite = saved;
    const float infinity = std::numeric_limits<float>::infinity();
    std::memcpy(infinite.data() + 8, &infinity, sizeof infinity);
    CHECK(errorCode([&] { whole.codec().restoreState(infinite); }) == "bad-checkpoint");
  }
}

TEST_CASE("values near the limits of a type stay finite, step after step") {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    for (const std::string inner : {"topk:ratio=0.1", "block:bits=2", "uniform:bits=1", "fp16"}) {
      INFO(inner << " " << dtypeName(dtype));
      Sender sender("ef(" + inner + ")");
      std::vector<float> values(kElements, largestOf(dtype));
      for (std::size_t j = 0; j < kElements; j += 3) values[j] = -values[j];
      for (int step = 0; step < 4; ++step) {
        sender.send(values, dtype);
        for (const float x : sender.residual()) REQUIRE(std::isfinite(x));
      }
    }
  }
}

TEST_CASE("only codecs that compress a payload can wrap ef") {
  for (const std::string spec : {"ef(ef(block:bits=4))", "power:rank=2(ef(fp16))",
                                 "svd:rank=2(zstd:level=1(ef(fp16)))", "ef", "ef:bits=4(fp16)"}) {
    INFO(spec);
    CHECK(errorCode([&] { makeCodec(spec); }) == "bad-codec-spec");
  }
  CHECK(makeCodec("rans(ef(block:bits=4))")->maxEncodedBytes({DType::f32, {64}}) > 0);
}

}  // namespace
}  // namespace cleave::test
