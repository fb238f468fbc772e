// bench_head: forward and backward of MobileNetV2's head, a convolution of 3 to 32 channels with
// stride 2 and a batch norm, on a batch of images of 224 x 224, as a daemon of ours runs it or as a
// program that just links LibTorch does. Prints the milliseconds of each repetition as JSON.

#include <ATen/ops/batch_norm.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>

#include <CLI/CLI.hpp>
#include <cstring>
#include <iostream>
#include <nlohmann/json.hpp>
#include <vector>

#include "common/core/clock.h"
#include "common/core/environment.h"
#include "common/model/stage.h"
#include "common/model/torch_tensor.h"

namespace cleave {
namespace {

constexpr std::int64_t kImage = 224;
constexpr std::int64_t kChannels = 32;

class Head {
 public:
  // `order`: of the weights, as our blocks and received gradients have it; stock LibTorch keeps
  // everything contiguous. Images come contiguous from the loader either way.
  Head(std::int64_t batch, MemoryOrder order)
      : images_(at::randn({batch, 3, kImage, kImage})),
        weight_(parameter(canonical(at::randn({kChannels, 3, 3, 3}).mul_(0.2), order))),
        scale_(parameter(at::ones({kChannels}))),
        shift_(parameter(at::zeros({kChannels}))),
        mean_(at::zeros({kChannels})),
        variance_(at::ones({kChannels})),
        gradient_(canonical(at::randn({batch, kChannels, kImage / 2, kImage / 2}), order)) {}

  void runStep() {
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
  Head head(batch, ours ? MemoryOrder::channelsLast : MemoryOrder::contiguous);
  constexpr int kWarmUp = 3;
  for (int i = 0; i < kWarmUp; ++i) head.runStep();
  std::vector<double> milliseconds;
  for (int i = 0; i < repetitions; ++i) {
    const SteadyTime start = now();
    head.runStep();
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
  app.add_flag("--stock", stock, "Contiguous memory, and nothing done to the process");
  app.add_option("--threads", threads, "Threads to compute with (1)");
  app.add_option("--batch", batch, "Images (64)");
  app.add_option("--repetitions", repetitions, "Steps that are timed (10)");
  CLI11_PARSE(app, argc, argv);
  if (!stock) cleave::prepareProcess(argv);  // executes the program again: nothing ran before
  return cleave::run(!stock, threads, batch, repetitions);
}
