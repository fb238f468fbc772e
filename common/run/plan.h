// A resolved run: the parameters that client and server derive, with the same code, from the run
// spec that the client sends.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/codec/codec_plan.h"
#include "common/cohort/joint_plan.h"
#include "common/engine/engine.h"
#include "common/model/graph/graph_blocks.h"
#include "common/model/stage/stage.h"
#include "common/run/run_spec.h"

namespace cleave {

struct TensorLinkOptions;

struct RunPlan {
  RunSpec spec;
  StageOptions stage;
  std::vector<BlockSpec> blocks;
  Place place;  // the body's place
  const Schedule* schedule = nullptr;
  // Of the batches, the maximum number of micro-batches, of those in flight, and of samples: in a
  // replica's plan, of its share of a batch.
  std::uint32_t microBatches = 1;
  std::uint32_t inFlight = 1;
  std::uint32_t maxBatch = 1;
  // Whether the bodies of the run have direct links between them. Set after planRun().
  bool hasEdges = false;
  // Whether this side keeps samples, for codecs that do, in files. Set after planRun().
  bool samplesOnDisk = false;
  // The maximum number of samples that are kept; a trial uses few of the training data. Set by
  // planRun() to all of them.
  std::uint32_t maxKeptSamples = 0;
  CodecPlan codecs;  // useDeviceCodecs() adds the GPU implementations
  // The batches of a cohort. Set after planRun(), when all members are known; else null.
  std::shared_ptr<const JointPlan> joint;
  std::size_t partBytes = 0;  // in a cohort: maximum size of parts/client and sums/client
  // The position of this client among the members of its cohort that take part, known when `joint`
  // is set; before, its number in the cohort. nullopt: none, or the plan of a server.
  std::optional<std::uint32_t> member = std::nullopt;

