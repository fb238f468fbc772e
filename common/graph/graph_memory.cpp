#include "common/graph/graph_memory.h"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <vector>

namespace cleave {
namespace {

// What autograd keeps for an operator's backward. Tensors that are not of floats, such as indices
// and masks, are kept by all.
enum class Keeps : std::uint8_t {
  nothing,
  read,       // all tensors that it reads
  results,    // its results
  factors,    // each of two factors if the other one has a gradient
  positions,  // all tensors that it reads, and 64 bits for each result
  draws,      // a mask of floats of the results' size
  gates,      // all tensors that it reads, and kGateValues of a recurrent layer
  all,        // all tensors that it reads, its results, and as much again as its results
};

struct KeepsRow {
  Keeps keeps;
  std::string_view operators;  // without "aten." and overload
};

constexpr KeepsRow kKeeps[] = {
    {Keeps::nothing,
     " add add_ cat channel_shuffle clone column_stack concat concatenate constant_pad_nd "
     "contiguous copy_ cumsum dstack embedding fill fill_ flatten flip fliplr flipud gather "
     "hstack index index_put index_select lift_fresh_copy masked_fill masked_fill_ mean neg neg_ "
     "negative one_hot pad pixel_shuffle pixel_unshuffle repeat reshape reshape_as roll row_stack "
     "rsub select_scatter slice_scatter stack sub sub_ subtract sum tile to tril triu type_as "
     "upsample_bicubic2d upsample_bilinear2d upsample_linear1d upsample_nearest1d "
     "upsample_nearest2d upsample_nearest3d upsample_trilinear3d vstack where zero_ "},
    {Keeps::read,
     " abs adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d avg_pool1d avg_pool2d "
     "avg_pool3d batch_norm clamp clamp_max clamp_min conv1d conv2d conv3d conv_transpose1d "
     "conv_transpose2d conv_transpose3d cos elu gelu glu group_norm hardsigmoid hardsigmoid_ "
     "hardswish hardswish_ hardtanh hardtanh_ instance_norm layer_norm leaky_relu log log1p log2 "
     "log_sigmoid maximum minimum mish pow prelu reflection_pad2d relu6 relu6_ replication_pad2d "
     "silu silu_ sin softplus square threshold "},
    {Keeps::results,
     " _softmax amax amin exp exp_ log_softmax reciprocal relu relu_ rsqrt rsqrt_ selu sigmoid "
     "sigmoid_ softmax sqrt sqrt_ tanh tanh_ "},
    {Keeps::factors,
     " addmm addmv baddbmm bmm div div_ divide dot inner linear matmul mm mul mul_ multiply mv "
     "outer true_divide "},
    {Keeps::positions,
     " adaptive_max_pool2d max_pool1d max_pool2d max_pool2d_with_indices max_pool3d sort topk "},
    {Keeps::draws, " alpha_dropout dropout dropout_ feature_dropout "},
    {Keeps::gates, " gru lstm rnn_relu rnn_tanh "},
};

// Views of a part of a tensor, or of repeated values: their gradient needs another tensor of the
// whole size.
constexpr std::string_view kParts =
    " broadcast_tensors broadcast_to chunk diagonal dsplit expand expand_as hsplit narrow select "
    "slice split split_with_sizes tensor_split unbind unfold unsafe_chunk unsafe_split "
    "unsafe_split_with_sizes vsplit ";
// Views with another order of the values in memory.
constexpr std::string_view kTransposed =
    " adjoint linalg_diagonal mH mT matrix_H moveaxis movedim numpy_T permute swapaxes swapaxes_ "
    "swapdims swapdims_ t t_ transpose transpose_ ";
constexpr std::string_view kOtherViews =
    " alias atleast_1d atleast_2d atleast_3d detach detach_ meshgrid positive ravel resolve_conj "
    "resolve_neg squeeze squeeze_ unflatten unsqueeze unsqueeze_ view view_as ";
// Copies, unless the values already have the new tensor's order in memory.
constexpr std::string_view kReordered = " contiguous flatten reshape reshape_as ";
constexpr std::string_view kCasts = " to type_as ";

// Values that autograd keeps of a recurrent layer, per row of its matrices and time step: gates and
// what they are computed from (measured: 2 for LSTM, 1.1 for GRU).
constexpr double kGateValues = 2;

// Memory that exists while the backward of an operator runs, per byte of its results: some formulas
// of derivatives are made of several operators.
constexpr double kScratch = 2, kUnlistedScratch = 6;

std::string_view nameOf(const wire::Node& node) {
  std::string_view name = node.op();
  constexpr std::string_view kPrefix = "aten.";
  if (name.starts_with(kPrefix)) name.remove_prefix(kPrefix.size());
  return name.substr(0, name.find('.'));
}

// `list` has a space before and after each name.
bool isIn(std::string_view list, std::string_view name) {
  for (std::size_t at = list.find(name); at != std::string_view::npos;
       at = list.find(name, at + 1)) {
    if (list[at - 1] == ' ' && list[at + name.size()] == ' ') return true;
  }
  return false;
}

Keeps keepsOf(std::string_view name) {
  const auto row = std::ranges::find_if(
      kKeeps, [&](const KeepsRow& each) { return isIn(each.operators, name); });
  return row == std::end(kKeeps) ? Keeps::all : row->keeps;
}

// Whether a probability is not 0 and no flag switches the operator off.
bool draws(const wire::Node& node) {
  for (const wire::Argument& argument : node.arguments()) {
    const bool isProbability = argument.name() == "p" || argument.name() == "dropout_p";
    if (isProbability && argument.value_case() == wire::Argument::kNumber &&
        argument.number() == 0) {
      return false;
    }
    const bool isSwitch = argument.name() == "train" || argument.name() == "training";
    if (isSwitch && argument.value_case() == wire::Argument::kFlag && !argument.flag()) {
      return false;
    }
  }
  return true;
}

// The sum of what exists while each node runs.
class Timeline {
 public:
  explicit Timeline(std::size_t end) : changes_(end + 2) {}
  // Adds memory that exists from node `first` to node `last`.
  void add(std::size_t first, std::size_t last, double bytes) {
    changes_[first] += bytes;
    changes_[last + 1] -= bytes;
  }
  double largest() const {
    double sum = 0, most = 0;
    for (const double change : changes_) most = std::max(most, sum += change);
    return most;
  }

