// Options of a connection: TLS, deadlines and limits.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "common/net/frames/peer_limits.h"
#include "common/net/streams/tls.h"

namespace cleave {

struct ConnectionOptions {
  // If set, the connection uses TLS, without checksums, and the peer's certificate gives its
  // identity.
  std::shared_ptr<const TlsContext> tls;
  // The host name or address that the server's certificate must match; clients only.
  std::string serverName;
  std::chrono::milliseconds tlsDeadline{10000};
  std::chrono::milliseconds helloDeadline{5000};
  std::chrono::milliseconds pingEvery{15000};
  // A peer that sends no byte for pingEvery + pingTimeout is considered lost.
  std::chrono::milliseconds pingTimeout{20000};
  FrameDeadline frame;  // for frames from the peer
  bool checksum = true;
};

}  // namespace cleave
