// Files that outlast a crash, and files that nobody else may read.
#pragma once

#include <string>
#include <string_view>

#include "common/core/error.h"

namespace cleave {

// Writes `text` to `path` by temporary file, fsync and rename. Throws RunError "cannot-write".
void writeFileDurably(const std::string& path, std::string_view text);

// Makes a file that only its owner may read and write (0600), such as a key's, and synchronises it.
// The folder's entry lasts after syncFolder(). Throws RunError "cannot-write": it exists, or the
// disk is full.
void writePrivateFile(const std::string& path, std::string_view text);
// The file's text. Throws UsageError "key-readable" where others may read or write it,
// "cannot-read" where we cannot.
std::string readPrivateFile(const std::string& path);

// What was made, renamed or removed in the folder lasts. Throws RunError "cannot-write".
void syncFolder(const std::string& folder);

// Returns 0 or the errno of the first failure.
int writeAll(int file, std::string_view text);
[[noreturn]] void throwCannotWrite(const std::string& path, const std::string& what, int error);

}  // namespace cleave
