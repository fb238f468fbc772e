// Detects what the columns of a user's table are, for a first configuration. No Torch.
#pragma once

#include <string>

#include "client/start/found_data.h"

namespace cleave {

// A table of images, texts or numbers; see findData(). `label`: the column of the target; empty: it
// is detected.
FoundData foundTable(const std::string& path, const std::string& label);

// For all of client/start. Throws UsageError "unknown-data".
[[noreturn]] void throwUnknownData(const std::string& sentence, const std::string& hint);

}  // namespace cleave
