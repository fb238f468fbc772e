// Files that outlast a crash, and files that nobody else may read.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <string_view>

#include "common/core/error.h"

namespace cleave {

inline constexpr mode_t kPrivateFile = 0600;  // a key's: its owner alone reads and writes it
inline constexpr mode_t kPublicFile = 0644;   // a certificate's: its owner alone writes it

// Writes `text` to `path` by temporary file, fsync and rename. The file has the mode `mode`
// whatever the umask; without `mode`, 0666 less the umask. Throws RunError "cannot-write".
void writeFileDurably(const std::string& path, std::string_view text,
                      std::optional<mode_t> mode = std::nullopt);

// Makes a file with this mode, whatever the umask, and synchronises it. The folder's entry lasts
// after syncFolder(). Throws RunError "cannot-write": it exists, or the disk is full.
void writeNewFile(const std::string& path, std::string_view text, mode_t mode);
// The file's text. Throws UsageError "key-readable" where others may read or write it,
// "cannot-read" where we cannot.
std::string readPrivateFile(const std::string& path);

// What was made, renamed or removed in the folder lasts. Throws RunError "cannot-write".
void syncFolder(const std::string& folder);

// Returns 0 or the errno of the first failure.
int writeAll(int file, std::string_view text);
[[noreturn]] void throwCannotWrite(const std::string& path, const std::string& what, int error);

}  // namespace cleave
