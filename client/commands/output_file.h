// Checks on the files that commands write.
#pragma once

#include <string>

namespace cleave {

// Throws UsageError "file-exists" if `path` is a folder, or exists and `overwrite` is false, and
// the errors of checkCanWrite(). `example`: the name of a file, for the hint.
void checkOutputFile(const std::string& path, bool overwrite, const std::string& example);

}  // namespace cleave
