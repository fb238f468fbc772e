// Limits the number of open connections and the rate of new ones, in total and per address. The
// limits are enforced before any byte of a connection is read. io thread only.
#pragma once

#include <boost/asio/ip/address.hpp>
#include <cstdint>
#include <map>
#include <memory>

#include "common/core/clock.h"

namespace cleave {

struct ConnectionLimitSettings {
  std::uint32_t connections = 2048;  // maximum open at once
  std::uint32_t connectionsPerAddress = 256;
  double perSecond = 100;  // maximum new ones per second
  double burst = 200;      // maximum new ones at once, after a quiet period
  // Maximum new connections per second from one address. Its burst has the same ratio to this rate
  // as `burst` to `perSecond`.
  double perSecondPerAddress = 50;
};

class ConnectionLimits {
 public:
  explicit ConnectionLimits(const ConnectionLimitSettings& settings)
      : settings_(settings), handshakes_{settings.burst, {}} {}

  // Counts an open connection until destroyed. Must not outlive the ConnectionLimits.
  class Ticket {
   public:
    Ticket(ConnectionLimits& limits, boost::asio::ip::address place)
        : limits_(limits), place_(std::move(place)) {}
    ~Ticket();
    Ticket(const Ticket&) = delete;
    Ticket& operator=(const Ticket&) = delete;

   private:
    ConnectionLimits& limits_;
    const boost::asio::ip::address place_;
  };

  // Throws RunError "too-many-connections", "too-many-from-address" or "too-many-handshakes", with
  // the time to wait before a retry.
  std::unique_ptr<Ticket> admit(const boost::asio::ip::address& peer, SteadyTime time);

 private:
  // Token bucket: the number of new connections allowed now. It refills over time.
  struct Bucket {
    double left = 0;
    SteadyTime filled;
    void fill(double perSecond, double max, SteadyTime time);
  };
  struct Address {
    std::uint32_t open = 0;
    Bucket handshakes;
  };
  double burstPerAddress() const;
  void forgetIdle(SteadyTime time);

  const ConnectionLimitSettings settings_;
  std::uint32_t open_ = 0;
  Bucket handshakes_;
  std::map<boost::asio::ip::address, Address> addresses_;
};

}  // namespace cleave
