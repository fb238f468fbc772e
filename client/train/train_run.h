// A training run on the client, from building its stage to sending Bye. All commands that run
// batches through a server use it: train, simulate, verify, eval, predict.
//
//   TrainRun run(prepared);     builds head and tail
//   run.connect();              also loads their initial weights
//   run.start(decide, {});      creates the record files and starts the session
//   run.loadWeights();          loads the body's initial weights; or run.resume()
//   run.runBatch(…);            as often as needed
//   run.close("done");
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "client/data/samples/loader.h"
#include "client/run/prepare.h"
#include "client/run/run_history.h"
#include "client/run/session.h"
#include "client/run/traffic_recording.h"
#include "client/train/checkpointer.h"
#include "client/train/gradient_check.h"
#include "common/files/record.h"
#include "common/model/stage/stage.h"
#include "common/record/run_files.h"
#include "common/run/action_tables.h"

namespace cleave {

// Use it on one thread, which becomes the device thread.
class TrainRun {
 public:
  // Builds head and tail. `prepared` is borrowed.
  explicit TrainRun(PreparedRun& prepared);
  ~TrainRun();

  // Loads the initial weights of head and tail if the configuration has any. Then connects to the
  // servers and sends Hello, and retries for connect.retry_seconds. On failure, calls
  // removeUnbegun() and throws RunError or UsageError with the reason. `check`: of the server's
  // gradients, which needs a server that lets clients fetch weights; borrowed; null: not checked.
  void connect(GradientCheck* check = nullptr);

  // What this client announces as a member of its cohort. Call instead of connect().
  wire::Member announcement();

  struct Options {
    StepFetch stepFetch = nullptr;     // see Coordinator; not with a GradientCheck
    std::uint32_t errorEvery = 0;      // measures a codec's error on one tensor in N; 0: never
    std::size_t rotateBytes = 0;       // see Recorder::table()
    std::shared_ptr<Metrics> metrics;  // observes the run; may be null
    bool checkpoints = false;          // makes checkpoints as configured, if the server allows them
    TrafficRecording* traffic = nullptr;  // records what the servers see; null: not recorded
    bool tensorBoard = false;             // writes event files into the run's folder `tensorboard`
  };
  // Creates the record files and starts the session. `decide` is called on this thread, within
  // runBatch().
  void start(DecideFunction decide, const Options& options);
  // Loads the bodies' initial weights if the configuration has any. Does not send them to a server
  // that already has them. Call before the first batch.
  void loadWeights();
  // Whether the run continues from a checkpoint.
  bool resumes() const { return joins_ || !prepared_.commits.empty(); }
  // Call instead of loadWeights() to continue from a checkpoint. Restores all sides from the
  // newest checkpoint that all have; a member that joins its cohort gets its part from the first
  // one. Returns the notes that were passed to copyState(). Throws RunError "no-checkpoint",
  // "bad-checkpoint", UsageError "other-run-spec", "inexact".
  nlohmann::json resume();
  // In a relay. Whether the run continues from the end of the turn before this one.
  bool beginsTurn() const { return settings().cohort.isRelay() && joins_; }
  // Whether the client has a turn with steps; otherwise its turns are over.
  bool hasTurn() const;
  // Whether there are turns after this one.
  bool hasTurnsAfter() const;
  // Call at the end of the turn, when its last step has a checkpoint: seals this client's part of
  // it, and passes it to the server for the next member. `notes`: Trainer::notes(), of which the
  // results are kept for this member's next turn. Throws RunError.
  void handOver(const nlohmann::json& notes);
  // Call after resume() or loadWeights().
  const ResumeCounts& resumeCounts() const { return resumeCounts_; }
  // Null if the run makes no checkpoints.
  Checkpointer* checkpointer() { return checkpointer_.get(); }
  // Call after a step whose decision had `checkpoint` set. Copies the client's part of the
  // checkpoint; `notes` are stored in it.
  std::shared_ptr<PartSnapshot> copyState(const nlohmann::json& notes) const;
  // Saves the copy on other threads. Call it after the step has been recorded, and before the next
  // step.
  void saveCheckpoint(std::shared_ptr<PartSnapshot> part);

