// The answer to a client's Hello.
#pragma once

#include <cstdint>

#include "common/files/environment.h"
#include "proto/wire.pb.h"

namespace cleave {

// The HelloOk of a probe or of a direct link, and what that of a run begins with.
inline wire::HelloOk helloOkOf(std::uint64_t session) {
  wire::HelloOk ok;
  ok.set_session(session);
  ok.set_software(softwareVersion());
  return ok;
}

}  // namespace cleave
