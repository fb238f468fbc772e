#include "common/model/foreign_file.h"

#include <array>
#include <fstream>
#include <string_view>

namespace cleave {
namespace {

const ForeignFile kTorchSave = {
    "a torch.save file, not an exported model",
    "load it in Python as before, and export the model: cleave.export(model, example, "
    "\"model.pt2\"); a file of weights alone is for weights.file, after python -m cleave.convert"};
const ForeignFile kSafetensors = {
    "a safetensors file, which has weights but no model",
    "set weights.file to it, and model.file to what cleave.export wrote"};
const ForeignFile kScript = {"a TorchScript file, not an exported model",
                             "export the nn.Module that it was made from: cleave.export(model, "
                             "example, \"model.pt2\")"};
const ForeignFile kCompiled = {
    "a model compiled by AOTInductor, which cannot be cut or trained",
    "export the model without compiling it: cleave.export(model, example, \"model.pt2\")"};

ForeignFile otherFramework(const std::string& kind) {
  return {kind + ", not an exported PyTorch model",
          "build the model in PyTorch, load the weights into it, and call cleave.export(model, "
          "example, \"model.pt2\")"};
}

bool isPickle(std::string_view bytes) {
  constexpr char kProto = '\x80';  // the opcode PROTO, then the version
  return bytes.size() > 2 && bytes[0] == kProto && bytes[1] >= 2 && bytes[1] <= 5;
}

// An 8-byte length, then a JSON object.
bool isSafetensors(std::string_view bytes) {
  return bytes.size() > 9 && bytes[7] == 0 && bytes[8] == '{' && bytes[9] == '"';
}

// A protobuf whose first field is the version of ONNX, and whose next is the producer's name.
bool isOnnx(std::string_view bytes) {
  return bytes.size() > 3 && bytes[0] == '\x08' && bytes[1] > 0 && bytes[1] < 32 &&
         bytes[2] == '\x12';
}

}  // namespace

std::optional<ForeignFile> foreignFile(const std::string& path) {
  std::array<char, 64> head{};
  std::ifstream file(path, std::ios::binary);
  file.read(head.data(), head.size());
  const std::string_view bytes(head.data(), static_cast<std::size_t>(file.gcount()));
  if (isPickle(bytes)) return kTorchSave;
  if (isSafetensors(bytes)) return kSafetensors;
  if (bytes.starts_with("\x89HDF\r\n")) return otherFramework("a Keras or other HDF5 file");
  if (bytes.starts_with("GGUF")) return otherFramework("a GGUF file");
  if (isOnnx(bytes)) return otherFramework("an ONNX file");
  constexpr std::size_t kNameInZip = 30;  // the name of the first file of a zip archive
  if (bytes.starts_with("PK\x03\x04") && bytes.size() > kNameInZip) {
    const std::string_view name = bytes.substr(kNameInZip);
    if (name.starts_with("metadata.json") || name.starts_with("config.json")) {
      return otherFramework("a Keras file");
    }
  }
  if (bytes.substr(0, 8).find("TFL3") != std::string_view::npos) {
    return otherFramework("a TensorFlow Lite file");
  }
  return std::nullopt;
}

std::optional<ForeignFile> foreignArchive(const std::function<bool(const std::string&)>& has) {
  if (has("constants.pkl")) return kScript;
  if (has("data.pkl")) return kTorchSave;
  if (has("data/aotinductor/model/model.so") || has("archive_format")) return kCompiled;
  return std::nullopt;
}

}  // namespace cleave
