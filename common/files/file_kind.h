// Recognises files of other programs by their first bytes, whatever their names.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace cleave {

enum class FileKind : std::uint8_t {
  unknown,
  safetensors,
  pickle,  // also what torch.save wrote before PyTorch 1.6
  zip,     // also what torch.save and torch.export.save write
  npy,
  npz,
  hdf5,  // also Keras
  keras,
  onnx,
  tensorFlowLite,
  gguf,
  spreadsheet,  // or another document of an office program
};

constexpr std::size_t kFileHeadBytes = 64;  // enough for all kinds
// `head`: the first bytes of the file, or more.
FileKind fileKindOf(std::string_view head);
// Reads the head of the file; unknown if it cannot be read.
FileKind fileKindAt(const std::string& path);
// "a .npy file"; empty: unknown.
std::string_view nameOf(FileKind kind);

}  // namespace cleave
