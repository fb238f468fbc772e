#include "common/link/link_faults.h"

#include <algorithm>
#include <iterator>

namespace cleave {
namespace {

constexpr std::string_view kLinkFaults[] = {
    // Faults of the network or of the peer's machine.
    "connection-lost",
    "connection-closed",
    "peer-silent",
    "not-reading",
    "too-slow",
    "bad-checksum",
    "tls-failed",
    // Faults while a new connection is opened.
    "no-server",
    "hello-timeout",
    "tls-timeout",
    "too-many-connections",
    "too-many-handshakes",
    "too-many-from-address",
    // Faults caused by two connections of the same client.
    "connection-replaced",
};

}  // namespace

bool isLinkFault(std::string_view code) {
  return std::find(std::begin(kLinkFaults), std::end(kLinkFaults), code) != std::end(kLinkFaults);
}

}  // namespace cleave
