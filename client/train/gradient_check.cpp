#include "client/train/gradient_check.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cassert>
#include <cmath>
#include <memory>
#include <tuple>
#include <utility>

#include "client/train/model_saver.h"
#include "common/codec/safetensors.h"
#include "common/core/clock.h"
#include "common/core/log.h"
#include "common/model/stage/stage.h"
#include "common/model/torch_tensor.h"

namespace cleave {
namespace {

// The lowest agreement, and the greatest factor between the lengths, relative to what the flow's
// codec leaves of the tensor.
constexpr double kMinAgreement = 0.98;
constexpr double kMaxRatio = 2;
// A server that is stopped may end a session between the Fetch of a check and its answer.
constexpr std::uint64_t kMaxUnanswered = 2;

std::vector<float> floatsOf(const TensorView& view) {
  const at::Tensor tensor =
      toTensor(Payload(view, std::make_shared<int>())).to(at::kFloat).contiguous();
  const auto* const data = tensor.const_data_ptr<float>();
  return {data, data + tensor.numel()};
}

// What the codecs of a cut keep of the tensors that cross it, without the states that they may
// have: the gradient's codec may depend on the activation.
class LossyCut {
 public:
  explicit LossyCut(std::uint64_t seed) : seed_(seed) {}
  std::vector<float> decoded(const Key& key, const Codec& codec, const TensorView& view) {
    const CodecContext context{seed_, key};
    // The gradient goes the other way than the activation.
    const auto& [sender, receiver] =
        isActivation(key.flow) ? std::tie(before_, behind_) : std::tie(behind_, before_);
    std::vector<std::byte> bytes(codec.maxEncodedBytes(view.spec));
    const Encoded encoded = codec.encode(context, nullptr, sender, view, bytes);
    std::vector<std::byte> tensor(view.spec.bytes());
    codec.decode(context, nullptr, receiver, std::span(bytes).first(encoded.bytes),
                 {tensor.data(), view.spec});
    return floatsOf({tensor.data(), view.spec});
  }

