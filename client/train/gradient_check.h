// Detects a server that sends gradients which are not the model's, for example to train the head to
// reveal its inputs (privacy.detect).
//
// Some training steps are checked. When all tensors of such a step have crossed and before the step
// is decided, the client fetches the weights that the body computed it with, computes the step's
// body itself, on the CPU, and compares. The client draws the steps at random and keeps them
// secret, so the server has already sent its gradients when it learns that they are checked.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <random>
#include <span>
#include <vector>

#include "client/run/prepare.h"
#include "common/codec/traffic_observer.h"
#include "common/resources/buffer.h"
#include "common/topology/step.h"

namespace cleave {

// Compares a flow's tensors with others of the same shapes.
class Agreement {
 public:
  void add(std::span<const float> received, std::span<const float> computed);
  // The cosine of the angle between all added values: 1 if they are equal up to a factor, about 0
  // if they have nothing to do with each other. Requires hasLengths().
  double cosine() const;
  double lengthRatio() const;  // of the received values to the computed ones
  // Whether the values are finite and not all zero.
  bool receivedHasLength() const { return received_ > 0 && std::isfinite(received_); }
  bool computedHasLength() const { return computed_ > 0 && std::isfinite(computed_); }
  bool hasLengths() const { return receivedHasLength() && computedHasLength(); }

 private:
  double product_ = 0, received_ = 0, computed_ = 0;
};

enum class Verdict : std::uint8_t { equal, foreign, none };
// `received`: what arrived, against what the client computed; `kept`: what the flow's codec leaves
// of the latter, against it. No verdict if neither has a length, or nothing is left. `mayOverflow`:
// values may overflow on one side only, because the loss is scaled.
Verdict judge(const Agreement& received, const Agreement& kept, bool mayOverflow);

class GradientCheck : public TrafficObserver {
 public:
  // `run`: with one server; borrowed.
  explicit GradientCheck(const PreparedRun& run);

  // ---- Device thread ----

  // Call when a session begins, before its first step. Throws RunError "foreign-gradients" if
  // earlier ones ended too often after a check had begun, before its verdict.
  void beginSession();
  // Call before the first tensor of a training step crosses.
  void begin(std::uint64_t step);
  // Whether the step is checked. If so, the client fetches the weights.
  bool isDue(std::uint64_t step) const { return step == due_; }
  // Call when all tensors of the step have crossed. `weights`: the server's weights/body before the
  // update. Throws RunError "foreign-gradients" if the gradients or activations are not those of
  // the model with these weights.
  void check(const MicroBatch& at, std::span<const std::byte> weights);
  nlohmann::json summary() const;  // for the run's summary

  // ---- Any thread ----

  bool wants(const Key& key) const override;
  void crossed(const Key& key, const std::string& codec, CodecLevel level,
               const TensorView& tensor) override;

 private:
  struct Seen {
    CodecLevel level = CodecLevel::own;
    TensorSpec spec;
    std::shared_ptr<const Buffer> bytes;

    TensorView view() const { return {bytes->data(), spec}; }
  };
  using Tensors = std::map<Key, Seen>;

  bool isDrawn();
  void computeAndCompare(const MicroBatch& at, std::span<const std::byte> weights,
                         const Tensors& seen);
  void conclude(std::uint64_t step, Flow flow, const Agreement& received, const Agreement& kept);

  const PreparedRun& run_;
  const RunPlan& body_;
  // Not a counter-based generator as everywhere else: the server must not be able to predict it.
  std::random_device random_;
  std::uint64_t first_;    // the step that is checked in any case, so that a short run has a check
  std::uint64_t due_ = 0;  // the step in progress, if it is checked
  std::uint64_t checks_ = 0;
  std::uint64_t unanswered_ = 0;  // checks without a verdict, because the session ended
  double seconds_ = 0;
  std::map<std::string, double> lowest_;  // agreement, by flow

  BufferPool pool_{0};
  mutable std::mutex mutex_;    // guards what follows
  std::uint64_t recorded_ = 0;  // the step whose tensors are kept; 0: none
  Tensors seen_;
};

}  // namespace cleave
