// Graphs: models exported from PyTorch, or parts of them, as lists of operators
// (proto/graph.proto). Reading, checking and cutting a graph does not need Torch.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "common/core/error.h"
#include "proto/graph.pb.h"

namespace cleave {

using GraphIds = std::vector<std::uint32_t>;  // numbers of values

// Throws UsageError "bad-graph" unless the graph is valid: every operator is in the table of
// operators.h; every value has one origin and is not used before it; only results of nodes are
// changed in place; dtypes, shapes, names and counts are within limits; there is at least one
// output, and every input and output is a tensor whose first dimension is the samples of the
// micro-batch. Its evaluation graph, if there is one, must be valid too, with inputs and outputs of
// the same shapes and with weights that the graph itself has. `source` names the graph in messages.
void checkGraph(const wire::Graph& graph, const std::string& source);

// The values that a node reads, in the order of its arguments; with repetitions.
GraphIds valuesReadBy(const wire::Node& node);
// Renumbers the values that a node reads or makes.
void renumber(wire::Node& node, const std::function<std::uint32_t(std::uint32_t)>& newNumber);

// Removes these values, which no node may read or make, and renumbers the others.
void removeValues(wire::Graph& graph, const std::set<std::uint32_t>& ids);

// Appends the weights of `evaluation` that the graph lacks, and makes it the evaluation graph.
void setEvaluation(wire::Graph& graph, wire::Graph evaluation);

// Weights that nodes [first, last) read, in the order of their numbers.
GraphIds weightsReadBetween(const wire::Graph& graph, std::size_t first, std::size_t last);
// Whether the node's operator changes its first tensor.
bool changesInPlace(const wire::Node& node);
// "aten.relu.default (relu, in module 'features.0')", safe to print.
std::string nodeText(const wire::Node& node);

// The argument with that name, or null.
const wire::Argument* findArgument(const wire::Node& node, std::string_view name);

bool isWeight(const wire::Value& value);  // parameter, buffer or constant
bool isFloatDtype(std::string_view dtype);
// Bytes per element; 0 if graphs may not have this dtype.
std::size_t graphDtypeBytes(std::string_view dtype);

// The product of all dimensions except the samples. Computed in fp64, because a peer's numbers may
// overflow an integer. For a value without a samples dimension, such as a weight, returns its
// number of elements.
double elementsPerSample(const wire::Value& value);
double bytesPerSample(const wire::Value& value);
// Whether the first dimension is the samples, and all other dimensions are known.
bool isBatch(const wire::Value& value);

// For each value, by number, the first value that has the same memory. The result of an operator
// that may return a view, or that changes its tensor in place, has the memory of its first tensor,
// or, if its first argument is a list of tensors, of the tensor at the same position in the list.
GraphIds memoryOwners(const wire::Graph& graph);

// The text of a dimension list: "[samples, 64, 7, 7]".
std::string shapeText(const wire::Value& value);

}  // namespace cleave
