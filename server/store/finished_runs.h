// Finished runs, in the store. The server keeps the last checkpoint of each, so that its client can
// train it for more epochs, until the identity needs the space.
#pragma once

#include <cstddef>
#include <string>

#include "common/checkpoint/files.h"

namespace cleave {

// Marks the run in this folder as finished, or as not finished. Throws RunError "cannot-write".
void markFinished(Files& files, const std::string& runFolder);
void unmarkFinished(Files& files, const std::string& runFolder);

// Removes checkpoints of finished runs in STORE/IDENTITY that no session uses, the run that
// finished first first, until at least `wanted` bytes are free. Returns the bytes that were freed.
std::size_t removeFinishedCheckpoints(Files& files, const std::string& identityFolder,
                                      std::size_t wanted);

}  // namespace cleave
