#include "common/core/endpoint.h"

#include <charconv>

#include "common/core/error.h"
#include "common/core/yaml.h"

namespace cleave {

std::string Endpoint::text() const {
  const bool isIpv6 = host.find(':') != std::string::npos;
  return (isIpv6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

void refuseEndpoint(const Placed& value, const std::string& why, const std::string& hint) {
  throw UsageError("bad-address", value.place + ": " + quotedForError(value.text) + " " + why,
                   hint);
}

namespace {

// "http://localhost:4800/" is not an address.
void refuseUrl(const Placed& value) {
  const std::size_t scheme = value.text.find("://");
  const std::size_t begin = scheme == std::string::npos ? 0 : scheme + 3;
  const std::size_t slash = value.text.find('/', begin);
  if (begin == 0 && slash == std::string::npos) return;
  std::string host = value.text.substr(begin, slash - begin);
  if (host.rfind(':') == std::string::npos) host += ":4800";
  refuseEndpoint(value, "is a URL, not an address",
                 "write the address without " +
                     (begin > 0 ? value.text.substr(0, begin) : value.text.substr(slash)) + ": " +
                     host);
}

}  // namespace

Endpoint parseEndpoint(const Placed& value, std::uint16_t minPort) {
  const std::string& text = value.text;
  refuseUrl(value);
  const std::size_t colon = text.rfind(':');
  if (colon == std::string::npos) {
    const bool isPort = !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
    if (isPort) refuseEndpoint(value, "has no host", "write 127.0.0.1:" + text);
    refuseEndpoint(value, "has no port", "write HOST:PORT, such as 127.0.0.1:4800");
  }
  Endpoint endpoint{text.substr(0, colon), 0};
  const bool bracketed = endpoint.host.starts_with('[') && endpoint.host.ends_with(']');
  if (bracketed) endpoint.host = endpoint.host.substr(1, endpoint.host.size() - 2);
  if (endpoint.host.empty()) {
    refuseEndpoint(value, "has no host", "write HOST:PORT, such as 127.0.0.1:4800");
  }
  if (!bracketed && endpoint.host.find(':') != std::string::npos) {
    refuseEndpoint(value, "is ambiguous", "write an IPv6 address in brackets: [::1]:4800");
  }
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data() + colon + 1, end, endpoint.port);
  if (error != std::errc{} || stop != end || endpoint.port < minPort) {
    refuseEndpoint(value, "does not end in a port",
                   "write a number in " + std::to_string(minPort) + "…65535 after the last colon");
  }
  return endpoint;
}

}  // namespace cleave
