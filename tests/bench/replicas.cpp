// bench_replicas: the sum over two replicas of this process on the loopback interface, by Cleave's
// reducer and by Gloo's own allreduce, whose sum is not the serial one for more than 2 replicas.
// Rates are in bytes of one replica's values. Interleaved:
//
//   bench_replicas --benchmark_repetitions=9 --benchmark_enable_random_interleaving=true
#include <ATen/ops/from_blob.h>
#include <benchmark/benchmark.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <vector>

#include "common/replicas/gradient_reducer.h"
#include "common/replicas/replica_listener.h"

namespace {

using namespace cleave;
using Values = std::vector<float>;
using Gloo = c10d::ProcessGroupGloo;

// Calls make(0) and make(1) at the same time.
template <typename Make>
auto makeBoth(Make make) {
  auto other = std::async(std::launch::async, [&] { return make(1); });
  auto first = make(0);
  return std::array{std::move(first), other.get()};
}

void measure(benchmark::State& state, const std::function<void(std::array<Values, 2>&)>& sum) {
  const auto size = static_cast<std::size_t>(state.range(0)) << 18;  // of MiB
  std::array<Values, 2> values = {Values(size, 1), Values(size, 1)};
  for (auto _ : state) sum(values);
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(size * sizeof(float)));
}

void sumByReducer(benchmark::State& state) {
  const auto listener = std::make_shared<ReplicaListener>("127.0.0.1:0");
  const std::string host = "127.0.0.1:" + std::to_string(listener->port());
  const auto reducers = makeBoth([&](int rank) {
    return joinReplicas({{host, host}, rank, std::chrono::seconds(30), listener}, "benchmark");
  });
  std::uint64_t step = 0;
  measure(state, [&](std::array<Values, 2>& values) {
    ++step;
    std::array<std::promise<void>, 2> done;
    for (std::size_t rank = 0; rank < 2; ++rank) {
      reducers[rank]->reduce(step, values[rank], [&, rank](const std::exception_ptr& error) {
        error ? done[rank].set_exception(error) : done[rank].set_value();
      });
    }
    for (auto& one : done) one.get_future().get();
  });
}

void sumByAllreduce(benchmark::State& state) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const auto groups = makeBoth([&](int rank) {
    const auto options = Gloo::Options::create(std::chrono::seconds(30));
    options->devices = {Gloo::createDeviceForHostname("127.0.0.1")};
    return c10::make_intrusive<Gloo>(store, rank, 2, options);
  });
  measure(state, [&](std::array<Values, 2>& values) {
    std::vector<c10::intrusive_ptr<c10d::Work>> works;
    for (std::size_t rank = 0; rank < 2; ++rank) {
      std::vector<at::Tensor> tensors = {at::from_blob(
          values[rank].data(), {static_cast<std::int64_t>(values[rank].size())}, at::kFloat)};
      works.push_back(groups[rank]->allreduce(tensors));
    }
    for (const auto& work : works) work->wait();
  });
}

void configure(benchmark::internal::Benchmark* one) {
  one->Arg(1)->Arg(16)->Arg(256)->UseRealTime()->MeasureProcessCPUTime()->Unit(
      benchmark::kMillisecond);
}
BENCHMARK(sumByReducer)->Apply(configure);
BENCHMARK(sumByAllreduce)->Apply(configure);

}  // namespace

BENCHMARK_MAIN();
