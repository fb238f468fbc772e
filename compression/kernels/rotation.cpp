// Rotations by a Hadamard matrix. The butterflies are done in the order of plain.cpp, so that every
// sum has the same bits: first those within a vector, then those between vectors.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compression/kernels/rotation.cpp"
#include "hwy/foreach_target.h"
// Must follow foreach_target.h.
#include "compression/kernels/kernels.h"
#include "compression/kernels/plain.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace cleave::kernels::HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR

void rotateTiles(const float* values, std::size_t count, std::size_t size, float* rotated) {
  plain::rotate(values, count, size, rotated);
}
void rotateTilesBack(float* values, std::size_t count, std::size_t size, float limit) {
  plain::rotateBack(values, count, size, limit);
}

#else

namespace {

namespace hn = hwy::HWY_NAMESPACE;
using Floats = hn::CappedTag<float, 16>;
using Eight = hn::CappedTag<float, 8>;  // four of its vectors are the smallest tile

template <class D>
class Rotation {
 public:
  using V = hn::VFromD<D>;
  static constexpr std::size_t kLanes = hn::MaxLanes(D());

  Rotation(std::size_t size, float limit)
      : size_(size),
        shrink_(1.0f / static_cast<float>(size)),
        grow_(static_cast<float>(size)),
        limit_(limit) {}

  // Rotates one tile. `in` may equal `out`.
  template <bool kBack>
  HWY_INLINE void tile(const float* in, float* out) const {
    // The strides within four vectors, from 1 to 2 * kLanes.
    std::size_t stride = 4 * kLanes;
    for (std::size_t j = 0; j < size_; j += 4 * kLanes) {
      V v0 = within(load<kBack>(in, j));
      V v1 = within(load<kBack>(in, j + kLanes));
      V v2 = within(load<kBack>(in, j + 2 * kLanes));
      V v3 = within(load<kBack>(in, j + 3 * kLanes));
      twoStrides(v0, v1, v2, v3);
      storeFour<kBack>(v0, v1, v2, v3, j, kLanes, stride == size_, out);
    }
    for (; 2 * stride < size_; stride *= 4) {
      const bool isLast = 4 * stride == size_;
      for (std::size_t start = 0; start < size_; start += 4 * stride) {
        for (std::size_t j = start; j < start + stride; j += kLanes) {
          V v0 = hn::LoadU(D(), out + j);
          V v1 = hn::LoadU(D(), out + j + stride);
          V v2 = hn::LoadU(D(), out + j + 2 * stride);
          V v3 = hn::LoadU(D(), out + j + 3 * stride);
          twoStrides(v0, v1, v2, v3);
          storeFour<kBack>(v0, v1, v2, v3, j, stride, isLast, out);
        }
      }
    }
    if (stride == size_) return;
    for (std::size_t j = 0; j < stride; j += kLanes) {
      V v0 = hn::LoadU(D(), out + j);
      V v1 = hn::LoadU(D(), out + j + stride);
      butterfly(v0, v1);
      store<kBack>(v0, j, true, out);
      store<kBack>(v1, j + stride, true, out);
    }
  }

 private:
  static HWY_INLINE void butterfly(V& a, V& b) {
    const V sum = hn::Add(a, b);
    b = hn::Sub(a, b);
    a = sum;
  }

  static HWY_INLINE void twoStrides(V& v0, V& v1, V& v2, V& v3) {
    butterfly(v0, v1);
    butterfly(v2, v3);
    butterfly(v0, v2);
    butterfly(v1, v3);
  }

  // The strides below kLanes. In each butterfly, the second lane becomes the first minus itself.
  static HWY_INLINE V within(V v) {
    v = hn::Add(hn::Shuffle2301(v), negated<1>(v));
    v = hn::Add(hn::Shuffle1032(v), negated<2>(v));
    if constexpr (kLanes >= 8) v = hn::Add(hn::SwapAdjacentBlocks(v), negated<4>(v));
    if constexpr (kLanes >= 16) v = hn::Add(hn::ConcatLowerUpper(D(), v, v), negated<8>(v));
    return v;
  }

