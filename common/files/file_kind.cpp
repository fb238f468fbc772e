#include "common/files/file_kind.h"

#include <array>
#include <fstream>

namespace cleave {
namespace {

// An 8-byte length below 2^56, then a JSON object.
bool isSafetensors(std::string_view head) {
  return head.size() > 8 && head[7] == 0 && head[8] == '{';
}

// The opcode PROTO, then a version.
bool isPickle(std::string_view head) {
  return head.size() > 2 && head[0] == '\x80' && head[1] >= 2 && head[1] <= 5;
}

// A protobuf whose first field is the version of ONNX, and whose next is the producer's name.
bool isOnnx(std::string_view head) {
  return head.size() > 3 && head[0] == '\x08' && head[1] > 0 && head[1] < 32 && head[2] == '\x12';
}

// By the name of the first file in the archive.
FileKind kindOfZip(std::string_view head) {
  constexpr std::size_t kLengthAt = 26, kNameAt = 30;
  if (head.size() <= kNameAt) return FileKind::zip;
  const auto length = static_cast<unsigned char>(head[kLengthAt]);
  const std::string_view name = head.substr(kNameAt, length);
  if (name.ends_with(".npy")) return FileKind::npz;
  if (name == "metadata.json" || name == "config.json") return FileKind::keras;
  // The first file of .xlsx or .ods.
  if (name == "[Content_Types].xml" || name == "_rels/.rels" || name == "mimetype") {
    return FileKind::spreadsheet;
  }
  return FileKind::zip;
}

}  // namespace

FileKind fileKindOf(std::string_view head) {
  head = head.substr(0, kFileHeadBytes);
  if (isSafetensors(head)) return FileKind::safetensors;  // its length may look like a pickle
  if (isPickle(head)) return FileKind::pickle;
  if (head.starts_with("PK\x03\x04")) return kindOfZip(head);
  if (head.starts_with("\x93NUMPY")) return FileKind::npy;
  if (head.starts_with("\xD0\xCF\x11\xE0")) return FileKind::spreadsheet;  // .xls
  if (head.starts_with("\x89HDF\r\n")) return FileKind::hdf5;
  if (head.starts_with("GGUF")) return FileKind::gguf;
  if (isOnnx(head)) return FileKind::onnx;
  if (head.substr(0, 8).find("TFL3") != std::string_view::npos) return FileKind::tensorFlowLite;
  return FileKind::unknown;
}

FileKind fileKindAt(const std::string& path) {
  std::array<char, kFileHeadBytes> head{};
  std::ifstream file(path, std::ios::binary);
  file.read(head.data(), head.size());
  return fileKindOf({head.data(), static_cast<std::size_t>(file.gcount())});
}

std::string_view nameOf(FileKind kind) {
  switch (kind) {
    case FileKind::unknown:
      return "";
    case FileKind::safetensors:
      return "a safetensors file";
    case FileKind::pickle:
      return "a pickle, as PyTorch's torch.save wrote it";
    case FileKind::zip:
      return "a zip archive, as PyTorch's torch.save writes it";
    case FileKind::npy:
      return "a .npy file";
    case FileKind::npz:
      return "a .npz file";
    case FileKind::hdf5:
      return "a Keras or other HDF5 file";
    case FileKind::keras:
      return "a Keras file";
    case FileKind::onnx:
      return "an ONNX file";
    case FileKind::tensorFlowLite:
      return "a TensorFlow Lite file";
    case FileKind::gguf:
      return "a GGUF file";
    case FileKind::spreadsheet:
      return "a spreadsheet";
  }
  return "";
}

}  // namespace cleave
