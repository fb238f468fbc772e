#include "tests/operators/stage_cases.h"

#include <memory>
#include <string>
#include <vector>

#include "common/core/error.h"
#include "common/graph/packed_graph.h"
#include "common/model/stage/stage.h"
#include "stage/remote_body.h"

namespace cleave::test {
namespace {

constexpr std::int64_t kSamples = 2, kWidth = 3;  // of a case's first input
constexpr double kMaxSeconds = 10;                // per action
constexpr int kThreads = 2;

// A case's graph as a body: f32 [samples, 3] to f32 [samples, 3]. The other inputs are weights, and
// the results are added to the first input.
class BodyGraph {
 public:
  explicit BodyGraph(const OperatorCase& given) : graph_(given.graph) {
    graph_.clear_nodes();
    graph_.clear_inputs();
    graph_.clear_outputs();
    setBatch(*graph_.mutable_values(0));
    graph_.add_inputs(0);
    wire::Node node = given.graph.nodes(0);
    for (std::size_t n = 1; n < given.inputs.size(); ++n) {
      addWeight(node, given.graph.inputs(static_cast<int>(n)), given.inputs[n]);
    }
    *graph_.add_nodes() = node;
    std::uint32_t total = 0;
    for (const std::uint32_t output : node.outputs()) {
      wire::Node& converted = addNode("aten.to.dtype");
      addTensor(converted, "self", output);
      wire::Argument& dtype = *converted.add_arguments();
      dtype.set_name("dtype");
      dtype.set_dtype("f32");
      wire::Node& sum = addNode("aten.sum.default");
      addTensor(sum, "self", converted.outputs(0));
      wire::Node& added = addNode("aten.add.Tensor");
      addTensor(added, "self", total);
      addTensor(added, "other", sum.outputs(0));
      total = added.outputs(0);
    }
    graph_.add_outputs(total);
  }

  const wire::Graph& graph() const { return graph_; }
  const std::vector<NamedTensor>& weights() const { return weights_; }

 private:
  static void setBatch(wire::Value& value) {
    value.set_dtype("f32");
    value.clear_shape();
    value.add_shape(-1);
    value.add_shape(kWidth);
  }

  // The operator uses a copy, since it may not change a weight.
  void addWeight(wire::Node& node, std::uint32_t id, const at::Tensor& tensor) {
    wire::Value& value = *graph_.mutable_values(static_cast<int>(id));
    const bool isTrained = tensor.requires_grad() && tensor.scalar_type() == at::kFloat;
    value.set_kind(isTrained ? wire::Value::PARAMETER : wire::Value::BUFFER);
    value.set_trainable(isTrained);
    value.set_name("weight" + std::to_string(id));
    value.clear_shape();
    for (const std::int64_t size : tensor.sizes()) value.add_shape(size);
    weights_.push_back({value.name(), tensor.detach()});
    wire::Node& copy = addNode("aten.clone.default");
    addTensor(copy, "self", id);
    for (wire::Argument& argument : *node.mutable_arguments()) {
      if (argument.value_case() == wire::Argument::kTensor && argument.tensor() == id) {
        argument.set_tensor(copy.outputs(0));
      }
      if (argument.value_case() != wire::Argument::kTensors) continue;
      for (std::uint32_t& item : *argument.mutable_tensors()->mutable_items()) {
        if (item == id + 1) item = copy.outputs(0) + 1;
      }
    }
  }

  wire::Node& addNode(const std::string& op) {
    wire::Node& node = *graph_.add_nodes();
    node.set_op(op);
    node.set_name("node" + std::to_string(graph_.nodes_size()));
    setBatch(*graph_.add_values());
    node.add_outputs(static_cast<std::uint32_t>(graph_.values_size() - 1));
    return node;
  }

  static void addTensor(wire::Node& node, const std::string& name, std::uint32_t id) {
    wire::Argument& argument = *node.add_arguments();
    argument.set_name(name);
    argument.set_tensor(id);
  }

  wire::Graph graph_;
  std::vector<NamedTensor> weights_;
};

RunSpec specOf(const wire::Graph& graph) {
  RunSpec spec;
  spec.model = {"graph", {}, {kWidth}, 2};
  spec.graph = packGraph(graph);
  spec.graphDigest = std::string(32, 'x');
  spec.cut0 = 1;
  spec.cut1 = 2;
  spec.maxBatch = spec.trainBatch = kSamples;
  spec.microBatches = 1;
  spec.initialWeights = true;
  return spec;
}

Payload ones(const TensorSpec& spec) {
  const auto values = std::make_shared<std::vector<float>>(spec.elements(), 1.0F);
  return {{reinterpret_cast<std::byte*>(values->data()), spec}, values};
}

}  // namespace

StageOutcome runInStage(StageProcesses& processes, const OperatorCase& given) {
  try {
    const BodyGraph made(given);
    const RunPlan plan = planRun(specOf(made.graph()));
    const StageMemory memory(plan);
    RemoteBody body(startStage(processes, plan, kThreads, memory), plan, kThreads, kMaxSeconds,
                    memory, nullptr, [](const std::string&) {});
    body.importWeights(toSafetensors(made.weights()));
    const TensorSpec spec =
        flowSpec(plan.blocks, plan.stage.cuts, activationAt(0), std::uint32_t{kSamples});
    const MicroBatch at{given.phase, 1, 0, {1, kSamples}};
    body.forward(at, bundleOf(ones(spec)));
    if (given.phase == Phase::train) body.backward(at, bundleOf(ones(spec)));
    return {};
  } catch (const Error& error) {
    const bool isFault = error.code() == "body-crashed" || error.code() == "internal-error";
    return {error.code(), isFault ? error.what() : ""};
  }
}

}  // namespace cleave::test
