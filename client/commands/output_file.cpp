#include "client/commands/output_file.h"

#include <filesystem>
#include <system_error>

#include "common/core/durable.h"
#include "common/core/error.h"

namespace cleave {

void checkOutputFile(const std::string& path, bool overwrite, const std::string& example) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    throw UsageError("file-exists", path + " is a folder",
                     "pass a file, such as --output " + path + "/" + example);
  }
  if (!std::filesystem::exists(path, ignored)) return checkCanWrite(path);
  if (overwrite && std::filesystem::is_regular_file(path, ignored)) return checkCanWrite(path);
  throw UsageError("file-exists", path + " exists",
                   "give another file with --output, or add --overwrite");
}

}  // namespace cleave
