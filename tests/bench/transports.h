// The transports that bench_transport compares. A transport has two ends that are connected over
// loopback and transfer tensors from memory to memory.
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
#include "common/net/streams/io_thread.h"

namespace cleave {

// TCP_NOTSENT_LOWAT of all transports. It equals the largest segment, so that the kernel buffers
// the same amount for each transport.
inline constexpr std::size_t kCallBytes = kMaxSegmentBytes;

// Transfers `count` tensors of `bytes` bytes from the first end to the second. With bothWays,
// transfers as many back at the same time.
struct Load {
  std::size_t bytes = 0;
  std::size_t count = 0;
  bool bothWays = false;
};

// The source and the destination of one end's tensors. All tensors use the same memory.
struct EndMemory {
  std::vector<std::byte> source, place;
};

class Transport {
 public:
  virtual ~Transport() = default;
  // Returns when the last byte has arrived. Throws on failure.
  virtual void move(const Load& load) = 0;
};

// `memory`: the memory of the first and the second end. It must outlive the transport.
using TwoMemories = std::array<EndMemory, 2>;
// Raw sockets with blocking send and recv of 1 MiB per call.
std::unique_ptr<Transport> rawSockets(TwoMemories& memory);
// Gloo with unbound buffers of a TCP pair, and two tensors in flight.
std::unique_ptr<Transport> glooPair(TwoMemories& memory);
// Two Connections, each on an io thread of its own.
enum class Protection : std::uint8_t { none, checksum, tls };
std::unique_ptr<Transport> connections(TwoMemories& memory, Protection protection);
// Two Asio ssl::streams, each on an io thread of its own. Like a Connection, they transfer headers
// and segments of the maximum size.
std::unique_ptr<Transport> asioTls(TwoMemories& memory);

// Two sockets connected over loopback.
std::pair<boost::asio::ip::tcp::socket, boost::asio::ip::tcp::socket> connectedSockets(
    boost::asio::io_context& first, boost::asio::io_context& second);

// A Connection on its io thread, and the sink of its incoming tensors.
class ConnectionEnd : FrameSink {
 public:
  using Socket = boost::asio::ip::tcp::socket;

  ConnectionEnd() = default;
  ~ConnectionEnd() override;
  ConnectionEnd(const ConnectionEnd&) = delete;
  ConnectionEnd& operator=(const ConnectionEnd&) = delete;

  boost::asio::io_context& context() { return thread_.context(); }
  // Starts serving the connection; each tensor is written to `place`.
  void start(Socket socket, ConnectionOptions options, std::span<std::byte> place);

  // The future is ready when this many more tensors have arrived. Call this before they are sent.
  std::future<void> expect(std::size_t tensors);
  // The memory must stay valid until the tensor has arrived.
  void send(std::span<const std::byte> tensor, int priority = 0);

  // Called on the io thread with the size of each complete tensor in bytes. Set this before
  // start().
  std::function<void(std::size_t bytes)> onTensor;
  std::size_t segmentBytes() const { return connection_->segmentBytes(); }
  double sendRate() const { return connection_->sendRate(); }

 private:
  // An incoming tensor. Its size is in the metadata of its first frame.
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
  std::size_t missing_ = 0;  // tensors that must still arrive before all_ is fulfilled
  std::promise<void> all_;
  std::promise<void> ended_;
  std::unique_ptr<Connection> connection_;
};

}  // namespace cleave
