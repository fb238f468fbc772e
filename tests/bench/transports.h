// What bench_transport compares: two ends on this machine's loopback, joined in one way or another,
// which move tensors from memory to memory.
#pragma once

#include <array>
#include <boost/asio/ip/tcp.hpp>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/core/clock.h"
#include "common/net/connection.h"
#include "common/net/io_thread.h"

namespace cleave {

// As much as the largest segment, so that the kernel holds as much of each transport.
inline constexpr std::size_t kCallBytes = kMaxSegmentBytes;

// `count` tensors of `bytes` from the first end to the second, and as many back meanwhile.
struct Load {
  std::size_t bytes = 0;
  std::size_t count = 0;
  bool bothWays = false;
};

// Where one end's tensors come from and go to: each tensor is the same memory again.
struct EndMemory {
  std::vector<std::byte> source, place;
};

class Transport {
 public:
  virtual ~Transport() = default;
  // Returns when the last byte has arrived. Throws what went wrong.
  virtual void move(const Load& load) = 0;
};

// `memory`: of the first end and the second; must outlive the transport.
using TwoMemories = std::array<EndMemory, 2>;
// Blocking send and recv of 1 MiB a call.
std::unique_ptr<Transport> rawSockets(TwoMemories& memory);
// Unbound buffers of a TCP pair, two tensors under way at a time.
std::unique_ptr<Transport> glooPair(TwoMemories& memory);
// Two Connections, each on an io thread of its own.
enum class Protection : std::uint8_t { none, checksum, tls };
std::unique_ptr<Transport> connections(TwoMemories& memory, Protection protection);
// Two of Asio's ssl::streams, each on an io thread of its own, that write and read headers and
// segments of the largest size as a Connection does.
std::unique_ptr<Transport> asioTls(TwoMemories& memory);

// Joined over loopback.
std::pair<boost::asio::ip::tcp::socket, boost::asio::ip::tcp::socket> connectedSockets(
    boost::asio::io_context& first, boost::asio::io_context& second);

// A Connection on its io thread, and the sink of what arrives there.
class ConnectionEnd : FrameSink {
 public:
  using Socket = boost::asio::ip::tcp::socket;

  ConnectionEnd() = default;
  ~ConnectionEnd() override;
  ConnectionEnd(const ConnectionEnd&) = delete;
  ConnectionEnd& operator=(const ConnectionEnd&) = delete;

  boost::asio::io_context& context() { return thread_.context(); }
  // Serves the connection from now on; `place` is where each tensor is put.
  void start(Socket socket, ConnectionOptions options, std::span<std::byte> place);

  // Fulfilled when so many more tensors have arrived. To be called before they are sent.
  std::future<void> expect(std::size_t tensors);
  // The bytes must stay until they have arrived.
  void send(std::span<const std::byte> tensor, int priority = 0);

  // Called on the io thread when a tensor of so many bytes is complete; set before start().
  std::function<void(std::size_t bytes)> onTensor;
  std::size_t segmentBytes() const { return connection_->segmentBytes(); }
  double sendRate() const { return connection_->sendRate(); }

 private:
  // One tensor on its way in; its bytes are in its first frame's metadata.
  struct Stream {
    std::size_t bytes = 0;
    std::size_t placed = 0;
  };

  std::span<std::byte> placePayload(const FrameHeader& header,
                                    std::span<const std::byte> metadata) override;
  void receivedFrame(const FrameHeader& header, std::span<const std::byte> metadata,
                     std::span<const std::byte> payload) override;

  IoThread thread_;
  std::span<std::byte> place_;
  std::map<std::uint64_t, Stream> streams_;
  std::size_t missing_ = 0;  // tensors until all_
  std::promise<void> all_;
  std::promise<void> ended_;
  std::unique_ptr<Connection> connection_;
};

}  // namespace cleave
