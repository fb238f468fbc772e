// The model "graph": a model that a user exported (docs/models.md), as three blocks: head, body and
// tail. The server receives only the body's graph; its head and tail are blocks that cannot run.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/graph/cuts.h"
#include "common/model/model.h"

namespace cleave {

using GraphBlocks = std::shared_ptr<const std::vector<BlockSpec>>;

// One block that runs the graph and has the graph's inputs. Throws as the functions below.
BlockSpec blockOfGraph(std::string name, const wire::Graph& graph);

// Require valid graphs. Throw UsageError "bad-graph" if an operator's arguments do not fit it, or a
// tensor of an unsupported dtype crosses a cut.
GraphBlocks blocksOfParts(const GraphParts& parts);
GraphBlocks blocksOfBody(const wire::Graph& body);

}  // namespace cleave
