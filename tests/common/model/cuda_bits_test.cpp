// The same input has the same bits on a GPU, without time lost in LibTorch's environment. Part of
// cuda_test, which is skipped without a GPU.
#include <ATen/ops/matmul.h>
#include <ATen/ops/randn.h>
#include <dlfcn.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <cstring>
#include <iostream>
#include <map>
#include <string>

#include "common/device/torch_errors.h"
#include "common/graph/operators.h"
#include "common/model/scores.h"
#include "common/model/stage/deterministic_scope.h"
#include "common/run/device.h"
#include "tests/operators/cases.h"

namespace {
// How often the variable was read while it was set: LibTorch then parses it.
std::atomic<int> workspaceReads = 0;
}  // namespace

extern "C" char* getenv(const char* name) noexcept {
  static auto* const real = reinterpret_cast<char* (*)(const char*)>(::dlsym(RTLD_NEXT, "getenv"));
  char* const value = real(name);
  if (value != nullptr && std::strcmp(name, "CUBLAS_WORKSPACE_CONFIG") == 0) ++workspaceReads;
  return value;
}

namespace cleave::test {
namespace {

at::Device gpu() { return openDevice("cuda").device(); }

TEST_CASE("matrix products read no workspace from the environment") {
  const at::Tensor a = at::randn({64, 64}).to(gpu());
  ::setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", 1);
  workspaceReads = 0;
  at::matmul(a, a);
  CHECK(workspaceReads > 0);  // this test sees the reads of LibTorch
  openDevice("cuda");
  workspaceReads = 0;
  at::matmul(a, a).cpu();
  CHECK(workspaceReads == 0);
}

TEST_CASE("ranks on the GPU are those on the CPU") {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    at::Tensor output = at::randn({300, 50257}).to(type);
    output[7].fill_(1);
    output[8][100] = std::numeric_limits<float>::quiet_NaN();
    const at::Tensor target = at::randn({300}).abs().mul(10000).to(at::kLong);
    CHECK(ranksOf(output.to(gpu()), target.to(gpu())).cpu().equal(ranksOf(output, target)));
  }
}

enum class Bits { same, differ, refused };

// Runs an accepted case three times on the GPU.
Bits bitsOf(OperatorCase given) {
  for (at::Tensor& input : given.inputs) {
    input = input.detach().to(gpu()).requires_grad_(input.requires_grad());
  }
  TensorList first;
  for (int run = 0; run < 3; ++run) {
    TensorList results;
    try {
      const DeterministicScope scope(Experiment(), gpu());
      results = withTorchErrors([&] { return runCase(given); });
    } catch (const Error&) {
      return Bits::refused;
    }
    for (at::Tensor& each : results) each = each.defined() ? each.detach().cpu().clone() : each;
    if (run == 0) first = results;
    for (std::size_t n = 0; n < results.size(); ++n) {
      if (!results[n].defined()) continue;
      const at::Tensor a = results[n].contiguous(), b = first.at(n).contiguous();
      const bool isSame = a.nbytes() == b.nbytes() &&
                          std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0;
      if (!isSame) return Bits::differ;
    }
  }
  return Bits::same;
}

// Prints which operators have no deterministic implementation, for docs/configuration.md.
TEST_CASE("every operator of graphs gives the same bits on the GPU, or is refused") {
  constexpr std::uint64_t kSeeds = 20;
  std::map<std::string, int> computed, refused;
  for (const OperatorRow& row : operatorTable()) {
    const std::string op(row.name);
    for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
      // Arguments that the CPU refuses could end the GPU's context.
      try {
        runCase(makeCase(op, seed));
      } catch (const std::exception&) {
        continue;
      }
      const OperatorCase given = makeCase(op, seed);
      const Bits bits = bitsOf(given);
      INFO(given.text);
      CHECK(bits != Bits::differ);
      ++(bits == Bits::refused ? refused : computed)[op];
    }
  }
  for (const auto& [op, cases] : refused) {
    std::cout << op << ": " << cases << " cases refused, " << computed[op] << " computed\n";
  }
  CHECK(computed.size() > operatorTable().size() / 2);
}

}  // namespace
}  // namespace cleave::test
