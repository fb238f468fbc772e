// The model "graph": a model that a user exported (docs/models.md), as three blocks: head, body and
// tail. The server gets the graph of the body only; its head and tail are blocks that cannot run.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/graph/cuts.h"
#include "common/model/model.h"

namespace cleave {

using GraphBlocks = std::shared_ptr<const std::vector<BlockSpec>>;

// One block that runs the graph. Its inputs are the graph's. Throws as the functions below.
BlockSpec blockOfGraph(std::string name, const wire::Graph& graph);

// Throw UsageError "bad-graph" if an operator's arguments do not fit it, or a tensor that crosses a
// cut has a dtype that cannot. The graphs are valid.
GraphBlocks blocksOfParts(const GraphParts& parts);
GraphBlocks blocksOfBody(const wire::Graph& body);

}  // namespace cleave
