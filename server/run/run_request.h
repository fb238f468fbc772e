#pragma once

#include <cstdint>
#include <string>

#include "common/run/run_spec.h"
#include "proto/wire.pb.h"

namespace cleave {

// A client's request for a run.
struct RunRequest {
  wire::Hello hello;
  RunSpec spec;  // the run spec of the Hello
  std::string identity;
  std::uint64_t session = 0;    // number of the session that received it
  bool clientIsLocal = false;   // the client also uses this machine's processors
  bool hasCertificate = false;  // which says its identity

  const std::string& runId() const { return hello.run_id(); }
  // A trial of codecs: it leaves no records, and its weights cannot be fetched.
  bool isTrial() const { return hello.kind() == wire::Hello::TRIAL; }
};

}  // namespace cleave
