// Our resizing equals LibTorch's, except for rounding.
#include <ATen/ops/from_blob.h>
#include <ATen/ops/upsample_bilinear2d.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>

#include "client/data/images.h"
#include "common/core/random.h"

namespace cleave::test {

TEST_CASE("resizing gives the result of interpolate with align_corners=False") {
  const std::vector<std::pair<ImageSize, ImageSize>> cases = {
      {{32, 32}, {224, 224}}, {{5, 7}, {12, 9}}, {{9, 8}, {4, 3}}, {{1, 6}, {4, 1}}};
  for (const auto& [from, to] : cases) {
    std::vector<float> in(static_cast<std::size_t>(3 * from.height * from.width));
    fillNormal(randomKey(1, "resize"), in);
    std::vector<float> out(static_cast<std::size_t>(3 * to.height * to.width));
    resizeBilinear(in, from, out, to);
    const at::Tensor expected = at::upsample_bilinear2d(
        at::from_blob(in.data(), {1, 3, from.height, from.width}), {to.height, to.width}, false);
    const float* values = expected.const_data_ptr<float>();
    float worst = 0;
    for (std::size_t j = 0; j < out.size(); ++j) {
      worst = std::max(worst, std::abs(out[j] - values[j]));
    }
    CHECK(worst < 2e-5f);  // coordinates near 32 are accurate to 2e-6, and values differ by up to 6
  }
}

}  // namespace cleave::test
