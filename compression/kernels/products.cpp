// Products of a matrix with a few vectors. Every sum is added up in the order of plain.cpp, so that
// it has the same bits.
#include <type_traits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compression/kernels/products.cpp"
#include "hwy/foreach_target.h"
// Must follow foreach_target.h.
#include "compression/kernels/kernels.h"
#include "compression/kernels/plain.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace cleave::kernels::HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR

void allDots(const float* a, std::size_t rows, std::size_t columns, const float* x,
             std::size_t rank, std::size_t stride, float* product) {
  plain::dots(a, rows, columns, x, rank, stride, product);
}
void allSums(const Strip& a, const float* x, std::size_t rank, std::size_t stride, float* product) {
  plain::weightedSums(a, x, rank, stride, product);
}
void allOuter(const float* left, std::size_t rows, std::size_t leftStride, const float* right,
              std::size_t columns, std::size_t rank, float limit, float* out) {
  plain::outer(left, rows, leftStride, right, columns, rank, limit, out);
}

#else

namespace {

namespace hn = hwy::HWY_NAMESPACE;
using Floats = hn::CappedTag<float, kDotLanes>;
using V = hn::VFromD<Floats>;
constexpr Floats kFloats;
constexpr std::size_t kLanes = hn::MaxLanes(kFloats);
constexpr std::size_t kParts = kDotLanes / kLanes;  // vectors that hold the sums of a dot product
constexpr std::size_t kVectors = 4;                 // of which a row is read at a time
constexpr std::size_t kMaxGroup = 4;                // vectors x that share what is read of a row

// The sums of `kGroup` vectors x, one after the other in memory.
template <std::size_t kGroup>
HWY_INLINE void dotsOfRow(const float* row, std::size_t columns, const float* x, std::size_t stride,
                          float* product) {
  V sums[kGroup][kParts];
  for (auto& parts : sums) {
    for (V& part : parts) part = hn::Zero(kFloats);
  }
  std::size_t j = 0;
  for (; j + kDotLanes <= columns; j += kDotLanes) {
    for (std::size_t part = 0; part < kParts; ++part) {
      const V value = hn::LoadU(kFloats, row + j + part * kLanes);
      for (std::size_t g = 0; g < kGroup; ++g) {
        const V factor = hn::LoadU(kFloats, x + g * columns + j + part * kLanes);
        sums[g][part] = hn::Add(sums[g][part], hn::Mul(value, factor));
      }
    }
  }
  for (std::size_t g = 0; g < kGroup; ++g) {
    float lanes[kDotLanes];
    for (std::size_t part = 0; part < kParts; ++part) {
      hn::StoreU(sums[g][part], kFloats, lanes + part * kLanes);
    }
    product[g * stride] = plain::dotFrom(lanes, row, x + g * columns, j, columns);
  }
}

template <std::size_t kGroup>
HWY_INLINE void dotsOf(const float* a, std::size_t rows, std::size_t columns, const float* x,
                       std::size_t stride, float* product) {
  for (std::size_t row = 0; row < rows; ++row) {
    dotsOfRow<kGroup>(a + row * columns, columns, x, stride, product + row);
  }
}

// Columns j…j + kCount * kLanes of the sums of `kGroup` vectors x.
template <std::size_t kGroup, std::size_t kCount>
HWY_INLINE void sumsOf(const Strip& a, std::size_t j, const float* x, std::size_t stride,
                       float* product) {
  V sums[kGroup][kCount];
  for (auto& parts : sums) {
    for (V& part : parts) part = hn::Zero(kFloats);
  }
  for (std::size_t row = 0; row < a.rows; ++row) {
    V values[kCount];
    for (std::size_t part = 0; part < kCount; ++part) {
      values[part] = hn::LoadU(kFloats, a.data + row * a.stride + j + part * kLanes);
    }
    for (std::size_t g = 0; g < kGroup; ++g) {
      const V factor = hn::Set(kFloats, x[g * a.rows + row]);
      for (std::size_t part = 0; part < kCount; ++part) {
        sums[g][part] = hn::Add(sums[g][part], hn::Mul(factor, values[part]));
      }
    }
  }
  for (std::size_t g = 0; g < kGroup; ++g) {
    for (std::size_t part = 0; part < kCount; ++part) {
      hn::StoreU(sums[g][part], kFloats, product + g * stride + j + part * kLanes);
    }
  }
}

template <std::size_t kGroup>
HWY_INLINE void sumsOf(const Strip& a, const float* x, std::size_t stride, float* product) {
  std::size_t j = 0;
  for (; j + kVectors * kLanes <= a.columns; j += kVectors * kLanes) {
    sumsOf<kGroup, kVectors>(a, j, x, stride, product);
  }
  for (; j + kLanes <= a.columns; j += kLanes) sumsOf<kGroup, 1>(a, j, x, stride, product);
  if (j == a.columns) return;
  plain::weightedSums({a.data + j, a.rows, a.columns - j, a.stride}, x, kGroup, stride,
                      product + j);
}

// Calls use(first vector, group) for groups of vectors whose size is a constant.
template <typename Use>
HWY_INLINE void forEachGroup(std::size_t rank, const Use& use) {
  std::size_t r = 0;
  for (; r + kMaxGroup <= rank; r += kMaxGroup)
    use(r, std::integral_constant<std::size_t, kMaxGroup>());
  if (rank - r == 3) return use(r, std::integral_constant<std::size_t, 3>());
  if (rank - r == 2) return use(r, std::integral_constant<std::size_t, 2>());
  if (rank - r == 1) return use(r, std::integral_constant<std::size_t, 1>());
}

}  // namespace

