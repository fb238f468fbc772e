// What a device needs of the process, as far as it shows without a GPU; see also cuda_test.
#include "common/run/device.h"

#include <ATen/Context.h>

#include <catch2/catch.hpp>
#include <cstdlib>

#include "common/device/torch_errors.h"
#include "common/model/stage/deterministic_scope.h"
#include "tests/support/error_code.h"

namespace cleave::test {
namespace {

constexpr const char* kWorkspace = "CUBLAS_WORKSPACE_CONFIG";

TEST_CASE("opening a GPU removes the variable that LibTorch would parse at every product") {
  ::setenv(kWorkspace, ":4096:8", 1);
  openDevice("cpu");
  CHECK(std::getenv(kWorkspace) != nullptr);
  try {
    openDevice("cuda");
  } catch (const UsageError&) {  // there need be no GPU
  }
  CHECK(std::getenv(kWorkspace) == nullptr);
}

TEST_CASE("exact bits allow deterministic algorithms only, on a GPU, while the scope lives") {
  const at::Context& torch = at::globalContext();
  const auto isStrict = [&] {
    return torch.deterministicAlgorithms() && !torch.deterministicAlgorithmsWarnOnly();
  };
  Experiment experiment;
  {
    const DeterministicScope scope(experiment, at::kCUDA);
    CHECK(isStrict());
  }
  CHECK_FALSE(torch.deterministicAlgorithms());
  CHECK_FALSE((DeterministicScope(experiment, at::kCPU), torch.deterministicAlgorithms()));
  experiment.deviceBits = "fast";
  const DeterministicScope fast(experiment, at::kCUDA);
  CHECK_FALSE(torch.deterministicAlgorithms());
}

TEST_CASE("an operator without a deterministic implementation is refused with its name") {
  const auto compute = [](const char* bits) {
    Experiment experiment;
    experiment.deviceBits = bits;
    const DeterministicScope scope(experiment, at::kCUDA);
    withTorchErrors([] { at::globalContext().alertNotDeterministic("max_unpool2d_cuda"); });
  };
  CHECK_NOTHROW(compute("fast"));
  try {
    compute("exact");
    FAIL("not refused");
  } catch (const UsageError& error) {
    CHECK(error.code() == "not-deterministic");
    CHECK_THAT(error.what(), Catch::Contains("max_unpool2d_cuda"));
    CHECK_THAT(error.hint(), Catch::Contains("device_bits: fast"));
  }
  CHECK_FALSE(at::globalContext().deterministicAlgorithms());
}

}  // namespace
}  // namespace cleave::test
