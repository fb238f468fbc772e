// Runs a trained model on data: the whole model in this process, or its body on a server.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "client/data/samples/skip.h"
#include "client/evaluate/inference_options.h"
#include "client/run/prepare.h"
#include "client/run/saved_model.h"
#include "client/run/temporary_folder.h"
#include "client/train/train_run.h"

namespace cleave {

// Use it on one thread, which becomes the device thread.
class Inference {
 public:
  // The data is the test set or, if `inputs` is not empty, the samples without targets in these
  // files and folders. Connects to the server if one is given. Throws UsageError or RunError.
  Inference(const InferenceOptions& options, const std::vector<std::string>& inputs = {});
  ~Inference();

  const std::string& modelPath() const { return modelPath_; }
  // The training steps after which the model was saved; empty if its file does not say so.
  std::optional<std::uint64_t> modelSteps() const;
  const PreparedRun& prepared() const { return prepared_; }
  const Dataset& data() const { return *prepared_.data.test; }
  // The samples that could not be read and were replaced by others (data.skip). The set is complete
  // after run().
  std::set<std::uint32_t> replaced() const { return replacedSamples(*files_); }
  std::vector<std::string> classNames() const;

  // Called with each batch, the model's output for it ([samples, …], fp32, on the CPU), and the
  // index of the batch's first sample.
  using Visit = std::function<void(const Batch&, const at::Tensor& output, std::uint32_t first)>;
  // Runs the model on all samples, in order. Outputs are kept only if `each` is not empty, because
  // those of language models are large. Returns the sums of loss and metrics.
  BatchMetrics run(const Visit& each);

 private:
  void orFail(const std::function<void()>& work);

  std::string modelPath_;
  std::optional<ModelDescription> description_;
  TemporaryFolder folder_;                // the run's folder if there is a server
  std::shared_ptr<const Dataset> files_;  // the data with all its arrays
  PreparedRun prepared_;
  std::unique_ptr<WholeStage> whole_;  // null if there is a server
  std::unique_ptr<TrainRun> run_;      // null if there is no server
};

}  // namespace cleave
