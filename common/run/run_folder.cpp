#include "common/run/run_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "common/core/durable.h"
#include "common/core/error.h"
#include "common/core/units.h"
#include "common/files/environment.h"
#include "common/run/self_check.h"

namespace cleave {

std::size_t readRotateBytes(Config& config) {
  constexpr std::size_t kMin = 64'000;  // a few hundred rows, about one write
  const std::string key = "metrics.rotate";
  const std::string text = config.text(key, "off");
  if (text == "off") return 0;
  const std::size_t bytes = parseSize({config.where(key) + ": " + key, text});
  if (bytes >= kMin) return bytes;
  throw UsageError("bad-config",
                   config.where(key) + ": " + key + " is '" + text + "', which is too small",
                   "set it to 64kB to 1GB, or off");
}

std::string libtorchVersion() { return CLEAVE_LIBTORCH_VERSION; }

void checkRunId(const std::string& id) {
  constexpr std::size_t kMaxCharacters = 64;
  const bool fits = std::all_of(id.begin(), id.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-';
  });
  // The id is also a folder name, and commands would read a leading dash as an option.
  if (!fits || id.empty() || id.starts_with('-') || id.size() > kMaxCharacters) {
    throw UsageError("bad-run-id", "the run id has an invalid form",
                     "use 1 to 64 characters of a-z, 0-9 and -, and do not begin with -");
  }
}

namespace {

// Whether the folder is empty, or contains only what a process leaves behind if it is killed before
// the run starts, or while it removes a run that has not started. The lock is made first and
// removed last; without a lock, the files may be a user's own.
bool isUnused(const std::string& folder) {
  bool isLocked = false;
  bool hasOthers = false;
  std::error_code error;
  std::filesystem::directory_iterator entry(folder, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    const std::string name = entry->path().filename();
    if (name == "lock") {
      isLocked = true;
    } else if (std::ranges::find(kFilesBeforeStart, name) != kFilesBeforeStart.end()) {
      hasOthers = true;
    } else if (!isTemporaryName(name)) {
      return false;
    }
  }
  return !error && (isLocked || !hasOthers);
}

}  // namespace

void makeRunFolder(const std::string& folder, const std::string& ifExists,
                   const std::string& instead) {
  std::error_code error;
  if (std::filesystem::exists(folder, error) && !isUnused(folder)) {
    throw UsageError("run-exists",
                     "the run directory " + folder + " already exists and is not empty", ifExists);
  }
  std::filesystem::create_directories(folder, error);
  if (error) {
    throw UsageError("not-writable",
                     "cannot make the run directory " + folder + ": " + error.message(),
                     writeHint(folder, error.value()) + ", or " + instead)
        .about(kDisk);
  }
  if (::access(folder.c_str(), W_OK) != 0) {
    throw UsageError("not-writable",
                     "cannot write in the run directory " + folder + ": " + std::strerror(errno),
                     writeHint(folder + "/run.json", errno) + ", or " + instead)
        .about(kDisk);
  }
}

std::optional<OpenFile> tryLockRunFolder(const std::string& folder) {
  const std::string path = folder + "/lock";
  OpenFile file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
  if (!file) throwCannotWrite(path, "cannot be opened", errno);
  if (::flock(file.get(), LOCK_EX | LOCK_NB) == 0) return file;
  return std::nullopt;
}

OpenFile lockRunFolder(const std::string& folder) {
  if (std::optional<OpenFile> file = tryLockRunFolder(folder)) return std::move(*file);
  throw RunError("run-in-use", "another process uses the run in " + folder,
                 "wait until it has ended, or stop it");
}

void writeRunDescription(const std::string& folder, const std::string& config, int threads,
                         const std::string& device) {
  writeFileDurably(folder + "/config.yaml", config);
  nlohmann::json environment = describeEnvironment(threads);
  environment["device"] = device;
  environment["libtorch"] = libtorchVersion();
  environment["self_check"] = selfCheckJson();
  writeFileDurably(folder + "/environment.json", environment.dump(2) + "\n");
}

}  // namespace cleave
