#include "server/access/names.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <utility>

#include "common/core/error.h"
#include "common/core/yaml.h"
#include "server/access/x509.h"

namespace cleave {
namespace {

constexpr std::size_t kMaxNameCharacters = 63;

bool isLowerOrDigit(char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); }
bool isLetterOrDigit(char c) { return isLowerOrDigit(c) || (c >= 'A' && c <= 'Z'); }

bool isHostName(const std::string& name) {
  constexpr std::size_t kMax = 253;
  if (name.empty() || name.size() > kMax) return false;
  std::size_t label = 0;
  for (const char c : name) {
    const bool fits = isLetterOrDigit(c) || (c == '-' && label > 0) || (c == '.' && label > 0);
    label = c == '.' ? 0 : label + 1;
    if (!fits || label > kMaxNameCharacters) return false;
  }
  return label > 0;
}

std::vector<std::string> withLoopback(std::vector<std::string> names) {
  for (const char* loopback : {"localhost", "127.0.0.1", "::1"}) names.emplace_back(loopback);
  std::vector<std::string> once;
  for (std::string& name : names) {
    if (std::count(once.begin(), once.end(), name) == 0) once.push_back(std::move(name));
  }
  return once;
}

// Returns "" for addresses that other machines cannot use, such as IPv6 link-local ones.
std::string addressText(const sockaddr& address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (address.sa_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
    ::inet_ntop(AF_INET, &v4.sin_addr, text.data(), text.size());
  } else if (address.sa_family == AF_INET6) {
    const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address);
    if (IN6_IS_ADDR_LINKLOCAL(&v6.sin6_addr)) return {};
    ::inet_ntop(AF_INET6, &v6.sin6_addr, text.data(), text.size());
  }
  return text.data();
}

}  // namespace

void checkClientName(const std::string& name) {
  if (isClientName(name)) return;
  const bool isTaken = name == kLocalIdentity || name == kDefaultIdentity;
  throw UsageError(
      "bad-name",
      isTaken ? "'" + name + "' is reserved, and cannot be the name of a client"
              : quotedForError(name) + " is not a valid name for a client",
      "use 1 to 63 characters of a-z, 0-9 and -, starting with a letter or a digit, such as "
      "clinic-a");
}

std::vector<std::string> namesOfThisMachine() {
  std::vector<std::string> names;
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) == 0 && isHostName(host.data())) {
    names.emplace_back(host.data());
  }
  names = withLoopback(std::move(names));
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) return names;
  for (const ifaddrs* at = first; at != nullptr; at = at->ifa_next) {
    if (at->ifa_addr == nullptr || (at->ifa_flags & IFF_LOOPBACK) != 0) continue;
    const std::string address = addressText(*at->ifa_addr);
    if (!address.empty()) names.push_back(address);
  }
  ::freeifaddrs(first);
  return names;
}

std::vector<std::string> serverNamesFrom(const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    if (isIpAddress(name) || isHostName(name)) continue;
    throw UsageError("bad-name", quotedForError(name) + " is neither a host name nor an IP address",
                     "give the name or address that clients connect to, such as --name "
                     "train.example.org or --name 192.0.2.7");
  }
  return names.empty() ? namesOfThisMachine() : withLoopback(names);
}

}  // namespace cleave
