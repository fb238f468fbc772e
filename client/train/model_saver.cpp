#include "client/train/model_saver.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>
#include <set>
#include <utility>

#include "client/train/adapter_file.h"
#include "common/codec/safetensors.h"
#include "common/core/bytes.h"
#include "common/core/durable.h"
#include "common/core/units.h"

namespace cleave {
namespace {

using namespace std::chrono_literals;

// Joins several files into one, in order. A buffer that several parts use is written once. A weight
// with several names is written under each of them.
std::vector<std::byte> joined(const std::vector<std::vector<SafetensorsEntry>>& parts,
                              const std::map<std::string, std::string>& aliases,
                              const std::map<std::string, std::string>& metadata) {
  std::vector<SafetensorsEntry> entries;
  std::set<std::string> names;
  for (const auto& part : parts) {
    for (const SafetensorsEntry& entry : part) {
      if (names.insert(entry.name).second) entries.push_back(entry);
    }
  }
  for (const auto& [alias, name] : aliases) {
    const auto found =
        std::find_if(entries.begin(), entries.end(),
                     [&, wanted = name](const auto& each) { return each.name == wanted; });
    if (found == entries.end()) continue;
    SafetensorsEntry entry = *found;
    entry.name = alias;
    entries.push_back(std::move(entry));
  }
  return writeSafetensors(entries, metadata);
}

}  // namespace

void checkBody(const std::vector<SafetensorsEntry>& entries, const std::vector<BlockSpec>& blocks,
               int first, int last) {
  std::map<std::string, Shape> wanted;
  for (int position = first; position < last; ++position) {
    for (const ParameterSpec& row : blocks[static_cast<std::size_t>(position)].tensors) {
      if (row.isSaved) wanted[row.name] = row.shape;
    }
  }
  const bool fits = entries.size() == wanted.size() &&
                    std::all_of(entries.begin(), entries.end(), [&](const auto& entry) {
                      const auto found = wanted.find(entry.name);
                      return found != wanted.end() && found->second == entry.shape;
                    });
  if (fits) return;
  throw ProtocolError("bad-tensor", "the body's weights that the server sent do not fit the model",
                      "install the same version of Cleave on both machines");
}

ModelSaver::ModelSaver(ClientSession& session, const ClientStage& stage, const RunPlan& plan,
                       std::string folder, bool mayFetch, LoraSpec lora,
                       std::map<std::string, std::string> aliases, ModelDescription description)
    : session_(session),
      stage_(stage),
      plan_(plan),
      folder_(std::move(folder)),
      mayFetch_(mayFetch),
      lora_(std::move(lora)),
      hasAdapter_(lora_.rank > 0 && fitsPeft(plan.blocks)),
      aliases_(std::move(aliases)),
      description_(std::move(description)) {}

ModelSaver::~ModelSaver() {
  if (writing_.valid()) writing_.wait();
}

ModelSaver::Parts ModelSaver::copyParts() const {
  return {stepsNow(), toSafetensors(weightsOf(stage_.evaluatedHead())),
          toSafetensors(weightsOf(stage_.evaluatedTail()))};
}

std::map<std::string, std::string> ModelSaver::metadataAt(std::uint64_t steps) const {
  ModelDescription description = description_;
  description.steps = steps;
  return description.toMetadata();
}

void ModelSaver::save() {
  if (!mayFetch_ || session_.isFetchingWeights() || isWriting()) return;
  finishEarlier();
  session_.fetchWeights([this, parts = copyParts()](std::vector<Blob> bodies) mutable {
    write(std::move(parts), std::move(bodies));
  });
}

void ModelSaver::write(Parts parts, std::vector<Blob> bodies) {
  // This task must not use Torch: only the device thread may.
  writing_ =
      std::async(std::launch::async, [this, parts = std::move(parts), bodies = std::move(bodies)] {
        const std::vector<int> cuts = plan_.stage.allCuts();
        std::vector<std::vector<SafetensorsEntry>> entries = {readSafetensors(parts.head, "head")};
        for (std::size_t b = 0; b < bodies.size(); ++b) {
          entries.push_back(readSafetensors(bodies[b].bytes, "weights/body"));
          checkBody(entries.back(), plan_.blocks, cuts[b], cuts[b + 1]);
        }
        entries.push_back(readSafetensors(parts.tail, "tail"));
        const std::vector<std::byte> file = joined(entries, aliases_, metadataAt(parts.steps));
        writeFileDurably(wholePath(), textOf(file));
        if (hasAdapter_) {
          writeAdapters(folder_ + "/adapter", lora_, plan_.blocks, readSafetensors(file, "model"));
        }
        return parts.steps;
      });
}

bool ModelSaver::isWriting() const {
  return writing_.valid() && writing_.wait_for(0s) != std::future_status::ready;
}

// Rethrows errors of the writing thread.
void ModelSaver::finishWriting() {
  if (writing_.valid()) saved_ = writing_.get();
}

// Like finishWriting(), for a model that is not the last one. Logs an error as a warning, because a
// later write may succeed, for example when the disk has free space again.
void ModelSaver::finishEarlier() {
  try {
    finishWriting();
  } catch (const Error& error) {
    processLog()->warn("the model of an epoch was not saved: {}; {}", error.what(), error.hint());
  } catch (const std::exception& error) {  // such as std::bad_alloc
    processLog()->warn("the model of an epoch was not saved: {}", error.what());
  }
}

bool ModelSaver::keepsNewer(spdlog::logger& log) const {
  const std::uint64_t steps = stepsOfModelFile(wholePath()).value_or(0);
  if (steps <= stepsNow()) return false;
  log.info("{} keeps the whole model after {}, which is newer than that after {}", wholePath(),
           countText(steps, "step"), stepsNow());
  return true;
}

bool ModelSaver::finish() {
  if (!mayFetch_ || stepsNow() == 0) return false;
  saveNow();
  // An earlier process of the run may have written it.
  const std::optional<std::uint64_t> ofParts = stepsOfModelFile(partsPath());
  std::error_code ignored;  // it says its steps itself
  if (ofParts && *ofParts <= stepsNow()) std::filesystem::remove(partsPath(), ignored);
  return true;
}

void ModelSaver::saveNow() {
  session_.waitForWeights();
  finishEarlier();
  if (saved_ == stepsNow()) return;
  save();
  session_.waitForWeights();
  finishWriting();
}

// Keeps a copy of the file `name`, as a hard link if possible. The link keeps its content, because
// files are replaced and never changed in place.
void ModelSaver::keepFile(const std::string& name, const std::string& asName) const {
  const std::string kept = folder_ + "/" + asName, link = kept + ".new";
  std::filesystem::remove(link);
  std::error_code error;
  std::filesystem::create_hard_link(folder_ + "/" + name, link, error);
  if (error)
    std::filesystem::copy_file(folder_ + "/" + name, link);  // the file system has no hard links
  std::filesystem::rename(link, kept);
}

void ModelSaver::keepAsBest(bool asLastToo) {
  if (!mayFetch_) return;
  try {
    saveNow();
    keepFile("model.safetensors", "model.best.safetensors");
    if (hasAdapter_) {
      std::filesystem::create_directories(folder_ + "/adapter.best");
      for (const std::string name : {"/adapter_model.safetensors", "/adapter_config.json"}) {
        keepFile("adapter" + name, "adapter.best" + name);
      }
    }
    if (!asLastToo) removeLast();
  } catch (const std::filesystem::filesystem_error& error) {
    processLog()->warn("the best model was not kept: {}", error.what());
  } catch (const RunError& error) {
    if (error.key() != kDisk) throw;
    processLog()->warn("the best model was not kept: {}; {}", error.what(), error.hint());
  }
}

void ModelSaver::removeLast() {
  saved_.reset();
  std::error_code error;
  std::filesystem::remove(wholePath(), error);
  if (!error) std::filesystem::remove_all(folder_ + "/adapter", error);
  if (error) processLog()->warn("{} was not removed: {}", wholePath(), error.message());
}

void ModelSaver::saveParts(spdlog::logger& log) {
  finishEarlier();
  const std::uint64_t steps = stepsNow();
  if (saved_ == steps || steps == 0) return;
  // An earlier process of the run may have written these files.
  std::uint64_t ofParts = stepsOfModelFile(partsPath()).value_or(0);
  const std::uint64_t ofWhole = stepsOfModelFile(wholePath()).value_or(0);
  if (std::max(ofParts, ofWhole) > steps) {
    log.info("the model after {} is not saved, because that of a later step is",
             countText(steps, "step"));
  } else {
    const Parts parts = copyParts();
    writeFileDurably(
        partsPath(),
        textOf(joined({readSafetensors(parts.head, "head"), readSafetensors(parts.tail, "tail")},
                      aliases_, metadataAt(steps))));
    ofParts = steps;
  }
  if (ofParts > ofWhole) {
    log.warn("{} has head and tail after {}; the body is missing: only the server had it",
             partsPath(), countText(ofParts, "step"));
  }
  if (ofWhole == 0) return log.warn("there is no {}: this run has not saved one", wholePath());
  log.warn("{} has the whole model after {}; to continue from it: --set weights.file={}",
           wholePath(), countText(ofWhole, "step"), wholePath());
}

}  // namespace cleave