 private:
  std::vector<double> changes_;
};

// A tensor that has memory of its own; its views share it. Nodes are numbered from 1; 0 is before
// the first one. The memory of weights has no bytes here.
struct Memory {
  double bytes = 0;
  bool hasGradient = false;
  bool isKept = false;         // by the stage: inputs and outputs
  std::size_t begin = 0;       // the node that makes it
  std::size_t lastUse = 0;     // in the forward
  std::size_t firstSaver = 0;  // the first node for whose backward autograd keeps it; 0: none
};

class Analysis {
 public:
  explicit Analysis(const wire::Graph& graph)
      : graph_(graph),
        end_(static_cast<std::size_t>(graph.nodes_size()) + 1),
        owner_(static_cast<std::size_t>(graph.values_size())),
        isTransposed_(owner_.size()),
        memory_(owner_.size()),
        forward_(end_),
        backward_(end_),
        inference_(end_) {
    for (std::uint32_t id = 0; id < owner_.size(); ++id) {
      owner_[id] = id;
      memory_[id].hasGradient = valueAt(id).trainable();
    }
    for (const std::uint32_t id : graph.inputs()) {
      begin(id, 0);
      memory_[id].hasGradient = isFloatDtype(valueAt(id).dtype());
      memory_[id].isKept = true;
    }
    for (std::size_t n = 1; n < end_; ++n) visit(graph.nodes(static_cast<int>(n) - 1), n);
    for (const std::uint32_t id : graph.outputs()) {
      memoryOf(id).isKept = true;
      memoryOf(id).lastUse = end_;
    }
    for (const Memory& memory : memory_) addToTimelines(memory);
  }

  GraphMemory result() const {
    return {saved_, std::max({saved_, forward_.largest(), backward_.largest()}),
            inference_.largest()};
  }

 private:
  const wire::Value& valueAt(std::uint32_t id) const { return graph_.values(static_cast<int>(id)); }
  // A peer's sizes are limited, so that sums remain finite.
  double bytesOf(std::uint32_t id) const { return std::min(bytesPerSample(valueAt(id)), 0x1p60); }
  // The value's size in the `fromEnd`-th dimension, from the last one, 1; at least 1.
  double sizeAt(std::uint32_t id, int fromEnd) const {
    const wire::Value& value = valueAt(id);
    if (value.shape_size() < fromEnd) return 1;
    const auto size = static_cast<double>(value.shape(value.shape_size() - fromEnd));
    return std::max(1.0, std::abs(size));
  }
  bool isFloat(std::uint32_t id) const { return isFloatDtype(valueAt(id).dtype()); }
  Memory& memoryOf(std::uint32_t id) { return memory_[owner_[id]]; }

