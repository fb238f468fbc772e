#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compression/kernels/pieces.cpp"
#include <hwy/foreach_target.h>
// Must follow foreach_target.h.
#include <hwy/highway.h>

#include <algorithm>

#include "compression/kernels/pieces.h"

HWY_BEFORE_NAMESPACE();
namespace cleave {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using D = hn::ScalableTag<float>;
using DI = hn::RebindToSigned<D>;
using V = hn::Vec<D>;
using VI = hn::Vec<DI>;

// round((x - min) / divisor), clamped to `top`. Numbers from 2^23 on have no fraction bits: adding
// 2^23 rounds to an integer, ties to even, which is then in the lowest bits.
HWY_INLINE VI stepsOf(V x, V min, V divisor, V top) {
  const D d;
  const DI di;
  const V exact = hn::Min(hn::Div(hn::Sub(x, min), divisor), top);
  return hn::And(hn::BitCast(di, hn::Add(exact, hn::Set(d, 8388608.0f))), hn::Set(di, 0x1ffff));
}

// For a few pieces: compares with every bound. Copies the grids into registers, because the
// compiler must assume that writing codes could change them.
template <int kPieces>
struct ByBounds {
  HWY_INLINE ByBounds(const PieceGrids& grids, V maxStep) : top(maxStep) {
    const D d;
    for (int p = 0; p < kPieces; ++p) {
      bounds[p] = hn::Set(d, grids.bounds[p]);
      mins[p] = hn::Set(d, grids.mins[p]);
      divisors[p] = hn::Set(d, grids.divisors[p]);
      bases[p] = hn::Set(DI(), p << grids.bits);
    }
  }

  HWY_INLINE VI operator()(V x) const {
    const DI di;
    V min = mins[0];
    V divisor = divisors[0];
    VI base = bases[0];
    for (int p = 1; p < kPieces; ++p) {
      const auto above = hn::Ge(x, bounds[p]);
      min = hn::IfThenElse(above, mins[p], min);
      divisor = hn::IfThenElse(above, divisors[p], divisor);
      base = hn::IfThenElse(hn::RebindMask(di, above), bases[p], base);
    }
    return hn::Add(base, stepsOf(x, min, divisor, top));
  }

  V bounds[kPieces], mins[kPieces], divisors[kPieces];
  VI bases[kPieces];
  V top;
};

// For a few more pieces: only the bounds are in registers.
template <int kPieces>
struct PieceByCount {
  HWY_INLINE explicit PieceByCount(const PieceGrids& grids) {
    for (int p = 1; p < kPieces; ++p) bounds[p] = hn::Set(D(), grids.bounds[p]);
  }

  HWY_INLINE VI operator()(V x) const {
    const DI di;
    VI piece = hn::Zero(di);
    for (int p = 1; p < kPieces; ++p) {
      piece = hn::Sub(piece, hn::VecFromMask(di, hn::RebindMask(di, hn::Ge(x, bounds[p]))));
    }
    return piece;
  }

