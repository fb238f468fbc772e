#include <ATen/ops/empty.h>

#include <array>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "common/model/safetensors.h"
#include "common/model/stage.h"

namespace cleave {
namespace {

constexpr std::array<std::pair<at::ScalarType, std::string_view>, 4> kDtypes = {{
    {at::kFloat, "F32"},
    {at::kHalf, "F16"},
    {at::kBFloat16, "BF16"},
    {at::kLong, "I64"},
}};

std::string dtypeName(at::ScalarType type) {
  for (const auto& [known, name] : kDtypes) {
    if (known == type) return std::string(name);
  }
  throw std::logic_error(std::string("no weights are of ") + c10::toString(type));
}

}  // namespace

std::vector<NamedTensor> weightsOf(const ModelPart& part) {
  std::vector<NamedTensor> weights;
  for (const NamedTensor& parameter : part.parameters()) {
    weights.push_back({parameter.name, parameter.tensor.detach()});
  }
  weights.insert(weights.end(), part.buffers().begin(), part.buffers().end());
  return weights;
}

std::vector<NamedTensor> gradientsOf(const ModelPart& part) {
  std::vector<NamedTensor> gradients;
  for (const NamedTensor& parameter : part.parameters()) {
    const at::Tensor& gradient = parameter.tensor.grad();
    if (gradient.defined()) gradients.push_back({parameter.name, gradient});
  }
  return gradients;
}

std::vector<std::byte> toSafetensors(const std::vector<NamedTensor>& tensors) {
  std::vector<at::Tensor> contiguous;  // keeps alive what the entries point into
  std::vector<SafetensorsEntry> entries;
  for (const NamedTensor& named : tensors) {
    const at::Tensor& tensor = contiguous.emplace_back(named.tensor.contiguous());
    entries.push_back({named.name,
                       dtypeName(tensor.scalar_type()),
                       tensor.sizes().vec(),
                       {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()}});
  }
  return writeSafetensors(entries);
}

std::vector<NamedTensor> fromSafetensors(std::span<const std::byte> file, const std::string& name) {
  std::vector<NamedTensor> tensors;
  for (const SafetensorsEntry& entry : readSafetensors(file, name)) {
    for (const auto& [type, typeName] : kDtypes) {
      if (entry.dtype != typeName) continue;
      at::Tensor tensor = at::empty(entry.shape, type);
      if (!entry.bytes.empty()) {
        std::memcpy(tensor.mutable_data_ptr(), entry.bytes.data(), entry.bytes.size());
      }
      tensors.push_back({entry.name, std::move(tensor)});
    }
  }
  return tensors;
}

}  // namespace cleave