  void begin(std::uint32_t id, std::size_t node) {
    memory_[id].bytes = bytesOf(id);
    memory_[id].begin = memory_[id].lastUse = node;
  }

  void visit(const wire::Node& node, std::size_t n) {
    GraphIds read;
    bool hasGradient = false;
    for (const std::uint32_t id : valuesReadBy(node)) {
      if (valueAt(id).kind() == wire::Value::SIZE) continue;
      read.push_back(id);
      memoryOf(id).lastUse = n;
      hasGradient |= memoryOf(id).hasGradient;
    }
    if (node.outputs_size() == 0 || valueAt(node.outputs(0)).kind() == wire::Value::SIZE) return;
    const std::string_view name = nameOf(node);
    hasGradient &= !node.no_grad() && name != "detach" && name != "detach_";
    const bool isView = !read.empty() && sharesMemory(node, name, read[0]);
    for (int o = 0; o < node.outputs_size(); ++o) {
      const std::uint32_t id = node.outputs(o);
      if (isView) {
        share(node, name, id, read[isOfList(node, o, read) ? static_cast<std::size_t>(o) : 0]);
      } else {
        begin(id, n);
        // Computed in the order of its transposed inputs.
        isTransposed_[id] = name == "scaled_dot_product_attention" && !hasDropout(node);
      }
      memoryOf(id).hasGradient |= hasGradient && isFloat(id);
      memoryOf(id).lastUse = n;
    }
    const double scratch = scratchOf(node, name, read);
    forward_.add(n, n, scratch);
    inference_.add(n, n, scratch);
    if (hasGradient) visitBackward(node, name, n, read, isView, 2 * scratch);
  }

  bool sharesMemory(const wire::Node& node, std::string_view name, std::uint32_t first) const {
    if (changesInPlace(node) || isIn(kParts, name) || isIn(kTransposed, name) ||
        isIn(kOtherViews, name)) {
      return true;
    }
    if (isIn(kReordered, name)) return !isTransposed_[first];
    if (isIn(kCasts, name)) return valueAt(first).dtype() == valueAt(node.outputs(0)).dtype();
    return keepsOf(name) == Keeps::draws && !draws(node);
  }

  // Results of an operator on a list, such as broadcast_tensors, share the memory of the tensor at
  // their position.
  static bool isOfList(const wire::Node& node, int result, const GraphIds& read) {
    return node.arguments(0).value_case() == wire::Argument::kTensors &&
           static_cast<std::size_t>(result) < read.size();
  }

  void share(const wire::Node& node, std::string_view name, std::uint32_t id, std::uint32_t with) {
    owner_[id] = owner_[with];
    isTransposed_[id] = isTransposed_[with];
    if (isIn(kParts, name)) isTransposed_[id] = true;
    // Back in the order of memory, if it was transposed before.
    if (isIn(kTransposed, name) && !changesInPlace(node)) isTransposed_[id].flip();
    if (!changesInPlace(node)) return;
    Memory& memory = memoryOf(id);
    // GraphProgram changes a copy of an input.
    if (memory.isKept) memory.bytes = 2 * bytesOf(owner_[id]);
  }

  double resultBytes(const wire::Node& node) const {
    double bytes = 0;
    for (const std::uint32_t id : node.outputs()) bytes += bytesOf(id);
    return bytes;
  }

  // oneDNN stores the values of convolutions in blocks of channels, 16 with AVX-512.
  double blockedBytes(std::uint32_t id) const {
    constexpr double kBlock = 16;
    if (valueAt(id).shape_size() < 3) return bytesOf(id);
    const double channels = sizeAt(id, 1);
    return bytesOf(id) * std::ceil(channels / kBlock) * kBlock / channels;
  }

  // Memory that exists only while the operator runs.
  double scratchOf(const wire::Node& node, std::string_view name, const GraphIds& read) const {
    if (name.starts_with("conv") && !read.empty() && !isWeight(valueAt(read[0])))
      return blockedBytes(read[0]) + blockedBytes(node.outputs(0));
    if (keepsOf(name) == Keeps::gates) return 2 * (gatesOf(node, read).largest + resultBytes(node));
    return 0;
  }

