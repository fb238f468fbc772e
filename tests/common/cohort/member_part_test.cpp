#include "common/cohort/member_part.h"

#include <catch2/catch.hpp>
#include <string>

#include "common/core/error.h"

namespace cleave {
namespace {

Blob blobOf(const SharedBytes& bytes) {
  return {kPartsClient, {bytes->data(), bytes->size()}, bytes};
}

TEST_CASE("the sum of the members' parts does not depend on their order of arrival") {
  const MemberPart one{{1e8F, 1, -0.0F}, {3, {{"loss", 1.5}}}};
  const MemberPart two{{1, 2, 0}, {0, {}}};
  const MemberPart three{{-1e8F, 4, 0}, {2, {{"loss", 0.25}, {"top1", 1}}}};
  const std::vector<Blob> parts = {blobOf(toBytes(one)), blobOf(toBytes(two)),
                                   blobOf(toBytes(three))};
  const MemberPart sum = partFromBytes(*sumOfParts(parts, 3, {"a", "b", "c"}));
  CHECK(sum.values == std::vector<float>{(1e8F + 1) - 1e8F, 7, 0});
  CHECK(sum.metrics.samples == 5);
  CHECK(sum.metrics.sums == MetricSums{{"loss", 1.75}, {"top1", 1}});
}

TEST_CASE("a part that does not fit ends the run, and names its member") {
  const auto errorOf = [](const MemberPart& second, std::size_t values) {
    const MemberPart first{std::vector<float>(3), {1, {}}};
    try {
      sumOfParts({blobOf(toBytes(first)), blobOf(toBytes(second))}, values, {"a", "b"});
    } catch (const ProtocolError& error) {
      return error.code() + ": " + error.what();
    }
    return std::string();
  };
  CHECK(errorOf({std::vector<float>(3), {}}, 3).empty());
  CHECK(errorOf({std::vector<float>(2), {}}, 3).find("bad-part: the part of b") == 0);
  CHECK(errorOf({std::vector<float>(3), {}}, 4).find("bad-part: the part of a") == 0);
  MemberPart many{std::vector<float>(3), {}};
  for (int n = 0; n < 2000; ++n) many.metrics.sums["metric" + std::to_string(n)] = 1;
  CHECK(errorOf(many, 3).find("bad-part: the part of b") == 0);
}

TEST_CASE("bytes that are no part are refused") {
  const std::vector<std::byte> bytes(7, std::byte{0xff});
  CHECK_THROWS_AS(partFromBytes(bytes), ProtocolError);
}

}  // namespace
}  // namespace cleave
