// Makes and restores the checkpoints of a run on the server: the states of body, engine, records
// and codecs after one step.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/core/fault_notes.h"
#include "common/engine/engine.h"
#include "common/engine/messages.h"
#include "common/link/tensor_link.h"
#include "common/model/stage/stage.h"
#include "server/store/run_record.h"
#include "server/store/run_store.h"

namespace cleave {

// Device thread, unless stated otherwise.
class BodyCheckpoints {
 public:
  struct Client {
    std::uint32_t member = 0;  // its number in its cohort
    std::shared_ptr<TensorLink> link;
    bool joins = false;  // it lacks the checkpoint, so its codecs start without state
  };
  // `stored` and `record` are borrowed. `clients`: the links to all clients; `edges`: the run's
  // other links. `hasReplicas`: the client compares their weights. `kept`: a step whose checkpoint
  // the run always keeps. `saved` is called on the io thread, also with the number of evaluation
  // batches before the checkpoint.
  BodyCheckpoints(const StoredRun& stored, RunRecord& record, std::vector<TensorLink*> edges,
                  std::vector<Client> clients, bool hasReplicas, std::optional<std::uint64_t> kept,
                  std::function<void(const Saved&, std::uint64_t evaluated)> saved,
                  boost::asio::any_io_executor io)
      : stored_(stored),
        record_(record),
        edges_(std::move(edges)),
        clients_(std::move(clients)),
        hasReplicas_(hasReplicas),
        kept_(kept),
        saved_(std::move(saved)),
        io_(std::move(io)) {}

  // Copies the body's state after the update of this step. Throws ProtocolError
  // "too-many-in-flight" if the last checkpoint has not been saved.
  void take(const StepDecision& decision, Body& body);
  // Saves what take() has copied, if anything. Call when the step has been recorded, before the
  // next step's first computation.
  void saveTaken(const EngineState& engine);
  // Continues from the checkpoint that the client has chosen, and returns the engine's state.
  // `totals`: of all links, for the records. Throws ProtocolError "unexpected-message", RunError
  // "bad-checkpoint" or "run-unreadable".
  EngineState restore(const Resume& resume, Body& body, const LinkTotals& totals);

  // When the device thread no longer uses this object, any thread: drops what take() has copied of
  // a step that failed, and keeps `held` until the last checkpoint has been saved.
  void close(std::shared_ptr<const void> held);

 private:
  struct Taken;
  void saveCodecs(std::uint64_t since, std::function<void(SavedCodecs saved)> saved) const;
  void restoreCodecs(std::vector<TensorCodecs::SavedState> states) const;
  std::function<void(const Saved&)> reply(std::uint64_t evaluated);

  const StoredRun& stored_;
  RunRecord& record_;
  const std::vector<TensorLink*> edges_;
  const std::vector<Client> clients_;
  const bool hasReplicas_;
  const std::optional<std::uint64_t> kept_;
  const std::function<void(const Saved&, std::uint64_t evaluated)> saved_;
  const boost::asio::any_io_executor io_;
  std::shared_ptr<RunCheckpoints::Snapshot> taken_;  // not saved yet
  std::weak_ptr<Taken> saving_;                      // the last one, until it is saved
  std::optional<std::uint64_t> restored_;            // the step that the run has continued from
  // Used by the thread that writes the run's checkpoints.
  const std::shared_ptr<FaultNotes> faults_ = std::make_shared<FaultNotes>();
};

}  // namespace cleave
