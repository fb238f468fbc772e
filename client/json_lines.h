// What happens, for programs: one JSON object a line.
#pragma once

#include <nlohmann/json.hpp>

namespace cleave {

class JsonLines {
 public:
  explicit JsonLines(int descriptor) : descriptor_(descriptor) {}

  // A line {"event": event, "time": now, …`values`}, written at once. Throws RunError
  // "cannot-write" where nobody can read it any more: whoever asked for it has gone.
  void write(const char* event, const nlohmann::ordered_json& values);

 private:
  const int descriptor_;
};

}  // namespace cleave
