#include "common/model/split_backward.h"

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <unordered_set>
#include <utility>

namespace cleave {
namespace {

using torch::autograd::AccumulateGrad;
using torch::autograd::Edge;
using torch::autograd::Node;
using torch::autograd::impl::gradient_edge;

// Whether the operator computes the gradients of input and weight in separate operations.
bool canSplit(const Node& node) {
  constexpr std::array<std::string_view, 5> kNames = {
      "ConvolutionBackward0", "AddmmBackward0", "MmBackward0", "BmmBackward0", kSleepBackward};
  return std::find(kNames.begin(), kNames.end(), node.name()) != kNames.end();
}

// How the path from the outputs to the inputs uses a node that is not on the path.
struct Use {
  NodePtr user;   // the operator on the path that needs the node's result
  int count = 0;  // 2: at least two
};

// Autograd's graph, from the outputs to its leaves. Visits each edge once.
class Graph {
 public:
  Graph(const TensorList& outputs, const TensorList& inputs) {
    for (const at::Tensor& input : inputs)
      leadsToInput_[gradient_edge(input).function.get()] = true;
    for (const at::Tensor& output : outputs) visit(gradient_edge(output).function);
    for (const at::Tensor& output : outputs) {
      const Edge edge = gradient_edge(output);
      if (!leadsToInput(edge)) use(edge, nullptr, 1);
    }
    for (auto node = nodes_.rbegin(); node != nodes_.rend(); ++node) {
      const bool isOnWay = leadsToInput_.at(node->get());
      const Use own = isOnWay ? Use{*node, 1} : uses_[node->get()];
      for (const Edge& edge : (*node)->next_edges()) {
        if (edge.is_valid() && !leadsToInput(edge)) use(edge, own.user, own.count);
      }
    }
  }

  struct Weight {
    at::Tensor tensor;
    Edge edge;  // where its gradient is accumulated
    Use use;
  };
  // The leaves that are not on the path to the inputs.
  std::vector<Weight> weights() const {
    std::vector<Weight> weights;
    for (const NodePtr& node : nodes_) {
      const auto* const leaf = dynamic_cast<const AccumulateGrad*>(node.get());
      if (leaf == nullptr || leadsToInput_.at(leaf)) continue;
      weights.push_back({leaf->variable, Edge(node, 0), uses_.at(leaf)});
    }
    return weights;
  }

 private:
  bool leadsToInput(const Edge& edge) const { return leadsToInput_.at(edge.function.get()); }

  void use(const Edge& edge, const NodePtr& user, int count) {
    Use& known = uses_[edge.function.get()];
    if (known.count == 0) known.user = user;
    known.count = std::min(2, known.count + count);
  }

  // Appends the nodes that are reachable from this one to nodes_, children first.
  void visit(const NodePtr& root) {
    std::vector<std::pair<NodePtr, std::size_t>> stack;  // node, next child
    const auto enter = [&](const NodePtr& node) {
      if (!entered_.insert(node.get()).second) return;
      leadsToInput_.try_emplace(node.get(), false);
      stack.emplace_back(node, 0);
    };
    enter(root);
    while (!stack.empty()) {
      auto& [node, next] = stack.back();
      if (next < node->num_outputs()) {
        const NodePtr child = node->next_edge(next++).function;
        if (child) enter(child);
        continue;
      }
      bool& leads = leadsToInput_.at(node.get());
      for (const Edge& edge : node->next_edges()) {
        leads = leads || (edge.is_valid() && leadsToInput(edge));
      }
      nodes_.push_back(std::move(node));
      stack.pop_back();
    }
  }

  std::unordered_set<const Node*> entered_;
  std::unordered_map<const Node*, bool> leadsToInput_;
  std::vector<NodePtr> nodes_;
  std::unordered_map<const Node*, Use> uses_;  // of the nodes that do not lead to an input
};

// Keeps the gradients that arrive at a node.
struct Keep : torch::autograd::FunctionPreHook {
  explicit Keep(std::shared_ptr<TensorList> kept) : gradients(std::move(kept)) {}
  TensorList operator()(const TensorList& arrived) override { return *gradients = arrived; }

  std::shared_ptr<TensorList> gradients;
};

}  // namespace

void backward(const Roots& roots) {
  if (!roots.outputs.empty()) torch::autograd::backward(roots.outputs, roots.gradients);
}

SplitBackward::SplitBackward(const Roots& roots, const TensorList& inputs) {
  TensorList leaves;  // those whose gradients belong to the first part
  for (const at::Tensor& input : inputs) {
    if (input.requires_grad()) leaves.push_back(input);
  }
  const Graph graph(roots.outputs, leaves);
  TensorList weights;
  for (Graph::Weight& weight : graph.weights()) {
    const Use& use = weight.use;
    if (use.count == 1 && use.user && canSplit(*use.user)) {
      defer(use.user, weight.edge);
    } else {
      weights.push_back(std::move(weight.tensor));
    }
  }
  leaves.insert(leaves.end(), weights.begin(), weights.end());
  if (roots.outputs.empty() || leaves.empty()) return;
  torch::autograd::backward(roots.outputs, roots.gradients, /*retain_graph=*/true,
                            /*create_graph=*/false, leaves);
  for (at::Tensor& weight : weights) {
    // The next micro-batch adds to this gradient in place.
    at::Tensor& gradient = weight.mutable_grad();
    if (gradient.defined() && isKept(gradient)) gradient = gradient.clone();
  }
}

void SplitBackward::defer(const NodePtr& node, const Edge& weight) {
  const auto [position, isNew] = positions_.try_emplace(node.get(), later_.size());
  if (!isNew) return later_[position->second].weights.push_back(weight);
  const auto kept = std::make_shared<TensorList>();
  node->add_pre_hook(std::make_unique<Keep>(kept));
  later_.push_back({node, kept, {weight}});
}

// Whether the tensor shares memory with a gradient that finish() needs.
bool SplitBackward::isKept(const at::Tensor& tensor) const {
  return std::any_of(later_.begin(), later_.end(), [&](const Later& later) {
    return std::any_of(
        later.gradients->begin(), later.gradients->end(),
        [&](const at::Tensor& each) { return each.defined() && each.is_alias_of(tensor); });
  });
}

void SplitBackward::finish() {
  for (Later& each : later_) {
    const Later later = std::exchange(each, {});  // freed as soon as it is done
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
