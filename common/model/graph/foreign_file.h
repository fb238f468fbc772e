// Recognises files of other programs that a user may take for an exported model.
#pragma once

#include <functional>
#include <optional>
#include <string>

namespace cleave {

// What a file is and how to get an exported model from it.
struct ForeignFile {
  std::string kind;  // "a torch.save file"
  std::string hint;
};

// From the first bytes of the file; nothing if they are not of a known kind. Most zip
// archives need foreignArchive().
std::optional<ForeignFile> foreignFile(const std::string& path);

// From the names of a zip archive's records. `has`: whether the archive has a record.
std::optional<ForeignFile> foreignArchive(const std::function<bool(const std::string&)>& has);

}  // namespace cleave
