#include "common/model/torch_tensor.h"

#include <ATen/ops/from_blob.h>

#include <stdexcept>
#include <utility>

#include "common/resources/buffer.h"

namespace cleave {
namespace {

at::MemoryFormat formatOf(MemoryOrder order) {
  return order == MemoryOrder::channelsLast ? at::MemoryFormat::ChannelsLast
                                            : at::MemoryFormat::Contiguous;
}

// Strides of a dense tensor. For a dimension of 1, several strides are valid, but LibTorch's choice
// of kernels depends on them.
std::vector<std::int64_t> denseStrides(at::IntArrayRef shape, MemoryOrder order) {
  std::vector<std::size_t> innerToOuter;
  if (order == MemoryOrder::channelsLast) {
    innerToOuter = {1, 3, 2, 0};
  } else {
    for (std::size_t d = shape.size(); d-- > 0;) innerToOuter.push_back(d);
  }
  std::vector<std::int64_t> strides(shape.size());
  std::int64_t stride = 1;
  for (const std::size_t d : innerToOuter) {
    strides[d] = stride;
    stride *= shape[d];
  }
  return strides;
}

bool isCanonical(const at::Tensor& tensor, MemoryOrder order) {
  const auto address = reinterpret_cast<std::uintptr_t>(tensor.const_data_ptr());
  return address % kAlignment == 0 &&
         tensor.strides() == at::IntArrayRef(denseStrides(tensor.sizes(), order));
}

DType dtypeOf(const at::Tensor& tensor) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::i64}) {
    if (tensor.scalar_type() == scalarTypeOf(dtype)) return dtype;
  }
  throw std::logic_error(std::string("no payload holds a tensor of ") +
                         c10::toString(tensor.scalar_type()));
}

}  // namespace

at::ScalarType scalarTypeOf(DType dtype) {
  switch (dtype) {
    case DType::f16:
      return at::kHalf;
    case DType::bf16:
      return at::kBFloat16;
    case DType::i64:
      return at::kLong;
    case DType::f32:
      break;
  }
  return at::kFloat;
}

MemoryOrder cutOrder(std::size_t rank) {
  return rank == 4 ? MemoryOrder::channelsLast : MemoryOrder::contiguous;
}

at::Tensor canonical(const at::Tensor& tensor, MemoryOrder order) {
  return isCanonical(tensor, order) ? tensor : tensor.clone(formatOf(order));
}

Payload toPayload(const at::Tensor& tensor, MemoryOrder order) {
  if (!isCanonical(tensor, order) || tensor.requires_grad()) {
    throw std::logic_error("a payload requires a canonical tensor without gradient history");
  }
  TensorView view;
  view.data = static_cast<const std::byte*>(tensor.const_data_ptr());
  view.spec = {dtypeOf(tensor), tensor.sizes().vec(), order};
  view.place = tensor.is_cpu() ? MemoryPlace::host : MemoryPlace::device;
  return Payload(std::move(view), std::make_shared<at::Tensor>(tensor));
}

at::Tensor toTensor(Payload payload, at::Device device) {
  const TensorView& view = payload.view();
  const at::Device place = view.place == MemoryPlace::device ? device : at::Device(at::kCPU);
  // LibTorch has no tensors over constant memory; stages never write to their inputs.
  void* data = const_cast<std::byte*>(view.data);
  return at::from_blob(
      data, view.spec.shape, denseStrides(view.spec.shape, view.spec.order),
      [owner = payload.owner()](void*) mutable { owner.reset(); },
      at::TensorOptions().dtype(scalarTypeOf(view.spec.dtype)).device(place), place);
}

}  // namespace cleave
