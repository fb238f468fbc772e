// Arguments with which LibTorch's operators would use other memory, return memory that nobody has
// written, or end the process. Most were found by operators/operator_fuzz.cpp.
#include "common/model/graph/operator_preconditions.h"

#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <catch2/catch.hpp>
#include <limits>
#include <string>
#include <vector>

#include "common/model/graph/graph_program.h"

namespace cleave::test {
namespace {

constexpr std::int64_t kSmallest = std::numeric_limits<std::int64_t>::min();

// A graph of one operator, whose tensors are inputs.
class Call {
 public:
  explicit Call(const std::string& op) {
    wire::Node& node = *graph_.add_nodes();
    node.set_op("aten." + op);
    node.set_name("node");
    add(at::ones({2, 4}));  // gives the number of samples
  }
  Call& tensor(const std::string& name, const at::Tensor& value) {
    argument(name).set_tensor(add(value));
    return *this;
  }
  Call& tensors(const std::string& name, const std::vector<at::Tensor>& values) {
    wire::Argument& list = argument(name);
    list.mutable_tensors();
    for (const at::Tensor& value : values) list.mutable_tensors()->add_items(add(value) + 1);
    return *this;
  }
  Call& integer(const std::string& name, std::int64_t value) {
    argument(name).set_integer(value);
    return *this;
  }
  Call& number(const std::string& name, double value) {
    argument(name).set_number(value);
    return *this;
  }
  Call& flag(const std::string& name, bool value) {
    argument(name).set_flag(value);
    return *this;
  }
  Call& text(const std::string& name, const std::string& value) {
    argument(name).set_text(value);
    return *this;
  }
  Call& dtype(const std::string& name, const std::string& value) {
    argument(name).set_dtype(value);
    return *this;
  }
  Call& none(const std::string& name) {
    argument(name).set_none(true);
    return *this;
  }
  Call& sizes(const std::string& name, const std::vector<std::int64_t>& values) {
    wire::Argument& list = argument(name);
    list.mutable_sizes();
    for (const std::int64_t value : values) list.mutable_sizes()->add_items()->set_integer(value);
    return *this;
  }

  // The error's code and text; empty if the operator accepts its arguments.
  std::string error() {
    const auto id = static_cast<std::uint32_t>(graph_.values_size());
    graph_.add_values()->set_dtype("f32");
    graph_.mutable_values(static_cast<int>(id))->add_shape(-1);
    graph_.mutable_nodes(0)->add_outputs(id);
    graph_.add_outputs(id);
    checkGraph(graph_, "graph");
    const GraphProgram program(graph_);
    try {
      program.run(inputs_, {}, {7, {Phase::train, 1, 0, {1, 2}}, nullptr});
    } catch (const Error& error) {
      return error.code() + ": " + error.what();
    }
    return "";
  }

 private:
  wire::Argument& argument(const std::string& name) {
    wire::Argument& added = *graph_.mutable_nodes(0)->add_arguments();
    added.set_name(name);
    return added;
  }
  std::uint32_t add(const at::Tensor& value) {
    const auto id = static_cast<std::uint32_t>(graph_.values_size());
    graph_.add_values()->set_dtype(value.scalar_type() == at::kLong ? "i64" : "f32");
    graph_.mutable_values(static_cast<int>(id))->add_shape(-1);
    graph_.add_inputs(id);
    inputs_.push_back(value);
    return id;
  }

