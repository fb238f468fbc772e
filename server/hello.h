// Queries about a client's Hello.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

#include "common/core/environment.h"
#include "common/net/frame.h"
#include "proto/wire.pb.h"

namespace cleave {

// Whether the Hello requests this feature, such as kProbeFeature.
inline bool asksFor(const wire::Hello& hello, std::string_view feature) {
  const auto& features = hello.features();
  return std::find(features.begin(), features.end(), feature) != features.end();
}

// The HelloOk of a probe or of a direct link.
inline wire::HelloOk helloOkWith(std::string_view feature, std::uint64_t session) {
  wire::HelloOk ok;
  ok.set_version(kWireVersion);
  ok.set_session(session);
  ok.set_software(softwareVersion());
  ok.add_features(std::string(feature));
  return ok;
}

}  // namespace cleave
