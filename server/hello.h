// Queries about a client's Hello.
#pragma once

#include <algorithm>
#include <string_view>

#include "proto/wire.pb.h"

namespace cleave {

// Whether the Hello requests this feature, such as kProbeFeature.
inline bool asksFor(const wire::Hello& hello, std::string_view feature) {
  const auto& features = hello.features();
  return std::find(features.begin(), features.end(), feature) != features.end();
}

}  // namespace cleave
