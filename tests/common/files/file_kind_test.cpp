// Files of other programs are recognised by their first bytes.
#include <catch2/catch.hpp>

#include "common/files/file_kind.h"

namespace cleave::test {
namespace {

using namespace std::string_literals;

// The beginning of a zip archive whose first file has this name.
std::string zipOf(const std::string& name) {
  std::string head = "PK\x03\x04"s + std::string(26, '\0') + name + "content";
  head[26] = static_cast<char>(name.size());
  return head;
}

TEST_CASE("the kind of a file follows from its first bytes") {
  for (const auto& [head, kind] : std::vector<std::pair<std::string, FileKind>>{
           {"\x40\0\0\0\0\0\0\0{\"a\""s, FileKind::safetensors},
           {"\x80\x02\0\0\0\0\0\0{\"a\""s,
            FileKind::safetensors},  // its length looks like a pickle
           {"\x80\x02\x8a\x0al\xfc\x9c"
            "F\xf9 j"s,
            FileKind::pickle},
           {"\x80\x05\x95\x10\0\0\0\0\0\0\0}"s, FileKind::pickle},
           {zipOf("model/data.pkl"), FileKind::zip},
           {"PK\x03\x04", FileKind::zip},
           {zipOf("x.npy"), FileKind::npz},
           {zipOf("config.json"), FileKind::keras},
           {zipOf("config.json5"), FileKind::zip},
           {"\x93NUMPY\x01\0"s, FileKind::npy},
           {"\x89HDF\r\n\x1a\n", FileKind::hdf5},
           {"GGUF\x03", FileKind::gguf},
           {zipOf("[Content_Types].xml"), FileKind::spreadsheet},
           {zipOf("mimetype"), FileKind::spreadsheet},
           {"\xD0\xCF\x11\xE0\xA1\xB1", FileKind::spreadsheet},
           {"\x08\x08\x12\x07pytorch", FileKind::onnx},
           {"\x1c\0\0\0TFL3"s, FileKind::tensorFlowLite},
           {"x,label\n1,a\n", FileKind::unknown},
           {"\x80\x09", FileKind::unknown},
           {"", FileKind::unknown}}) {
    CAPTURE(head);
    CHECK(fileKindOf(head) == kind);
    CHECK(nameOf(kind).empty() == (kind == FileKind::unknown));
  }
  CHECK(fileKindAt("/nonexistent") == FileKind::unknown);
}

}  // namespace
}  // namespace cleave::test
