// Learned inserts: layers on both sides of a cut that make the tensor that crosses it smaller. The
// encoder follows the last block before the cut and the decoder precedes the first block after it,
// so both are part of the model and are trained with it. The gradient that crosses the cut is that
// of the encoded tensor, so it is as small as the activation. Integer tensors that cross the same
// cut, such as masks, are not encoded. A cut may have two inserts: the second one encodes what the
// first one's encoder puts out, and its decoder returns it to the first one's decoder. To add a
// kind, add one row to inserts.cpp; insert_blocks.cpp adds inserts to a model.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/model/model.h"

namespace cleave {

struct InsertSpec {
  std::uint32_t cut = 0;                     // number of the cut among all cuts of the run
  std::string kind;                          // a name in insertTable()
  std::map<std::string, double> parameters;  // those of the kind; absent ones have defaults
  bool operator==(const InsertSpec&) const = default;
};

// One half of an insert: a function of a tensor [samples, …] and of its own tensors.
struct InsertHalf {
  std::vector<ParameterSpec> tensors;  // in the order of `forward`; names such as "weight"
  Shape output;                        // without the batch
  std::int64_t savedPerSample = 0;     // as BlockSpec::savedPerSample
  std::function<at::Tensor(const at::Tensor& x, std::span<const at::Tensor> tensors)> forward;
};

struct InsertLayers {
  InsertHalf encoder;
  InsertHalf decoder;  // its output has the shape of the encoder's input
  // The encoder's first weight multiplies windows of kernel x kernel positions of an image. 0: it
  // multiplies the features of one position.
  std::int64_t kernel = 0;
  // Above 0, the gradient of the encoder's input x gets strength x (x - x') / samples of the batch,
  // where x' is the decoder's output: training then avoids what the insert cannot represent.
  double correction = 0;
  // Above 0, the encoder's basis is tracked (tracked_basis.h): the weight of a micro-batch in the
  // covariance. The encoder's tensors are then weight, mean and covariance.
  double momentum = 0;
};

struct ParameterRow {
  std::string_view name;
  double min, max;
  std::optional<double> defaultValue;  // nullopt: required
  std::string_view meaning;
  bool isWhole = true;  // whether it must be a whole number
};

// Values of a kind's parameters, with defaults.
using InsertParameters = std::map<std::string, double>;

struct InsertRow {
  std::string_view name;
  std::string_view description;  // one line
  std::span<const ParameterRow> parameters;
  // `shape`: that of the tensor at the cut, without the batch. Throws UsageError "bad-insert" if
  // the kind cannot encode such a tensor; key() is the parameter that does not fit.
  InsertLayers (*layers)(const Shape& shape, const InsertParameters& parameters);
};

std::span<const InsertRow> insertTable();
// Throws UsageError "bad-insert" with the nearest known name.
const InsertRow& findInsert(std::string_view name);
// The layers of an insert between blocks that pass on these tensors. Throws UsageError
// "bad-insert".
InsertLayers layersFor(const InsertSpec& insert, const std::vector<BlockOutput>& tensors);
UsageError badInsert(const std::string& sentence, const std::string& hint, const std::string& key);

// Which of the tensors at a cut an insert encodes: the only one of fp32. Throws UsageError
// "bad-insert" if there is none or more than one; key() is "cut".
std::size_t encodedTensor(const std::vector<BlockOutput>& tensors);

inline constexpr std::size_t kMaxInsertsPerCut = 2;

// An insert at its cut.
struct PlacedInsert {
  InsertLayers layers;     // the names of their tensors are complete
  std::size_t block = 0;   // position of the block after the cut
  std::size_t level = 0;   // number of inserts before it at the cut
  std::size_t tensor = 0;  // the encoded one among the tensors at the cut
  // "insert.CUT." at the first level, "insert.CUT.2." at the second. Of names such as
  // "insert.0.2.encoder.weight".
  std::string prefix;
};

// The inserts in their order, each with the layers for what the one before it at the same cut puts
// out. `blocks`: the model without inserts. `cuts`: the positions of the cuts firstNumber,
// firstNumber + 1, … Allocates nothing. Throws UsageError "bad-insert" if a cut does not exist, has
// more than kMaxInsertsPerCut inserts, has one after a tracked one, or has a tensor that the kind
// cannot encode; key() is the path in the configuration, such as "insert[0].rank".
std::vector<PlacedInsert> placeInserts(const std::vector<BlockSpec>& blocks,
                                       const std::vector<InsertSpec>& inserts,
                                       const std::vector<int>& cuts, int firstNumber);

// Appends the encoders to the blocks before the cuts, and prepends the decoders to the blocks after
// them; the positions of the blocks do not change. With a correction, the block before the cut has
// copies of the decoder's parameters, as buffers of the same names that are not saved. Arguments
// and errors as for placeInserts().
void addInserts(std::vector<BlockSpec>& blocks, const std::vector<InsertSpec>& inserts,
                const std::vector<int>& cuts, int firstNumber);

}  // namespace cleave
