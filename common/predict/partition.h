// Divides a model's layers into the stages of a pipeline and assigns workers to each stage. Pure
// arithmetic. Source: Narayanan et al., "PipeDream: Generalized Pipeline Parallelism for DNN
// Training", SOSP 2019, section 3.1.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace cleave {

// A layer's costs for one batch (a minibatch in the paper).
struct LayerCosts {
  double seconds = 0;      // forward and backward
  double outputBytes = 0;  // what the next layer receives; as many bytes of gradients come back
  double parameterBytes = 0;
  double savedBytes = 0;  // what forward keeps in memory for backward
};

struct Cluster {
  std::uint32_t workers = 1;
  double bandwidth = 0;             // bytes per second of each worker, in each direction
  std::uint32_t maxReplicas = ~0u;  // of a stage
};

// Layers [first, last), on `replicas` workers, each of which processes every replicas-th batch.
struct PipelineStage {
  std::size_t first = 0, last = 0;
  std::uint32_t replicas = 1;
  bool operator==(const PipelineStage&) const = default;
};

struct Partition {
  std::vector<PipelineStage> stages;
  double seconds = 0;  // per batch of a full pipeline, set by the slowest stage or transfer
  double bytes = 0;    // sent by all workers per batch
  // Per stage: the bytes of memory of one of its workers. It keeps, for each batch in flight, a
  // version of the weights and what forward saved for backward; and the gradients.
  std::vector<double> memory;
};

// With T the sum of a stage's seconds, w that of its parameter bytes, r its replicas, a the output
// bytes of the layer before it, and B the bandwidth:
//   seconds of a stage     (T + 2 (r - 1) / r x w / B) / r
//   bytes of a stage       2 (r - 1) / r x w
//   transfer to a stage    2 a / B seconds, 2 a bytes
// The replicas of a stage compute r batches at the same time, and then sum their gradients with a
// ring all-reduce. Its time is added, because it ends before the next forward of a synchronous
// step. PipeDream, which overlaps the two, takes the maximum instead. A worker of a stage has
// ceil(n / r) batches in flight if n workers compute this stage and those after it.
//
// Both functions throw std::invalid_argument without layers or workers, if a cost is negative or
// not finite, and if the bandwidth is not positive.
Partition partitionOf(const std::vector<LayerCosts>& layers, const Cluster& cluster,
                      std::vector<PipelineStage> stages);

// Considers all partitions into consecutive stages that use all workers. From those within
// `tolerance` of the fastest, returns one with the fewest stages and, among these, the fewest
// bytes. Throws std::invalid_argument also if there is none: with maxReplicas, too few layers.
Partition bestPartition(const std::vector<LayerCosts>& layers, const Cluster& cluster,
                        double tolerance = 0.05);

// As the paper writes it: "15-1" for stages of 15 and 1 workers, "16" for data parallelism,
// "straight" for a pipeline with one worker per stage.
std::string configurationText(const Partition& partition);

}  // namespace cleave
