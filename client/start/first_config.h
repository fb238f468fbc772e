// Chooses the values of a first configuration, and writes it with comments. No Torch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "client/data/image_file.h"
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
// A batch that the training set fills several times, with at least 8 samples per micro-batch if
// possible, because batch norm needs them.
BatchChoice chooseBatch(std::uint32_t trainingSamples);

struct FirstConfig {
  std::string name;
  std::string madeFor;  // the command that made it
  std::string model;    // the value of `model`, as YAML
  std::vector<std::string> modelComments;
  FoundData data;
  std::string dataComment;
  std::optional<ImageChoice> images;
  bool hasColours = true;     // whether the usual statistics of photos apply
  int classes = 0;            // for formats with the key data.classes; 0: not written
  std::uint32_t length = 0;   // of texts; 0: not written
  std::uint32_t holdout = 0;  // samples; 0: there is a test set
  std::string loss;           // empty: cross_entropy
  BatchChoice batch;
  double learningRate = 0.001;
  std::string bestMetric;  // empty: none
};

// The text as a YAML scalar, quoted if necessary.
std::string yamlScalar(const std::string& text);
std::string yamlOf(const FirstConfig& config);

}  // namespace cleave
