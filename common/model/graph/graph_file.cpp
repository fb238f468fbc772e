#include "common/model/graph/graph_file.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <caffe2/serialize/inline_container.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "common/core/printable.h"
#include "common/core/units.h"
#include "common/graph/graph.h"
#include "common/model/blocks.h"
#include "common/model/graph/foreign_file.h"
#include "common/model/graph/graph_operands.h"
#include "common/resources/available_memory.h"

namespace cleave {
namespace {

UsageError badFile(const std::string& path, const std::string& sentence) {
  return UsageError("bad-model-file", path + ": " + sentence,
                    "export the model again with cleave_split.export, and copy the whole file")
      .about("model.file");
}

// Limits of an archive's records. Graphs have a few kB per operator.
constexpr std::uint64_t kMaxTextBytesOfRecord = std::uint64_t{256} << 20;
constexpr std::uint64_t kTextNeeds = 16;  // bytes of memory per byte, while JSON is parsed
constexpr std::uint64_t kMaxRatio = 200;  // of a record's size to the whole file's
constexpr std::uint64_t kAnyRatio = std::uint64_t{64} << 20;  // but records of this size always fit

void refuseForeign(const std::string& path, const std::optional<ForeignFile>& file) {
  if (!file) return;
  throw UsageError("bad-model-file", path + " is " + file->kind, file->hint).about("model.file");
}

}  // namespace

// Records are refused by their size before they are unpacked: a zip archive of 1 MB may have a
// record of 1 GB. The reader unpacks at most the size that the archive declares.
struct GraphFile::Archive {
  explicit Archive(const std::string& path)
      : path_(path),
        reader_(path),
        maxBytes_(
            std::max<std::uint64_t>(kAnyRatio, kMaxRatio * std::filesystem::file_size(path))) {}

  bool has(const std::string& record) { return reader_.hasRecord(record); }

  std::string text(const std::string& record) {
    const std::uint64_t max = std::min(kMaxTextBytesOfRecord, availableMemory() / kTextNeeds);
    if (const std::uint64_t size = sizeOf(record); size > max) {
      throw tooLarge(record, size,
                     fmt::format("more than {} for a record of this kind",
                                 bytesText(static_cast<double>(max))));
    }
    const auto [data, size] = bytes(record);
    return {static_cast<const char*>(data.get()), size};
  }

  std::pair<at::DataPtr, std::size_t> bytes(const std::string& record) {
    const std::uint64_t declared = sizeOf(record);
    if (declared > maxBytes_) {
      throw tooLarge(record, declared, fmt::format("more than {} times the whole file", kMaxRatio));
    }
    if (const std::uint64_t left = availableMemory(); declared > left) {
      throw tooLarge(
          record, declared,
          fmt::format("more than the memory available, {}", bytesText(static_cast<double>(left))));
    }
    try {
      auto [data, size] = reader_.getRecord(record);
      return {std::move(data), size};
    } catch (const c10::Error&) {
      throw badFile(path_, "its record " + printable(record) + " is missing or damaged");
    }
  }

 private:
  // Unpacked, as the archive declares it.
  std::uint64_t sizeOf(const std::string& record) {
    try {
      return reader_.getRecordSize(record);
    } catch (const c10::Error&) {
      throw badFile(path_, "its record " + printable(record) + " is missing or damaged");
    }
  }

  UsageError tooLarge(const std::string& record, std::uint64_t size, const std::string& limit) {
    return UsageError("bad-model-file",
                      fmt::format("{}: its record {} has {} when unpacked, {}", path_,
                                  printable(record), bytesText(static_cast<double>(size)), limit),
                      "export the model again with cleave_split.export, which does not compress")
        .about("model.file");
  }

