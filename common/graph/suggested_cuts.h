// Suggests the two cuts of a model, from shapes alone. With a measured profile and a link, the
// planner finds better ones.
#pragma once

#include <optional>
#include <string>

#include "common/graph/cuts.h"

namespace cleave {

// The client should compute little, and few bytes should cross:
// - One tensor crosses each cut. Body and tail have parameters, and the head computes with some, so
//   that neither the inputs nor the outputs reach the server as they are. From the result of an
//   embedding alone, ids are looked up as easily as words in a dictionary.
// - Head and tail each take at most kMaxClientShare of a forward pass, or as little as possible.
// - Of the remaining cuts, those that the fewest bytes cross. Among equal ones, the deepest head,
//   from which inputs are harder to reconstruct, and the shortest tail.
struct SuggestedCuts {
  static constexpr double kMaxClientShare = 0.1;

  GraphCut first, last;
  double headShare = 0, tailShare = 0;   // of the computation of a forward pass
  double firstBytes = 0, lastBytes = 0;  // per sample and direction

  // Why these cuts, in one sentence.
  std::string reason() const;
};

// Empty if the model cannot be divided into three such parts.
std::optional<SuggestedCuts> suggestCuts(const wire::Graph& graph, const GraphCuts& cuts);

}  // namespace cleave
