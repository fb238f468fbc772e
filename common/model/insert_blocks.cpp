// Learned inserts between the blocks of a model.
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <map>
#include <utility>

#include "common/model/blocks.h"
#include "common/model/insert_pca.h"
#include "common/model/inserts.h"

namespace cleave {
namespace {

// Adds values per sample that the block's forward keeps for its backward.
void addSaved(BlockSpec& block, std::int64_t values) {
  block.savedPerSample += values;
  if (!block.passes) return;
  block.passes->training += 2 * values;
  block.passes->inference += 2 * values;
}

// Adds the half's tensors to the block, at this position among the block's own.
void addTensors(BlockSpec& block, std::size_t position, const InsertHalf& half) {
  block.tensors.insert(block.tensors.begin() + static_cast<std::ptrdiff_t>(position),
                       half.tensors.begin(), half.tensors.end());
  addSaved(block, half.savedPerSample);
}

// Adds strength x (x - decoded) to the gradient of x. A hook, so that it acts when autograd has
// added up the gradient, and before any operator uses it.
void correctGradient(const at::Tensor& x, const at::Tensor& decoded, double strength) {
  const at::Tensor error = x.detach().to(at::kFloat).sub(decoded.to(at::kFloat));
  const at::Tensor added = error.mul_(strength).to(x.scalar_type());
  x.register_hook([added](const at::Tensor& gradient) { return gradient.add(added); });
}

// `t`: the encoded tensor among the block's outputs.
void appendEncoder(BlockSpec& block, std::size_t t, const InsertLayers& layers) {
  const InsertHalf &encoder = layers.encoder, &decoder = layers.decoder;
  const std::size_t own = block.tensors.size(), count = encoder.tensors.size();
  addTensors(block, own, encoder);
  if (layers.correction > 0) {
    addTensors(block, own + count, decoder);
    for (std::size_t n = own + count; n < block.tensors.size(); ++n) {
      block.tensors[n].isBuffer = true;
      block.tensors[n].isSaved = false;
    }
    addSaved(block, elementCount(block.outputs[t].shape));
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
void prependDecoder(BlockSpec& block, std::size_t t, InsertHalf half) {
  const std::size_t count = half.tensors.size();
  addTensors(block, 0, half);
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

// The complete names of the half's tensors.
void nameTensors(InsertHalf& half, std::uint32_t cut, const std::string& prefix) {
  for (ParameterSpec& tensor : half.tensors) {
    tensor.name = prefix + tensor.name;
    tensor.isInsert = true;
    if (tensor.tracked) tensor.tracked->cut = cut;
  }
}

// The inserts at a cut, so far.
struct InsertsAtCut {
  std::vector<BlockOutput> outputs;  // what the last one puts out
  std::size_t count = 0;
  bool isTracked = false;  // the last one has a basis that changes

  void checkAnother() const {
    if (count == kMaxInsertsPerCut) {
      throw badInsert(
          "the cut already has " + std::to_string(kMaxInsertsPerCut) + " inserts, the maximum",
          "remove one of them", "cut");
    }
    if (isTracked) {
      throw badInsert(
          "it follows an insert of kind pca, and would not follow that one's changes of its basis",
          "list the insert of kind pca last, or use it alone, with fewer channels", "cut");
    }
  }
};

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

std::vector<PlacedInsert> placeInserts(const std::vector<BlockSpec>& blocks,
                                       const std::vector<InsertSpec>& inserts,
                                       const std::vector<int>& cuts, int firstNumber) {
  if (!inserts.empty()) checkNames(blocks);
  std::map<std::uint32_t, InsertsAtCut> atCuts;
  const auto first = static_cast<std::uint32_t>(firstNumber);
  const auto last = static_cast<std::uint32_t>(first + cuts.size() - 1);
  std::vector<PlacedInsert> all;
  for (std::size_t n = 0; n < inserts.size(); ++n) {
    const std::uint32_t cut = inserts[n].cut;
    try {
      if (cut < first || cut > last) {
        throw badInsert(
            "there is no such cut",
            "the cuts are numbered from " + std::to_string(first) + " to " + std::to_string(last),
            "cut");
      }
      const auto [found, isFirst] = atCuts.try_emplace(cut);
      InsertsAtCut& atCut = found->second;
      const auto block = static_cast<std::size_t>(cuts[cut - first]);
      if (isFirst) atCut.outputs = blocks[block - 1].outputs;
      atCut.checkAnother();
      PlacedInsert& placed = all.emplace_back();
      placed.block = block;
      placed.level = atCut.count++;
      placed.tensor = encodedTensor(atCut.outputs);
      placed.layers = layersFor(inserts[n], atCut.outputs);
      placed.prefix = "insert." + std::to_string(cut) + ".";
      if (placed.level > 0) placed.prefix += std::to_string(placed.level + 1) + ".";
      nameTensors(placed.layers.encoder, cut, placed.prefix + "encoder.");
      nameTensors(placed.layers.decoder, cut, placed.prefix + "decoder.");
      atCut.outputs[placed.tensor].shape = placed.layers.encoder.output;
      atCut.isTracked = placed.layers.momentum > 0;
    } catch (const UsageError& error) {
      throw UsageError(error.code(),
                       "the insert at cut " + std::to_string(cut) + ": " + error.what(),
                       error.hint())
          .about("insert[" + std::to_string(n) + "]." + error.key());
    }
  }
  return all;
}

void addInserts(std::vector<BlockSpec>& blocks, const std::vector<InsertSpec>& inserts,
                const std::vector<int>& cuts, int firstNumber) {
  for (PlacedInsert& each : placeInserts(blocks, inserts, cuts, firstNumber)) {
    appendEncoder(blocks[each.block - 1], each.tensor, each.layers);
    prependDecoder(blocks[each.block], each.tensor, std::move(each.layers.decoder));
  }
}

}  // namespace cleave