  // Negates the lanes whose number contains the bit `stride`.
  template <std::uint32_t stride>
  static HWY_INLINE V negated(V v) {
    const hn::RebindToUnsigned<D> d32;
    const auto bits = hn::And(hn::Iota(d32, 0), hn::Set(d32, stride));
    const auto mask = hn::ShiftLeftSame(bits, 31 - kLog2<stride>);
    return hn::Xor(v, hn::BitCast(D(), mask));
  }
  template <std::uint32_t n>
  static constexpr int kLog2 = n == 1   ? 0
                               : n == 2 ? 1
                               : n == 4 ? 2
                                        : 3;

  static HWY_INLINE V signs(V v, std::size_t j) {
    const hn::RebindToUnsigned<D> d32;
    return hn::Xor(v, hn::BitCast(D(), hn::Load(d32, plain::kRotationSigns.data() + j)));
  }

  template <bool kBack>
  HWY_INLINE V load(const float* in, std::size_t j) const {
    const V v = hn::Mul(hn::LoadU(D(), in + j), hn::Set(D(), shrink_));
    if constexpr (kBack) return v;
    return signs(v, j);
  }

  // `isLast`: the vector has its final value, apart from scale and signs.
  template <bool kBack>
  HWY_INLINE void store(V v, std::size_t j, bool isLast, float* out) const {
    if (kBack && isLast) {
      const V value = signs(hn::Mul(v, hn::Set(D(), grow_)), j);
      v = hn::Max(hn::Min(value, hn::Set(D(), limit_)), hn::Set(D(), -limit_));
    }
    hn::StoreU(v, D(), out + j);
  }
  template <bool kBack>
  HWY_INLINE void storeFour(V v0, V v1, V v2, V v3, std::size_t j, std::size_t stride, bool isLast,
                            float* out) const {
    store<kBack>(v0, j, isLast, out);
    store<kBack>(v1, j + stride, isLast, out);
    store<kBack>(v2, j + 2 * stride, isLast, out);
    store<kBack>(v3, j + 3 * stride, isLast, out);
  }

  const std::size_t size_;
  const float shrink_, grow_, limit_;
};

template <bool kBack, class D>
HWY_INLINE void tilesWith(D /*d*/, const float* in, std::size_t count, std::size_t size,
                          float limit, float* out) {
  const Rotation<D> rotation(size, limit);
  for (std::size_t t = 0; t < count; t += size) rotation.template tile<kBack>(in + t, out + t);
}

template <bool kBack>
HWY_INLINE void allTiles(const float* in, std::size_t count, std::size_t size, float limit,
                         float* out) {
  // The branches differ in the first argument's type.
  if (size < 4 * hn::MaxLanes(Floats())) {  // NOLINT(bugprone-branch-clone)
    tilesWith<kBack>(Eight(), in, count, size, limit, out);
  } else {
    tilesWith<kBack>(Floats(), in, count, size, limit, out);
  }
}

}  // namespace

void rotateTiles(const float* values, std::size_t count, std::size_t size, float* rotated) {
  allTiles<false>(values, count, size, 0, rotated);
}
void rotateTilesBack(float* values, std::size_t count, std::size_t size, float limit) {
  allTiles<true>(values, count, size, limit, values);
}

#endif  // HWY_TARGET == HWY_SCALAR

}  // namespace cleave::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cleave::kernels {

HWY_EXPORT(rotateTiles);
HWY_EXPORT(rotateTilesBack);

void rotate(const float* values, std::size_t count, std::size_t size, float* rotated) {
  HWY_DYNAMIC_DISPATCH(rotateTiles)(values, count, size, rotated);
}
void rotateBack(float* values, std::size_t count, std::size_t size, float limit) {
  HWY_DYNAMIC_DISPATCH(rotateTilesBack)(values, count, size, limit);
}

}  // namespace cleave::kernels
#endif  // HWY_ONCE
