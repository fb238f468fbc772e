// The memory of graphs' tensors, as estimated and as measured in LibTorch's allocator.
#include "common/graph/graph_memory.h"

#include <c10/core/CPUAllocator.h>
#include <malloc.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <string>
#include <vector>

#include "common/model/graph/graph_file.h"
#include "common/model/graph/graph_program.h"
#include "tests/support/models/operator_graph.h"

namespace cleave::test {
namespace {

// Counts the bytes of tensors while it exists.
class CountingAllocator : public c10::Allocator {
 public:
  CountingAllocator() : replaced_(*c10::GetCPUAllocator()) {
    c10::SetCPUAllocator(this, kPriority);
  }
  ~CountingAllocator() override { c10::SetCPUAllocator(&replaced_, kPriority); }
  CountingAllocator(const CountingAllocator&) = delete;
  CountingAllocator& operator=(const CountingAllocator&) = delete;

  c10::DataPtr allocate(std::size_t size) override {
    constexpr std::size_t kBoundary = 64;
    void* const memory =
        std::aligned_alloc(kBoundary, (size + kBoundary - 1) / kBoundary * kBoundary);
    bytes_ += malloc_usable_size(memory);
    peak_ = std::max(peak_, bytes_);
    return {memory, memory, release, at::Device(at::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return release; }
  void copy_data(void* to, const void* from, std::size_t size) const override {
    default_copy_data(to, from, size);
  }

  static std::size_t bytes() { return bytes_; }
  static std::size_t peak() { return peak_; }
  static void startPeak() { peak_ = bytes_; }

 private:
  static void release(void* memory) {
    bytes_ -= malloc_usable_size(memory);
    std::free(memory);
  }

  static constexpr std::uint8_t kPriority = 100;
  static inline std::size_t bytes_ = 0, peak_ = 0;
  c10::Allocator& replaced_;
};

struct Measured {
  double saved = 0, peak = 0, inference = 0;  // bytes
};

at::ScalarType typeOf(const wire::Value& value) {
  if (value.dtype() == "f32") return at::kFloat;
  return value.dtype() == "bool" ? at::kBool : at::kLong;
}

// Runs the graph with this many samples. The weights' gradients exist before, as they do after the
// first micro-batch of a run.
Measured measure(const wire::Graph& graph, const std::vector<NamedTensor>& weights,
                 std::int64_t samples) {
  const GraphProgram program(graph);
  TensorList tensors;
  for (const ParameterSpec& row : program.weights()) {
    const auto weight = std::ranges::find(weights, row.name, &NamedTensor::name);
    tensors.push_back(weight == weights.end() ? at::zeros(row.shape, row.type)
                                              : weight->tensor.clone());
    if (row.isBuffer || !row.isTrainable) continue;
    tensors.back().set_requires_grad(true);
    tensors.back().mutable_grad() = at::zeros_like(tensors.back());
  }
  const BlockContext training{7, {Phase::train, 1, 0, {1, static_cast<std::uint32_t>(samples)}}};
  const BlockContext evaluation{7, {Phase::eval, 1, 0, {1, static_cast<std::uint32_t>(samples)}}};
  const CountingAllocator allocator;
  const auto inputs = [&] {
    TensorList list;
    for (const std::uint32_t id : graph.inputs()) {
      const wire::Value& value = graph.values(static_cast<int>(id));
      std::vector<std::int64_t> shape(value.shape().begin(), value.shape().end());
      shape.front() = samples;
      list.push_back(at::zeros(shape, typeOf(value)));
      if (value.dtype() == "f32") list.back().set_requires_grad(true);
    }
    return list;
  };
  Measured measured;
  {
    const at::AutoGradMode withAutograd(true);
    const std::size_t before = CountingAllocator::bytes();
    CountingAllocator::startPeak();
    const TensorList given = inputs();
    TensorList outputs = program.run(given, tensors, training);
    measured.saved = static_cast<double>(CountingAllocator::bytes() - before);
    torch::autograd::backward(outputs, {at::ones_like(outputs.front())});
    measured.peak = static_cast<double>(CountingAllocator::peak() - before);
  }
  {
    const at::AutoGradMode withoutAutograd(false);
    const std::size_t before = CountingAllocator::bytes();
    CountingAllocator::startPeak();
    const TensorList given = inputs();
    program.run(given, tensors, evaluation);
    measured.inference = static_cast<double>(CountingAllocator::peak() - before);
  }
  return measured;
}

double ratio(double estimated, double measured) { return estimated / measured; }

// Runs a graph, and compares with the estimate. `most`: of the ratio of the peaks; in small graphs,
// the scratch memory of one operator is a large part.
void checkEstimate(const wire::Graph& graph, const std::vector<NamedTensor>& weights, double most) {
  constexpr std::int64_t kSamples = 512;
  GraphMemory estimated = memoryOf(graph);
  if (graph.has_evaluation()) estimated.inference = memoryOf(graph.evaluation()).inference;
  const Measured measured = measure(graph, weights, kSamples);
  CHECK(ratio(kSamples * estimated.saved, measured.saved) >= 0.99);
  CHECK(ratio(kSamples * estimated.saved, measured.saved) < 1.2);
  CHECK(ratio(kSamples * estimated.peak, measured.peak) >= 0.98);
  CHECK(ratio(kSamples * estimated.peak, measured.peak) < most);
  CHECK(ratio(kSamples * estimated.inference, measured.inference) >= 0.98);
  CHECK(ratio(kSamples * estimated.inference, measured.inference) < 1.5);
}

}  // namespace

TEST_CASE("the memory of exported models is as estimated") {
  for (const char* const name : {"tiny", "text", "modes"}) {
    CAPTURE(name);
    const GraphFile file(CLEAVE_SOURCE_DIR "/tests/data/" + std::string(name) + ".pt2");
    checkEstimate(file.graph(), file.readWeights(), 1.6);  // with AVX2, blocks have 8 channels
  }
}

TEST_CASE("what autograd keeps for an operator is as listed") {
  for (const char* const name :
       {"relu", "relu_",      "gelu",     "silu", "silu_",  "hardtanh_", "hardswish_", "exp",
        "tanh", "sigmoid_",   "sqrt",     "abs",  "square", "neg",       "log",        "reciprocal",
        "elu",  "leaky_relu", "softplus", "mish", "clone",  "rsqrt"}) {
    CAPTURE(name);
    checkEstimate(graphOf("aten." + std::string(name) + ".default", {}), {}, 2);
  }
}

TEST_CASE("the estimate of an operator that is not listed is not too low") {
  for (const char* const name : {"erf", "sinh", "asinh", "expm1", "lgamma", "logit", "celu",
                                 "hardshrink", "special_entr", "special_ndtr"}) {
    CAPTURE(name);
    const wire::Graph graph = graphOf("aten." + std::string(name) + ".default", {});
    const GraphMemory estimated = memoryOf(graph);
    const Measured measured = measure(graph, {}, 512);
    constexpr double kNumbers = 1024;  // bytes of numbers in tensors of their own
    CHECK(512 * estimated.saved + kNumbers >= measured.saved);
    CHECK(512 * estimated.peak + kNumbers >= measured.peak);
  }
}

TEST_CASE("sizes from a peer do not overflow the estimate") {
  wire::Graph graph = graphOf("aten.relu.default", {});
  for (wire::Value& value : *graph.mutable_values()) {
    value.mutable_shape()->Clear();
    value.add_shape(-1);
    for (int n = 0; n < 7; ++n) value.add_shape(std::int64_t{1} << 40);
  }
  const GraphMemory memory = memoryOf(graph);
  CHECK(memory.saved > 0x1p59);
  CHECK(memory.peak >= memory.saved);
  CHECK(memory.inference > 0x1p59);
}

}  // namespace cleave::test
