#include "common/model/split_backward.h"

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace cleave {
namespace {

using torch::autograd::AccumulateGrad;
using torch::autograd::Edge;
using torch::autograd::Node;

// Whether the operator computes the gradients of input and weight in separate operations.
bool canSplit(const Node& node) {
  constexpr std::array<std::string_view, 4> kNames = {"ConvolutionBackward0", "AddmmBackward0",
                                                      "MmBackward0", "BmmBackward0"};
  return std::find(kNames.begin(), kNames.end(), node.name()) != kNames.end();
}

// Autograd's graph, from the outputs to its leaves.
class Graph {
 public:
  Graph(const TensorList& outputs, const TensorList& inputs) {
    for (const at::Tensor& input : inputs) {
      inputs_.insert(torch::autograd::impl::gradient_edge(input).function.get());
    }
    for (const at::Tensor& output : outputs) {
      visit(torch::autograd::impl::gradient_edge(output).function);
    }
  }

  // Children come first.
  const std::vector<std::shared_ptr<Node>>& nodes() const { return nodes_; }
  bool leadsToInput(const Edge& edge) const { return leadsToInput_.at(edge.function.get()); }

  // The leaves that are reachable from this node, as edges.
  static torch::autograd::edge_list leavesFrom(const Edge& from) {
    torch::autograd::edge_list leaves, open = {from};
    std::unordered_set<Node*> seen;
    while (!open.empty()) {
      const Edge edge = open.back();
      open.pop_back();
      if (!edge.is_valid() || !seen.insert(edge.function.get()).second) continue;
      if (dynamic_cast<AccumulateGrad*>(edge.function.get()) != nullptr) leaves.push_back(edge);
      for (const Edge& next : edge.function->next_edges()) open.push_back(next);
    }
    return leaves;
  }

 private:
  void visit(const std::shared_ptr<Node>& root) {
    std::vector<std::pair<std::shared_ptr<Node>, std::size_t>> stack;  // node, next child
    const auto enter = [&](const std::shared_ptr<Node>& node) {
      if (leadsToInput_.emplace(node.get(), inputs_.count(node.get()) > 0).second) {
        stack.emplace_back(node, 0);
      }
    };
    enter(root);
    while (!stack.empty()) {
      auto& [node, next] = stack.back();
      if (next < node->num_outputs()) {
        const std::shared_ptr<Node> child = node->next_edge(next++).function;
        if (child) enter(child);
        continue;
      }
      bool& leads = leadsToInput_.at(node.get());
      for (const Edge& edge : node->next_edges()) {
        leads = leads || (edge.is_valid() && leadsToInput_.at(edge.function.get()));
      }
      nodes_.push_back(node);
      stack.pop_back();
    }
  }

  std::unordered_set<const Node*> inputs_;
  std::unordered_map<const Node*, bool> leadsToInput_;
  std::vector<std::shared_ptr<Node>> nodes_;
};

// Keeps the gradients that arrive at a node.
struct Keep : torch::autograd::FunctionPreHook {
  explicit Keep(std::shared_ptr<TensorList> kept) : gradients(std::move(kept)) {}
  TensorList operator()(const TensorList& arrived) override { return *gradients = arrived; }

  std::shared_ptr<TensorList> gradients;
};

// A weight of the part.
struct Weight {
  Edge edge;
  std::shared_ptr<Node> user;  // the operator on the way to the inputs that uses it; null: none
  int uses = 0;
};

// The weights between the roots and the inputs.
std::vector<Weight> weightsOf(const Roots& roots, const Graph& graph) {
  std::vector<Weight> weights;
  const auto use = [&](const Edge& from, const std::shared_ptr<Node>& user) {
    for (const Edge& leaf : Graph::leavesFrom(from)) {
      auto known = std::find_if(weights.begin(), weights.end(), [&](const Weight& weight) {
        return weight.edge.function == leaf.function;
      });
      if (known == weights.end()) known = weights.insert(known, {leaf, user, 0});
      ++known->uses;
    }
  };
  for (const at::Tensor& output : roots.outputs) {
    const Edge edge = torch::autograd::impl::gradient_edge(output);
    if (!graph.leadsToInput(edge)) use(edge, nullptr);
  }
  for (const std::shared_ptr<Node>& node : graph.nodes()) {
    if (!graph.leadsToInput({node, 0})) continue;
    for (const Edge& edge : node->next_edges()) {
      if (edge.is_valid() && !graph.leadsToInput(edge)) use(edge, node);
    }
  }
  return weights;
}

}  // namespace

SplitBackward::SplitBackward(const Roots& roots, const TensorList& inputs) {
  TensorList now;  // the leaves whose gradients belong to the first part
  for (const at::Tensor& input : inputs) {
    if (input.requires_grad()) now.push_back(input);
  }
  for (Weight& weight : weightsOf(roots, Graph(roots.outputs, now))) {
    if (weight.uses == 1 && weight.user && canSplit(*weight.user)) {
      defer(std::move(weight.user), weight.edge);
    } else {
      now.push_back(dynamic_cast<AccumulateGrad&>(*weight.edge.function).variable);
    }
  }
  if (roots.outputs.empty() || now.empty()) return;
  torch::autograd::backward(roots.outputs, roots.gradients, /*retain_graph=*/true,
                            /*create_graph=*/false, now);
}

void SplitBackward::defer(std::shared_ptr<Node> node, const Edge& weight) {
  const auto same = std::find_if(later_.begin(), later_.end(),
                                 [&](const Later& later) { return later.node == node; });
  if (same != later_.end()) return same->weights.push_back(weight);
  const auto kept = std::make_shared<TensorList>();
  node->add_pre_hook(std::make_unique<Keep>(kept));
  later_.push_back({std::move(node), kept, {weight}});
}

void SplitBackward::finish() {
  for (const Later& later : later_) {
    later.node->pre_hooks().clear();
    torch::autograd::edge_list roots;
    TensorList gradients;
    for (std::size_t g = 0; g < later.gradients->size(); ++g) {
      if (!(*later.gradients)[g].defined()) continue;
      roots.emplace_back(later.node, static_cast<std::uint32_t>(g));
      gradients.push_back((*later.gradients)[g]);
    }
    if (roots.empty()) continue;  // no gradient reached the operator
    torch::autograd::Engine::get_default_engine().execute(roots, gradients, /*keep_graph=*/false,
                                                          /*create_graph=*/false,
                                                          /*accumulate_grad=*/true, later.weights);
  }
  later_.clear();
}

}  // namespace cleave
