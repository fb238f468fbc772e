#include "server/store/store_folders.h"

#include <system_error>

#include "common/core/error.h"

namespace cleave {

namespace fs = std::filesystem;

std::vector<fs::path> storedFolders(const std::string& folder) {
  std::vector<fs::path> folders;
  std::error_code error;
  for (fs::directory_iterator each(folder, error), end; !error && each != end;
       each.increment(error)) {
    std::error_code ignored;  // the entry was removed meanwhile
    if (each->path().filename().string().starts_with('.') || !each->is_directory(ignored)) continue;
    folders.push_back(each->path());
  }
  if (!error) return folders;
  const bool isMissing = error == std::errc::no_such_file_or_directory;
  throw UsageError("cannot-read", folder + ": cannot be read: " + error.message(),
                   isMissing ? "give the configuration that the server was started with: --config "
                               "FILE, or --set store=DIR"
                             : "run this command as the user that runs the server");
}

}  // namespace cleave
