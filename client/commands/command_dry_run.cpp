// cleave-client train --dry-run: prints what a run would compute, send and require, from the
// configuration and the data alone. It starts no process, opens no connection and writes no files.

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>

#include "client/commands/commands.h"
#include "client/planning/exposure.h"
#include "client/run/prepare.h"
#include "common/core/log.h"
#include "common/core/printable.h"
#include "common/core/terminal.h"
#include "common/core/units.h"
#include "common/model/blocks.h"
#include "common/model/inserts.h"
#include "compression/registry.h"

namespace cleave {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kSentenceColumns = 100;  // of sentences

struct Part {
  std::string name;
  std::string side;
  int first, last;  // block indices
};

std::vector<Part> partsOf(const RunPlan& plan) {
  const std::vector<int> cuts = plan.stage.allCuts();
  std::vector<Part> parts = {{"head", "client", 0, cuts.front()}};
  for (std::size_t b = 0; b + 1 < cuts.size(); ++b) {
    const std::string number = cuts.size() == 2 ? "" : fmt::format(" {}", b + 1);
    parts.push_back({"body" + number, "server" + number, cuts[b], cuts[b + 1]});
  }
  parts.push_back({"tail", "client", cuts.back(), static_cast<int>(plan.blocks.size())});
  return parts;
}

Json describePart(const RunPlan& plan, const Part& part) {
  Json blocks = Json::array();
  for (int position = part.first; position < part.last; ++position) {
    const BlockSpec& block = plan.blocks[static_cast<std::size_t>(position)];
    const std::int64_t parameters = parameterCount(plan.blocks, position, position + 1);
    blocks.push_back({{"position", position},
                      {"name", block.name},
                      {"output_shape", block.outputShape()},
                      {"parameters", parameters},
                      {"parameter_bytes", parameters * sizeof(float)}});
  }
  const std::int64_t parameters = parameterCount(plan.blocks, part.first, part.last);
  return {{"part", part.name},
          {"side", part.side},
          {"parameters", parameters},
          {"parameter_bytes", parameters * sizeof(float)},
          {"blocks", blocks}};
}

// The inserts, with what crosses their cut per sample without and with each of them.
Json describeInserts(const RunPlan& plan) {
  StageOptions plain = plan.stage;
  const std::vector<InsertSpec> inserts = std::exchange(plain.inserts, {});
  const std::vector<PlacedInsert> placed = placeInserts(blocksFor(plain), inserts, plain.allCuts(),
                                                        static_cast<int>(plain.cuts.number0));
  Json described = Json::array();
  for (std::size_t n = 0; n < inserts.size(); ++n) {
    const InsertHalf &encoder = placed[n].layers.encoder, &decoder = placed[n].layers.decoder;
    std::int64_t parameters = 0;
    for (const InsertHalf* half : {&encoder, &decoder}) {
      for (const ParameterSpec& tensor : half->tensors) {
        if (!tensor.isBuffer) parameters += elementCount(tensor.shape);
      }
    }
    described.push_back({{"cut", inserts[n].cut},
                         {"kind", inserts[n].kind},
                         {"shape", decoder.output},
                         {"encoded_shape", encoder.output},
                         {"bytes_per_sample", elementCount(decoder.output) * sizeof(float)},
                         {"encoded_bytes_per_sample", elementCount(encoder.output) * sizeof(float)},
                         {"parameters", parameters}});
  }
  return described;
}

struct Bytes {
  std::uint64_t raw = 0;
  std::uint64_t encoded = 0;
};

// The bytes that one flow transfers in a batch: the sum over all its micro-batches.
Bytes batchBytes(const RunPlan& plan, Flow flow, std::uint32_t samples) {
  Bytes bytes;
  const Division division = plan.divide(samples);
  for (std::uint32_t i = 0; i < division.count; ++i) {
    const TensorSpec spec = flowSpec(plan.blocks, plan.stage.cuts, flow, division.size(i));
    bytes.raw += spec.bytes();
    bytes.encoded += plan.codecs.at(flow).own->expectedBytes(spec);
  }
  return bytes;
}

// A flow on a link: "up" or "down" between the client and a body, "direct" between two servers.
struct Crossing {
  const RunPlan* body;
  Flow flow;
  std::string direction;
};

// The flows on all links, in the order of the model.
std::vector<Crossing> crossingsOf(const PreparedRun& run) {
  std::vector<Crossing> crossings;
  for (const RunPlan& body : run.bodies) {
    if (body.stage.replica.rank > 0) continue;  // shares the batch with the first one
    for (const Flow flow : body.flows()) {
      const bool isUp = body.place.isUp(flow);
      const bool isDirect = run.settings.hasEdges() && !run.plan.place.contains(flow);
      if (isDirect && isUp) continue;  // listed with the body that sends it
      crossings.push_back({&body, flow, isDirect ? "direct" : isUp ? "up" : "down"});
    }
  }
  return crossings;
}

// For each direction, the encoded bytes of all batches into which `samples` samples are divided.
Json encodedBytes(const PreparedRun& run, Phase phase, std::uint32_t samples, std::uint32_t batch) {
  std::map<std::string, std::uint64_t> bytes;
  const std::uint32_t whole = samples / batch;
  const std::uint32_t rest = samples % batch;
  for (const auto& [body, flow, direction] : crossingsOf(run)) {
    if (phase == Phase::eval && isGradient(flow)) continue;
    bytes[direction] += whole * batchBytes(*body, flow, batch).encoded;
    if (rest > 0) bytes[direction] += batchBytes(*body, flow, rest).encoded;
  }
  return {
      {"up_bytes", bytes["up"]}, {"down_bytes", bytes["down"]}, {"direct_bytes", bytes["direct"]}};
}

Json describeFlow(const PreparedRun& run, const Crossing& crossing) {
  const RunPlan& plan = *crossing.body;
  const Flow flow = crossing.flow;
  const Codec& codec = *plan.codecs.at(flow).own;
  const std::uint32_t batch = trainBatchOf(run.settings, run.data);
  const std::uint32_t samples = plan.divide(batch).largest();
  const TensorSpec spec = flowSpec(plan.blocks, plan.stage.cuts, flow, samples);
  const Bytes step = batchBytes(plan, flow, batch);
  const auto& autos = run.settings.autoCodecs;
  const auto choices = autos.find(flowName(flow));
  const bool isMeasured =
      choices != autos.end() && choices->second.size() > 1 && run.bodies.size() == 1;
  return {{"flow", flowName(flow)},
          {"direction", crossing.direction},
          {"cut", flow.cut},
          {"micro_batch_shape", spec.shape},
          {"memory_order", memoryOrderName(spec.order)},
          {"codec", codec.spec()},
          {"auto_chooses_among", isMeasured ? Json(choices->second) : Json()},
          {"raw_bytes_per_step", step.raw},
          {"encoded_bytes_per_step", step.encoded},
          {"encoded_bytes_are", !isFloat(spec.dtype) ? "for zeros and ones"
                                : sizeIsFixed(codec) ? "exact"
                                                     : "at most"}};
}

std::vector<std::string> textsOf(const std::vector<SampleArray>& arrays) {
  std::vector<std::string> texts;
  for (const SampleArray& array : arrays) texts.push_back(toString(array));
  texts.back() += " (target)";
  return texts;
}

// The largest part of a server's memory, and the key of the batches for which it is computed.
Json describeLargestTerm(const PreparedRun& run, const RunPlan& body) {
  const MemoryTerm largest = largestServerMemory(body);
  const std::uint32_t trainBatch = trainBatchOf(run.settings, run.data);
  RunPlan smaller = body;
  smaller.spec.maxBatch = std::min(body.spec.maxBatch, trainBatch);
  smaller.maxBatch = std::min(body.maxBatch, trainBatch);
  // Batches of evaluation may be larger, but nothing is kept of them for a backward.
  const std::vector<MemoryTerm> ofTraining = serverMemory(smaller);
  const bool isOfEvaluation = std::ranges::none_of(ofTraining, [&](const MemoryTerm& each) {
    return each.purpose == largest.purpose && each.bytes == largest.bytes;
  });
  Json term = {{"purpose", largest.purpose},
               {"bytes", static_cast<std::uint64_t>(largest.bytes)},
               {"batch", isOfEvaluation ? "eval.batch" : "train.batch"},
               {"samples", isOfEvaluation ? body.spec.maxBatch : smaller.spec.maxBatch}};
  if (isOfEvaluation) term["server_memory_bytes_with_train_batch"] = serverBytes(smaller);
  return term;
}

Json describeTerms(const RunPlan& body) {
  Json terms = Json::array();
  for (const MemoryTerm& term : serverMemory(body)) {
    terms.push_back({{"purpose", term.purpose},
                     {"bytes", static_cast<std::uint64_t>(term.bytes)},
                     {"lowered_by", term.hint}});
  }
  return terms;
}

Json describe(const PreparedRun& run) {
  const RunPlan& plan = run.plan;
  const ClientSettings& settings = run.settings;
  Json out;
  out["config"] = settings.resolved;
  out["data"] = {{"train_samples", run.data.train->size()},
                 {"test_samples", run.data.test->size()},
                 {"arrays", textsOf(run.data.train->arrays())},
                 {"classes", run.data.train->classes()}};
  out["steps"] = totalSteps(settings, run.trainSamples());
  out["steps_per_epoch"] = plan.spec.stepsPerEpoch;
  out["batch"] = settings.batch;
  out["micro_batches"] = plan.spec.microBatches;
  out["in_flight"] = plan.inFlight;
  out["schedule"] = plan.schedule->name;
  out["client_threads"] = run.threads;
  out["parts"] = Json::array();
  for (const Part& part : partsOf(plan)) out["parts"].push_back(describePart(plan, part));
  out["inserts"] = describeInserts(plan);
  out["flows"] = Json::array();
  for (const Crossing& crossing : crossingsOf(run)) {
    out["flows"].push_back(describeFlow(run, crossing));
  }
  const std::uint32_t batch = trainBatchOf(settings, run.data);
  out["step"] = encodedBytes(run, Phase::train, batch, batch);
  out["epoch"] = encodedBytes(run, Phase::train, run.data.train->size(), settings.batch);
  out["evaluation"] = encodedBytes(run, Phase::eval, run.data.test->size(), settings.evalBatch);
  out["left_out"] = "frame headers, control messages, initial weights, and the trained body";
  out["client_memory_bytes"] = clientBytes(plan, run.bodies, *run.data.train);
  out["client_sample_cache_bytes"] = samplesMemory(plan);
  out["client_sample_disk_bytes"] = samplesDiskBytes(plan);
  out["server_memory_bytes"] = Json::array();
  out["server_sample_cache_bytes"] = Json::array();
  out["server_largest_term"] = Json::array();
  out["server_memory_terms"] = Json::array();
  for (const RunPlan& body : run.bodies) {
    out["server_memory_bytes"].push_back(serverBytes(body));
    out["server_sample_cache_bytes"].push_back(sampleCacheBytes(body));
    out["server_largest_term"].push_back(describeLargestTerm(run, body));
    out["server_memory_terms"].push_back(describeTerms(body));
  }
  out["servers_learn"] = exposureText(run);
  out["warnings"] = run.warnings;
  return out;
}

// A side's memory, and how much of it codecs need for the samples that they keep.
std::string memoryText(const Json& bytes, const Json& cacheBytes) {
  const std::string text = bytesText(bytes.get<double>());
  const auto cache = cacheBytes.get<double>();
  return cache == 0 ? text
                    : fmt::format("{}, {} of it for the codecs' samples", text, bytesText(cache));
}

std::string diskText(const Json& bytes) {
  const auto disk = bytes.get<double>();
  return disk == 0 ? ""
                   : fmt::format("; {} of disk space for the codecs' samples", bytesText(disk));
}

std::string largestText(const Json& term) {
  std::string text =
      fmt::format("the largest part, {}, is for {}, with batches of {} samples ({})",
                  bytesText(term.at("bytes").get<double>()), term.at("purpose").get<std::string>(),
                  term.at("samples").get<std::uint32_t>(), term.at("batch").get<std::string>());
  const char* const kSmaller = "server_memory_bytes_with_train_batch";
  if (term.contains(kSmaller)) {
    text += fmt::format("; with eval.batch lowered to train.batch: {} in all",
                        bytesText(term.at(kSmaller).get<double>()));
  }
  return text;
}

std::string shapeText(const Json& shape) { return toString(shape.get<Shape>()); }
std::string bytesOf(const Json& value) { return bytesText(value.get<double>()); }

void printParts(const Json& out) {
  std::size_t name = 0;
  std::size_t shape = 0;
  for (const Json& part : out.at("parts")) {
    for (const Json& block : part.at("blocks")) {
      name = std::max(name, block.at("name").get<std::string>().size());
      shape = std::max(shape, shapeText(block.at("output_shape")).size());
    }
  }
  std::string shapeAtCut;
  int cut = 0;
  for (const Json& part : out.at("parts")) {
    if (!shapeAtCut.empty()) {
      std::cout << fmt::format("  ---- cut {}: [batch, {} ----\n", cut++, shapeAtCut);
    }
    const auto side = part.at("side").get<std::string>();
    const bool isNumbered = side.find(' ') != std::string::npos;
    std::cout << fmt::format("  {}, on {}{}: {} parameters, {}\n",
                             part.at("part").get<std::string>(), isNumbered ? "" : "the ", side,
                             part.at("parameters").get<std::int64_t>(),
                             bytesOf(part.at("parameter_bytes")));
    for (const Json& block : part.at("blocks")) {
      const auto parameters = block.at("parameters").get<std::int64_t>();
      const std::string line =
          fmt::format("  {:>5}  {:<{}}  {:<{}}", block.at("position").get<int>(),
                      printable(block.at("name").get<std::string>()), name,
                      shapeText(block.at("output_shape")), shape);
      std::cout << (parameters == 0 ? line.substr(0, line.find_last_not_of(' ') + 1)
                                    : fmt::format("{}  {:>10}  {:>8}", line, parameters,
                                                  bytesOf(block.at("parameter_bytes"))))
                << "\n";
      shapeAtCut = shapeText(block.at("output_shape")).substr(1);
    }
  }
}

void printInserts(const Json& out) {
  for (const Json& insert : out.at("inserts")) {
    const auto raw = insert.at("bytes_per_sample").get<double>();
    const auto encoded = insert.at("encoded_bytes_per_sample").get<double>();
    std::cout << fmt::format(
        "  insert at cut {}: {}, {} -> {}, {} -> {} per sample (ratio {:.4f}), {} parameters\n",
        insert.at("cut").get<int>(), insert.at("kind").get<std::string>(),
        shapeText(insert.at("shape")), shapeText(insert.at("encoded_shape")), bytesText(raw),
        bytesText(encoded), encoded / raw, insert.at("parameters").get<std::int64_t>());
  }
}

void printFlows(const Json& out) {
  std::size_t shape = std::string_view("micro-batch").size();
  std::size_t codec = std::string_view("codec").size();
  std::size_t way = std::string_view("down").size();
  for (const Json& flow : out.at("flows")) {
    way = std::max(way, flow.at("direction").get<std::string>().size());
    shape = std::max(shape, shapeText(flow.at("micro_batch_shape")).size());
    codec = std::max(codec, flow.at("codec").get<std::string>().size());
  }
  std::cout << fmt::format("  {:<12}  {:<{}}  {:<{}}  {:<{}}  {:>8}  {:>8}  {:>6}\n", "flow", "way",
                           way, "micro-batch", shape, "codec", codec, "raw", "encoded", "ratio");
  for (const Json& flow : out.at("flows")) {
    const auto raw = flow.at("raw_bytes_per_step").get<double>();
    const auto encoded = flow.at("encoded_bytes_per_step").get<double>();
    std::cout << fmt::format(
        "  {:<12}  {:<{}}  {:<{}}  {:<{}}  {:>8}  {:>8}  {:>6.4f}{}\n",
        flow.at("flow").get<std::string>(), flow.at("direction").get<std::string>(), way,
        shapeText(flow.at("micro_batch_shape")), shape, flow.at("codec").get<std::string>(), codec,
        bytesText(raw), bytesText(encoded), encoded / raw,
        flow.at("encoded_bytes_are") == "exact" ? "" : "  (maximum)");
  }
}

void printAutoCodecs(const Json& out) {
  for (const Json& flow : out.at("flows")) {
    const Json& choices = flow.at("auto_chooses_among");
    if (choices.is_null()) continue;
    std::string list;
    for (const Json& choice : choices) {
      list += (list.empty() ? "" : ", ") + choice.get<std::string>();
    }
    std::cout << fmt::format("  {:<12}  auto: train chooses among {} before step 1\n",
                             flow.at("flow").get<std::string>(), list);
  }
}

void print(const Json& out) {
  const auto number = [](const Json& value) { return value.get<std::uint64_t>(); };
  const Json& data = out.at("data");
  std::cout << "# Configuration with all defaults\n"
            << out.at("config").get<std::string>() << "\n# Run\n"
            << fmt::format("  data      {} training and {} test samples: {}\n",
                           number(data.at("train_samples")), number(data.at("test_samples")),
                           fmt::join(data.at("arrays").get<std::vector<std::string>>(), ", "))
            << fmt::format("  steps     {}, {} per epoch\n", number(out.at("steps")),
                           number(out.at("steps_per_epoch")))
            << fmt::format(
                   "  step      {} samples in {} micro-batches, {} in flight, schedule {}\n",
                   number(out.at("batch")), number(out.at("micro_batches")),
                   number(out.at("in_flight")), out.at("schedule").get<std::string>())
            << fmt::format("  threads   {} in the client\n", number(out.at("client_threads")))
            << "\n# Model (shapes omit the batch dimension)\n";
  printParts(out);
  printInserts(out);
  std::cout << "\n# Bytes per step\n";
  printFlows(out);
  printAutoCodecs(out);
  for (const char* all : {"step", "epoch", "evaluation"}) {
    const Json& bytes = out.at(all);
    const std::string direct = number(bytes.at("direct_bytes")) == 0
                                   ? ""
                                   : ", " + bytesOf(bytes.at("direct_bytes")) + " between servers";
    std::cout << fmt::format("  {:<12}  {} up, {} down{}\n", all, bytesOf(bytes.at("up_bytes")),
                             bytesOf(bytes.at("down_bytes")), direct);
  }
  std::cout << "  Not included: " << out.at("left_out").get<std::string>() << ".\n"
            << "\n# Memory, estimated from shapes; excludes the programs and the data\n"
            << fmt::format(
                   "  client  {}{}\n",
                   memoryText(out.at("client_memory_bytes"), out.at("client_sample_cache_bytes")),
                   diskText(out.at("client_sample_disk_bytes")));
  const Json& servers = out.at("server_memory_bytes");
  const Json& caches = out.at("server_sample_cache_bytes");
  for (std::size_t s = 0; s < servers.size(); ++s) {
    const std::string which = servers.size() == 1 ? "" : fmt::format(" {}", s + 1);
    std::cout << fmt::format("  server{}  {}\n", which, memoryText(servers[s], caches[s]))
              << wrapped("    " + largestText(out.at("server_largest_term")[s]) + "\n",
                         kSentenceColumns, 4);
    for (const Json& term : out.at("server_memory_terms")[s]) {
      if (term.at("bytes") == 0) continue;
      std::cout << fmt::format("    {:>10}  {}\n", bytesOf(term.at("bytes")),
                               term.at("purpose").get<std::string>());
    }
  }
  std::cout << "\n# What the servers can learn\n"
            << wrapped("  " + out.at("servers_learn").get<std::string>() + "\n", kSentenceColumns,
                       2);
  for (const Json& warning : out.at("warnings")) {
    std::cout << wrapped("\nWarning: " + warning.get<std::string>() + ".\n", kSentenceColumns, 2);
  }
  std::cout << "\nNothing was started or written (--dry-run)." << std::endl;
}

}  // namespace

int dryRunCommand(const RunOptions& options) {
  startLog("cleave-client", options.common.logLevel);
  const Json out = describe(resolveRun(options, Purpose::training));
  if (options.json) {
    std::cout << out.dump(2) << std::endl;
  } else {
    print(out);
  }
  return 0;
}

}  // namespace cleave
