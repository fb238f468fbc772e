#include "server/config/connection_limits.h"

#include <algorithm>
#include <boost/asio/ip/address_v6.hpp>
#include <cmath>
#include <string>

#include "common/core/error.h"

namespace cleave {
namespace {

namespace ip = boost::asio::ip;

// Estimate of the time until a connection ends: sessions last minutes, connections without a Hello
// seconds.
constexpr double kConnectionRetrySeconds = 5;
constexpr std::size_t kMaxIdleAddresses = 4096;

// Clients are counted per IPv4 address or per IPv6 /64, the usual range of one subscriber.
ip::address placeOf(const ip::address& peer) {
  if (!peer.is_v6()) return peer;
  const ip::address_v6 v6 = peer.to_v6();
  if (v6.is_v4_mapped()) return ip::make_address_v4(ip::v4_mapped, v6);
  ip::address_v6::bytes_type bytes = v6.to_bytes();
  std::fill(bytes.begin() + 8, bytes.end(), 0);
  return ip::address_v6(bytes);
}

std::string count(double number) { return std::to_string(static_cast<long>(number)); }

RunError tooMany(const std::string& code, const std::string& what, const std::string& key,
                 double retrySeconds) {
  return RunError(ErrorKind::link, code,
                  "the server has " + what + " (" + key + " in its configuration)",
                  "try again later", retrySeconds);
}

}  // namespace

ConnectionLimits::Ticket::~Ticket() {
  --limits_.open_;
  --limits_.addresses_[place_].open;
}

void ConnectionLimits::Bucket::fill(double perSecond, double max, SteadyTime time) {
  left = std::min(max, left + perSecond * secondsBetween(filled, time));
  filled = time;
}

double ConnectionLimits::burstPerAddress() const {
  return std::max(1.0, settings_.burst * settings_.perSecondPerAddress / settings_.perSecond);
}

std::unique_ptr<ConnectionLimits::Ticket> ConnectionLimits::admit(const ip::address& peer,
                                                                  SteadyTime time) {
  if (addresses_.size() > kMaxIdleAddresses + settings_.connections) forgetIdle(time);
  if (open_ >= settings_.connections) {
    throw tooMany("too-many-connections",
                  count(settings_.connections) + " open connections already", "limits.connections",
                  kConnectionRetrySeconds);
  }
  handshakes_.fill(settings_.perSecond, settings_.burst, time);
  if (handshakes_.left < 1) {
    throw tooMany("too-many-handshakes",
                  "more than " + count(settings_.perSecond) + " new connections per second",
                  "limits.handshakes", std::ceil((1 - handshakes_.left) / settings_.perSecond));
  }
  const ip::address place = placeOf(peer);
  const auto [entry, isNew] = addresses_.try_emplace(place);
  Address& address = entry->second;
  if (isNew) address.handshakes = {burstPerAddress(), time};
  if (address.open >= settings_.connectionsPerAddress) {
    throw tooMany("too-many-from-address",
                  count(settings_.connectionsPerAddress) + " connections from this address already",
                  "limits.connections_per_address", kConnectionRetrySeconds);
  }
  address.handshakes.fill(settings_.perSecondPerAddress, burstPerAddress(), time);
  if (address.handshakes.left < 1) {
    throw tooMany("too-many-handshakes",
                  "more than " + count(settings_.perSecondPerAddress) +
                      " new connections per second from this address",
                  "limits.handshakes_per_address",
                  std::ceil((1 - address.handshakes.left) / settings_.perSecondPerAddress));
  }
  --handshakes_.left;
  --address.handshakes.left;
  ++address.open;
  ++open_;
  return std::make_unique<Ticket>(*this, place);
}

// Removes addresses with a full bucket and no open connection, which are equivalent to unknown
// ones.
void ConnectionLimits::forgetIdle(SteadyTime time) {
  std::erase_if(addresses_, [&](const auto& entry) {
    Bucket handshakes = entry.second.handshakes;
    handshakes.fill(settings_.perSecondPerAddress, burstPerAddress(), time);
    return entry.second.open == 0 && handshakes.left >= burstPerAddress();
  });
}

}  // namespace cleave