  // Bytes of a recurrent layer's values, of which there is one per row of its matrix and time step.
  double gates(const wire::Node& node, const wire::Value& matrix) const {
    if (matrix.shape_size() != 2) return 0;
    return bytesOf(node.outputs(0)) / sizeAt(node.outputs(0), 1) *
           static_cast<double>(matrix.shape(0));
  }
  struct Gates {
    double largest = 0, all = 0;
  };
  Gates gatesOf(const wire::Node& node, const GraphIds& read) const {
    Gates found;
    for (const std::uint32_t id : read) {
      if (!isWeight(valueAt(id))) continue;
      const double bytes = gates(node, valueAt(id));
      found.largest = std::max(found.largest, bytes);
      found.all += bytes;
    }
    return found;
  }

  static bool hasDropout(const wire::Node& attention) {
    return findArgument(attention, "dropout_p") != nullptr && draws(attention);
  }

  // Attention with dropout keeps the weights, the mask, their product, and scaled queries and keys.
  double attentionBytes(const wire::Node& node, const GraphIds& read) const {
    if (read.size() < 2 || !hasDropout(node)) return 0;
    const double weights = bytesOf(read[0]) / sizeAt(read[0], 1) * sizeAt(read[1], 2);
    return 3 * weights + bytesOf(read[0]) + bytesOf(read[1]);
  }

  void visitBackward(const wire::Node& node, std::string_view name, std::size_t n,
                     const GraphIds& read, bool isView, double scratch) {
    if (!isView || changesInPlace(node)) {
      save(node, name, n, read);
      scratch += (keepsOf(name) == Keeps::all ? kUnlistedScratch : kScratch) * resultBytes(node);
    }
    if (isIn(kParts, name)) scratch += memoryOf(read[0]).bytes;
    // A gradient that is added to the one of a later node.
    for (const std::uint32_t id : read) {
      const Memory& memory = memoryOf(id);
      if (memory.hasGradient && !isView && memory.lastUse > n) scratch += memory.bytes;
    }
    backward_.add(n, n, scratch);
  }

  void save(const wire::Node& node, std::string_view name, std::size_t n, const GraphIds& read) {
    const auto saveTensor = [&](std::uint32_t id) {
      Memory& memory = memoryOf(id);
      if (memory.firstSaver == 0) memory.firstSaver = n;
    };
    const Keeps keeps = keepsOf(name);
    // What an operator reads and then changes is copied.
    const bool copies = keeps == Keeps::read && changesInPlace(node);
    const bool keepsRead = (keeps == Keeps::read && !copies) || keeps == Keeps::positions ||
                           keeps == Keeps::gates || keeps == Keeps::all;
    // Where the factors begin: addmm has a summand before them.
    const std::size_t first = name.starts_with("addm") || name.starts_with("badd") ? 1 : 0;
    for (std::size_t r = 0; r < read.size(); ++r) {
      bool isFactor = keeps == Keeps::factors && (r == first || r == first + 1);
      const std::size_t other = 2 * first + 1 - r;
      isFactor = isFactor && other < read.size() && memoryOf(read[other]).hasGradient;
      if (keepsRead || isFactor || !isFloat(read[r])) saveTensor(read[r]);
    }
    double hidden = attentionBytes(node, read);
    const double results = resultBytes(node);
    if (keeps == Keeps::results || keeps == Keeps::all) {
      for (const std::uint32_t id : node.outputs()) saveTensor(id);
    }
    if (keeps == Keeps::all || keeps == Keeps::draws || copies) hidden += results;
    if (keeps == Keeps::positions) hidden += 2 * results;
    if (keeps == Keeps::gates) hidden += kGateValues * gatesOf(node, read).all;
    saved_ += hidden;
    forward_.add(n, end_, hidden);
    backward_.add(n, end_, hidden);
  }

  void addToTimelines(const Memory& memory) {
    const bool isSaved = memory.firstSaver > 0 || memory.isKept;
    if (isSaved) {
      saved_ += memory.bytes;
      backward_.add(memory.isKept ? 0 : memory.firstSaver, end_, memory.bytes);
    }
    forward_.add(memory.begin, isSaved ? end_ : memory.lastUse, memory.bytes);
    inference_.add(memory.begin, memory.isKept ? end_ : memory.lastUse, memory.bytes);
    if (memory.hasGradient) backward_.add(memory.begin, memory.lastUse, memory.bytes);
  }

  const wire::Graph& graph_;
  const std::size_t end_;  // the time after the last node
  GraphIds owner_;         // for each value, the one whose memory it shares
  std::vector<bool> isTransposed_;
  std::vector<Memory> memory_;
  Timeline forward_, backward_, inference_;
  double saved_ = 0;
};

}  // namespace

GraphMemory memoryOf(const wire::Graph& graph) { return Analysis(graph).result(); }

}  // namespace cleave
