// The self-check: it measures plausible figures in bounded time, does not affect computation, and
// gives advice.
#include "common/run/self_check.h"

#include <ATen/Parallel.h>

#include <catch2/catch.hpp>

#include "common/files/environment.h"
#include "common/model/stage/stage.h"

namespace cleave::test {
namespace {

using Catch::Matchers::Contains;

const std::vector<std::string> kAvx2 = {"avx2", "fma"};

SelfCheck healthy() {
  SelfCheck check;
  check.cores = check.threads = 2;
  check.instructionSet = "AVX2";
  check.gigaflops = 80;
  check.copyGigabytes = 8;
  return check;
}

TEST_CASE("the check measures this machine, and does not change the number of threads") {
  const SelfCheck check = measureMachine(1);
  CHECK(at::get_num_threads() == 1);
  CHECK(check.cores == usableCores());
  CHECK(check.threads == 1);
  CHECK_FALSE(check.instructionSet.empty());
  CHECK(check.gigaflops > 0.1);
  CHECK(check.copyGigabytes > 0.1);
  CHECK(check.seconds > 0);
  CHECK(check.seconds < 5);  // 0.1 on an idle machine
}

TEST_CASE("a sound machine gets no advice, with any instruction set") {
  CHECK(slownessAdvice(healthy(), kAvx2).empty());
  for (const char* set : {"AVX512", "DEFAULT", "NEON", "ZVECTOR"}) {
    SelfCheck check = healthy();
    check.instructionSet = set;
    CHECK(slownessAdvice(check, {}).empty());
  }
}

TEST_CASE("slow matrix products per thread get advice by instruction set") {
  SelfCheck check = healthy();
  check.gigaflops = 11;  // less than the limit of 6 per thread
  const auto advice = slownessAdvice(check, kAvx2);
  REQUIRE(advice.size() == 1);
  CHECK_THAT(advice[0], Contains("AVX2") && Contains("at 5.5 GFLOP/s per thread") &&
                            Contains("should reach at least 6") && Contains("scripts/setup.sh"));
  check.threads = 1;
  CHECK(slownessAdvice(check, kAvx2).empty());
  check.instructionSet = "AVX512";
  check.gigaflops = 7.9;
  CHECK(slownessAdvice(check, kAvx2).size() == 1);
  check.instructionSet = "DEFAULT";
  CHECK(slownessAdvice(check, {}).empty());
}

TEST_CASE("kernels that do not use the processor's vector instructions get advice") {
  SelfCheck check = healthy();
  check.instructionSet = "DEFAULT";
  const auto advice = slownessAdvice(check, kAvx2);
  REQUIRE(advice.size() == 1);
  CHECK_THAT(advice[0], Contains("AVX2") && Contains("unset ATEN_CPU_CAPABILITY"));
}

}  // namespace
}  // namespace cleave::test
