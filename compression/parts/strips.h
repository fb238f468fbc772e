// Reads and writes tensors of any dtype as fp32, strip by strip. fp32 tensors are used in place;
// other types pass through a buffer that stays in the L1 cache.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <type_traits>

#include "common/codec/codec.h"
#include "common/resources/fork_join_pair.h"
#include "compression/parts/convert.h"

namespace cleave {

// The codes of a whole strip fill whole bytes at any width.
inline constexpr std::size_t kStripElements = 4096;
// Strip size for work without buffers of its own, on tensors that are used in place.
inline constexpr std::size_t kLongStripElements = 64 * kStripElements;
// Minimum elements per thread; fewer are not worth waking another thread.
inline constexpr std::size_t kMinPartElements = std::size_t{1} << 17;

bool isAlignedFloat(const std::byte* data, DType dtype);

// A tensor's elements as fp32.
class FloatReader {
 public:
  explicit FloatReader(const TensorView& view) : FloatReader(view, view.spec.elements()) {}
  // Reads only the first `elements` elements.
  FloatReader(const TensorView& view, std::size_t elements)
      : data_(view.data), dtype_(view.spec.dtype), size_(elements) {}

  std::size_t size() const { return size_; }
  bool isInPlace() const { return isAlignedFloat(data_, dtype_); }
  // Returns elements start…start + count - 1: in the tensor's own memory if it holds fp32,
  // otherwise in `scratch`, which must have room for them. Requires start + count <= size().
  const float* read(std::size_t start, std::size_t count, float* scratch) const;
  // Requires j < size().
  float at(std::size_t j) const {
    float value = 0;
    return *read(j, 1, &value);
  }

 private:
  const std::byte* data_;
  DType dtype_;
  std::size_t size_;
};

// Calls work(part, first element, count) once for all elements, or, if the context has a helper and
// there are enough elements, for parts 0 and 1 in parallel on two threads. Parts begin at whole
// strips.
template <typename Work>
void forEachPart(const CodecContext& context, std::size_t elements, const Work& work) {
  const std::size_t half = elements / 2 / kStripElements * kStripElements;
  if (context.helper == nullptr || half < kMinPartElements) {
    work(std::size_t{0}, std::size_t{0}, elements);
    return;
  }
  context.helper->run([&] { work(std::size_t{0}, std::size_t{0}, half); },
                      [&] { work(std::size_t{1}, half, elements - half); });
}

// Calls `use` and returns its result, or true if it returns nothing.
template <typename Use, typename... Arguments>
bool holds(const Use& use, Arguments... arguments) {
  if constexpr (std::is_void_v<std::invoke_result_t<Use, Arguments...>>) {
    use(arguments...);
    return true;
  } else {
    return use(arguments...);
  }
}

// Calls use(start, count, values) in order for each strip of at most kStripElements, or of at most
// `maxStrip` if values are used in place. Stops when `use` returns false, and then returns false.
// `use` may also return nothing.
template <std::size_t maxStrip = kStripElements, typename Use>
bool forEachStrip(const FloatReader& values, std::size_t first, std::size_t elements,
                  const Use& use) {
  alignas(64) std::array<float, kStripElements> scratch;
  const std::size_t strip = values.isInPlace() ? maxStrip : kStripElements;
  for (std::size_t start = first; start < first + elements; start += strip) {
    const std::size_t count = std::min(strip, first + elements - start);
    if (!holds(use, start, count, values.read(start, count, scratch.data()))) return false;
  }
  return true;
}
template <typename Use>
bool forEachStrip(const FloatReader& values, const Use& use) {
  return forEachStrip(values, 0, values.size(), use);
}
// Like forEachStrip, with the two parts of forEachPart in parallel.
template <std::size_t maxStrip = kStripElements, typename Use>
bool forEachStrip(const CodecContext& context, const FloatReader& values, const Use& use) {
  std::array<bool, 2> held = {true, true};
  forEachPart(context, values.size(),
              [&](std::size_t part, std::size_t first, std::size_t elements) {
                held[part] = forEachStrip<maxStrip>(values, first, elements, use);
              });
  return held[0] && held[1];
}

// Calls make(start, count, values), which writes `count` values, for each strip of a tensor;
// otherwise like forEachStrip.
template <typename Make>
bool makeEachStrip(const CodecContext& context, const MutableTensorView& out, const Make& make) {
  const DType dtype = out.spec.dtype;
  const bool inPlace = isAlignedFloat(out.data, dtype);
  std::array<bool, 2> held = {true, true};
  const auto makePart = [&](std::size_t part, std::size_t first, std::size_t elements) {
    alignas(64) std::array<float, kStripElements> scratch;
    for (std::size_t start = first; held[part] && start < first + elements;
         start += kStripElements) {
      const std::size_t count = std::min(kStripElements, first + elements - start);
      std::byte* const place = out.data + start * dtypeBytes(dtype);
      float* const values = inPlace ? reinterpret_cast<float*>(place) : scratch.data();
      held[part] = holds(make, start, count, values);
      if (!inPlace) fromFloat(values, count, dtype, place);
    }
  };
  forEachPart(context, out.spec.elements(), makePart);
  return held[0] && held[1];
}

}  // namespace cleave