  std::vector<Flow> flows() const { return place.flows(); }
  // How a batch of one client is divided.
  Division divide(std::uint32_t samples) const { return Division::of(samples, spec.microBatches); }
  // How a batch of the whole body is divided. `samples`: of all members together.
  Division division(Phase phase, std::uint64_t step, std::uint32_t samples) const {
    return joint ? joint->division(phase, step) : divide(samples);
  }
  std::uint32_t largestMicroBatch() const { return divide(spec.maxBatch).largest(); }  // in samples
  PartLoad load(int threads) const {
    return {divide(spec.trainBatch).largest(), largestMicroBatch(), threads};
  }
};

// The places of these bodies.
std::vector<Place> placesOf(std::span<const RunPlan> bodies);

// Checks that the schedule supports this staleness. Throws UsageError "bad-staleness".
void checkStaleness(const Schedule& schedule, std::uint32_t staleness);

// Checks the number of replicas, the rank, and that each replica has a micro-batch. Throws
// UsageError "bad-run-spec", or "bad-staleness" if the schedule does not support staleness with
// replicas.
void checkReplicas(const RunSpec& spec, const Schedule& schedule);

// Checks what a cohort requires of the other settings. Throws UsageError "bad-cohort".
void checkCohort(const RunSpec& spec, const CodecPlan& codecs);

// Checks that the body's codecs can be used if it has an edge before it or after it. Throws
// UsageError "bad-codec-spec".
void checkEdgeCodecs(const RunPlan& plan, bool hasEdgeBefore, bool hasEdgeAfter);

// Sets the batches of a cohort in `plans`. `roster`, `shareValues`: what its members have
// announced (ClientStage::shareSize()). Throws UsageError "bad-cohort".
void joinMembers(const RunSpec& spec, Roster roster, std::uint64_t shareValues,
                 std::span<RunPlan*> plans);

// The plan of a body's server. Throws UsageError if a value is unknown, out of range or
// inconsistent. Builds and allocates nothing.
RunPlan planRun(const RunSpec& spec);
// The plan of one of the body's replicas. `whole`: from planClient().
RunPlan planReplica(RunPlan whole, std::uint32_t rank);
// Like planRun(), for the client of a run with these cuts between its bodies. The plan has the
// flows before the first body and after the last one. `graphBlocks`: all blocks of the model
// "graph"; else null.
RunPlan planClient(const RunSpec& spec, const std::vector<int>& innerCuts,
                   const GraphBlocks& graphBlocks);

// If a flow's codec has a GPU implementation, keeps that flow's tensors on this side's device.
// Borrows the device.
void useDeviceCodecs(RunPlan& plan, ComputeDevice& device);

// The size of the output's last dimension, such as the number of classes; 0 for a single number.
std::int64_t outputSize(const RunPlan& plan);

// Return the options that a plan determines; the caller adds the others. Of a cohort, call them
// when `joint` is set.
EngineOptions engineOptions(const RunPlan& plan);
TensorLinkOptions linkOptions(const RunPlan& plan, Role role);

// Bytes of pool buffers on a client or a server for the tensors of all flows of the micro-batches
// in flight, both decoded and encoded.
double flowBytes(const RunPlan& plan, Role role);

// Bytes of pool buffers on the client for the encoded tensors of the micro-batches in flight that
// it passes on from one body to the next; 0 with direct links.
double passedOnBytes(const std::vector<RunPlan>& bodies);

// The floats that a replica adds to those of the others in each step; 0 without replicas.
std::size_t shareSize(const RunPlan& plan);

// Maximum size of the samples that the codecs of all flows keep (SampleCache), on each side, in
// memory or in files.
double sampleCacheBytes(const RunPlan& plan);
// The part of it that is in memory.
double samplesMemory(const RunPlan& plan);
// The disk space that kept samples need, in addition to that of checkpoints: their files, and one
// copy for a checkpoint.
std::size_t samplesDiskBytes(const RunPlan& plan);

// Maximum host memory that a run's session, or those of all members of a cohort together, may hold
// in transit on the server, from a tensor's arrival or a stage's output until its release: the
// limit of its MemoryAccount.
std::size_t transitBytes(const RunPlan& plan);
// The memory that the server needs for a run, by purpose.
struct MemoryTerm {
  std::string purpose;  // "tensors in transit"
  double bytes = 0;
  const char* hint = "";  // a command that lowers it, with the key
};
std::vector<MemoryTerm> serverMemory(const RunPlan& plan);
// The first of the largest of these terms.
MemoryTerm largestServerMemory(const RunPlan& plan);
// The sum of these terms.
std::size_t serverBytes(const RunPlan& plan);

// The memory that the server needs for one member of a cohort, besides serverBytes(): its samples
// in the plan of the batches, and its part of a sum. `shareValues`: what it announces.
std::size_t memberBytes(std::uint64_t samples, std::uint64_t shareValues);
// What it needs once for all members: the last two sums, and the state that one member sends to
// those that join.
std::size_t cohortBytes(std::uint64_t shareValues, std::uint64_t stateBytes);

// The part of serverBytes() for unpacking initial weights, in addition to the buffer that they
// arrived in; 0 without initial weights.
std::size_t unpackedWeightsBytes(const RunPlan& plan);
// The memory in which the process of a body writes its results: of all micro-batches in flight,
// with as much again for the gaps between them, and kStagePieceBytes. A part of serverBytes().
std::size_t stageOutputBytes(const RunPlan& plan);
// Weights and states leave and enter the process in pieces of this size.
inline constexpr std::size_t kStagePieceBytes = std::size_t{1} << 20;
// Maximum memory that the process of a body may allocate: a part of serverBytes(), and a hard
// limit.
std::size_t stageProcessBytes(const RunPlan& plan);

// Additional memory that the server needs to make or load a checkpoint: the file of the body's
// state, of which its process has a copy; of kept samples in memory, a copy.
std::size_t snapshotBytes(const RunPlan& plan);

// Maximum size in bytes of the body's weights as safetensors.
std::uint64_t maxWeightsBytes(const RunPlan& plan);

}  // namespace cleave
