// Low-rank adapters (LoRA): Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", 2021.
// A linear layer y = W x + b becomes y = W x + b + (alpha / rank) B A dropout(x), with the formula,
// names and shapes of Hugging Face PEFT: A is [rank, inputs], B is [outputs, rank]. Only A and B
// are trained.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "common/graph/graph.h"

namespace cleave {

struct LoraSpec {
  std::int64_t rank = 0;  // 0: no adapters
  double alpha = 0;       // 0: twice the rank
  double dropout = 0;
  // Patterns of module names. As in PEFT, a pattern matches a whole name, or the part of a name
  // after a dot.
  std::vector<std::string> targets;
  std::vector<std::string> parts = {"head", "body", "tail"};

  double scale() const { return alpha > 0 ? alpha / static_cast<double>(rank) : 2; }
};

// "X.lora_A.weight" and "X.lora_B.weight" for the module X.
bool isAdapter(std::string_view parameter);
// Initial values are as in PEFT: A is uniform in ±1 / sqrt(inputs), B is zero.
bool isAdapterA(std::string_view parameter);

// Whether the module is one of the targets.
bool isTarget(const LoraSpec& spec, std::string_view module);
// A module whose weight a linear operator of the graph (aten.linear, aten.addmm) uses.
struct LinearModule {
  std::string name;
  bool inputsFirst = false;  // the weight is [inputs, outputs], as in GPT-2's Conv1D
};
std::vector<LinearModule> linearModules(const wire::Graph& graph);
// The modules whose weight is read by an operator that is not linear, such as an embedding, also in
// evaluation.
std::set<std::string> modulesReadOtherwise(const wire::Graph& graph);

// Adds adapters to the linear operators of the targets, and the same ones, without dropout, to
// those of the evaluation graph. Returns the modules that received an adapter. Requires a valid
// graph; the result is valid too.
std::vector<std::string> addAdapters(wire::Graph& graph, const LoraSpec& spec);

}  // namespace cleave