  const std::string path_;
  caffe2::serialize::PyTorchStreamReader reader_;
  const std::uint64_t maxBytes_;  // of a record
};

GraphFile::GraphFile(const std::string& path) : path_(path) {
  if (!std::filesystem::is_regular_file(path)) {
    throw UsageError("no-model-file", "there is no file " + path,
                     "export a model with cleave_split.export, and set model.file to the file");
  }
  refuseForeign(path, foreignFile(path));
  try {
    archive_ = std::make_unique<Archive>(path);
  } catch (const std::exception&) {  // c10::Error, or an error of the file system
    throw badFile(path, "it is not a .pt2 archive, or it is damaged");
  }
  const auto has = [&](const std::string& record) { return archive_->has(record); };
  if (!has("models/model.json")) refuseForeign(path, foreignArchive(has));
  exported_ = readExportedGraph(archive_->text("models/model.json"), path);
  // Written by cleave_split.export.
  const std::string evaluation = "extra/evaluation.json";
  if (archive_->has(evaluation)) {
    addEvaluation(exported_,
                  readExportedGraph(archive_->text(evaluation), path + " in evaluation mode"),
                  path);
  }
  for (const std::string kind : {"weights", "constants"}) {
    const std::string folder = "data/" + kind;
    const std::string config = folder + "/model_" + kind + "_config.json";
    if (archive_->has(config)) {
      weights_.merge(readExportedWeights(archive_->text(config), folder, path));
    }
  }
  findAliases();
}

namespace {

std::vector<std::string> weightsReadIn(const wire::Graph& graph) {
  std::vector<std::string> names;
  for (const std::uint32_t id :
       weightsReadBetween(graph, 0, static_cast<std::size_t>(graph.nodes_size()))) {
    names.push_back(graph.values(static_cast<int>(id)).name());
  }
  return names;
}

// Makes the nodes read each weight under the name that it is an alias of, and removes the aliases.
void removeAliases(wire::Graph& graph, const std::map<std::string, std::string>& aliases) {
  std::map<std::string, std::uint32_t> ids;
  for (int id = 0; id < graph.values_size(); ++id) {
    const wire::Value& value = graph.values(id);
    if (isWeight(value)) ids[value.name()] = static_cast<std::uint32_t>(id);
  }
  std::map<std::uint32_t, std::uint32_t> replaced;
  std::set<std::uint32_t> removed;
  for (const auto& [alias, name] : aliases) {
    const auto own = ids.find(alias);
    if (own == ids.end()) continue;
    if (!ids.contains(name)) {
      graph.mutable_values(static_cast<int>(own->second))->set_name(name);
      continue;
    }
    replaced[own->second] = ids.at(name);
    removed.insert(own->second);
  }
  const auto current = [&](std::uint32_t id) {
    const auto found = replaced.find(id);
    return found == replaced.end() ? id : found->second;
  };
  for (wire::Node& node : *graph.mutable_nodes()) renumber(node, current);
  removeValues(graph, removed);
}

}  // namespace

// An alias is a weight that training does not read and that has the same data as one that is read.
void GraphFile::findAliases() {
  wire::Graph& graph = exported_.graph;
  using Storage = std::tuple<std::string, std::int64_t, std::vector<std::int64_t>, Shape>;
  const auto placeOf = [&](const std::string& name) -> std::optional<Storage> {
    const auto found = weights_.find(name);
    if (found == weights_.end()) return std::nullopt;
    const ExportedWeight& weight = found->second;
    return Storage{weight.record, weight.offset, weight.strides, weight.shape};
  };
  const std::vector<std::string> read = weightsReadIn(graph);
  const std::set<std::string> inTraining(read.begin(), read.end());
  std::map<Storage, std::string> names;
  const auto addNames = [&](const std::vector<std::string>& added) {
    for (const std::string& name : added) {
      if (const auto place = placeOf(name)) names.emplace(*place, name);
    }
  };
  addNames(read);
  if (graph.has_evaluation()) addNames(weightsReadIn(graph.evaluation()));
  for (const wire::Value& value : graph.values()) {
    if (!isWeight(value) || inTraining.contains(value.name())) continue;
    const auto place = placeOf(value.name());
    const auto found = place ? names.find(*place) : names.end();
    if (found != names.end() && found->second != value.name()) {
      aliases_[value.name()] = found->second;
    }
  }
  removeAliases(graph, aliases_);
  if (graph.has_evaluation()) removeAliases(*graph.mutable_evaluation(), aliases_);
}

GraphFile::~GraphFile() = default;

// A stride of 0 repeats elements, so a tensor may be larger than its record.
void GraphFile::checkFits(const std::string& name, const Shape& shape,
                          std::size_t elementBytes) const {
  auto bytes = static_cast<double>(elementBytes);
  for (const std::int64_t extent : shape) bytes *= static_cast<double>(extent);
  const auto left = static_cast<double>(availableMemory());
  if (bytes <= left) return;
  throw badFile(path_, fmt::format("{} has {}, more than the memory available, {}", printable(name),
                                   bytesText(bytes), bytesText(left)));
}

std::vector<NamedTensor> GraphFile::readWeights() const {
  std::vector<NamedTensor> tensors;
  for (const wire::Value& value : graph().values()) {
    if (!isWeight(value)) continue;
    const auto found = weights_.find(value.name());
    if (found == weights_.end()) throw badFile(path_, "it has no " + printable(value.name()));
    const ExportedWeight& weight = found->second;
    const Shape shape(value.shape().begin(), value.shape().end());
    if (weight.shape != shape || weight.dtype != value.dtype() ||
        weight.strides.size() != shape.size()) {
      throw badFile(path_,
                    printable(value.name()) + " does not have the shape and type of the graph");
    }
    const at::ScalarType type = scalarTypeOf(value);
    checkFits(value.name(), shape, graphDtypeBytes(value.dtype()));
    const auto [data, size] = archive_->bytes(weight.record);
    // In fp64, since the file's numbers may overflow an integer.
    double last = static_cast<double>(weight.offset);
    bool isEmpty = false, isNegative = weight.offset < 0;
    for (std::size_t d = 0; d < shape.size(); ++d) {
      isEmpty = isEmpty || shape[d] == 0;
      isNegative = isNegative || weight.strides[d] < 0;
      last += static_cast<double>(shape[d] - 1) * static_cast<double>(weight.strides[d]);
    }
    const std::size_t elementBytes = graphDtypeBytes(value.dtype());
    if (isNegative) {
      throw badFile(path_, printable(value.name()) + " has a negative stride or offset");
    }
    if (!isEmpty && (last + 1) * static_cast<double>(elementBytes) > static_cast<double>(size)) {
      throw badFile(path_, "the data of " + printable(value.name()) + " is too short");
    }
    auto* const begin = static_cast<std::byte*>(data.get()) +
                        static_cast<std::size_t>(isEmpty ? 0 : weight.offset) * elementBytes;
    tensors.push_back(
        {value.name(), at::from_blob(begin, shape, weight.strides, at::TensorOptions().dtype(type))
                           .clone(at::MemoryFormat::Contiguous)});
  }
  return tensors;
}

}  // namespace cleave
