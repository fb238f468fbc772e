#include "client/sweep/point_hint.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <string_view>

#include "common/program/program.h"

namespace cleave {

std::string pointHint(const std::string& code, std::string hint, std::uint32_t skip,
                      const std::string& config) {
  if (code == "sample-damaged") {
    return fmt::format(
        "replace or remove the damaged samples, or add --set data.skip={}, which uses other "
        "samples in their place; then rerun the same command (to list all: "
        "cleave-client data check --config {})",
        skip + 1, shellWord(config));
  }
  // How hints of `train` begin to name the command that continues the run, up to a semicolon.
  constexpr std::string_view kContinues[] = {
      "rerun the command, or continue a training run with --resume",
      "continue the run with --resume", "run: cleave-client train --resume",
      "run cleave-client train --resume"};
  for (const std::string_view begin : kContinues) {
    const std::size_t at = hint.find(begin);
    if (at == std::string::npos) continue;
    const std::size_t end = std::min(hint.find(';', at), hint.size());
    hint.replace(at, end - at, "rerun the same command");
  }
  return hint;
}

}  // namespace cleave