 private:
  const std::uint64_t seed_;
  CutContext before_, behind_;  // of the sides of the cut
};

}  // namespace

// ---- Agreement ----

void Agreement::add(std::span<const float> received, std::span<const float> computed) {
  for (std::size_t n = 0; n < computed.size(); ++n) {
    const double r = received[n], c = computed[n];
    product_ += r * c;
    received_ += r * r;
    computed_ += c * c;
  }
}

double Agreement::cosine() const { return product_ / std::sqrt(received_ * computed_); }
double Agreement::lengthRatio() const { return std::sqrt(received_ / computed_); }

Verdict judge(const Agreement& received, const Agreement& kept, bool mayOverflow) {
  if (!received.hasLengths()) {
    const bool isLeftOut = received.computedHasLength() && !kept.receivedHasLength();
    const bool isNeither = !received.computedHasLength() && !received.receivedHasLength();
    return isNeither || isLeftOut || mayOverflow ? Verdict::none : Verdict::foreign;
  }
  if (!kept.hasLengths()) return Verdict::foreign;  // more arrived than the codec can send
  const double ratio = received.lengthRatio() / kept.lengthRatio();
  const bool isEqual = received.cosine() >= kMinAgreement * kept.cosine() && ratio <= kMaxRatio &&
                       ratio >= 1 / kMaxRatio;
  return isEqual ? Verdict::equal : Verdict::foreign;
}

// ---- GradientCheck ----

GradientCheck::GradientCheck(const PreparedRun& run) : run_(run), body_(run.bodies.front()) {
  const std::uint64_t every = run_.settings.detection.every;
  const std::uint64_t steps = std::min(every, std::max<std::uint64_t>(1, run.totalSteps()));
  first_ = std::uniform_int_distribution<std::uint64_t>(1, steps)(random_);
}

// Each step is drawn on its own, so that the last check says nothing about the next one.
bool GradientCheck::isDrawn() {
  return std::uniform_int_distribution<std::uint64_t>(1, run_.settings.detection.every)(random_) ==
         1;
}

void GradientCheck::beginSession() {
  if (due_ > 0) ++unanswered_;
  due_ = 0;
  if (unanswered_ <= kMaxUnanswered) return;
  throw RunError("foreign-gradients",
                 fmt::format("{} sessions ended in a step that privacy.detect was checking, before "
                             "the server had sent its weights",
                             unanswered_),
                 "use a server that you trust; if this one is yours, check its log");
}

void GradientCheck::begin(std::uint64_t step) {
  const bool isChecked = isDrawn() || step == first_;
  due_ = isChecked ? step : 0;
  const std::lock_guard lock(mutex_);
  recorded_ = due_;
  seen_.clear();
}

bool GradientCheck::wants(const Key& key) const {
  const std::lock_guard lock(mutex_);
  return key.phase == Phase::train && key.step == recorded_;
}

void GradientCheck::crossed(const Key& key, const std::string&, CodecLevel level,
                            const TensorView& tensor) {
  auto copy = std::make_shared<Buffer>(pool_.acquire(tensor.spec.bytes()));
  std::copy_n(tensor.data, copy->size(), copy->data());
  const std::lock_guard lock(mutex_);
  if (key.step == recorded_) seen_[key] = {level, tensor.spec, std::move(copy)};
}

void GradientCheck::check(const MicroBatch& at, std::span<const std::byte> weights) {
  assert(isDue(at.step));
  const SteadyTime start = now();
  Tensors seen;
  {
    const std::lock_guard lock(mutex_);
    recorded_ = 0;
    seen = std::exchange(seen_, {});
  }
  due_ = 0;
  computeAndCompare(at, weights, seen);
  ++checks_;
  seconds_ += secondsSince(start);
}

void GradientCheck::computeAndCompare(const MicroBatch& at, std::span<const std::byte> weights,
                                      const Tensors& seen) {
  StageOptions options = body_.stage;
  options.splitsBackward = false;
  options.staysOnDevice = {};
  checkBody(readSafetensors(weights, "weights/body"), body_.blocks, options.cuts.cut0,
            options.cuts.cut1);
  BodyStage stage(options);
  stage.importWeights(weights);
  const int first = body_.place.firstCut, last = body_.place.lastCut;
  // Of several tensors at a cut, the first ones are compared.
  const Flow activation = activationAt(last);
  const Flow gradient = gradientsOf(first, body_.place.first).front();
  FlowMap<Agreement> received, kept;
  for (std::uint32_t i = 0; i < at.batch.count; ++i) {
    MicroBatch each = at;
    each.i = i;
    const auto keyOf = [&](Flow flow) { return Key{Phase::train, at.step, i, flow}; };
    const auto bundle = [&](const std::vector<Flow>& flows) {
      TensorBundle tensors;
      for (const Flow flow : flows) {
        const Seen& tensor = seen.at(keyOf(flow));
        tensors.emplace_back(tensor.view(), tensor.bytes);
      }
      return tensors;
    };
    const auto compare = [&](Flow flow, const TensorView& computed, LossyCut& cut) {
      const Seen& tensor = seen.at(keyOf(flow));
      const Codec& codec = body_.codecs.at(flow).at(tensor.level);
      if (codec.keepsSamples()) return;  // what arrives depends on earlier epochs
      const std::vector<float> values = floatsOf(computed);
      received[flow].add(floatsOf(tensor.view()), values);
      if (!received[flow].computedHasLength()) return;  // a codec may refuse such values
      const bool isExact = tensor.level == CodecLevel::raw || codec.isIdentity();
      kept[flow].add(isExact ? values : cut.decoded(keyOf(flow), codec, computed), values);
    };
    LossyCut firstCut(body_.spec.seed), lastCut(body_.spec.seed);
    const TensorBundle outputs =
        stage.forward(each, bundle(activationsOf(first, body_.place.first)));
    compare(activation, outputs.front().view(), lastCut);
    const TensorBundle gradients =
        stage.backward(each, bundle(gradientsOf(last, body_.place.last)));
    const Seen& input = seen.at(keyOf(activationAt(first)));
    const Codec& inputCodec = body_.codecs.at(activationAt(first)).at(input.level);
    if (!inputCodec.isIdentity() && input.level != CodecLevel::raw) {
      firstCut.decoded(keyOf(activationAt(first)), inputCodec, input.view());
    }
    compare(gradient, gradients.front().view(), firstCut);
  }
  for (const Flow flow : {activation, gradient}) {
    if (received.find(flow) != nullptr) conclude(at.step, flow, received[flow], kept[flow]);
  }
}

void GradientCheck::conclude(std::uint64_t step, Flow flow, const Agreement& received,
                             const Agreement& kept) {
  const Verdict verdict = judge(received, kept, run_.settings.scalesLoss());
  if (verdict == Verdict::none) return;
  const std::string name = flowName(flow);
  const double value = received.hasLengths() ? received.cosine() : 0;
  const double expected = kept.hasLengths() ? kept.cosine() : 0;
  const auto lowest = lowest_.try_emplace(name, value).first;
  lowest->second = std::min(lowest->second, value);
  processLog()->debug("privacy.detect: step {}, {}: agreement {:.6f} of {:.6f}", step, name, value,
                      expected);
  if (verdict == Verdict::equal) return;
  throw RunError(
      "foreign-gradients",
      fmt::format("{} of step {} is not what the model computes with the server's weights: the "
                  "agreement is {:.3f}, and at least {:.3f} is expected with this codec. The "
                  "server may try to train your layers to reveal your data",
                  name, step, value, kMinAgreement * expected),
      "use a server that you trust; if this one is yours, check that both sides have the same "
      "version of Cleave and of PyTorch");
}

nlohmann::json GradientCheck::summary() const {
  return {{"checks", checks_},
          {"unanswered", unanswered_},
          {"seconds", seconds_},
          {"lowest_agreement", lowest_}};
}

}  // namespace cleave
