// How a connection behaves: within TLS or not, its deadlines and limits.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "common/net/peer_limits.h"
#include "common/net/tls.h"

namespace cleave {

struct ConnectionOptions {
  // With one: all within TLS, without checksums, and the peer is who its certificate says.
  std::shared_ptr<const TlsContext> tls;
  // Host name or address that the certificate of the server that we connect to must be for.
  std::string serverName;
  std::chrono::milliseconds tlsDeadline{10000};
  std::chrono::milliseconds helloDeadline{5000};
  std::chrono::milliseconds pingEvery{15000};
  // No byte for pingEvery + pingTimeout: the peer is gone.
  std::chrono::milliseconds pingTimeout{20000};
  FrameDeadline frame;  // of those that the peer sends
  bool checksum = true;
};

}  // namespace cleave