  V bounds[kPieces];
};

// For many pieces: walks down the tree.
HWY_INLINE VI pieceByTree(V x, const PieceGrids& grids) {
  const D d;
  const DI di;
  VI node = hn::Set(di, 1);
  for (int level = 0; level < grids.pieceBits; ++level) {
    const V bound = hn::GatherIndex(d, grids.tree.data(), node);
    const auto above = hn::RebindMask(di, hn::Ge(x, bound));
    node = hn::Add(hn::ShiftLeft<1>(node), hn::IfThenElseZero(above, hn::Set(di, 1)));
  }
  return hn::Sub(node, hn::Set(di, 1 << grids.pieceBits));
}

HWY_INLINE VI codesInPiece(V x, VI piece, const PieceGrids& grids, V top) {
  const D d;
  const V min = hn::GatherIndex(d, grids.mins.data(), piece);
  const V divisor = hn::GatherIndex(d, grids.divisors.data(), piece);
  return hn::Add(hn::ShiftLeftSame(piece, grids.bits), stepsOf(x, min, divisor, top));
}

template <typename Code, typename Kernel>
HWY_INLINE void forEachVector(const float* HWY_RESTRICT values, std::size_t count,
                              Code* HWY_RESTRICT codes, const Kernel& kernel) {
  const D d;
  const hn::Rebind<Code, D> dCode;
  const std::size_t lanes = hn::Lanes(d);
  std::size_t j = 0;
  for (; j + lanes <= count; j += lanes) {
    hn::StoreU(hn::DemoteTo(dCode, kernel(hn::LoadU(d, values + j))), dCode, codes + j);
  }
  if (j == count) return;
  HWY_ALIGN float rest[HWY_MAX_BYTES / sizeof(float)];
  HWY_ALIGN Code restCodes[HWY_MAX_BYTES / sizeof(float)];
  std::fill(rest, rest + lanes, values[j]);
  std::copy(values + j, values + count, rest);
  hn::StoreU(hn::DemoteTo(dCode, kernel(hn::Load(d, rest))), dCode, restCodes);
  std::copy(restCodes, restCodes + (count - j), codes + j);
}

// clang-format off
template <typename Code>
HWY_INLINE void codesOfBlock(const float* HWY_RESTRICT values, std::size_t count,
                             const PieceGrids& grids, Code* HWY_RESTRICT codes) {
  const V top = hn::Set(D(), static_cast<float>((1 << grids.bits) - 1));
  if (grids.bits == 0) {
    switch (grids.pieceBits) {
      case 1: return forEachVector(values, count, codes, PieceByCount<2>(grids));
      case 2: return forEachVector(values, count, codes, PieceByCount<4>(grids));
      case 3: return forEachVector(values, count, codes, PieceByCount<8>(grids));
      case 4: return forEachVector(values, count, codes, PieceByCount<16>(grids));
      default: break;
    }
    return forEachVector(values, count, codes,
                         [&](V x) HWY_ATTR { return pieceByTree(x, grids); });
  }
  switch (grids.pieceBits) {
    case 0:
      return forEachVector(values, count, codes, ByBounds<1>(grids, top));
    case 1:
      return forEachVector(values, count, codes, ByBounds<2>(grids, top));
    case 2:
      return forEachVector(values, count, codes, ByBounds<4>(grids, top));
    case 3:
      return forEachVector(values, count, codes, ByBounds<8>(grids, top));
    case 4: {
      const PieceByCount<16> pieceOf(grids);
      return forEachVector(values, count, codes, [&](V x) HWY_ATTR {
        return codesInPiece(x, pieceOf(x), grids, top);
      });
    }
    default:
      return forEachVector(values, count, codes, [&](V x) HWY_ATTR {
        return codesInPiece(x, pieceByTree(x, grids), grids, top);
      });
  }
}
// clang-format on

void codesOf8(const float* values, std::size_t count, const PieceGrids& grids,
              std::uint8_t* codes) {
  codesOfBlock(values, count, grids, codes);
}

void codesOf16(const float* values, std::size_t count, const PieceGrids& grids,
               std::uint16_t* codes) {
  codesOfBlock(values, count, grids, codes);
}

}  // namespace HWY_NAMESPACE
}  // namespace cleave
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cleave {
namespace {

HWY_EXPORT(codesOf8);
HWY_EXPORT(codesOf16);

// Assigns the bounds to the tree's nodes in ascending order.
std::size_t fillTree(PieceGrids& grids, std::size_t node, std::size_t next) {
  if (node >> grids.pieceBits) return next;
  next = fillTree(grids, 2 * node, next);
  grids.tree[node] = grids.bounds[next++];
  return fillTree(grids, 2 * node + 1, next);
}

}  // namespace

void PieceGrids::prepare() { fillTree(*this, 1, 1); }

void codesOf(const float* values, std::size_t count, const PieceGrids& grids, std::uint8_t* codes) {
  HWY_DYNAMIC_DISPATCH(codesOf8)(values, count, grids, codes);
}

void codesOf(const float* values, std::size_t count, const PieceGrids& grids,
             std::uint16_t* codes) {
  HWY_DYNAMIC_DISPATCH(codesOf16)(values, count, grids, codes);
}

std::int64_t instructionSets() { return hwy::SupportedTargets(); }
void chooseInstructionSets(std::int64_t sets) { hwy::SetSupportedTargetsForTest(sets); }

}  // namespace cleave
#endif  // HWY_ONCE
