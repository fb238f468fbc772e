// Learned inserts between the blocks of a model.
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <set>
#include <utility>

#include "common/model/blocks.h"
#include "common/model/insert_pca.h"
#include "common/model/inserts.h"

namespace cleave {
namespace {

// Adds the half's tensors to the block, at this position among the block's own.
void addTensors(BlockSpec& block, std::size_t position, const InsertHalf& half, std::uint32_t cut,
                const char* name) {
  std::vector<ParameterSpec> tensors = half.tensors;
  for (ParameterSpec& tensor : tensors) {
    tensor.name = "insert." + std::to_string(cut) + name + tensor.name;
    tensor.isInsert = true;
    if (tensor.tracked) tensor.tracked->cut = cut;
  }
  block.tensors.insert(block.tensors.begin() + static_cast<std::ptrdiff_t>(position),
                       tensors.begin(), tensors.end());
  block.savedPerSample += half.savedPerSample;
}

// Adds strength x (x - decoded) to the gradient of x. A hook, so that it acts when autograd has
// added up the gradient, and before any operator uses it.
void correctGradient(const at::Tensor& x, const at::Tensor& decoded, double strength) {
  const at::Tensor error = x.detach().to(at::kFloat).sub(decoded.to(at::kFloat));
  const at::Tensor added = error.mul_(strength).to(x.scalar_type());
  x.register_hook([added](const at::Tensor& gradient) { return gradient.add(added); });
}

// `t`: the encoded tensor among the block's outputs.
void appendEncoder(BlockSpec& block, std::size_t t, const InsertLayers& layers, std::uint32_t cut) {
  const InsertHalf &encoder = layers.encoder, &decoder = layers.decoder;
  const std::size_t own = block.tensors.size(), count = encoder.tensors.size();
  addTensors(block, own, encoder, cut, ".encoder.");
  if (layers.correction > 0) {
    addTensors(block, own + count, decoder, cut, ".decoder.");
    for (std::size_t n = own + count; n < block.tensors.size(); ++n) {
      block.tensors[n].isBuffer = true;
      block.tensors[n].isSaved = false;
    }
    block.savedPerSample += elementCount(block.outputs[t].shape);
  }
  if (layers.momentum > 0) {
    constexpr std::int64_t kAnyNumber = 2;  // a micro-batch of one sample has enough values
    block.norms.push_back({.mean = own + kBasisMean,
                           .variance = own + kBasisCovariance,
                           .count = std::nullopt,
                           .momentum = layers.momentum,
                           .valuesPerSample = kAnyNumber});
  }
  block.outputs[t].shape = encoder.output;
  block.forward = [t, own, count, block = std::move(block.forward), encode = encoder.forward,
                   decode = decoder.forward, correction = layers.correction, kernel = layers.kernel,
                   isTracked = layers.momentum > 0](const TensorList& x,
                                                    std::span<const at::Tensor> tensors,
                                                    const BlockContext& context) {
    TensorList outputs = block(x, tensors.first(own), context);
    const at::Tensor exact =
        std::exchange(outputs[t], encode(outputs[t], tensors.subspan(own, count)));
    if (isTracked && context.statistics != nullptr) {
      const at::NoGradGuard noGrad;
      const at::Tensor& mean = tensors[own + kBasisMean];  // stays: its own statistic
      const at::Tensor rows = insertRows(withoutMean(exact.detach(), mean), kernel);
      context.statistics->push_back({mean, covarianceOf(rows)});
    }
    if (correction > 0 && at::GradMode::is_enabled() && exact.requires_grad()) {
      const at::NoGradGuard noGrad;
      correctGradient(exact, decode(outputs[t], tensors.subspan(own + count)),
                      correction / context.at.batch.samples);
    }
    return outputs;
  };
}

// `t`: the encoded tensor among the outputs of the block before this one.
void prependDecoder(BlockSpec& block, std::size_t t, InsertHalf half, std::uint32_t cut) {
  const std::size_t count = half.tensors.size();
  addTensors(block, 0, half, cut, ".decoder.");
  for (NormRow& norm : block.norms) {
    norm.mean += count;
    norm.variance += count;
    if (norm.count) *norm.count += count;
  }
  block.forward = [t, count, block = std::move(block.forward), decode = std::move(half.forward)](
                      TensorList x, std::span<const at::Tensor> tensors,
                      const BlockContext& context) {
    // Autocast may have computed it in half precision, but blocks expect fp32 after a cut.
    x[t] = decode(x[t], tensors.first(count)).to(at::kFloat);
    return block(x, tensors.subspan(count), context);
  };
}

void checkNames(const std::vector<BlockSpec>& blocks) {
  for (const BlockSpec& block : blocks) {
    for (const ParameterSpec& tensor : block.tensors) {
      if (!tensor.name.starts_with("insert.")) continue;
      throw badInsert("the model has a parameter " + tensor.name +
                          ", but names that begin with 'insert.' are reserved for inserts",
                      "rename the model's module and export it again", "kind");
    }
  }
}

}  // namespace

std::size_t encodedTensor(const std::vector<BlockOutput>& tensors) {
  const auto isEncoded = [](const BlockOutput& each) { return each.dtype == DType::f32; };
  const auto count = std::count_if(tensors.begin(), tensors.end(), isEncoded);
  if (count == 1) {
    return static_cast<std::size_t>(std::find_if(tensors.begin(), tensors.end(), isEncoded) -
                                    tensors.begin());
  }
  throw badInsert(count == 0 ? "only integers cross this cut"
                             : std::to_string(count) + " fp32 tensors cross this cut",
                  "choose a cut in model.cuts that exactly one fp32 tensor crosses; for a graph, "
                  "cleave-client models show lists them, with --all also those that several cross",
                  "cut");
}

void addInserts(std::vector<BlockSpec>& blocks, const std::vector<InsertSpec>& inserts,
                const std::vector<int>& cuts, int firstNumber) {
  if (!inserts.empty()) checkNames(blocks);
  std::set<std::uint32_t> used;
  // All layers are made before the first one is added, from the shapes of the model itself.
  std::vector<InsertLayers> layers;
  const auto first = static_cast<std::uint32_t>(firstNumber);
  const auto last = static_cast<std::uint32_t>(first + cuts.size() - 1);
  const auto blockAfter = [&](const InsertSpec& insert) {
    return static_cast<std::size_t>(cuts[insert.cut - first]);
  };
  for (std::size_t n = 0; n < inserts.size(); ++n) {
    const InsertSpec& insert = inserts[n];
    try {
      if (insert.cut < first || insert.cut > last) {
        throw badInsert(
            "there is no such cut",
            "the cuts are numbered from " + std::to_string(first) + " to " + std::to_string(last),
            "cut");
      }
      if (!used.insert(insert.cut).second) {
        throw badInsert("the cut has two inserts", "remove one of them", "cut");
      }
      layers.push_back(layersFor(insert, blocks[blockAfter(insert) - 1].outputs));
    } catch (const UsageError& error) {
      throw UsageError(error.code(),
                       "the insert at cut " + std::to_string(insert.cut) + ": " + error.what(),
                       error.hint())
          .about("insert[" + std::to_string(n) + "]." + error.key());
    }
  }
  for (std::size_t n = 0; n < inserts.size(); ++n) {
    const std::uint32_t cut = inserts[n].cut;
    const std::size_t position = blockAfter(inserts[n]);
    const std::size_t t = encodedTensor(blocks[position - 1].outputs);
    appendEncoder(blocks[position - 1], t, layers[n], cut);
    prependDecoder(blocks[position], t, std::move(layers[n].decoder), cut);
  }
}

}  // namespace cleave
