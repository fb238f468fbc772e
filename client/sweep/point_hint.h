// Hints of a sweep's points. No Torch.
#pragma once

#include <cstdint>
#include <string>

namespace cleave {

// The hint of a point's training run, as a hint for `sweep`: without options of `train` and
// --resume, because the sweep continues its points itself. `code`, `hint`: those of the error that
// ended the run; `skip`: its data.skip; `config`: the sweep's --config.
std::string pointHint(const std::string& code, std::string hint, std::uint32_t skip,
                      const std::string& config);

}  // namespace cleave
