#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <set>
#include <stdexcept>
#include <utility>

#include "common/codec/safetensors.h"
#include "common/core/names.h"
#include "common/graph/adapters.h"
#include "common/model/blocks.h"
#include "common/model/stage/stage.h"

namespace cleave {
namespace {

constexpr std::array<std::pair<at::ScalarType, std::string_view>, 10> kDtypes = {{
    {at::kFloat, "F32"},
    {at::kHalf, "F16"},
    {at::kBFloat16, "BF16"},
    {at::kLong, "I64"},
    {at::kDouble, "F64"},
    {at::kInt, "I32"},
    {at::kShort, "I16"},
    {at::kChar, "I8"},
    {at::kByte, "U8"},
    {at::kBool, "BOOL"},
}};

std::string dtypeName(at::ScalarType type) {
  for (const auto& [known, name] : kDtypes) {
    if (known == type) return std::string(name);
  }
  throw std::logic_error(std::string("weights cannot have the type ") + c10::toString(type));
}

at::ScalarType scalarTypeOf(const SafetensorsEntry& entry, const std::string& file) {
  for (const auto& [type, known] : kDtypes) {
    if (known == entry.dtype) return type;
  }
  throw UsageError("bad-weights",
                   file + ": tensor " + inAscii(entry.name) + " has dtype " + entry.dtype,
                   "convert it to F32, or leave it out");
}

}  // namespace

std::vector<NamedTensor> weightsOf(const ParameterSet& set) {
  std::vector<NamedTensor> weights;
  for (const NamedTensor& parameter : set.parameters()) {
    weights.push_back({parameter.name, parameter.tensor.detach()});
  }
  weights.insert(weights.end(), set.buffers().begin(), set.buffers().end());
  return weights;
}

std::vector<NamedTensor> stateOf(const ParameterSet& set) {
  std::vector<NamedTensor> state = weightsOf(set);
  state.insert(state.end(), set.constants().begin(), set.constants().end());
  return state;
}

std::vector<NamedTensor> gradientsOf(const ParameterSet& set) {
  std::vector<NamedTensor> gradients;
  for (const NamedTensor& parameter : set.parameters()) {
    const at::Tensor& gradient = parameter.tensor.grad();
    if (gradient.defined()) gradients.push_back({parameter.name, gradient});
  }
  return gradients;
}

TensorFile::TensorFile(std::vector<NamedTensor> tensors) : tensors_(std::move(tensors)) {
  std::vector<SafetensorsEntry> entries;
  for (const NamedTensor& named : tensors_) {
    const at::Tensor& tensor = named.tensor;
    entries.push_back({named.name,
                       dtypeName(tensor.scalar_type()),
                       tensor.sizes().vec(),
                       {static_cast<const std::byte*>(nullptr), tensor.nbytes()}});
    size_ += tensor.nbytes();
  }
  header_ = safetensorsHeader(entries);
  size_ += header_.size();
  rest_ = header_;
}

std::size_t TensorFile::read(std::span<std::byte> into) {
  std::size_t count = 0;
  while (count < into.size()) {
    if (rest_.empty()) {
      if (next_ == tensors_.size()) break;
      current_ = tensors_[next_++].tensor.cpu().contiguous();
      rest_ = {static_cast<const std::byte*>(current_.const_data_ptr()), current_.nbytes()};
      continue;
    }
    const std::size_t size = std::min(rest_.size(), into.size() - count);
    std::memcpy(into.data() + count, rest_.data(), size);
    rest_ = rest_.subspan(size);
    count += size;
  }
  return count;
}

std::vector<std::byte> TensorFile::readAll() {
  std::vector<std::byte> bytes(size_);
  bytes.resize(read(bytes));
  return bytes;
}

std::vector<std::byte> toSafetensors(const std::vector<NamedTensor>& tensors) {
  return TensorFile(tensors).readAll();
}

std::vector<NamedTensor> fromSafetensors(std::span<const std::byte> file, const std::string& name) {
  return tensorsOf(readSafetensors(file, name), name);
}

std::vector<NamedTensor> tensorsOf(const std::vector<SafetensorsEntry>& entries,
                                   const std::string& name) {
  std::vector<NamedTensor> tensors;
  for (const SafetensorsEntry& entry : entries) {
    at::Tensor tensor = at::empty(entry.shape, scalarTypeOf(entry, name));
    if (!entry.bytes.empty()) {
      std::memcpy(tensor.mutable_data_ptr(), entry.bytes.data(), entry.bytes.size());
    }
    tensors.push_back({entry.name, std::move(tensor)});
  }
  return tensors;
}

void loadWeights(const ParameterSet& set, const std::vector<NamedTensor>& tensors) {
  // A buffer that several blocks use has one entry per block.
  std::multimap<std::string, at::Tensor> targets;
  for (NamedTensor& target : stateOf(set)) {
    targets.emplace(target.name, std::move(target.tensor));
  }
  const at::NoGradGuard noGrad;
  for (const NamedTensor& given : tensors) {
    const auto [first, last] = targets.equal_range(given.name);
    if (first == last) {
      throw UsageError("bad-weights", "this part of the model has no " + inAscii(given.name));
    }
    for (auto target = first; target != last; ++target) {
      if (target->second.sizes() != given.tensor.sizes()) {
        throw UsageError("bad-weights", given.name + " is " + toString(given.tensor.sizes().vec()) +
                                            ", but " + toString(target->second.sizes().vec()) +
                                            " in the model");
      }
      target->second.copy_(given.tensor);
    }
  }
}

std::vector<NamedTensor> selectWeights(const std::vector<NamedTensor>& tensors,
                                       const std::vector<BlockSpec>& blocks, int first, int last) {
  std::set<std::string> names;
  for (int b = first; b < last; ++b) {
    for (const ParameterSpec& tensor : blocks[static_cast<std::size_t>(b)].tensors) {
      names.insert(tensor.name);
    }
  }
  std::vector<NamedTensor> selected;
  for (const NamedTensor& tensor : tensors) {
    if (names.contains(tensor.name)) selected.push_back(tensor);
  }
  return selected;
}

void checkBlockNames(const std::vector<std::string>& names, const std::vector<BlockSpec>& blocks) {
  std::vector<std::string> known;
  for (const BlockSpec& block : blocks) known.push_back(block.name);
  for (const std::string& name : names) {
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    throw UsageError("bad-weights", "the model has no block '" + name + "'",
                     knownNames(name, known));
  }
}

void checkWeights(const std::vector<NamedTensor>& tensors, const std::vector<BlockSpec>& blocks,
                  const std::vector<std::string>& except, const std::string& source) {
  checkBlockNames(except, blocks);
  std::map<std::string, Shape> given;
  for (const NamedTensor& tensor : tensors) given[tensor.name] = tensor.tensor.sizes().vec();
  std::vector<std::string> faults;
  std::string blockAtFault;
  std::set<std::string> seen;  // tied parameters are listed twice
  for (const BlockSpec& block : blocks) {
    const bool isExcepted = std::find(except.begin(), except.end(), block.name) != except.end();
    for (const ParameterSpec& tensor : block.tensors) {
      if (!tensor.isSaved || !seen.insert(tensor.name).second) continue;
      const auto found = given.find(tensor.name);
      const bool fits = found != given.end() && found->second == tensor.shape;
      const bool isNew = found == given.end() && (isAdapter(tensor.name) || tensor.isInsert);
      if (!fits && !isExcepted && !isNew) {
        faults.push_back(found == given.end()
                             ? "it has no " + tensor.name
                             : tensor.name + " is " + toString(found->second) + " there, but " +
                                   toString(tensor.shape) + " in the model");
        if (blockAtFault.empty()) blockAtFault = block.name;
      }
      if (found != given.end()) given.erase(found);
    }
  }
  for (const auto& [name, shape] : given) faults.push_back("the model has no " + inAscii(name));
  if (faults.empty()) return;
  std::string sentence = source + " does not fit the model: " + faults.front();
  if (faults.size() > 1) {
    sentence += "; and " + std::to_string(faults.size() - 1) + " more of its tensors do not fit";
  }
  throw UsageError("bad-weights", sentence,
                   "use weights of this model, with the same parameters" +
                       (blockAtFault.empty() ? std::string()
                                             : ", or initialise blocks again: weights.except: [" +
                                                   blockAtFault + "]"));
}

}  // namespace cleave