  wire::Graph graph_;
  TensorList inputs_;
};

void checkAccepted(Call call) { CHECK(call.error() == ""); }
void checkRefused(Call call, const std::string& words) {
  CHECK_THAT(call.error(), Catch::Contains("bad-graph: the operator aten.") &&
                               Catch::Contains("(node)") && Catch::Contains(words));
}

TEST_CASE("a weight norm needs one norm per row") {
  const auto norm = [](const at::Tensor& v, const at::Tensor& g) {
    return Call("_weight_norm.default").tensor("v", v).tensor("g", g).integer("dim", 0);
  };
  checkAccepted(norm(at::ones({8, 3}), at::ones({8, 1})));
  for (const at::Tensor& g :
       {at::ones({1, 1}), at::ones({4, 1}), at::ones({8}), at::ones({16, 1})}) {
    checkRefused(norm(at::ones({8, 3}), g), "'g' that does not fit");
  }
  checkRefused(norm(at::ones({4, 3, 0}), at::ones({4, 1, 1})), "'g' that does not fit");
  checkRefused(norm(at::ones({8, 3}), at::ones({8, 1}).to(at::kDouble)), "'g' that does not fit");
}

TEST_CASE("attention needs a value per key, and heads that divide") {
  const auto attention = [](const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                            bool isGrouped = false) {
    return Call("scaled_dot_product_attention.default")
        .tensor("query", query)
        .tensor("key", key)
        .tensor("value", value)
        .flag("enable_gqa", isGrouped);
  };
  checkAccepted(
      attention(at::ones({2, 4, 8, 16}), at::ones({2, 4, 5, 16}), at::ones({2, 4, 5, 16})));
  checkAccepted(
      attention(at::ones({2, 4, 8, 16}), at::ones({1, 4, 5, 16}), at::ones({1, 4, 5, 16})));
  checkAccepted(
      attention(at::ones({2, 4, 8, 16}), at::ones({2, 2, 5, 16}), at::ones({2, 2, 5, 16}), true));
  const std::string words = "a key and a value that do not fit";
  checkRefused(
      attention(at::ones({2, 4, 8, 16}), at::ones({2, 4, 5, 16}), at::ones({2, 4, 64, 16})), words);
  checkRefused(attention(at::ones({2, 4, 8, 16}), at::ones({2, 4, 5, 8}), at::ones({2, 4, 5, 16})),
               words);
  checkRefused(attention(at::ones({2, 4, 8, 16}), at::ones({3, 4, 5, 16}), at::ones({3, 4, 5, 16})),
               words);
  checkRefused(attention(at::ones({8, 0, 16, 2}), at::ones({8, 0, 16, 2}), at::ones({8, 0, 16, 2})),
               words);
  checkRefused(
      attention(at::ones({1, 0, 2, 4}), at::ones({1, 0, 2, 4}), at::ones({1, 0, 2, 4}), true),
      words);
}

TEST_CASE("each window of a max pool needs an element") {
  const auto pool = [](const std::string& op, const at::Tensor& x, std::int64_t dilation,
                       std::size_t dimensions) {
    const std::vector<std::int64_t> one(dimensions, 1);
    return Call(op)
        .tensor("self", x)
        .sizes("kernel_size", std::vector<std::int64_t>(dimensions, 2))
        .sizes("stride", one)
        .sizes("padding", one)
        .sizes("dilation", std::vector<std::int64_t>(dimensions, dilation));
  };
  const std::string words = "a window without an element";
  checkAccepted(pool("max_pool1d.default", at::ones({2, 3, 4}), 1, 1));
  checkAccepted(pool("max_pool2d.default", at::ones({2, 3, 4, 4}), 4, 2));
  checkRefused(pool("max_pool1d.default", at::ones({2, 3, 4}), 5, 1), words);
  checkRefused(pool("max_pool2d.default", at::ones({2, 3, 4, 4}), 5, 2), words);
  checkRefused(pool("max_pool2d_with_indices.default", at::ones({3, 4, 4}), 5, 2), words);
  checkRefused(pool("max_pool3d.default", at::ones({2, 3, 4, 4, 4}), 5, 3), words);
  const auto ceiling = [](std::int64_t dilation) {
    return Call("max_pool1d.default")
        .tensor("self", at::ones({2, 3, 3}))
        .sizes("kernel_size", {2})
        .sizes("stride", {3})
        .sizes("padding", {1})
        .sizes("dilation", {dilation})
        .flag("ceil_mode", true);
  };
  checkAccepted(ceiling(3));
  checkRefused(ceiling(5), words);
}

TEST_CASE("recurrent layers need states and weights of their sizes") {
  // Hidden size 4, input size 3, 2 samples, 5 steps.
  const auto lstm = [](std::vector<at::Tensor> states, std::vector<at::Tensor> parameters) {
    return Call("lstm.input")
        .tensor("input", at::ones({5, 2, 3}))
        .tensors("hx", states)
        .tensors("params", parameters)
        .flag("has_biases", true)
        .integer("num_layers", 1)
        .number("dropout", 0)
        .flag("train", true)
        .flag("bidirectional", false)
        .flag("batch_first", false);
  };
  const at::Tensor state = at::zeros({1, 2, 4}), bias = at::ones({16});
  const at::Tensor in = at::ones({16, 3}), hidden = at::ones({16, 4});
  const std::string words = "tensors of its layers";
  checkAccepted(lstm({state, state}, {in, hidden, bias, bias}));
  checkAccepted(lstm({at::zeros({1, 2, 2}), state},
                     {in, at::ones({16, 2}), bias, bias, at::ones({2, 4})}));  // projected
  checkRefused(lstm({at::zeros({1, 2, 2048}), at::zeros({1, 2, 2048})}, {in, hidden, bias, bias}),
               words);
  checkRefused(lstm({at::zeros({4, 2, 4}), state}, {in, hidden, bias, bias}), words);
  checkRefused(lstm({at::zeros({1, 9, 4}), state}, {in, hidden, bias, bias}), words);
  checkRefused(lstm({at::zeros({1, 2, 4, 1}), state}, {in, hidden, bias, bias}), words);
  checkRefused(lstm({state, state}, {in, at::ones({16, 8}), bias, bias}), words);
  checkRefused(lstm({state, state}, {in, hidden, at::ones({4}), bias}), words);
  checkRefused(lstm({state, state}, {in, hidden, bias, bias.to(at::kLong)}), words);
  checkRefused(lstm({state, state}, {in, hidden, bias}), words);
  const auto gru = [](const at::Tensor& hx, const at::Tensor& second) {
    return Call("gru.input")
        .tensor("input", at::ones({5, 2, 3}))
        .tensor("hx", hx)
        .tensors("params", {at::ones({12, 3}), second})
        .flag("has_biases", false)
        .integer("num_layers", 1)
        .number("dropout", 0)
        .flag("train", true)
        .flag("bidirectional", false)
        .flag("batch_first", false);
  };
  checkAccepted(gru(state, at::ones({12, 4})));
  checkRefused(gru(state, at::ones({2, 4})), words);
  checkRefused(gru(at::zeros({1, 1, 4}), at::ones({12, 4})), words);
  const auto cell = [](const at::Tensor& hx) {
    return Call("gru_cell.default")
        .tensor("input", at::ones({2, 3}))
        .tensor("hx", hx)
        .tensor("w_ih", at::ones({12, 3}))
        .tensor("w_hh", at::ones({12, 4}));
  };
  checkAccepted(cell(at::zeros({2, 4})));
  checkRefused(cell(at::zeros({2, 5})), words);
}

TEST_CASE("the smallest integer is not divided by -1") {
  const at::Tensor smallest = at::full({2}, kSmallest, at::kLong);
  const at::Tensor minusOne = at::full({2}, -1, at::kLong);
  const auto divide = [](const std::string& op, const at::Tensor& a, const at::Tensor& b) {
    return Call(op).tensor("self", a).tensor("other", b);
  };
  const std::string words = "divides the smallest integer by -1";
  for (const char* const op : {"floor_divide.default", "remainder.Tensor", "fmod.Tensor",
                               "floor_divide_.Tensor", "fmod_.Tensor"}) {
    checkRefused(divide(op, smallest, minusOne), words);
    checkAccepted(divide(op, at::full({2}, 7, at::kLong), minusOne));
    checkAccepted(divide(op, smallest, at::full({2}, 2, at::kLong)));
  }
  checkRefused(divide("div.Tensor_mode", smallest, minusOne).text("rounding_mode", "trunc"), words);
  checkRefused(Call("div.Scalar_mode")
                   .tensor("self", smallest)
                   .integer("other", -1)
                   .text("rounding_mode", "floor"),
               words);
  checkAccepted(divide("div.Tensor_mode", smallest, minusOne).none("rounding_mode"));
  checkAccepted(divide("div.Tensor", smallest, minusOne));
}

TEST_CASE("integers that LibTorch does not check are refused") {
  checkRefused(Call("arange.start_step")
                   .number("start", 0)
                   .number("end", 9)
                   .number("step", 0.5)
                   .dtype("dtype", "i64"),
               "a step of 0");
  const auto loss = [](std::int64_t reduction) {
    return Call("mse_loss.default")
        .tensor("self", at::ones({2}))
        .tensor("target", at::ones({2}))
        .integer("reduction", reduction);
  };
  checkAccepted(loss(2));
  checkRefused(loss(5), "has 5 as 'reduction', which must be from 0 to 2");
  checkRefused(loss(-1), "has -1 as 'reduction'");
  const auto sample = [](std::int64_t mode, double position) {
    return Call("grid_sampler.default")
        .tensor("input", at::ones({2, 3, 4, 4}))
        .tensor("grid", at::full({2, 5, 5, 2}, position))
        .integer("interpolation_mode", mode)
        .integer("padding_mode", 2)
        .flag("align_corners", true);
  };
  checkAccepted(sample(0, 1.5));
  checkRefused(sample(3, 0.5), "'interpolation_mode'");
  CHECK_THAT(sample(0, 1e30).error(),
             Catch::Contains("non-finite: the operator aten.grid_sampler"));
  CHECK_THAT(sample(0, std::numeric_limits<double>::quiet_NaN()).error(),
             Catch::Contains("non-finite"));
  checkRefused(Call("conv_transpose1d.default")
                   .tensor("input", at::ones({2, 3, 4}))
                   .tensor("weight", at::ones({3, 5, 3}))
                   .sizes("stride", {std::int64_t{1} << 62}),
               "'stride'");
  checkRefused(
      Call("matrix_power.default").tensor("self", at::ones({2, 2})).integer("n", kSmallest),
      "a power that is too large");
  checkRefused(Call("repeat.default")
                   .tensor("self", at::ones({2}))
                   .sizes("repeats", std::vector<std::int64_t>(20'000, 1)),
               "more than 64 dimensions");
}

TEST_CASE("losses of nothing, or of tensors of two sizes, are refused") {
  checkRefused(Call("binary_cross_entropy.default")
                   .tensor("self", at::ones({1}))
                   .tensor("target", at::zeros({0, 3}))
                   .integer("reduction", 2),
               "a target of another size");
  const at::Tensor none = at::zeros({0, 2});
  checkRefused(Call("multilabel_margin_loss.default")
                   .tensor("self", none)
                   .tensor("target", none.to(at::kLong)),
               "a tensor without values");
}

TEST_CASE("bags of ids begin within their list") {
  const auto bag = [](const std::vector<std::int64_t>& offsets, bool hasEnd,
                      const at::Tensor& weights = {}) {
    Call call("embedding_bag.padding_idx");
    call.tensor("weight", at::ones({4, 2}))
        .tensor("indices", at::zeros({6}, at::kLong))
        .tensor("offsets", at::tensor(offsets, at::kLong))
        .flag("scale_grad_by_freq", false)
        .integer("mode", 0)
        .flag("sparse", false)
        .flag("include_last_offset", hasEnd)
        .none("padding_idx");
    weights.defined() ? call.tensor("per_sample_weights", weights)
                      : call.none("per_sample_weights");
    return call;
  };
  checkAccepted(bag({0, 3}, false));
  checkAccepted(bag({0, 6}, true, at::ones({6})));
  checkRefused(bag({0}, true), "no offset of a bag");
  checkRefused(bag({}, false), "no offset of a bag");
  checkRefused(bag({0, 7}, false), "not ascending positions");
  checkRefused(bag({0, 3, 1}, false), "not ascending positions");
  checkRefused(bag({0, 0, 0}, true), "not ascending positions");  // the last one is the end
  checkRefused(bag({0}, false, at::ones({2})), "a weight for each index");
}

TEST_CASE("a dimension that a tensor does not have is not an index of the data") {
  checkRefused(Call("softmax.int").tensor("self", at::ones({2, 4})).integer("dim", 7),
               "a dimension that its tensor does not have");
}

}  // namespace
}  // namespace cleave::test
