#include "common/codec/tensor.h"

#include <catch2/catch.hpp>

using namespace cleave;

namespace {

std::optional<std::size_t> elementsOf(std::vector<std::int64_t> shape) {
  return TensorSpec{.shape = std::move(shape)}.checkedElements();
}

}  // namespace

TEST_CASE("names of dtypes and memory orders survive conversion to text and back") {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::i64}) {
    CHECK(dtypeFromName(dtypeName(dtype)) == dtype);
  }
  for (const MemoryOrder order : {MemoryOrder::contiguous, MemoryOrder::channelsLast}) {
    CHECK(memoryOrderFromName(memoryOrderName(order)) == order);
  }
  CHECK_FALSE(dtypeFromName("f64"));
  CHECK_FALSE(memoryOrderFromName(""));
}

TEST_CASE("a tensor spec counts its elements and bytes") {
  CHECK(elementsOf({}) == 1);
  CHECK(elementsOf({2, 3, 4}) == 24);
  CHECK(elementsOf({5, 0, 7}) == 0);
  CHECK(TensorSpec{DType::f32, {2, 3}}.bytes() == 24);
  CHECK(TensorSpec{DType::f16, {2, 3}}.bytes() == 12);
  CHECK(TensorSpec{DType::bf16, {0, 3}}.bytes() == 0);
  CHECK(TensorSpec{DType::i64, {2, 3}}.bytes() == 48);
}

TEST_CASE("invalid shapes from a peer have no element count") {
  const std::int64_t limit = std::int64_t{1} << 40;
  CHECK(elementsOf({limit}) == limit);
  CHECK_FALSE(elementsOf({limit + 1}));
  CHECK_FALSE(elementsOf({limit, 2}));
  CHECK_FALSE(elementsOf({-1}));
  CHECK_FALSE(elementsOf({0, -1}));
  CHECK_FALSE(elementsOf({limit, limit, limit, limit}));  // 2^160 wraps around to 0
  CHECK_FALSE(elementsOf({0, limit, limit}));             // an empty tensor whose strides overflow
}

TEST_CASE("a tensor spec is printed with its memory order if that is not the default") {
  CHECK(toString(TensorSpec{DType::f32, {64, 32, 7, 7}, MemoryOrder::channelsLast}) ==
        "f32[64, 32, 7, 7] channels_last");
  CHECK(toString(TensorSpec{DType::bf16, {}}) == "bf16[]");
}
