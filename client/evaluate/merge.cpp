#include "client/evaluate/merge.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <span>
#include <string>

#include "common/graph/adapters.h"

namespace cleave {
namespace {

constexpr std::string_view kA = ".lora_A.weight";

std::vector<float> valuesOf(const SafetensorsEntry& entry) {
  std::vector<float> values(entry.bytes.size() / sizeof(float));
  std::memcpy(values.data(), entry.bytes.data(), values.size() * sizeof(float));
  return values;
}

bool isMatrix(const SafetensorsEntry& entry) {
  return entry.dtype == "F32" && entry.shape.size() == 2;
}

}  // namespace

std::vector<SafetensorsEntry> mergeAdapters(const std::vector<SafetensorsEntry>& entries,
                                            double scale,
                                            const std::vector<std::string>& inputsFirst,
                                            std::deque<std::vector<float>>& memory) {
  if (scale == 0) return entries;  // no adapters; a module may still be called lora_A
  std::map<std::string, const SafetensorsEntry*> byName;
  for (const SafetensorsEntry& entry : entries) byName[entry.name] = &entry;
  const std::set<std::string> transposed(inputsFirst.begin(), inputsFirst.end());
  std::vector<SafetensorsEntry> merged;
  for (const SafetensorsEntry& entry : entries) {
    if (isAdapter(entry.name)) continue;
    merged.push_back(entry);
    if (!entry.name.ends_with(".weight")) continue;
    const std::string module = entry.name.substr(0, entry.name.size() - std::strlen(".weight"));
    const auto a = byName.find(module + std::string(kA));
    const auto b = byName.find(module + ".lora_B.weight");
    if (a == byName.end() && b == byName.end()) continue;
    const bool isTransposed = transposed.contains(module);
    if (a == byName.end() || b == byName.end() || !isMatrix(entry) || !isMatrix(*a->second) ||
        !isMatrix(*b->second) || a->second->shape[0] != b->second->shape[1] ||
        entry.shape[isTransposed ? 1 : 0] != b->second->shape[0] ||
        entry.shape[isTransposed ? 0 : 1] != a->second->shape[1]) {
      throw UsageError("bad-weights",
                       "the adapters of " + inAscii(module) + " do not fit its weight",
                       "give a model file that a run has written");
    }
    const auto rank = static_cast<std::size_t>(a->second->shape[0]);
    const auto inputs = static_cast<std::size_t>(a->second->shape[1]);
    const auto outputs = static_cast<std::size_t>(b->second->shape[0]);
    const std::vector<float> down = valuesOf(*a->second), up = valuesOf(*b->second);
    std::vector<float>& weight = memory.emplace_back(valuesOf(entry));
    std::vector<double> row(inputs);  // a row of B A
    for (std::size_t o = 0; o < outputs; ++o) {
      std::fill(row.begin(), row.end(), 0.0);
      for (std::size_t r = 0; r < rank; ++r) {
        const double factor = up[o * rank + r];
        for (std::size_t x = 0; x < inputs; ++x) row[x] += factor * down[r * inputs + x];
      }
      for (std::size_t x = 0; x < inputs; ++x) {
        float& value = weight[isTransposed ? x * outputs + o : o * inputs + x];
        value = static_cast<float>(value + scale * row[x]);
      }
    }
    merged.back().bytes = std::as_bytes(std::span(weight));
  }
  return merged;
}

}  // namespace cleave
