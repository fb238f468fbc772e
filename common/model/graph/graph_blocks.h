// The model "graph": a model that a user exported (docs/models.md), as blocks: head, one body per
// server, tail. A server receives only its body's graph; there, the blocks before and after the
// body cannot run.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/graph/cuts.h"
#include "common/model/model.h"

namespace cleave {

using GraphBlocks = std::shared_ptr<const std::vector<BlockSpec>>;

// Returns a block that runs the graph and has the graph's inputs. Throws the errors of
// blocksOfParts().
BlockSpec blockOfGraph(std::string name, const wire::Graph& graph);

// Requires valid graphs. Throws UsageError "bad-graph" if an operator's arguments do not fit the
// operator, or a tensor of an unsupported dtype crosses a cut.
// `names`: of the blocks; empty: "head", "body" or "body1", …, "tail".
GraphBlocks blocksOfParts(const GraphParts& parts, const std::vector<std::string>& names = {});
GraphBlocks blocksOfBody(const wire::Graph& body);

}  // namespace cleave
