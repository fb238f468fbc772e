// A run spec is a JSON object with one member per field of the tables below and in
// experiment_fields.cpp. Reading and writing visit the same fields, so neither can forget one.
#include "common/run/run_spec.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <concepts>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "common/checkpoint/checkpoint_store.h"
#include "common/core/printable.h"
#include "common/files/sha256.h"
#include "common/run/experiment_fields.h"
#include "compression/registry.h"
#include "proto/wire.pb.h"

namespace cleave {
namespace {

using Json = nlohmann::json;

// These limits exceed what experiments need, and are small enough that their products fit 64 bits.
constexpr double kMaxBlocks = 1 << 16;
constexpr double kMaxBatch = 1 << 20;
constexpr double kMaxClasses = 1 << 20;

// The fields that do not come from one key: from the model, the data and the body's position.
struct BodyField {
  std::string_view name;
  std::variant<bool RunSpec::*, std::uint32_t RunSpec::*, std::uint64_t RunSpec::*,
               TraceWindow RunSpec::*>
      member;
  FieldRange range = {};
};
const BodyField kBodyFields[] = {
    {"cut0", &RunSpec::cut0, {0, kMaxBlocks}},
    {"cut1", &RunSpec::cut1, {0, kMaxBlocks}},
    {"cut_number", &RunSpec::cutNumber, {0, kMaxServers - 1}},
    {"bodies", &RunSpec::bodies, {1, kMaxServers}},
    {"max_batch", &RunSpec::maxBatch, {1, kMaxBatch}},
    {"train_batch", &RunSpec::trainBatch, {1, kMaxBatch}},
    {"steps_per_epoch", &RunSpec::stepsPerEpoch},
    {"train_samples", &RunSpec::trainSamples},
    {"initial_weights", &RunSpec::initialWeights},
    {"head_is_frozen", &RunSpec::headIsFrozen},
    {"codec_levels", &RunSpec::codecLevels},
    {"watch_every", &RunSpec::watchEvery},
    {"replica", &RunSpec::replica, {0, kMaxBodyReplicas - 1}},
    {"trace", &RunSpec::trace},
};

constexpr FieldRange kAnyNumber{std::numeric_limits<double>::lowest(),
                                std::numeric_limits<double>::max()};

template <typename T, typename Of>
concept Is = std::same_as<std::remove_const_t<T>, Of>;

// Each calls visit(name, value, range) for all fields of a struct.
void forEachField(Is<RunSpec> auto& spec, auto visit) {
  for (const ExperimentField& field : experimentFields()) {
    std::visit([&](auto member) { visit(field.name, spec.*member, field.range); }, field.member);
  }
  for (const BodyField& field : kBodyFields) {
    std::visit([&](auto member) { visit(field.name, spec.*member, field.range); }, field.member);
  }
}

void forEachField(Is<ModelSpec> auto& model, auto visit) {
  visit("name", model.name, FieldRange());
  visit("parameters", model.parameters, FieldRange());
  visit("sample_shape", model.sampleShape, FieldRange());
  visit("classes", model.classes, FieldRange{0, kMaxClasses});
}

void forEachField(Is<OptimizerSpec> auto& optimizer, auto visit) {
  visit("name", optimizer.name, FieldRange());
  visit("parameters", optimizer.parameters, kAnyNumber);
  visit("groups", optimizer.groups, FieldRange());
}

void forEachField(Is<ParameterGroup> auto& group, auto visit) {
  visit("match", group.match, FieldRange());
  visit("weight_decay", group.weightDecay, FieldRange());
}

void forEachField(Is<InsertSpec> auto& insert, auto visit) {
  visit("cut", insert.cut, FieldRange());
  visit("kind", insert.kind, FieldRange());
  visit("parameters", insert.parameters, kAnyNumber);
}

void forEachField(Is<Cohort> auto& cohort, auto visit) {
  visit("id", cohort.id, FieldRange());
  visit("members", cohort.members, FieldRange());
  visit("mode", cohort.mode, FieldRange());
  visit("batch", cohort.batch, FieldRange{0, kMaxBatch});
  visit("eval_batch", cohort.evalBatch, FieldRange{0, kMaxBatch});
  visit("order", cohort.order, FieldRange());
  visit("min_members", cohort.minMembers, FieldRange{0, kMaxMembers});
  visit("begin_members", cohort.beginMembers, FieldRange{0, kMaxMembers});
  visit("wait_seconds", cohort.waitSeconds, FieldRange{0, kMaxWaitSeconds});
}

void forEachField(Is<TraceWindow> auto& trace, auto visit) {
  visit("first", trace.first, FieldRange());
  visit("steps", trace.steps, FieldRange{0, kMaxTraceSteps});
}

template <typename T>
concept HasFields = Is<T, RunSpec> || Is<T, ModelSpec> || Is<T, OptimizerSpec> ||
    Is<T, ParameterGroup> || Is<T, InsertSpec> || Is<T, Cohort> || Is<T, TraceWindow>;

template <typename T>
Json written(const T& value) {
  if constexpr (HasFields<T>) {
    Json object = Json::object();
    forEachField(value, [&](std::string_view name, const auto& field, FieldRange) {
      object[std::string(name)] = written(field);
    });
    return object;
  } else if constexpr (requires { requires HasFields<typename T::value_type>; }) {
    Json list = Json::array();
    for (const auto& each : value) list.push_back(written(each));
    return list;
  } else if constexpr (Is<T, Precision>) {
    return precisionName(value);
  } else if constexpr (Is<T, std::optional<double>>) {
    return value ? Json(*value) : Json();
  } else {
    return value;
  }
}

void require(bool isMet, const std::string& name, const std::string& what) {
  if (isMet) return;
  throw UsageError("bad-run-spec", "the run spec's " + name + " " + what,
                   "correct the value, or use the same version of Cleave on both machines");
}

// Throws UsageError "bad-run-spec" unless `json` is a valid value. `name`: of the field.
template <typename T>
void read(const Json& json, const std::string& name, FieldRange range, T& value) {
  if constexpr (HasFields<T>) {
    require(json.is_object(), name, "is not a map");
    std::size_t known = 0;
    forEachField(value, [&](std::string_view field, auto& member, FieldRange ofMember) {
      const auto found = json.find(std::string(field));
      require(found != json.end(), std::string(field), "is missing");
      read(*found, std::string(field), ofMember, member);
      ++known;
    });
    require(json.size() == known, name, "has an unknown field");
  } else if constexpr (std::same_as<T, bool>) {
    require(json.is_boolean(), name, "is not true or false");
    value = json.template get<bool>();
  } else if constexpr (std::integral<T>) {
    require(json.is_number_unsigned(), name, "is not a whole number");
    const double max = std::min(range.max, static_cast<double>(std::numeric_limits<T>::max()));
    const auto number = json.template get<std::uint64_t>();
    require(static_cast<double>(number) >= range.min && static_cast<double>(number) <= max, name,
            fmt::format("is {}, which is not in {}…{:.0f}", number, range.min, max));
    value = static_cast<T>(number);
  } else if constexpr (std::floating_point<T>) {
    require(json.is_number(), name, "is not a number");
    value = json.template get<T>();
    require(value >= range.min && value <= range.max, name,
            fmt::format("is {}, which is not in {}…{}", value, range.min, range.max));
  } else if constexpr (std::same_as<T, std::string>) {
    require(json.is_string(), name, "is not a text");
    value = printable(json.template get<std::string>());
  } else if constexpr (std::same_as<T, ParsedCodec>) {
    require(json.is_string(), name, "is not a text");
    value = parseCodec(printable(json.template get<std::string>()));
  } else if constexpr (std::same_as<T, Precision>) {
    require(json.is_string(), name, "is not a text");
    value = precisionFromName(printable(json.template get<std::string>()));
  } else if constexpr (Is<T, std::optional<double>>) {
    if (!json.is_null()) read(json, name, range, value.emplace());
  } else if constexpr (requires { typename T::mapped_type; }) {
    require(json.is_object(), name, "is not a map");
    for (const auto& [key, item] : json.items()) read(item, name, range, value[printable(key)]);
  } else {
    require(json.is_array(), name, "is not a list");
    for (const Json& item : json) read(item, name, range, value.emplace_back());
  }
}

RunSpec specOf(const Json& json) {
  RunSpec spec;
  read(json, "top level", {}, spec);
  return spec;
}

}  // namespace

void toWire(const RunSpec& spec, wire::RunSpec& proto) {
  proto.Clear();
  proto.set_fields(written(spec).dump());
  proto.set_graph(spec.graph);
  proto.set_graph_digest(spec.graphDigest);
}

RunSpec runSpecFromWire(const wire::RunSpec& proto) {
  // A JSON value is copied and destroyed recursively.
  constexpr int kMaxDepth = 8;
  const auto isShallow = [](int depth, Json::parse_event_t, Json&) {
    require(depth <= kMaxDepth, "JSON", "nests too deeply");
    return true;
  };
  RunSpec spec = specOf(Json::parse(proto.fields(), isShallow, false));
  spec.graph = proto.graph();
  spec.graphDigest = proto.graph_digest();
  return spec;
}

Json toJson(const RunSpec& spec) {
  Json json = written(spec);
  if (spec.graph.empty()) return json;
  json["graph"] = hexOf(spec.graph);
  json["graph_digest"] = hexOf(spec.graphDigest);
  return json;
}

RunSpec runSpecFromJson(Json json) {
  const auto take = [&](const char* name) {
    const std::string bytes = bytesOfHex(json.value(name, ""));
    json.erase(name);
    return bytes;
  };
  std::string graph = take("graph");
  std::string digest = take("graph_digest");
  RunSpec spec = specOf(json);
  spec.graph = std::move(graph);
  spec.graphDigest = std::move(digest);
  return spec;
}

std::string digestOf(const RunSpec& spec) {
  RunSpec untraced = spec;
  untraced.trace = {};
  wire::RunSpec proto;
  toWire(untraced, proto);
  return sha256Of(proto.SerializeAsString());
}

}  // namespace cleave
