// A TCP relay between two ends under test: it counts the bytes that cross, and cuts, stalls or
// delays them on command.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

namespace cleave::test {

// Listens on a free port of loopback and forwards every connection to the target, in a thread of
// its own. "Up" is from whoever connected to the target, "down" the way back. The end of one
// direction is passed on after its last byte, the other direction goes on; a reset is passed on as
// soon as it is met, ahead of bytes still held. Every method may be called from any thread, and has
// taken effect when it returns.
class Relay {
 public:
  // Throws boost::system::system_error: the host does not resolve, no port is free.
  Relay(const std::string& targetHost, std::uint16_t targetPort);
  ~Relay();  // resets all connections
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  std::uint16_t port() const;
  // Bytes handed to the receiving end's socket since the relay started, of all connections:
  // whatever an end has read is counted.
  std::uint64_t bytesUp() const;
  std::uint64_t bytesDown() const;

  // Resets all connections; new ones are accepted as before.
  void cut();
  // While stalled, no byte, end or reset crosses, and a new connection does not reach the target;
  // all stay open.
  void stall(bool stalled);
  // The last byte of what is read next in that direction is inverted.
  enum class Way { up, down };
  void damage(Way way);
  // What is read from now on is held for oneWay and a random time up to as much again, drawn from
  // `seed`, in order. At most 64 MiB a direction are held. 0: no delay, and at most 256 KiB.
  void delay(std::chrono::microseconds oneWay, std::uint64_t seed = 0);

 private:
  struct State;
  class Link;
  std::unique_ptr<State> state_;
};

}  // namespace cleave::test
