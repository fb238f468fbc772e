// Defences against the server: they change what the client sends, or what its layers learn. A
// defence is one-sided: the tensors keep their shapes, and the server does not know of it. To add a
// defence, add its row to kDefences in defences.cpp.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/core/random.h"
#include "common/model/inserts.h"
#include "common/model/model.h"

namespace cleave {

struct DefenceSpec {
  std::string kind;                          // a name in defenceTable()
  std::map<std::string, double> parameters;  // those of the kind; absent ones have defaults
  bool operator==(const DefenceSpec&) const = default;
};

// The client's defences, at most one of each kind. `key`: the key of a stream of random numbers,
// such as "noise train 3 0", which the server cannot compute; null unless a defence needs it.
struct Defences {
  std::vector<DefenceSpec> list = {};
  std::function<RandomKey(const std::string& stream)> key = nullptr;
};

struct DefenceContext {
  const std::map<std::string, double>& parameters;
  std::function<RandomKey(const std::string& stream)> key;
  std::string_view name;  // of the kind
  const BlockContext& block;
};

struct DefenceRow {
  std::string_view name;
  std::string_view description;  // one line
  std::span<const ParameterRow> parameters;
  bool isAtFirstCut = true;  // else at the last one
  bool needsKey = false;     // draws random numbers
  // Returns the tensor that replaces the one at the cut, `x`, which crosses the first cut or has
  // crossed the last one: [samples, …]. May change its gradient. `input`: of the batch, for
  // defences at the first cut.
  at::Tensor (*apply)(const at::Tensor& x, const at::Tensor& input, const DefenceContext& context);
};

std::span<const DefenceRow> defenceTable();
// Throws UsageError "bad-defence" with the nearest known name.
const DefenceRow& findDefence(std::string_view name);

// Adds the defences to the blocks before the first cut and after the last one; they act in their
// order. `cut0`, `cut1`: positions of these cuts. Call after addInserts(). Throws UsageError
// "bad-defence".
void addDefences(std::vector<BlockSpec>& blocks, const Defences& defences, int cut0, int cut1);

// Squared distance correlation of two batches of samples: 1 if they are equal up to rotation and
// scale (Székely et al., Annals of Statistics 35, 2007). That of independent samples is above 0,
// the more so the fewer samples and the more values they have. fp64, differentiable.
at::Tensor distanceCorrelation(const at::Tensor& x, const at::Tensor& y);

// What noise on a sample's activations certifies, if they are sent `times`: of a Gaussian mechanism
// with sensitivity 2 x clip, the epsilon at this delta of local differential privacy, by way of
// zero-concentrated differential privacy (Bun and Steinke, TCC 2016). Holds for fixed weights of
// layers that compute each sample on its own.
double epsilonOf(double deviation, double clip, std::uint64_t times, double delta);

}  // namespace cleave
