#include "client/train/json_lines.h"

#include "common/core/durable.h"
#include "common/core/printable.h"
#include "common/files/record.h"

namespace cleave {

void JsonLines::write(const char* event, const nlohmann::ordered_json& values) {
  nlohmann::ordered_json line = {{"event", event}, {"time", utcNow()}};
  line.update(values);
  if (const int error = writeAll(descriptor_, escaped(line.dump()) + "\n")) {
    throwCannotWrite("stdout", "the events of --json-lines cannot be written", error);
  }
}

}  // namespace cleave
