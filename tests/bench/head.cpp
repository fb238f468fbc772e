// bench_head: runs forward and backward of MobileNetV2's head, a convolution of 3 to 32 channels
// with stride 2 and a batch norm, on a batch of 224 x 224 images, either in the same way as Cleave
// or like a program that only links LibTorch. Prints the milliseconds of each repetition as JSON.

#include <ATen/ops/batch_norm.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>

#include <CLI/CLI.hpp>
#include <cstring>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "common/core/clock.h"
#include "common/files/environment.h"
#include "common/model/stage/stage.h"
#include "common/model/torch_tensor.h"

namespace cleave {
namespace {

constexpr std::int64_t kImage = 224;
constexpr std::int64_t kChannels = 32;

at::Tensor randomImages(std::int64_t batch) { return at::randn({batch, 3, kImage, kImage}); }
at::Tensor randomGradient(std::int64_t batch) {
  return at::randn({batch, kChannels, kImage / 2, kImage / 2});
}

class Head {
 public:
  virtual ~Head() = default;
  virtual void runStep() = 0;
};

// The model's own blocks, used in the same way as in ClientStage: images are converted to the cut's
// memory order, and the output and its gradient also have that order.
class OurHead : public Head {
 public:
  explicit OurHead(std::int64_t batch)
      : part_(blocks(), 0, 2),
        set_(blocks(), 0, 2, 1),
        images_(randomImages(batch)),
        gradient_(canonical(randomGradient(batch), MemoryOrder::channelsLast)),
        at_{Phase::train, 1, 0, {1, static_cast<std::uint32_t>(batch)}} {}

  void runStep() override {
    const at::Tensor output =
        part_.forward({}, {canonical(images_, MemoryOrder::channelsLast)}, set_, {1, at_}).front();
    const at::Tensor leaving = canonical(output.detach(), MemoryOrder::channelsLast);
    output.backward(gradient_);
    set_.clearGradients();
  }

 private:
  static std::vector<BlockSpec> blocks() {
    return findModel("mobilenet_v2").blocks({"mobilenet_v2", {}, {3, kImage, kImage}, 10});
  }

  ModelPart part_;
  ParameterSet set_;
  at::Tensor images_, gradient_;
  MicroBatch at_;
};

// LibTorch's functions on contiguous tensors, with default settings.
class StockHead : public Head {
 public:
  explicit StockHead(std::int64_t batch)
      : images_(randomImages(batch)),
        weight_(parameter(at::randn({kChannels, 3, 3, 3}).mul_(0.2))),
        scale_(parameter(at::ones({kChannels}))),
        shift_(parameter(at::zeros({kChannels}))),
        mean_(at::zeros({kChannels})),
        variance_(at::ones({kChannels})),
        gradient_(randomGradient(batch)) {}

  void runStep() override {
    const at::Tensor convolved = at::conv2d(images_, weight_, {}, 2, 1);
    const at::Tensor output = at::batch_norm(convolved, scale_, shift_, mean_, variance_,
                                             /*training=*/true, 0.1, 1e-5, /*cudnn_enabled=*/false);
    output.backward(gradient_);
    for (const at::Tensor& parameter : {weight_, scale_, shift_}) parameter.mutable_grad().reset();
  }

 private:
  static at::Tensor parameter(const at::Tensor& values) { return values.set_requires_grad(true); }

  at::Tensor images_, weight_, scale_, shift_, mean_, variance_, gradient_;
};

int run(bool ours, int threads, std::int64_t batch, int repetitions) {
  setComputeThreads(threads);
  std::unique_ptr<Head> head;
  if (ours) {
    head = std::make_unique<OurHead>(batch);
  } else {
    head = std::make_unique<StockHead>(batch);
  }
  constexpr int kWarmUp = 3;
  for (int i = 0; i < kWarmUp; ++i) head->runStep();
  std::vector<double> milliseconds;
  for (int i = 0; i < repetitions; ++i) {
    const SteadyTime start = now();
    head->runStep();
    milliseconds.push_back(secondsSince(start) * 1e3);
  }
  std::cout << nlohmann::json{{"milliseconds", milliseconds}}.dump() << std::endl;
  return 0;
}

}  // namespace
}  // namespace cleave

int main(int argc, char** argv) {
  CLI::App app{"Times forward and backward of MobileNetV2's head", "bench_head"};
  bool stock = false;
  int threads = 1;
  std::int64_t batch = 64;
  int repetitions = 10;
  app.add_flag("--stock", stock, "Contiguous memory, and default settings of the process");
  app.add_option("--threads", threads, "Threads to compute with (1)");
  app.add_option("--batch", batch, "Images (64)");
  app.add_option("--repetitions", repetitions, "Timed steps (10)");
  CLI11_PARSE(app, argc, argv);
  if (!stock)
    cleave::prepareProcess(argv);  // must be the first call, because it re-executes the program
  return cleave::run(!stock, threads, batch, repetitions);
}
