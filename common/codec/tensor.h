// Dense tensors for codecs and the engine: no Torch, no strides.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cleave {

// i64 is for masks and indices: only codecs that accept integers encode it.
enum class DType : std::uint8_t { f32, f16, bf16, i64 };
constexpr bool isFloat(DType dtype) { return dtype != DType::i64; }
std::string_view dtypeName(DType dtype);  // "f32"
std::optional<DType> dtypeFromName(std::string_view name);
std::size_t dtypeBytes(DType dtype);

// The memory order of the elements of [B, C, H, W]; tensors of other rank are always contiguous.
enum class MemoryOrder : std::uint8_t { contiguous, channelsLast };
std::string_view memoryOrderName(MemoryOrder order);  // "contiguous", "channels_last"
std::optional<MemoryOrder> memoryOrderFromName(std::string_view name);

inline constexpr std::size_t kMaxRank = 8;

struct TensorSpec {
  DType dtype = DType::f32;
  std::vector<std::int64_t> shape;
  MemoryOrder order = MemoryOrder::contiguous;

  // Number of elements; nullopt if it exceeds 2^40 or a dimension is negative.
  std::optional<std::size_t> checkedElements() const;
  // Requires a checked spec.
  std::size_t elements() const;
  std::size_t bytes() const { return elements() * dtypeBytes(dtype); }

  bool operator==(const TensorSpec&) const = default;
};
std::string toString(const TensorSpec& spec);  // "f32[64, 32, 7, 7] channels_last"

// Where a tensor is stored: in host memory, or in the memory of the compute device. Only a
// DeviceCodec (device_codec.h) and stages access the latter.
enum class MemoryPlace : std::uint8_t { host, device };

// A borrowed tensor: spec.bytes() bytes at data, dense in spec.order. Valid as long as its owner.
struct TensorView {
  const std::byte* data = nullptr;
  TensorSpec spec;
  MemoryPlace place = MemoryPlace::host;
};
struct MutableTensorView {
  std::byte* data = nullptr;
  TensorSpec spec;
};

// A tensor passed between stage, engine and link: a view, and the owner of its memory. Move-only,
// so that nothing writes to memory that is still being read. The memory is aligned to 64 bytes.
class Payload {
 public:
  Payload() = default;
  Payload(TensorView view, std::shared_ptr<const void> owner)
      : view_(std::move(view)), owner_(std::move(owner)) {}
  Payload(Payload&&) = default;
  Payload& operator=(Payload&&) = default;

  const TensorView& view() const { return view_; }
  const std::shared_ptr<const void>& owner() const { return owner_; }
  bool empty() const { return owner_ == nullptr; }

 private:
  TensorView view_;
  std::shared_ptr<const void> owner_;
};

// The tensors of one cut for one micro-batch, in the cut's order.
using TensorBundle = std::vector<Payload>;
// The bundle of a cut with one tensor.
inline TensorBundle bundleOf(Payload payload) {
  TensorBundle bundle;
  bundle.push_back(std::move(payload));
  return bundle;
}

}  // namespace cleave
