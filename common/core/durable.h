// Files that survive a crash, and files that only their owner may read.
#pragma once

#include <sys/types.h>

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "common/core/error.h"

namespace cleave {

inline constexpr mode_t kPrivateFile = 0600;  // for keys: only the owner reads and writes
inline constexpr mode_t kPublicFile = 0644;   // for certificates: only the owner writes

// Whether `path` is something that a renamed file must not replace, such as /dev/null.
bool isDeviceOrPipe(const std::string& path);

// Writes `text` to `path` through a temporary file, fsync and rename. The file's mode is exactly
// `mode`, regardless of the umask; without `mode`, it is 0666 minus the umask. A device or a pipe
// is not replaced: `text` is written into it. Throws RunError "cannot-write".
void writeFileDurably(const std::string& path, std::string_view text,
                      std::optional<mode_t> mode = std::nullopt);
// The same for a text in pieces.
void writeFileDurably(const std::string& path, std::span<const std::string_view> pieces,
                      std::optional<mode_t> mode = std::nullopt);

// Whether writeFileDurably() makes temporary files of such names. A process that is killed leaves
// them behind.
bool isTemporaryName(std::string_view name);

// Creates a file with exactly this mode, regardless of the umask, and fsyncs it. Call syncFolder()
// to make its directory entry durable. Throws RunError "cannot-write" if it exists or the write
// fails.
void writeNewFile(const std::string& path, std::string_view text, mode_t mode);
// Returns the file's text. Throws UsageError "key-readable" if users other than the owner may read
// or write it, or "cannot-read".
std::string readPrivateFile(const std::string& path);

// Makes the creation, renaming and removal of files in the folder durable. Throws RunError
// "cannot-write".
void syncFolder(const std::string& folder);

// Returns 0 or the errno of the first failure.
int writeAll(int file, std::string_view text);
int writeAll(int file, std::span<const std::string_view> pieces);
// How to correct a failed write of this path, with its folder and the user if they are the cause.
// `error`: the errno.
std::string writeHint(const std::string& path, int error);
// Call before the work whose result is written to `path`, which the user has given. Throws
// UsageError "not-writable" unless its folder exists and this user may write in it.
void checkCanWrite(const std::string& path);
// Error::key() of errors about writing: no key, but the disk on which the file is.
inline constexpr const char* kDisk = "disk";
// Throws RunError "cannot-write" about kDisk.
[[noreturn]] void throwCannotWrite(const std::string& path, const std::string& what, int error);

}  // namespace cleave
