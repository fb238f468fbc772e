// Reads every sample of a dataset, as the command `data check` does. No Torch.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "client/data/samples/dataset.h"

namespace cleave {

struct DamagedSample {
  std::uint32_t index = 0;
  std::string name;    // Dataset::sampleName()
  std::string reason;  // a sentence without the name: "is empty"
  std::string hint;    // empty: replace it or remove it; data.skip allows it
};

struct CheckOptions {
  std::uint32_t threads = 1;
  // Called by the caller's thread, for each damaged sample in the dataset's order.
  std::function<void(const DamagedSample&)> found = nullptr;
  // Called likewise, as samples are done.
  std::function<void(std::uint32_t samples)> progress = nullptr;
};

// Reads all samples without augmentation. A sample is damaged if it cannot be read, or has values
// that are not finite. Returns the number of damaged samples.
std::uint32_t checkSamples(std::shared_ptr<const Dataset> data, const CheckOptions& options);

}  // namespace cleave
