// Saves the model while it trains: model.safetensors has the whole model as it was at the end of
// the last epoch or of the run. If the body cannot be fetched, model.partial.safetensors has head
// and tail; it never replaces a whole model.
#pragma once

#include <cstddef>
#include <cstdint>
#include <future>
#include <optional>
#include <string>
#include <vector>

#include "client/session.h"
#include "common/core/log.h"
#include "common/model/stage.h"

namespace cleave {

// The device thread calls it; a thread of its own joins the parts and writes the file.
class ModelSaver {
 public:
  // All are borrowed. `mayFetch`: whether the server allows the body to be fetched.
  ModelSaver(ClientSession& session, const ClientStage& stage, const RunPlan& plan,
             std::string folder, bool mayFetch);
  ~ModelSaver();  // waits for the file that is being written
  ModelSaver(const ModelSaver&) = delete;
  ModelSaver& operator=(const ModelSaver&) = delete;

  // Between batches: copies head and tail, asks for the body, and returns. The body crosses behind
  // the tensors of the next batches. Does nothing if an earlier model is still being fetched or
  // written, or if the server does not allow the body to be fetched. A file that cannot be written
  // is a warning.
  void save();
  // After the last batch: saves the model as it is now, and waits until the file is written.
  // Returns false if the server does not allow the body to be fetched, or nothing was trained.
  // Throws RunError: what ended the session; "interrupted", if the time after Ctrl-C is over;
  // "cannot-write".
  bool finish();
  // If finish() failed: writes head and tail as they are now, unless the whole model is saved as it
  // is now, or nothing was trained. Logs which files there are, and how to continue from them.
  // Throws RunError "cannot-write".
  void saveParts(spdlog::logger& log);

 private:
  // Head and tail after `steps` steps, each a safetensors file.
  struct Parts {
    std::uint64_t steps = 0;
    std::vector<std::byte> head, tail;
  };
  Parts copyParts() const;
  void write(Parts parts, Blob body);
  bool isWriting() const;
  void finishWriting();
  void finishEarlier();
  std::uint64_t stepsNow() const { return session_.engine().applied(); }
  std::string wholePath() const { return folder_ + "/model.safetensors"; }
  std::string partsPath() const { return folder_ + "/model.partial.safetensors"; }

  ClientSession& session_;
  const ClientStage& stage_;
  const RunPlan& plan_;
  const std::string folder_;
  const bool mayFetch_;
  std::future<std::uint64_t> writing_;  // gives the steps of the model that was written
  std::optional<std::uint64_t> saved_;  // the steps of model.safetensors
};

}  // namespace cleave
