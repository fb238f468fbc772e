#include "common/link/link_faults.h"

#include <algorithm>
#include <iterator>

namespace cleave {
namespace {

constexpr std::string_view kLinkFaults[] = {
    // The network, or the peer's machine.
    "connection-lost",
    "connection-closed",
    "peer-silent",
    "not-reading",
    "too-slow",
    "bad-checksum",
    "tls-failed",
    // While a new connection is opened.
    "no-server",
    "hello-timeout",
    "tls-timeout",
    "too-many-connections",
    "too-many-handshakes",
    "too-many-from-address",
    // An older connection of this client.
    "connection-replaced",
};

}  // namespace

bool isLinkFault(std::string_view code) {
  return std::find(std::begin(kLinkFaults), std::end(kLinkFaults), code) != std::end(kLinkFaults);
}

}  // namespace cleave
