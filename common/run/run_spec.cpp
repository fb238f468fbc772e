#include "common/run/run_spec.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

#include <algorithm>
#include <cmath>

#include "common/core/sha256.h"
#include "proto/wire.pb.h"

namespace cleave {

void toWire(const RunSpec& spec, wire::RunSpec& proto) {
  proto.Clear();
  proto.set_model(spec.model);
  proto.mutable_model_parameters()->insert(spec.modelParameters.begin(),
                                           spec.modelParameters.end());
  proto.set_cut0(spec.cut0);
  proto.set_cut1(spec.cut1);
  proto.set_cut_number(spec.cutNumber);
  proto.mutable_sample_shape()->Add(spec.sampleShape.begin(), spec.sampleShape.end());
  proto.set_classes(spec.classes);
  proto.set_max_batch(spec.maxBatch);
  proto.set_micro_batches(spec.microBatches);
  proto.set_in_flight(spec.inFlight);
  proto.set_schedule(spec.schedule);
  proto.mutable_codecs()->insert(spec.codecs.begin(), spec.codecs.end());
  proto.mutable_optimizer()->set_name(spec.optimizer.name);
  proto.mutable_optimizer()->mutable_parameters()->insert(spec.optimizer.parameters.begin(),
                                                          spec.optimizer.parameters.end());
  for (const ParameterGroup& group : spec.optimizer.groups) {
    wire::ParameterGroup& each = *proto.mutable_optimizer()->add_groups();
    each.set_match(group.match);
    if (group.weightDecay) each.set_weight_decay(*group.weightDecay);
  }
  proto.set_seed(spec.seed);
  proto.set_precision(spec.precision);
  proto.set_threads(spec.threads);
  proto.set_steps_per_epoch(spec.stepsPerEpoch);
  proto.set_initial_weights(spec.initialWeights);
  proto.set_raw_non_finite(spec.rawNonFinite);
  proto.set_trace_first(spec.trace.first);
  proto.set_trace_steps(spec.trace.steps);
  proto.set_graph(spec.graph);
  proto.set_graph_digest(spec.graphDigest);
  proto.mutable_freeze()->Add(spec.freeze.begin(), spec.freeze.end());
  proto.set_head_is_frozen(spec.headIsFrozen);
  proto.set_recompute(spec.recompute);
  proto.set_average_decay(spec.averageDecay);
  for (const InsertSpec& insert : spec.inserts) {
    wire::Insert& each = *proto.add_inserts();
    each.set_cut(insert.cut);
    each.set_kind(insert.kind);
    for (const auto& [name, value] : insert.parameters) {
      constexpr double kMaxWhole = 1e15;  // fp64 represents all whole numbers up to it
      if (value >= 0 && value <= kMaxWhole && value == std::floor(value)) {
        (*each.mutable_parameters())[name] = static_cast<std::uint64_t>(value);
      } else {
        (*each.mutable_fractions())[name] = value;
      }
    }
  }
  proto.set_train_samples(spec.trainSamples);
  proto.set_staleness(spec.staleness);
  proto.set_codec_levels(spec.codecLevels);
  proto.set_watch_every(spec.watchEvery);
  if (spec.replicas > 1) proto.set_replicas(spec.replicas);
  proto.set_replica(spec.replica);
}

RunSpec runSpecFromWire(const wire::RunSpec& proto) {
  RunSpec spec;
  spec.model = proto.model();
  spec.modelParameters = {proto.model_parameters().begin(), proto.model_parameters().end()};
  spec.cut0 = proto.cut0();
  spec.cut1 = proto.cut1();
  spec.cutNumber = proto.cut_number();
  spec.sampleShape = {proto.sample_shape().begin(), proto.sample_shape().end()};
  spec.classes = proto.classes();
  spec.maxBatch = proto.max_batch();
  spec.microBatches = proto.micro_batches();
  spec.inFlight = proto.in_flight();
  spec.schedule = proto.schedule();
  spec.codecs = {proto.codecs().begin(), proto.codecs().end()};
  spec.optimizer = {proto.optimizer().name(),
                    {proto.optimizer().parameters().begin(), proto.optimizer().parameters().end()},
                    {}};
  for (const wire::ParameterGroup& each : proto.optimizer().groups()) {
    ParameterGroup group{each.match(), std::nullopt};
    if (each.has_weight_decay()) group.weightDecay = each.weight_decay();
    spec.optimizer.groups.push_back(group);
  }
  spec.seed = proto.seed();
  spec.precision = proto.precision();
  spec.threads = proto.threads();
  spec.stepsPerEpoch = proto.steps_per_epoch();
  spec.initialWeights = proto.initial_weights();
  spec.rawNonFinite = proto.raw_non_finite();
  spec.trace = {proto.trace_first(), proto.trace_steps()};
  spec.graph = proto.graph();
  spec.graphDigest = proto.graph_digest();
  spec.freeze = {proto.freeze().begin(), proto.freeze().end()};
  spec.headIsFrozen = proto.head_is_frozen();
  spec.recompute = proto.recompute();
  spec.averageDecay = proto.average_decay();
  for (const wire::Insert& each : proto.inserts()) {
    InsertSpec& insert = spec.inserts.emplace_back();
    insert.cut = each.cut();
    insert.kind = each.kind();
    for (const auto& [name, value] : each.parameters()) {
      insert.parameters[name] = static_cast<double>(value);
    }
    for (const auto& [name, value] : each.fractions()) insert.parameters[name] = value;
  }
  spec.trainSamples = proto.train_samples();
  spec.staleness = proto.staleness();
  spec.codecLevels = proto.codec_levels();
  spec.watchEvery = proto.watch_every();
  spec.replicas = std::max(1u, proto.replicas());
  spec.replica = proto.replica();
  return spec;
}

std::string digestOf(const RunSpec& spec) {
  RunSpec untraced = spec;
  untraced.trace = {};
  wire::RunSpec proto;
  toWire(untraced, proto);
  std::string bytes;
  {
    google::protobuf::io::StringOutputStream stream(&bytes);
    google::protobuf::io::CodedOutputStream coded(&stream);
    coded.SetSerializationDeterministic(true);
    proto.SerializeToCodedStream(&coded);
  }
  return sha256Of(bytes);
}

}  // namespace cleave
