// Defences against the server: they change what the client sends, or what its layers learn. A
// defence is one-sided: the tensors keep their shapes, and the server does not know of it. To add a
// defence, add its row to kDefences in defences.cpp.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/model/inserts.h"
#include "common/model/model.h"

namespace cleave {

struct DefenceSpec {
  std::string kind;                          // a name in defenceTable()
  std::map<std::string, double> parameters;  // those of the kind; absent ones have defaults
  bool operator==(const DefenceSpec&) const = default;
};

// The client's defences. `seed`: of their random draws; the server must not know it.
struct Defences {
  std::vector<DefenceSpec> list = {};
  std::uint64_t seed = 0;
};

struct DefenceContext {
  const std::map<std::string, double>& parameters;
  std::uint64_t seed = 0;
  std::string_view name;  // of the kind
  const BlockContext& block;
};

struct DefenceRow {
  std::string_view name;
  std::string_view description;  // one line
  std::span<const InsertParameterRow> parameters;
  bool isAtFirstCut = true;  // else at the last one
  bool draws = false;        // needs a seed
  // Returns the tensor that replaces the one at the cut, `x`, which crosses the first cut or has
  // crossed the last one: [samples, …]. May change its gradient. `input`: of the batch, for
  // defences at the first cut.
  at::Tensor (*apply)(const at::Tensor& x, const at::Tensor& input, const DefenceContext& context);
};

std::span<const DefenceRow> defenceTable();
// Throws UsageError "bad-defence" with the nearest known name.
const DefenceRow& findDefence(std::string_view name);

// Adds the defences to the blocks before the first cut and after the last one, in their order.
// `cut0`, `cut1`: positions of these cuts. Call after addInserts(). Throws UsageError
// "bad-defence".
void addDefences(std::vector<BlockSpec>& blocks, const Defences& defences, int cut0, int cut1);

// Squared distance correlation of two batches of samples: 0 if they are independent, 1 if they are
// equal up to rotation and scale (Székely et al., Annals of Statistics 35, 2007). fp32,
// differentiable.
at::Tensor distanceCorrelation(const at::Tensor& x, const at::Tensor& y);

// The noise's differential privacy for one training sample's activations, if each is sent `times`:
// the zero-concentrated parameter of a Gaussian mechanism with sensitivity 2 x clip, and the
// epsilon that follows for this delta (Bun and Steinke, TCC 2016).
double epsilonOf(double deviation, double clip, std::uint64_t times, double delta);

}  // namespace cleave
