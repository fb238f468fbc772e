#include "common/core/durable.h"

#include <fcntl.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "common/core/failpoint.h"
#include "common/core/open_file.h"

namespace cleave {
namespace {

constexpr const char* kTemporary = ".tmp-";
constexpr std::size_t kMaxPrivateBytes = std::size_t{1} << 20;

// `mode`: nullopt keeps the mode that the file was opened with.
int writeAndSync(OpenFile& file, std::span<const std::string_view> text,
                 std::optional<mode_t> mode) {
  if (mode && ::fchmod(file.get(), *mode) != 0) return errno;
  int error = failingCall("write");
  if (error == 0) error = writeAll(file.get(), text);
  if (error == 0) error = failingCall("sync");
  if (error == 0 && ::fsync(file.get()) != 0) error = errno;
  const int closing = file.close();
  return error != 0 ? error : closing;
}

std::string octal(mode_t mode) {
  std::array<char, 8> text{};
  std::snprintf(text.data(), text.size(), "%04o", static_cast<unsigned>(mode & 07777));
  return text.data();
}

}  // namespace

namespace {

std::string userName() {
  const passwd* const user = ::getpwuid(::geteuid());
  return user == nullptr ? "the user " + std::to_string(::geteuid())
                         : "user " + std::string(user->pw_name);
}

}  // namespace

std::string writeHint(const std::string& path, int error) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  fs::path parent = fs::absolute(path, ignored).parent_path();
  if (error == ENOSPC || error == EDQUOT) return "free disk space in " + parent.string();
  const bool isThere = fs::exists(parent, ignored);
  if (error == ENOENT && !isThere) return "create the folder first: mkdir -p " + parent.string();
  while (parent.has_relative_path() && !fs::exists(parent, ignored)) parent = parent.parent_path();
  if (error == EACCES || error == EPERM || error == EROFS) {
    return "let " + userName() + " write in " + parent.string();
  }
  return "check that the folder exists and is writable, and that the disk has free space";
}

void checkCanWrite(const std::string& path) {
  if (isDeviceOrPipe(path)) return;
  std::filesystem::path folder = std::filesystem::path(path).parent_path();
  if (folder.empty()) folder = ".";
  if (::access(folder.c_str(), W_OK | X_OK) == 0) return;
  const int error = errno;
  throw UsageError("not-writable", path + " cannot be written: " + std::strerror(error),
                   writeHint(path, error));
}

void throwCannotWrite(const std::string& path, const std::string& what, int error) {
  throw RunError("cannot-write", path + ": " + what + ": " + std::strerror(error),
                 writeHint(path, error))
      .about(kDisk);
}

int writeAll(int file, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(file, text.data(), text.size());
    if (written < 0 && errno != EINTR) return errno;
    if (written > 0) text.remove_prefix(static_cast<std::size_t>(written));
  }
  return 0;
}

int writeAll(int file, std::span<const std::string_view> pieces) {
  for (const std::string_view piece : pieces) {
    if (const int error = writeAll(file, piece); error != 0) return error;
  }
  return 0;
}

void syncFolder(const std::string& folder) {
  const OpenFile file(
      ::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!file) throwCannotWrite(folder, "the folder cannot be opened", errno);
  // EINVAL: the file system does not support fsync of a folder.
  if (::fsync(file.get()) != 0 && errno != EINVAL) {
    throwCannotWrite(folder, "the folder cannot be synchronised", errno);
  }
}

bool isDeviceOrPipe(const std::string& path) {
  std::error_code ignored;
  const auto status = std::filesystem::status(path, ignored);
  return std::filesystem::exists(status) && !std::filesystem::is_regular_file(status) &&
         !std::filesystem::is_directory(status);
}

void writeFileDurably(const std::string& path, std::string_view text, std::optional<mode_t> mode) {
  writeFileDurably(path, std::span(&text, 1), mode);
}

void writeFileDurably(const std::string& path, std::span<const std::string_view> pieces,
                      std::optional<mode_t> mode) {
  if (isDeviceOrPipe(path)) {
    const OpenFile device(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
    const int error = device ? writeAll(device.get(), pieces) : errno;
    if (error != 0) throwCannotWrite(path, "cannot be written", error);
    return;
  }
  static std::atomic<unsigned> count = 0;
  // The temporary file is in the same folder, because rename() cannot cross file systems. Skips
  // names of files that killed processes left behind.
  std::string temporary;
  OpenFile file;
  do {
    temporary = path + kTemporary + std::to_string(::getpid()) + "-" + std::to_string(count++);
    file = OpenFile(
        ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode.value_or(0666)));
  } while (!file && errno == EEXIST);
  if (!file) throwCannotWrite(path, "cannot be created", errno);

  int error = writeAndSync(file, pieces, mode);
  if (error == 0) error = failingCall("rename");
  if (error == 0 && ::rename(temporary.c_str(), path.c_str()) != 0) error = errno;
  if (error != 0) {
    ::unlink(temporary.c_str());
    throwCannotWrite(path, "cannot be written", error);
  }
  // Makes the rename itself durable.
  syncFolder(std::filesystem::path(path).parent_path().string());
}

bool isTemporaryName(std::string_view name) {
  return name.find(kTemporary) != std::string_view::npos;
}

void writeNewFile(const std::string& path, std::string_view text, mode_t mode) {
  OpenFile file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode));
  if (!file) throwCannotWrite(path, "cannot be created", errno);
  const int error = writeAndSync(file, std::span(&text, 1), mode);
  if (error == 0) return;
  ::unlink(path.c_str());
  throwCannotWrite(path, "cannot be written", error);
}

std::string readPrivateFile(const std::string& path) {
  const auto refuse = [&](int error) {
    throw UsageError("cannot-read", path + ": cannot be read: " + std::strerror(error),
                     "check the path, and that you own the file");
  };
  const OpenFile file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat status {};
  if (!file || ::fstat(file.get(), &status) != 0) refuse(errno);
  if ((status.st_mode & 077) != 0) {
    throw UsageError("key-readable",
                     path + ": users other than its owner can read or write it (mode " +
                         octal(status.st_mode) + ")",
                     "chmod 600 " + path + "; if others could have read it, make a new one");
  }
  std::string text(kMaxPrivateBytes, '\0');
  std::size_t have = 0;
  while (have < text.size()) {
    const ssize_t bytes = ::read(file.get(), text.data() + have, text.size() - have);
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes < 0) refuse(errno);
    if (bytes == 0) break;
    have += static_cast<std::size_t>(bytes);
  }
  text.resize(have);
  return text;
}

}  // namespace cleave
