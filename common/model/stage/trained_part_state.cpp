// A part's state in a checkpoint.
#include "common/model/stage/trained_part.h"

#include <ATen/ops/empty_like.h>

#include <charconv>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "common/codec/checkpoint_error.h"
#include "common/codec/safetensors.h"

namespace cleave {
namespace {

// Suffix of a saved average's name, after the name of its weight.
constexpr const char* kAverage = ":average";
// Suffix of a saved older version of a parameter, before the number of updates.
constexpr const char* kVersion = ":version";

}  // namespace

void TrainedPart::load(const std::vector<NamedTensor>& weights) {
  loadWeights(set_, weights);
  if (average_) loadWeights(*average_, weights);
  versions_.clear();
}

std::vector<NamedTensor> TrainedPart::save() const {
  std::vector<NamedTensor> saved = stateOf(set_);
  if (average_) {
    for (NamedTensor& each : weightsOf(*average_)) {
      each.name += kAverage;
      saved.push_back(std::move(each));
    }
  }
  for (NamedTensor& each : optimizer_->state()) saved.push_back(std::move(each));
  // The newest version is equal to the weights.
  for (const auto& [number, values] : versions_) {
    if (number == versions_.rbegin()->first) break;
    for (std::size_t p = 0; p < values.size(); ++p) {
      const NamedTensor& parameter = set_.parameters()[p];
      if (!parameter.tensor.requires_grad()) continue;
      saved.push_back({parameter.name + kVersion + std::to_string(number), values[p]});
    }
  }
  return saved;
}

// Removes the older versions of this part's parameters from `saved`, and returns copies of them.
TrainedPart::Versions TrainedPart::takeVersions(std::vector<NamedTensor>& saved) const {
  Versions versions;
  if (experiment_.staleness == 0) return versions;
  std::map<std::string, std::size_t> positions;
  for (std::size_t p = 0; p < set_.parameters().size(); ++p) {
    const NamedTensor& parameter = set_.parameters()[p];
    if (parameter.tensor.requires_grad()) positions[parameter.name] = p;
  }
  std::size_t taken = 0;
  std::erase_if(saved, [&](const NamedTensor& each) {
    const std::size_t suffix = each.name.rfind(kVersion);
    if (suffix == std::string::npos) return false;
    const auto position = positions.find(each.name.substr(0, suffix));
    if (position == positions.end()) return false;
    const at::Tensor target = set_.parameters()[position->second].tensor.detach();
    const std::string digits = each.name.substr(suffix + std::string_view(kVersion).size());
    std::uint64_t number = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
    if (error != std::errc() || end != digits.data() + digits.size() ||
        each.tensor.sizes() != target.sizes() ||
        each.tensor.scalar_type() != target.scalar_type()) {
      throw badCheckpoint("the saved state has a version of a weight that does not fit: " +
                          inAscii(each.name));
    }
    const auto [version, isNew] = versions.try_emplace(number);
    if (isNew) {
      for (const NamedTensor& parameter : set_.parameters()) {
        version->second.push_back(parameter.tensor.detach());
      }
    }
    version->second[position->second] = at::empty_like(target).copy_(each.tensor);
    ++taken;
    return true;
  });
  const bool areConsecutive =
      versions.empty() || versions.rbegin()->first - versions.begin()->first + 1 == versions.size();
  if (taken != versions.size() * positions.size() || !areConsecutive ||
      versions.size() > experiment_.staleness) {
    throw badCheckpoint("the saved state does not contain each version of each weight once");
  }
  return versions;
}

void TrainedPart::restore(std::vector<NamedTensor>& saved) {
  Versions older = takeVersions(saved);
  std::map<std::string, at::Tensor> own;
  for (NamedTensor& each : stateOf(set_)) own[each.name] = std::move(each.tensor);
  if (average_) {
    for (NamedTensor& each : weightsOf(*average_)) {
      own[each.name + kAverage] = std::move(each.tensor);
    }
  }
  std::vector<NamedTensor> weights, state, rest;
  for (NamedTensor& each : saved) {
    const bool isAverage = each.name.ends_with(kAverage);
    const std::string parameter = isAverage ? each.name : each.name.substr(0, each.name.rfind(':'));
    auto& group = own.count(parameter) == 0             ? rest
                  : parameter.size() < each.name.size() ? state
                                                        : weights;
    group.push_back(std::move(each));
  }
  for (const NamedTensor& each : weights) {
    const at::Tensor& target = own.at(each.name);
    if (each.tensor.sizes() == target.sizes() &&
        each.tensor.scalar_type() == target.scalar_type()) {
      continue;
    }
    throw badCheckpoint("the saved state has a " + inAscii(each.name) +
                        " of another shape or type");
  }
  std::set<std::string> names;
  for (const NamedTensor& each : weights) names.insert(each.name);
  if (names.size() != own.size() || weights.size() != own.size()) {
    throw badCheckpoint("the saved state does not contain each weight exactly once");
  }
  optimizer_->restore(state);
  std::vector<NamedTensor> averages;
  std::erase_if(weights, [&](NamedTensor& each) {
    if (!each.name.ends_with(kAverage)) return false;
    each.name.erase(each.name.size() - std::string_view(kAverage).size());
    averages.push_back(each);
    return true;
  });
  loadWeights(set_, weights);
  if (average_) loadWeights(*average_, averages);
  saved = std::move(rest);
  steps_.clear();
  versions_ = std::move(older);
  if (!versions_.empty()) versions_[versions_.rbegin()->first + 1] = copyValues();
}

void checkAllTaken(const std::vector<NamedTensor>& saved) {
  if (saved.empty()) return;
  throw badCheckpoint("the saved state has a tensor that the model does not have: " +
                      inAscii(saved.front().name));
}

}  // namespace cleave
