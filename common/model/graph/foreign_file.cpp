#include "common/model/graph/foreign_file.h"

#include "common/files/file_kind.h"

namespace cleave {
namespace {

const ForeignFile kTorchSave = {
    "a torch.save file, not an exported model",
    "load it in Python as before, and export the model: cleave_split.export(model, example, "
    "\"model.pt2\"); a file of weights alone is for weights.file, after python -m "
    "cleave_split.convert"};
const ForeignFile kSafetensors = {
    "a safetensors file, which has weights but no model",
    "set weights.file to it, and model.file to what cleave_split.export wrote"};
const ForeignFile kScript = {
    "a TorchScript file, not an exported model",
    "export the nn.Module that it was made from: cleave_split.export(model, "
    "example, \"model.pt2\")"};
const ForeignFile kCompiled = {
    "a model compiled by AOTInductor, which cannot be cut or trained",
    "export the model without compiling it: cleave_split.export(model, example, \"model.pt2\")"};

ForeignFile otherProgram(FileKind kind) {
  return {
      std::string(nameOf(kind)) + ", not an exported PyTorch model",
      "build the model in PyTorch, load the weights into it, and call cleave_split.export(model, "
      "example, \"model.pt2\")"};
}

}  // namespace

std::optional<ForeignFile> foreignFile(const std::string& path) {
  const FileKind kind = fileKindAt(path);
  switch (kind) {
    case FileKind::unknown:
    case FileKind::zip:
      return std::nullopt;
    case FileKind::pickle:
      return kTorchSave;
    case FileKind::safetensors:
      return kSafetensors;
    default:
      return otherProgram(kind);
  }
}

std::optional<ForeignFile> foreignArchive(const std::function<bool(const std::string&)>& has) {
  if (has("constants.pkl")) return kScript;
  if (has("data.pkl")) return kTorchSave;
  if (has("data/aotinductor/model/model.so") || has("archive_format")) return kCompiled;
  return std::nullopt;
}

}  // namespace cleave
