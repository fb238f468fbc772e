// The content of a checkpoint: a safetensors file with all that one part of a run (head and tail,
// or a body) carries from step to step. Needs no Torch.
//
//   NAME                 parameters, buffers and optimizer state, from BodyStage::save()
//   codec:FLOW:I         the bytes of a flow's codec state, except samples of its samples;
//                        codec:FLOW:I@K of the link to member K > 0 of a cohort
//   run:state            JSON: steps applied, batches evaluated, digest of the run spec, notes
//
// Samples of samples are in files of their own, so that a checkpoint contains only those that have
// changed since an earlier one.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "common/checkpoint/checkpoint_store.h"
#include "common/codec/safetensors.h"
#include "common/engine/engine.h"
#include "common/link/tensor_codecs.h"

namespace cleave {

struct PartState {
  EngineState engine;
  std::string spec;   // digestOf() the run spec
  std::string notes;  // the part's own JSON
  std::vector<TensorCodecs::SavedState> codecs;
};

// Returns the contents of a checkpoint file. `stage`: a safetensors file. Any thread.
std::vector<std::byte> checkpointFile(const PartState& state, const std::vector<std::byte>& stage);
// Returns the contents of the file with the samples of `state.codecs`, in pieces that share their
// memory: a safetensors file whose tensors have the names codec:FLOW:I. Empty if there are none.
// Any thread.
std::vector<HeldBytes> samplesFile(const PartState& state);

struct CheckpointContent : PartState {
  std::vector<SafetensorsEntry> stage;  // the entries point into the file
};
// Throws RunError "bad-checkpoint" if it is not the checkpoint of a run with this spec's digest.
// `name` identifies the file in errors.
CheckpointContent readCheckpoint(std::string_view file, const std::string& spec,
                                 const std::string& name);
// Reads what samplesFile() returned; the result shares the file's memory. Throws RunError
// "bad-checkpoint".
std::vector<TensorCodecs::SavedState> readSamples(const HeldBytes& file, const std::string& name);
// Reads a checkpoint with its samples, from `store`. The result points into `checkpoint.file`.
// Throws RunError "bad-checkpoint" or "cannot-read".
CheckpointContent readCheckpoint(const CheckpointStore& store, const Checkpoint& checkpoint,
                                 const std::string& spec);

}  // namespace cleave
