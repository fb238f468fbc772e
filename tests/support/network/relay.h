// A TCP relay between two ends under test. It counts the bytes that cross, and can cut connections,
// close one end of them, and stall or delay bytes.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>

namespace cleave::test {

// Listens on a free loopback port and forwards each connection to the target, on a thread of its
// own. "Up" is from the connecting client to the target, "down" is the opposite direction. The end
// of one direction is forwarded after its last byte, and the other direction continues. A reset is
// forwarded immediately, ahead of held bytes. All methods may be called from any thread, and have
// taken effect when they return.
class Relay {
 public:
  // Throws boost::system::system_error if the host cannot be resolved or no port is free.
  Relay(const std::string& targetHost, std::uint16_t targetPort);
  ~Relay();  // resets all connections
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  std::uint16_t port() const;
  // The bytes passed to the receiving end's socket since the relay started, over all connections.
  // They include all bytes that the receiving end has read.
  std::uint64_t bytesUp() const;
  std::uint64_t bytesDown() const;

  // Resets all connections; new ones are still accepted.
  void cut();
  // Resets one end of all connections. The other end stays open, and gets no bytes and no end: it
  // is half-open.
  enum class End { client, target };
  void abandon(End end);
  // Resets all connections once this many more bytes have crossed in that direction. A later call
  // replaces an earlier one.
  enum class Way { up, down };
  void cutAfter(Way way, std::uint64_t bytes);
  // While stalled, no byte, end or reset crosses, and new connections do not reach the target; all
  // connections stay open.
  void stall(bool stalled);
  // Inverts the last byte of the next data read in that direction.
  void damage(Way way);
  // Holds data that is read from now on for oneWay plus a random time of up to oneWay, drawn from
  // `seed`, without reordering. Holds at most 64 MiB per direction. If oneWay is 0, there is no
  // delay, and at most 256 KiB are held.
  void delay(std::chrono::microseconds oneWay, std::uint64_t seed = 0);

 private:
  struct State;
  class Link;
  std::unique_ptr<State> state_;
};

// While it exists, resets the relay's connections whenever `everyBytes` more bytes have crossed in
// that direction.
class RepeatedCuts {
 public:
  RepeatedCuts(Relay& relay, Relay::Way way, std::uint64_t everyBytes);
  ~RepeatedCuts();
  RepeatedCuts(const RepeatedCuts&) = delete;
  RepeatedCuts& operator=(const RepeatedCuts&) = delete;

 private:
  std::atomic<bool> isOver_ = false;
  std::thread thread_;
};

}  // namespace cleave::test
