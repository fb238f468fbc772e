// Cleave's resizing gives the same results as LibTorch's, except for rounding.
#include <ATen/ops/_upsample_bilinear2d_aa.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>

#include "client/data/pictures/bilinear.h"
#include "common/core/random.h"

namespace cleave::test {

TEST_CASE("resizing gives the result of interpolate with align_corners=False, antialias=True") {
  struct Size {
    std::int64_t height, width;
  };
  const std::vector<std::pair<Size, Size>> cases = {
      {{32, 32}, {224, 224}}, {{5, 7}, {12, 9}},      {{9, 8}, {4, 3}},  {{1, 6}, {4, 1}},
      {{100, 75}, {32, 32}},  {{400, 30}, {224, 60}}, {{50, 40}, {1, 1}}};
  for (const auto& [from, to] : cases) {
    INFO(from.height << "x" << from.width << " to " << to.height << "x" << to.width);
    std::vector<float> in(static_cast<std::size_t>(from.height * from.width));
    fillNormal(randomKey(1, "resize"), in);
    std::vector<float> out(static_cast<std::size_t>(to.height * to.width));
    const BilinearAxis columns(from.width, to.width);
    const auto read = [&, width = from.width](std::size_t y, float* row, std::ptrdiff_t stride) {
      for (std::size_t x = columns.begin(); x < columns.end(); ++x, row += stride) {
        *row = in[y * static_cast<std::size_t>(width) + x];
      }
    };
    resizeChannel(BilinearAxis(from.height, to.height), columns, read, out);
    const at::Tensor expected = at::_upsample_bilinear2d_aa(
        at::from_blob(in.data(), {1, 1, from.height, from.width}), {to.height, to.width}, false);
    const float* values = expected.const_data_ptr<float>();
    float worst = 0;
    for (std::size_t j = 0; j < out.size(); ++j) {
      worst = std::max(worst, std::abs(out[j] - values[j]));
    }
    // LibTorch computes weights in float: a coordinate near 400 is accurate to 2e-5.
    CHECK(worst < 1e-4f);
  }
}

}  // namespace cleave::test
