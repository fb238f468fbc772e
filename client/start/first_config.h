// Chooses the values of a first configuration, and writes it with comments. No Torch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/data/pictures/image_file.h"
#include "client/start/found_data.h"

namespace cleave {

// The images that a model takes.
struct ImageInput {
  std::int64_t channels = 3, height = 0, width = 0;
};

// How images become the model's input.
struct ImageChoice {
  std::string builtIn;  // the built-in model for these images
  std::int64_t channels = 3;
  std::int64_t resize = 0, crop = 0;  // 0: not needed
  std::string reason;
};

// `sizes`: of some images, at least one. `model`: of the user's model; empty: a built-in one is
// chosen. Throws UsageError "bad-input" if images cannot be resized to the model's input.
ImageChoice chooseImages(const std::vector<ImageHeader>& sizes,
                         const std::optional<ImageInput>& model);

struct BatchChoice {
  std::uint32_t batch = 0, microBatches = 0;
};
// A batch that the training set fills several times if possible. Each micro-batch, also of an
// epoch's last batch, has at least 8 samples, because batch norm needs them, unless there are fewer
// training samples.
BatchChoice chooseBatch(std::uint32_t trainingSamples);

// Keys and values as YAML, in order.
using YamlKeys = std::vector<std::pair<std::string, std::string>>;

struct FirstConfig {
  std::string name;
  std::string madeFor;  // the command that made it
  YamlKeys model;       // the keys below `model`
  std::vector<std::string> modelComments;
  FoundData data;
  std::string dataComment;
  std::optional<ImageChoice> images;
  bool hasColours = true;     // whether the usual statistics of photos apply
  int classes = 0;            // for formats with the key data.classes; 0: not written
  std::uint32_t length = 0;   // of texts; 0: not written
  std::uint32_t holdout = 0;  // samples; 0: there is a test set
  std::string loss;           // empty: cross_entropy
  std::string lossComment;    // may be empty
  BatchChoice batch;
  double learningRate = 0.001;
  std::string bestMetric;  // empty: none
  // KEY=VALUE, as --set accepts them: replace values that were chosen, or add keys.
  std::vector<std::string> overrides = {};
};

// The text as a YAML scalar, quoted if necessary.
std::string yamlScalar(const std::string& text);
std::string inlineMap(const YamlKeys& keys);  // "{name: mlp, width: 64}"
// `config.overrides` must be valid: see Config::parse().
std::string yamlOf(const FirstConfig& config);

}  // namespace cleave
