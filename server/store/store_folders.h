// The folders in a server's store, for commands that read it.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace cleave {

// The folders in `folder`, which is a store or an identity's folder in it; none whose name begins
// with a dot, because those have other content. Throws UsageError "cannot-read".
std::vector<std::filesystem::path> storedFolders(const std::string& folder);

}  // namespace cleave