void allDots(const float* a, std::size_t rows, std::size_t columns, const float* x,
             std::size_t rank, std::size_t stride, float* product) {
  forEachGroup(rank, [&](std::size_t r, auto group) HWY_ATTR {
    dotsOf<decltype(group)::value>(a, rows, columns, x + r * columns, stride, product + r * stride);
  });
}

void allSums(const Strip& a, const float* x, std::size_t rank, std::size_t stride, float* product) {
  forEachGroup(rank, [&](std::size_t r, auto group) HWY_ATTR {
    sumsOf<decltype(group)::value>(a, x + r * a.rows, stride, product + r * stride);
  });
}

void allOuter(const float* left, std::size_t rows, std::size_t leftStride, const float* right,
              std::size_t columns, std::size_t rank, float limit, float* out) {
  const V max = hn::Set(kFloats, limit);
  const V min = hn::Set(kFloats, -limit);
  const std::size_t whole = columns / kLanes * kLanes;
  for (std::size_t row = 0; row < rows; ++row) {
    for (std::size_t j = 0; j < whole; j += kLanes) {
      V sum = hn::Zero(kFloats);
      for (std::size_t r = 0; r < rank; ++r) {
        const V factor = hn::Set(kFloats, left[r * leftStride + row]);
        sum = hn::Add(sum, hn::Mul(factor, hn::LoadU(kFloats, right + r * columns + j)));
      }
      const V bounded = hn::IfThenElse(hn::Le(sum, max), sum, max);  // replaces NaN too
      hn::StoreU(hn::IfThenElse(hn::Ge(bounded, min), bounded, min), kFloats,
                 out + row * columns + j);
    }
    plain::outerRow(left + row, leftStride, right, whole, columns, rank, limit,
                    out + row * columns);
  }
}

#endif  // HWY_TARGET == HWY_SCALAR

}  // namespace cleave::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cleave::kernels {

HWY_EXPORT(allDots);
HWY_EXPORT(allSums);
HWY_EXPORT(allOuter);

void dots(const float* a, std::size_t rows, std::size_t columns, const float* x, std::size_t rank,
          std::size_t stride, float* product) {
  HWY_DYNAMIC_DISPATCH(allDots)(a, rows, columns, x, rank, stride, product);
}
void weightedSums(const Strip& a, const float* x, std::size_t rank, std::size_t stride,
                  float* product) {
  HWY_DYNAMIC_DISPATCH(allSums)(a, x, rank, stride, product);
}
void outer(const float* left, std::size_t rows, std::size_t leftStride, const float* right,
           std::size_t columns, std::size_t rank, float limit, float* out) {
  HWY_DYNAMIC_DISPATCH(allOuter)(left, rows, leftStride, right, columns, rank, limit, out);
}

}  // namespace cleave::kernels
#endif  // HWY_ONCE
