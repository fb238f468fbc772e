// Finds where a graph can be cut, and cuts it into parts. A cut is a position between two nodes.
//
// Only values that depend on a weight or on an input of floats cross it. Each part that needs
// another value, such as an attention mask made from token ids, computes it again from the model's
// integer inputs. The client sends the integer inputs that the body needs once per micro-batch; the
// tail takes them from the batch. Inputs that the model looks up in a table, such as token ids, are
// never sent.
//
// A graph and its evaluation graph are cut at the ends of the same modules. A cut is possible only
// if tensors of the same shapes cross it in both. Each part has a part of both.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "common/graph/graph.h"

namespace cleave {

// A position where a module ends.
struct GraphCut {
  std::vector<std::string> names;  // modules that end here, outermost first
  std::size_t position = 0;        // number of nodes before it
  GraphIds tensors;                // the tensors that cross, in the order of computation
  std::string obstacle;            // why the graph cannot be cut here; empty: it can
};

// A part of a graph: between two cuts, before the first, or after the last.
struct GraphPart {
  wire::Graph graph;
  // The last inputs of head or tail, as positions among the inputs of the whole graph. The other
  // inputs are the tensors that cross the cut before the part.
  std::vector<std::size_t> batchInputs;
};

struct GraphParts {
  GraphPart head;
  std::vector<GraphPart> bodies;  // in the model's order, at least one
  GraphPart tail;

  // Head, bodies and tail.
  std::vector<const GraphPart*> all() const;
};

class GraphCuts {
 public:
  // Requires a valid graph that outlives the object.
  explicit GraphCuts(const wire::Graph& graph);

  // All positions where a module ends and a tensor crosses, in ascending order.
  const std::vector<GraphCut>& cuts() const { return cuts_; }
  // The modules that only evaluation uses, in its order.
  std::vector<std::string> onlyInEvaluation() const;
  // Throws UsageError "bad-cuts" with a similar name and the possible cuts as its hint.
  const GraphCut& find(const std::string& name) const;

  // Cuts the graph at two or more cuts. A body's inputs are the tensors that cross the cut before
  // it, then the integer inputs that it and later bodies need in training or evaluation; the part
  // before it outputs exactly these. Throws UsageError "bad-cuts" if the cuts are not in ascending
  // order, one of them has an obstacle, or a body needs an input that the model looks up in a
  // table.
  GraphParts split(const std::vector<GraphCut>& cuts) const;

  // Returns `chosen` and up to `max` more cuts, at about equal distances of computation, in
  // ascending order. Exactly one tensor crosses each of the others, and a body may begin or end
  // there. `chosen`: two or more cuts at which the graph can be split.
  std::vector<GraphCut> cutsBeside(const std::vector<GraphCut>& chosen, std::size_t max) const;

  // Bytes per sample that cross a cut.
  double bytesPerSample(const GraphCut& cut) const;

 private:
  using Positions = std::vector<std::size_t>;
  struct Part {
    std::vector<int> nodes;
    GraphIds inputs;        // tensors that cross the cut before it
    GraphIds outputs;       // tensors that cross the cut after it
    Positions batchInputs;  // inputs of the whole graph, as positions among them
    Positions passedOn;     // those of them that later bodies need
  };
  void findDependencies();
  bool spreadDependencies();
  void findStatistics();
  void findLookups();
  // Whether its results depend on a weight or on an input of floats.
  bool depends(const wire::Node& node) const;
  void findModuleEnds();
  GraphIds crossing(std::size_t position) const;
  std::string obstacleAt(std::size_t position, const GraphIds& tensors) const;
  void matchEvaluation();
  // The same cut of the evaluation graph, or null.
  const GraphCut* inEvaluation(const GraphCut& cut) const;
  std::string shapesOf(const GraphIds& tensors) const;
  void checkAscending(const std::vector<GraphCut>& cuts) const;
  // Head, bodies and tail.
  std::vector<Part> divide(const std::vector<GraphCut>& cuts) const;
  std::vector<Part> divideEvaluation(const std::vector<GraphCut>& cuts) const;
  Part partBetween(std::size_t begin, std::size_t end, GraphIds outputs) const;
  wire::Graph extract(const Part& part) const;
  void addUnusedWeights(GraphParts& parts) const;
  void checkShared(const GraphParts& parts, const std::vector<GraphCut>& cuts) const;
  void checkObstacle(const GraphCut& cut) const;
  bool canSplit(const std::vector<GraphCut>& cuts) const;
  std::string crossingText(const GraphIds& tensors) const;
  const wire::Node* lookupOf(std::size_t input) const;
  const wire::Node* readerOf(std::size_t input, const Part& part) const;
  void checkPrivate(const Part& body, const Part& inEvaluation, const GraphCut& first,
                    const GraphCut& second) const;

  const wire::Graph& graph_;
  std::vector<bool> crosses_;         // by value: it depends on a weight or on an input of floats
  std::vector<std::size_t> made_;     // by value: the position after the node that makes it
  std::vector<std::size_t> lastUse_;  // by value: the position after the last node that reads it
  GraphIds owners_;
  std::set<std::uint32_t> statistics_;  // buffers of batch norms
  // Integer inputs that are looked up in a table, and the node that does so.
  std::map<std::uint32_t, const wire::Node*> lookups_;
  std::vector<GraphCut> cuts_;
  std::unique_ptr<const GraphCuts> evaluation_;  // null: the graph has no evaluation graph
};

}  // namespace cleave
