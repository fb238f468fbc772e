// Saves the model during training. model.safetensors has the whole model, as it was after the
// latest epoch or at the end of the run. If the body cannot be fetched, head and tail are written
// to a separate file, model.partial.safetensors. Adapters are also written to a separate folder, in
// PEFT's format.
#pragma once

#include <cstddef>
#include <cstdint>
#include <future>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "client/run/saved_model.h"
#include "client/run/session.h"
#include "common/codec/safetensors.h"
#include "common/core/log.h"
#include "common/graph/adapters.h"
#include "common/model/stage/stage.h"

namespace cleave {

// Throws ProtocolError "bad-tensor" unless the entries, which a server has sent, are exactly the
// saved tensors of blocks [first, last).
void checkBody(const std::vector<SafetensorsEntry>& entries, const std::vector<BlockSpec>& blocks,
               int first, int last);

// All functions are called on the device thread. A separate thread joins the parts and writes the
// file.
class ModelSaver {
 public:
  // The objects passed by reference are borrowed. `mayFetch`: whether the servers allow the bodies
  // to be fetched. `aliases`: additional names under which weights are saved; the keys are these
  // names. `description` is written to the files' metadata.
  ModelSaver(ClientSession& session, const ClientStage& stage, const RunPlan& plan,
             std::string folder, bool mayFetch, LoraSpec lora,
             std::map<std::string, std::string> aliases, ModelDescription description);
  ~ModelSaver();  // waits until the current file is written
  ModelSaver(const ModelSaver&) = delete;
  ModelSaver& operator=(const ModelSaver&) = delete;

  // Call between batches. Copies head and tail, requests the body, and returns. The body arrives in
  // the background, while later batches run. Does nothing if an earlier model is still being
  // fetched or written, or if the server does not allow the body to be fetched. A write error is
  // logged as a warning.
  void save();
  // Call between batches. Saves the current model as model.best.safetensors, and its adapters in
  // adapter.best, replacing earlier ones; waits until they are written. A failure is logged as a
  // warning. `asLastToo`: whether model.safetensors and the folder adapter keep this model too.
  void keepAsBest(bool asLastToo);
  // Removes model.safetensors and the folder adapter. A failure is logged as a warning.
  void removeLast();
  // Call after the last batch. Saves the current model, and waits until the file is written.
  // Removes model.partial.safetensors, unless it is of a later step. Returns false if the server
  // does not allow the body to be fetched, or if nothing was trained. Throws the error that ended
  // the session, RunError "interrupted" if the time limit after Ctrl-C has passed, or RunError
  // "cannot-write".
  bool finish();
  // Whether model.safetensors is of a later step than the current one: a run that continues from a
  // checkpoint repeats steps. Logs it.
  bool keepsNewer(spdlog::logger& log) const;
  // Call for a run that ended early and whose model is not saved. Writes the current head and tail.
  // Writes nothing if the current or a later state is already saved, or if nothing was trained.
  // Logs which files exist and how to continue from them. Throws RunError "cannot-write".
  void saveParts(spdlog::logger& log);

 private:
  // Head and tail after `steps` steps, each as a safetensors file.
  struct Parts {
    std::uint64_t steps = 0;
    std::vector<std::byte> head, tail;
  };
  Parts copyParts() const;
  std::map<std::string, std::string> metadataAt(std::uint64_t steps) const;
  void write(Parts parts, std::vector<Blob> bodies);
  bool isWriting() const;
  void finishWriting();
  void finishEarlier();
  void saveNow();
  void keepFile(const std::string& name, const std::string& asName) const;
  std::uint64_t stepsNow() const { return session_.engine().applied(); }
  std::string wholePath() const { return folder_ + "/model.safetensors"; }
  std::string partsPath() const { return folder_ + "/model.partial.safetensors"; }

  ClientSession& session_;
  const ClientStage& stage_;
  const RunPlan& plan_;
  const std::string folder_;
  const bool mayFetch_;
  const LoraSpec lora_;
  const bool hasAdapter_;
  const std::map<std::string, std::string> aliases_;
  const ModelDescription description_;
  std::future<std::uint64_t> writing_;  // returns the step count of the written model
  std::optional<std::uint64_t> saved_;  // step count of model.safetensors
};

}  // namespace cleave
