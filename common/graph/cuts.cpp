#include "common/graph/cuts.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <stdexcept>

#include "common/core/names.h"
#include "common/core/printable.h"
#include "common/graph/costs.h"

namespace cleave {
namespace {

UsageError badCuts(const std::string& sentence, const std::string& hint) {
  return UsageError("bad-cuts", sentence, hint).about("model.cuts");
}

constexpr std::size_t kNoPosition = static_cast<std::size_t>(-1);

// Example: for "a.b.c", returns "a", "a.b", "a.b.c".
std::vector<std::string> withParents(const std::string& module) {
  std::vector<std::string> names;
  for (std::size_t dot = module.find('.'); dot != std::string::npos;
       dot = module.find('.', dot + 1)) {
    names.push_back(module.substr(0, dot));
  }
  if (!module.empty()) names.push_back(module);
  return names;
}

const wire::Argument* firstTensor(const wire::Node& node) {
  if (node.arguments().empty()) return nullptr;
  const wire::Argument& first = node.arguments(0);
  return first.value_case() == wire::Argument::kTensor ? &first : nullptr;
}

// The base of an operator's name: "scatter" for "aten.scatter_.src".
std::string baseOf(const std::string& op) {
  const std::size_t begin = op.find('.') + 1;
  std::string base = op.substr(begin, op.rfind('.') - begin);
  if (base.ends_with('_')) base.pop_back();
  return base;
}

// Whether the node looks up integers in a table: an embedding, in any of its forms, or a loss that
// compares with classes. A table has floats, and no dimension of samples.
bool isLookup(const wire::Graph& graph, const wire::Node& node) {
  static const std::set<std::string> kLookups = {"cross_entropy_loss",
                                                 "embedding",
                                                 "embedding_bag",
                                                 "index_put",
                                                 "multi_margin_loss",
                                                 "nll_loss_nd",
                                                 "multilabel_margin_loss",
                                                 "one_hot",
                                                 "scatter",
                                                 "scatter_add",
                                                 "scatter_reduce"};
  static const std::set<std::string> kReaders = {"gather", "index", "index_select", "take",
                                                 "take_along_dim"};
  const std::string base = baseOf(node.op());
  if (kLookups.contains(base)) return true;
  const wire::Argument* const first = firstTensor(node);
  if (!kReaders.contains(base) || first == nullptr) return false;
  const wire::Value& table = graph.values(static_cast<int>(first->tensor()));
  return isFloatDtype(table.dtype()) && !isBatch(table);
}

// The sums over a mask with which models number the positions in it, also converted.
std::set<std::uint32_t> positionsIn(const wire::Graph& graph) {
  std::set<std::uint32_t> positions;
  for (const wire::Node& node : graph.nodes()) {
    const wire::Argument* const first = firstTensor(node);
    const bool converts = node.op().starts_with("aten.to.") ||
                          node.op() == "aten.type_as.default" || node.op() == "aten.add.Tensor" ||
                          node.op() == "aten.add.Scalar";
    if (node.op() == "aten.cumsum.default" ||
        (converts && first != nullptr && positions.contains(first->tensor()))) {
      positions.insert(node.outputs().begin(), node.outputs().end());
    }
  }
  return positions;
}

// Whether the node's results reveal little of the integers from which they are computed: booleans,
// sums over a mask, and their products with it.
bool hidesIntegers(const wire::Graph& graph, const wire::Node& node,
                   const std::set<std::uint32_t>& positions) {
  if (node.op() == "aten.cumsum.default") return true;
  if (node.op() == "aten.mul.Tensor") {
    const auto read = valuesReadBy(node);
    return std::any_of(read.begin(), read.end(),
                       [&](std::uint32_t id) { return positions.contains(id); });
  }
  return std::all_of(node.outputs().begin(), node.outputs().end(), [&](std::uint32_t id) {
    const wire::Value& value = graph.values(static_cast<int>(id));
    return value.kind() == wire::Value::SIZE || value.dtype() == "bool";
  });
}

}  // namespace

GraphCuts::GraphCuts(const wire::Graph& graph) : graph_(graph), owners_(memoryOwners(graph)) {
  findDependencies();
  findStatistics();
  findLookups();
  findModuleEnds();
  if (!graph.has_evaluation()) return;
  evaluation_ = std::make_unique<const GraphCuts>(graph.evaluation());
  matchEvaluation();
}

void GraphCuts::findDependencies() {
  const auto values = static_cast<std::size_t>(graph_.values_size());
  crosses_.assign(values, false);
  made_.assign(values, 0);
  lastUse_.assign(values, 0);
  for (std::size_t id = 0; id < values; ++id) {
    crosses_[id] = graph_.values(static_cast<int>(id)).kind() == wire::Value::PARAMETER;
  }
  for (const std::uint32_t input : graph_.inputs()) {
    crosses_[input] = isFloatDtype(graph_.values(static_cast<int>(input)).dtype());
  }
  for (int n = 0; n < graph_.nodes_size(); ++n) {
    const auto after = static_cast<std::size_t>(n) + 1;
    for (const std::uint32_t id : valuesReadBy(graph_.nodes(n))) lastUse_[id] = after;
    for (const std::uint32_t id : graph_.nodes(n).outputs()) made_[id] = after;
  }
  for (const std::uint32_t id : graph_.outputs()) lastUse_[id] = kNoPosition;
  // A tensor may be read under one name before it is written to under another.
  while (spreadDependencies()) continue;
}

// Makes one pass over the nodes, in order. Returns whether writes in place have made more values
// dependent.
bool GraphCuts::spreadDependencies() {
  bool foundWrite = false;
  for (const wire::Node& node : graph_.nodes()) {
    bool depends = false;
    for (const std::uint32_t id : valuesReadBy(node)) {
      depends = depends || (crosses_[id] && node.op() != "size.of");
    }
    if (!depends) continue;
    for (const std::uint32_t id : node.outputs()) crosses_[id] = true;
    if (!changesInPlace(node)) continue;
    const std::uint32_t owner = owners_[node.outputs(0)];
    for (std::uint32_t id = 0; id < owners_.size(); ++id) {
      if (owners_[id] != owner || crosses_[id] || isWeight(graph_.values(static_cast<int>(id)))) {
        continue;
      }
      crosses_[id] = true;
      foundWrite = true;
    }
  }
  return foundWrite;
}

bool GraphCuts::depends(const wire::Node& node) const {
  return std::any_of(node.outputs().begin(), node.outputs().end(),
                     [&](std::uint32_t id) { return crosses_[id]; });
}

void GraphCuts::findStatistics() {
  for (const wire::Node& node : graph_.nodes()) {
    if (node.op() != "aten.batch_norm.default") continue;
    for (const char* name : {"running_mean", "running_var", "num_batches_tracked"}) {
      const wire::Argument* const argument = findArgument(node, name);
      if (argument != nullptr && argument->value_case() == wire::Argument::kTensor) {
        statistics_.insert(argument->tensor());
      }
    }
  }
}

// Follows the indices of each lookup back to the inputs from which they are computed.
void GraphCuts::findLookups() {
  std::map<std::uint32_t, std::vector<const wire::Node*>> makers;  // by the memory's owner
  const std::set<std::uint32_t> positions = positionsIn(graph_);
  for (const wire::Node& node : graph_.nodes()) {
    if (hidesIntegers(graph_, node, positions)) continue;
    for (const std::uint32_t id : node.outputs()) makers[owners_[id]].push_back(&node);
  }
  std::set<std::uint32_t> seen;
  for (const wire::Node& lookup : graph_.nodes()) {
    if (!isLookup(graph_, lookup)) continue;
    std::vector<const wire::Node*> open = {&lookup};
    while (!open.empty()) {
      const wire::Node& node = *open.back();
      open.pop_back();
      for (const std::uint32_t id : valuesReadBy(node)) {
        const std::uint32_t owner = owners_[id];
        const bool isBool = graph_.values(static_cast<int>(id)).dtype() == "bool";
        if (crosses_[id] || isBool || !seen.insert(owner).second) continue;
        lookups_.emplace(owner, &lookup);
        const auto found = makers.find(owner);
        if (found != makers.end())
          open.insert(open.end(), found->second.begin(), found->second.end());
      }
    }
  }
}

void GraphCuts::findModuleEnds() {
  std::map<std::string, std::size_t> ends;  // by module
  for (int n = 0; n < graph_.nodes_size(); ++n) {
    const wire::Node& node = graph_.nodes(n);
    if (!depends(node)) continue;
    for (const std::string& module : withParents(node.module())) {
      ends[module] = static_cast<std::size_t>(n) + 1;
    }
  }
  std::map<std::size_t, std::vector<std::string>> names;                // by position
  for (const auto& [module, end] : ends) names[end].push_back(module);  // parents come first
  for (auto& [position, modules] : names) {
    GraphCut cut;
    cut.names = std::move(modules);
    cut.position = position;
    cut.tensors = crossing(position);
    if (cut.tensors.empty() || position == static_cast<std::size_t>(graph_.nodes_size())) continue;
    cut.obstacle = obstacleAt(position, cut.tensors);
    cuts_.push_back(std::move(cut));
  }
}

GraphIds GraphCuts::crossing(std::size_t position) const {
  std::vector<std::pair<std::size_t, std::uint32_t>> found;
  for (std::uint32_t id = 0; id < made_.size(); ++id) {
    const wire::Value& value = graph_.values(static_cast<int>(id));
    const bool isTensor = value.kind() == wire::Value::RESULT;
    if (isTensor && crosses_[id] && made_[id] <= position && lastUse_[id] > position) {
      found.emplace_back(made_[id], id);
    }
  }
  std::sort(found.begin(), found.end());
  GraphIds ids;
  for (const auto& [made, id] : found) ids.push_back(id);
  return ids;
}

std::string GraphCuts::obstacleAt(std::size_t position, const GraphIds& tensors) const {
  constexpr std::size_t kMaxTensors = 60;  // leaves room for the model's integer inputs
  if (tensors.size() > kMaxTensors) return fmt::format("{} tensors cross", tensors.size());
  for (const std::uint32_t id : tensors) {
    const wire::Value& value = graph_.values(static_cast<int>(id));
    if (!isBatch(value))
      return shapeText(value) + " crosses, but the first dimension must be the samples";
    if (value.dtype() != "f32") return "a tensor of " + value.dtype() + " crosses, but must be f32";
  }
  const auto nodes = static_cast<std::size_t>(graph_.nodes_size());
  const GraphIds before = weightsReadBetween(graph_, 0, position);
  for (const std::uint32_t id : weightsReadBetween(graph_, position, nodes)) {
    const wire::Value& value = graph_.values(static_cast<int>(id));
    if (!statistics_.contains(id)) continue;
    if (std::binary_search(before.begin(), before.end(), id)) {
      return printable(value.name()) + " is used on both sides";
    }
  }
  // Two names for the same memory would become two tensors on the other side.
  for (std::size_t n = position; n < nodes; ++n) {
    const wire::Node& node = graph_.nodes(static_cast<int>(n));
    if (!changesInPlace(node)) continue;
    const std::uint32_t owner = owners_[node.outputs(0)];
    const auto sharing = std::count_if(tensors.begin(), tensors.end(),
                                       [&](std::uint32_t id) { return owners_[id] == owner; });
    if (sharing > 1) return printable(node.name()) + " changes a tensor that crosses twice";
  }
  return "";
}

const GraphCut* GraphCuts::inEvaluation(const GraphCut& cut) const {
  for (const std::string& name : cut.names) {
    for (const GraphCut& other : evaluation_->cuts_) {
      if (std::ranges::find(other.names, name) != other.names.end()) return &other;
    }
  }
  return nullptr;
}

// "[samples, 4, 8, 8] i64 [samples, 16]"
std::string GraphCuts::shapesOf(const GraphIds& tensors) const {
  std::string text;
  for (const std::uint32_t id : tensors) {
    const wire::Value& value = graph_.values(static_cast<int>(id));
    text += (text.empty() ? "" : " ") + (value.dtype() == "f32" ? "" : value.dtype() + " ") +
            shapeText(value);
  }
  return text;
}

void GraphCuts::matchEvaluation() {
  for (GraphCut& cut : cuts_) {
    if (!cut.obstacle.empty()) continue;
    const GraphCut* const other = inEvaluation(cut);
    if (other == nullptr) {
      cut.obstacle = "in evaluation mode, nothing crosses";
    } else if (!other->obstacle.empty()) {
      cut.obstacle = "in evaluation mode, " + other->obstacle;
    } else if (shapesOf(cut.tensors) != evaluation_->shapesOf(other->tensors)) {
      cut.obstacle = evaluation_->shapesOf(other->tensors) + " crosses in evaluation mode";
    }
  }
}

std::vector<std::string> GraphCuts::onlyInEvaluation() const {
  std::set<std::string> inTraining;
  for (const wire::Node& node : graph_.nodes()) {
    for (const std::string& module : withParents(node.module())) inTraining.insert(module);
  }
  std::vector<std::string> names;
  if (!evaluation_) return names;
  for (const GraphCut& cut : evaluation_->cuts_) {
    std::ranges::copy_if(cut.names, std::back_inserter(names),
                         [&](const std::string& name) { return !inTraining.contains(name); });
  }
  return names;
}

const GraphCut& GraphCuts::find(const std::string& name) const {
  std::vector<std::string> known, possible;
  for (const GraphCut& cut : cuts_) {
    for (const std::string& each : cut.names) {
      if (each == name) return cut;
      known.push_back(each);
    }
    if (cut.obstacle.empty() && cut.tensors.size() == 1) possible.push_back(cut.names.front());
  }
  GraphCut sought;
  sought.names = {name};
  const bool isInEvaluation = evaluation_ && inEvaluation(sought) != nullptr;
  throw badCuts(isInEvaluation
                    ? "the model uses the module '" + printable(name) + "' only in evaluation mode"
                    : "the model has no module '" + printable(name) + "' to cut after",
                knownNames(name, known, possible));
}

// "relu [samples, 4, 8, 8], conv2d_1 [samples, 4, 8, 8]": names are those of nodes and inputs.
std::string GraphCuts::crossingText(const GraphIds& tensors) const {
  constexpr std::size_t kShown = 8;
  std::string text;
  for (std::size_t t = 0; t < std::min(tensors.size(), kShown); ++t) {
    const wire::Value& value = graph_.values(static_cast<int>(tensors[t]));
    // made_ is the position after the node that makes the value; 0: an input.
    const std::size_t made = made_[tensors[t]];
    const std::string& name =
        made == 0 ? value.name() : graph_.nodes(static_cast<int>(made) - 1).name();
    text += (t == 0 ? "" : ", ") + printable(name) + " " + shapeText(value);
  }
  return tensors.size() <= kShown ? text
                                  : fmt::format("{} and {} more", text, tensors.size() - kShown);
}

void GraphCuts::checkObstacle(const GraphCut& cut) const {
  if (cut.obstacle.empty()) return;
  std::string before, after;
  for (const GraphCut& other : cuts_) {
    if (!other.obstacle.empty() || other.tensors.size() != 1) continue;
    if (other.position < cut.position) before = other.names.front();
    if (other.position > cut.position && after.empty()) after = other.names.front();
  }
  std::string hint = "cut after another module";
  if (before.empty() && after.empty()) {
    hint = "no other cut is possible either; if the parameters are not fp32, export model.float()";
  }
  if (!before.empty() || !after.empty()) {
    hint = "cut after " + before + (before.empty() || after.empty() ? "" : " or ") + after +
           ", where one tensor crosses";
  }
  throw badCuts(fmt::format("the model cannot be cut after {}: {}; what crosses: {}",
                            cut.names.front(), cut.obstacle, crossingText(cut.tensors)),
                hint + "; all cuts: cleave-client models show FILE");
}

double GraphCuts::bytesPerSample(const GraphCut& cut) const {
  double bytes = 0;
  for (const std::uint32_t id : cut.tensors) {
    bytes += cleave::bytesPerSample(graph_.values(static_cast<int>(id)));
  }
  return bytes;
}

// The nodes between two positions that depend on weights or floats, and all others that they need.
GraphCuts::Part GraphCuts::partBetween(std::size_t begin, std::size_t end, GraphIds outputs) const {
  Part part;
  std::set<std::uint32_t> needed, neededOwners;
  const auto need = [&](std::uint32_t id) {
    needed.insert(id);
    neededOwners.insert(owners_[id]);
  };
  for (const std::uint32_t id : outputs) need(id);
  for (std::size_t n = end; n-- > 0;) {
    const wire::Node& node = graph_.nodes(static_cast<int>(n));
    const bool isDependent = depends(node);
    const bool isNeeded =
        std::any_of(node.outputs().begin(), node.outputs().end(), [&](std::uint32_t id) {
          return needed.contains(id) ||
                 (changesInPlace(node) && neededOwners.contains(owners_[id]));
        });
    const bool isOwn = isDependent && n >= begin;
    if (!isOwn && (isDependent || !isNeeded)) continue;
    part.nodes.push_back(static_cast<int>(n));
    for (const std::uint32_t id : valuesReadBy(node)) need(id);
  }
  std::reverse(part.nodes.begin(), part.nodes.end());
  for (std::size_t input = 0; input < static_cast<std::size_t>(graph_.inputs_size()); ++input) {
    const std::uint32_t id = graph_.inputs(static_cast<int>(input));
    if (needed.contains(id) && (!crosses_[id] || begin == 0)) part.batchInputs.push_back(input);
  }
  if (begin > 0) part.inputs = crossing(begin);
  part.outputs = std::move(outputs);
  return part;
}

std::vector<GraphCuts::Part> GraphCuts::divide(const std::vector<GraphCut>& cuts) const {
  std::vector<Part> parts;
  std::size_t begin = 0;
  for (const GraphCut& cut : cuts) {
    parts.push_back(partBetween(begin, cut.position, cut.tensors));
    begin = cut.position;
  }
  parts.push_back(partBetween(begin, static_cast<std::size_t>(graph_.nodes_size()),
                              {graph_.outputs().begin(), graph_.outputs().end()}));
  return parts;
}

std::vector<GraphCuts::Part> GraphCuts::divideEvaluation(const std::vector<GraphCut>& cuts) const {
  if (!evaluation_) return {};
  std::vector<GraphCut> same;
  for (const GraphCut& cut : cuts) same.push_back(*inEvaluation(cut));
  evaluation_->checkAscending(same);
  return evaluation_->divide(same);
}

wire::Graph GraphCuts::extract(const Part& part) const {
  wire::Graph extracted;
  std::map<std::uint32_t, std::uint32_t> numbers;
  const auto take = [&](std::uint32_t id) {
    const auto [entry, isNew] = numbers.try_emplace(id, extracted.values_size());
    if (isNew) *extracted.add_values() = graph_.values(static_cast<int>(id));
    return entry->second;
  };
  const auto input = [&](std::size_t position) {
    return graph_.inputs(static_cast<int>(position));
  };
  for (const std::uint32_t id : part.inputs) extracted.add_inputs(take(id));
  for (const std::size_t position : part.batchInputs) extracted.add_inputs(take(input(position)));
  for (const int n : part.nodes) {
    wire::Node& node = *extracted.add_nodes();
    node = graph_.nodes(n);
    renumber(node, take);
  }
  for (const std::uint32_t id : part.outputs) extracted.add_outputs(take(id));
  for (const std::size_t position : part.passedOn) extracted.add_outputs(take(input(position)));
  return extracted;
}

// Weights that no operator uses stay with the head, so that the saved model is complete. Those that
// training does not use never have a gradient.
void GraphCuts::addUnusedWeights(GraphParts& parts) const {
  std::set<std::string> used, trained;
  for (const GraphPart* part : parts.all()) {
    for (const wire::Value& value : part->graph.values()) used.insert(value.name());
  }
  for (const wire::Value& value : graph_.values()) {
    if (!isWeight(value) || used.contains(value.name())) continue;
    *parts.head.graph.add_values() = value;
  }
  const auto nodes = static_cast<std::size_t>(graph_.nodes_size());
  for (const std::uint32_t id : weightsReadBetween(graph_, 0, nodes)) {
    trained.insert(graph_.values(static_cast<int>(id)).name());
  }
  const auto freeze = [&](GraphPart& part) {
    for (wire::Value& value : *part.graph.mutable_values()) {
      if (!trained.contains(value.name())) value.set_trainable(false);
    }
  };
  freeze(parts.head);
  std::ranges::for_each(parts.bodies, freeze);
  freeze(parts.tail);
}

namespace {

std::string namesOf(const std::vector<GraphCut>& cuts) {
  std::string names;
  for (std::size_t c = 0; c < cuts.size(); ++c) {
    names += (c == 0 ? "" : c + 1 == cuts.size() ? " and " : ", ") + cuts[c].names.front();
  }
  return names;
}

// A part may be invalid because it needs the size of a tensor that does not cross the cut.
void checkParts(const GraphParts& parts, const std::vector<GraphCut>& cuts) {
  try {
    for (const GraphPart* part : parts.all()) checkGraph(part->graph, "a part");
  } catch (const UsageError& error) {
    throw badCuts(fmt::format("the model cannot be cut after {}: {}", namesOf(cuts), error.what()),
                  "cut after other modules; all cuts: cleave-client models show FILE");
  }
}

// Appends those elements of `added` that `positions` does not contain.
void unite(std::vector<std::size_t>& positions, const std::vector<std::size_t>& added) {
  for (const std::size_t position : added) {
    if (std::ranges::find(positions, position) == positions.end()) positions.push_back(position);
  }
}

}  // namespace

std::vector<const GraphPart*> GraphParts::all() const {
  std::vector<const GraphPart*> parts = {&head};
  for (const GraphPart& body : bodies) parts.push_back(&body);
  parts.push_back(&tail);
  return parts;
}

// Training may change parameters, and the statistics of batch norms. Head and tail are on the
// client, so they may share a parameter, such as an embedding that is also the output layer.
void GraphCuts::checkShared(const GraphParts& parts, const std::vector<GraphCut>& cuts) const {
  std::set<std::string> statistics;
  for (const std::uint32_t id : statistics_) {
    statistics.insert(graph_.values(static_cast<int>(id)).name());
  }
  std::map<std::string, const GraphPart*> owners;
  for (const GraphPart* part : parts.all()) {
    for (const wire::Value& value : part->graph.values()) {
      const bool isParameter = value.kind() == wire::Value::PARAMETER;
      const bool isStatistic = isWeight(value) && statistics.contains(value.name());
      if (!isParameter && !isStatistic) continue;
      const GraphPart* const owner = owners.emplace(value.name(), part).first->second;
      const bool areOnClient = owner == &parts.head && part == &parts.tail;
      if (owner == part || (isParameter && areOnClient)) continue;
      throw badCuts(
          fmt::format("the model cannot be cut after {}: {} is used on both sides of a cut",
                      namesOf(cuts), printable(value.name())),
          "cut so that all uses of the parameter are in the same part, or in head and tail");
    }
  }
}

// The operator that looks up the input in a table, or null.
const wire::Node* GraphCuts::lookupOf(std::size_t input) const {
  const auto found = lookups_.find(graph_.inputs(static_cast<int>(input)));
  if (found != lookups_.end()) return found->second;
  return evaluation_ ? evaluation_->lookupOf(input) : nullptr;
}

// The first operator of the part that reads the input, or null.
const wire::Node* GraphCuts::readerOf(std::size_t input, const Part& part) const {
  const std::uint32_t id = graph_.inputs(static_cast<int>(input));
  for (const int n : part.nodes) {
    const GraphIds read = valuesReadBy(graph_.nodes(n));
    if (std::ranges::find(read, id) != read.end()) return &graph_.nodes(n);
  }
  return nullptr;
}

// Throws UsageError "bad-cuts" if the client would have to send the integers of a lookup, such as
// token ids, because the body computes something else from them, such as a mask.
void GraphCuts::checkPrivate(const Part& body, const Part& inEvaluation, const GraphCut& first,
                             const GraphCut& second) const {
  for (const std::size_t input : body.batchInputs) {
    const wire::Node* const lookup = lookupOf(input);
    if (lookup == nullptr) continue;
    const wire::Node* reader = readerOf(input, body);
    if (reader == nullptr && evaluation_) reader = evaluation_->readerOf(input, inEvaluation);
    const std::uint32_t id = graph_.inputs(static_cast<int>(input));
    const std::string name = printable(graph_.values(static_cast<int>(id)).name());
    throw badCuts(
        fmt::format("between {} and {}, {} reads {}, which the server must not get: {} looks it up",
                    first.names.front(), second.names.front(),
                    reader == nullptr ? "it" : nodeText(*reader), name, nodeText(*lookup)),
        fmt::format("give what is computed from {}, such as a mask, as an input of the model, or "
                    "cut so that it is computed in the head or the tail",
                    name));
  }
}

void GraphCuts::checkAscending(const std::vector<GraphCut>& cuts) const {
  for (std::size_t c = 1; c < cuts.size(); ++c) {
    if (cuts[c].position > cuts[c - 1].position) continue;
    throw badCuts(fmt::format("the cut after {} is not after the one after {}",
                              cuts[c].names.front(), cuts[c - 1].names.front()),
                  "cut after a later module, and name the cuts in the model's order");
  }
}

GraphParts GraphCuts::split(const std::vector<GraphCut>& cuts) const {
  if (cuts.size() < 2) throw std::logic_error("a graph is cut at two or more cuts");
  checkAscending(cuts);
  for (const GraphCut& cut : cuts) checkObstacle(cut);
  std::vector<Part> parts = divide(cuts), inEvaluation = divideEvaluation(cuts);
  inEvaluation.resize(parts.size());
  Positions passedOn;  // integer inputs that the bodies after this part need
  for (std::size_t p = parts.size(); p-- > 0;) {
    Part& part = parts[p];
    const bool isBody = p > 0 && p + 1 < parts.size();
    unite(part.batchInputs, inEvaluation[p].batchInputs);
    if (isBody) checkPrivate(part, inEvaluation[p], cuts[p - 1], cuts[p]);
    part.passedOn = passedOn;
    unite(part.batchInputs, passedOn);
    if (p == 0) std::ranges::sort(part.batchInputs);
    if (isBody) passedOn = part.batchInputs;
    inEvaluation[p].batchInputs = part.batchInputs;
    inEvaluation[p].passedOn = part.passedOn;
  }
  GraphParts result;
  for (std::size_t p = 0; p < parts.size(); ++p) {
    wire::Graph graph = extract(parts[p]);
    if (evaluation_) setEvaluation(graph, evaluation_->extract(inEvaluation[p]));
    if (p == 0) {
      result.head = {std::move(graph), parts[p].batchInputs};
    } else if (p + 1 < parts.size()) {
      result.bodies.push_back({std::move(graph), {}});
    } else {
      result.tail = {std::move(graph), parts[p].batchInputs};
    }
  }
  addUnusedWeights(result);
  checkShared(result, cuts);
  checkParts(result, cuts);
  return result;
}

bool GraphCuts::canSplit(const std::vector<GraphCut>& cuts) const {
  try {
    split(cuts);
    return true;
  } catch (const UsageError&) {
    return false;
  }
}

std::vector<GraphCut> GraphCuts::cutsBeside(const std::vector<GraphCut>& chosen,
                                            std::size_t max) const {
  const auto isPossible = [&](const GraphCut& cut) {
    if (!cut.obstacle.empty() || cut.tensors.size() != 1) return false;
    if (graph_.values(static_cast<int>(cut.tensors.front())).dtype() != "f32") return false;
    const GraphCut &first = chosen.front(), &last = chosen.back();
    if (cut.position == last.position) return false;
    return cut.position < last.position ? canSplit({cut, last}) : canSplit({first, cut});
  };
  std::vector<GraphCut> possible;
  std::copy_if(cuts_.begin(), cuts_.end(), std::back_inserter(possible), isPossible);

  // The computation is divided into `max` equal intervals, and each has at most one of the cuts.
  const auto flopsBefore = [&](std::size_t position) {
    return costsOf(graph_, 0, position).flopsPerSample;
  };
  const double whole = flopsBefore(static_cast<std::size_t>(graph_.nodes_size()));
  std::map<std::size_t, GraphCut> found;  // by position
  for (const GraphCut& cut : chosen) found.emplace(cut.position, cut);
  std::set<std::size_t> intervals;
  for (const GraphCut& cut : possible) {
    const double share = whole > 0 ? flopsBefore(cut.position) / whole : 0;
    const auto interval = static_cast<std::size_t>(share * static_cast<double>(max));
    if (possible.size() > max && !intervals.insert(interval).second) continue;
    found.emplace(cut.position, cut);
  }
  std::vector<GraphCut> all;
  for (const auto& [position, cut] : found) all.push_back(cut);
  return canSplit(all) ? all : chosen;
}

}  // namespace cleave
