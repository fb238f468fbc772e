// Events for programs: one JSON object per line.
#pragma once

#include <nlohmann/json.hpp>

namespace cleave {

class JsonLines {
 public:
  explicit JsonLines(int descriptor) : descriptor_(descriptor) {}

  // Writes and flushes one line: {"event": `event`, "time": the current time, and the entries of
  // `values`}. Throws RunError "cannot-write" if the reader has closed its end.
  void write(const char* event, const nlohmann::ordered_json& values);

 private:
  const int descriptor_;
};

}  // namespace cleave