  // Runs one batch to its end, and returns its division into micro-batches. The batch is borrowed
  // during the call. Throws RunError with the cause if the run ended; see
  // ClientSession::runBatch().
  MicroBatch runBatch(Phase phase, std::uint64_t step, const Batch& batch);
  // The two halves of runBatch(), for training steps that overlap; see ClientSession. The batch is
  // borrowed until finishBatch() has been called for it. Batches end in the order in which they
  // begin.
  bool mayBeginStep(std::uint64_t step) const;
  MicroBatch beginBatch(Phase phase, std::uint64_t step, const Batch& batch);
  void finishBatch();

  // Sends Bye with the reason "done", "interrupted" or "failed". Nothing can be sent afterwards.
  void close(const std::string& reason) { session_.close(reason); }
  // Records the bytes since the last row, and waits until all rows are written.
  void finishRecords();

  const PreparedRun& prepared() const { return prepared_; }
  const ClientSettings& settings() const { return prepared_.settings; }
  const Datasets& data() const { return prepared_.data; }
  ClientStage& stage() { return stage_; }
  ClientSession& session() { return session_; }
  GradientCheck* check() { return check_; }  // null: there is none
  // After connect(): a server's answer to the Hello.
  const wire::HelloOk& answer(std::size_t body = 0) const { return session_.answer(body); }
  // After connect(). Whether all servers allow the client to fetch weights, or to make checkpoints.
  bool mayFetchWeights() const;
  bool mayMakeCheckpoints() const;
  RunFiles& files() { return *files_; }  // after start()
  Recorder& recorder() { return recorder_; }

 private:
  void prepareWeights();
  void checkReplicaGroups() const;
  ServerRequest requestFor(std::size_t body);
  void requestEdges(std::size_t body, wire::Hello& hello) const;
  void announceMember(wire::Member& member);
  void enterCohort();
  void announceTurn(std::uint64_t from) const;
  std::uint64_t allTurns() const;  // of all members together
  nlohmann::json restoreFromSender();
  Blob receiveState(std::uint64_t step, const std::string& name);
  std::vector<std::byte> stateToSend(const CheckpointContent& own) const;
  nlohmann::json ofThisMember(nlohmann::json notes) const;
  std::string sealContext(std::uint64_t step) const;
  void writeCohortFile(const std::vector<std::string>& waitsFor) const;
  bool allAnswers(const std::function<bool(const wire::HelloOk& ok)>& holds) const;
  void findOwnCheckpoints();
  void forgetAfter(std::uint64_t step) const;
  bool isAvailable(std::uint64_t step) const;
  const RunCommit& chooseCommit() const;
  std::uint64_t resumeStep() const;
  void continueAt(std::uint64_t step);
  void continuedAt(std::uint64_t step);
  void checkExact(const CheckpointInfo& own) const;

  PreparedRun& prepared_;
  ClientStage stage_;
  std::vector<std::string> edgeTokens_;   // of the edge after each body but the last
  std::vector<SharedBytes> bodyWeights_;  // by server, until they are sent; may be empty
  // In a cohort, what this member has announced: its undamaged checkpoints, newest first, without
  // the digests of the servers' parts, which a commit would have.
  std::vector<RunCommit> ownCheckpoints_;
  wire::Member past_;             // what is announced about them
  nlohmann::json ownSpent_;       // in the newest one, what this member has spent; null: nothing
  std::uint64_t stateBytes_ = 0;  // maximum size of this member's part of a checkpoint
  bool joins_ = false;            // it lacks the checkpoint that the others continue from
  std::string sealKey_;           // in a relay
  std::uint32_t sender_ = 0;      // in a cohort, the first member present that has it
  ResumeCounts resumeCounts_;
  Recorder recorder_;
  std::unique_ptr<Checkpointer> checkpointer_;  // used by the session's callbacks
  ClientSession session_;
  std::shared_ptr<RunFiles> files_;
  TrafficRecording* traffic_ = nullptr;
  GradientCheck* check_ = nullptr;
};

// A loaded batch in the form that stages take. Borrows the batch's memory.
BatchView viewOf(const Batch& batch);

// The seconds of each action in the training step that has just ended, on all sides: a server
// measures its body's actions and sends their seconds in BodyDone. The actions of several bodies
// are added.
ActionSeconds actionsOfAllSides(const Coordinator& engine);

}  // namespace cleave
