#include "tests/bench/transports.h"

#include <sys/socket.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/post.hpp>
#include <system_error>
#include <thread>
#include <utility>

#include "common/net/streams/tcp.h"
#include "proto/wire.pb.h"
#include "tests/support/network/certificates.h"

namespace cleave {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;

// ---- Raw sockets ----

[[noreturn]] void throwErrno(const char* what) {
  throw std::system_error(errno, std::generic_category(), what);
}

void sendAll(int socket, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const auto sent =
        ::send(socket, bytes.data(), std::min(bytes.size(), kCallBytes), MSG_NOSIGNAL);
    if (sent < 0) throwErrno("send");
    bytes = bytes.subspan(static_cast<std::size_t>(sent));
  }
}

void receiveAll(int socket, std::span<std::byte> place) {
  while (!place.empty()) {
    const auto received = ::recv(socket, place.data(), std::min(place.size(), kCallBytes), 0);
    if (received < 0) throwErrno("recv");
    if (received == 0) throw std::runtime_error("recv: the other end closed the connection");
    place = place.subspan(static_cast<std::size_t>(received));
  }
}

class RawSockets : public Transport {
 public:
  explicit RawSockets(TwoMemories& memory)
      : memory_(memory), sockets_(connectedSockets(context_, context_)) {
    for (tcp::socket* socket : {&sockets_.first, &sockets_.second}) {
      sendWithoutDelay(socket->native_handle());
      limitUnsent(socket->native_handle(), kCallBytes);
    }
  }

  void move(const Load& load) override {
    std::vector<std::future<void>> threads;
    const auto begin = [&](int from, int to, std::size_t sender) {
      threads.push_back(std::async(std::launch::async, [=, this] {
        for (std::size_t j = 0; j < load.count; ++j) {
          sendAll(from, std::span(memory_[sender].source).first(load.bytes));
        }
      }));
      threads.push_back(std::async(std::launch::async, [=, this] {
        for (std::size_t j = 0; j < load.count; ++j) {
          receiveAll(to, std::span(memory_[1 - sender].place).first(load.bytes));
        }
      }));
    };
    const int first = sockets_.first.native_handle();
    const int second = sockets_.second.native_handle();
    begin(first, second, 0);
    if (load.bothWays) begin(second, first, 1);
    for (std::future<void>& thread : threads) thread.get();
  }

 private:
  TwoMemories& memory_;
  asio::io_context context_;
  std::pair<tcp::socket, tcp::socket> sockets_;
};

// ---- Connections ----

class Connections : public Transport {
 public:
  Connections(TwoMemories& memory, Protection protection) : memory_(memory) {
    auto [first, second] = connectedSockets(ends_[0].context(), ends_[1].context());
    std::array<ConnectionOptions, 2> options;
    for (ConnectionOptions& one : options) one.checksum = protection == Protection::checksum;
    if (protection == Protection::tls) {
      const test::CertificateFolder folder;
      const test::TestAuthority authority;
      authority.writeServer(folder.path("server"));
      authority.write(folder.path("client"), "client", test::clientRequest());
      options[0].tls = TlsContext::load(folder.path("server"), TlsRole::server);
      options[1].tls = TlsContext::load(folder.path("client"), TlsRole::client);
      options[1].serverName = "localhost";
    }
    ends_[0].start(std::move(first), options[0], memory_[0].place);
    ends_[1].start(std::move(second), options[1], memory_[1].place);
  }

  void move(const Load& load) override {
    std::vector<std::future<void>> arrivals;
    arrivals.push_back(ends_[1].expect(load.count));
    if (load.bothWays) arrivals.push_back(ends_[0].expect(load.count));
    for (std::size_t sender = 0; sender < arrivals.size(); ++sender) {
      const auto tensor = std::span(memory_[sender].source).first(load.bytes);
      for (std::size_t j = 0; j < load.count; ++j) ends_[sender].send(tensor);
    }
    for (std::future<void>& arrival : arrivals) arrival.get();
  }

 private:
  TwoMemories& memory_;
  std::array<ConnectionEnd, 2> ends_;
};

}  // namespace

std::pair<tcp::socket, tcp::socket> connectedSockets(asio::io_context& first,
                                                     asio::io_context& second) {
  tcp::acceptor acceptor(first, {asio::ip::address_v4::loopback(), 0});
  tcp::socket client(second);
  client.connect(acceptor.local_endpoint());
  return {acceptor.accept(), std::move(client)};
}

void ConnectionEnd::start(Socket socket, ConnectionOptions options, std::span<std::byte> place) {
  place_ = place;
  connection_ = std::make_unique<Connection>(std::move(socket), std::move(options));
  asio::co_spawn(context(), connection_->run(*this),
                 [this](const std::exception_ptr& error, const std::string&) {
                   if (error && missing_ > 0) all_.set_exception(error);
                   missing_ = 0;
                   ended_.set_value();
                 });
}

ConnectionEnd::~ConnectionEnd() {
  if (connection_) {
    asio::post(context(), [this] { connection_->sayBye("done"); });
    ended_.get_future().wait();
  }
  thread_.stop();
}

std::future<void> ConnectionEnd::expect(std::size_t tensors) {
  std::promise<std::future<void>> future;
  asio::post(context(), [&] {
    missing_ = tensors;
    all_ = {};
    future.set_value(all_.get_future());
  });
  return future.get_future().get();
}

void ConnectionEnd::send(std::span<const std::byte> bytes, int priority) {
  OutgoingTensor tensor;
  tensor.bytes = bytes;
  tensor.priority = priority;
  tensor.queuedAt = now();
  tensor.openMetadata = [size = bytes.size()](double queueSeconds) {
    wire::Tensor metadata;
    metadata.set_codec("none");
    metadata.set_encoded_bytes(size);
    metadata.set_queue_seconds(queueSeconds);
    return metadata.SerializeAsString();
  };
  tensor.written = [](std::uint64_t) {};
  asio::post(context(), [this, tensor = std::move(tensor)]() mutable {
    connection_->outbox().pushTensor(std::move(tensor));
    connection_->wake();
  });
}

std::span<std::byte> ConnectionEnd::placePayload(const FrameHeader& header,
                                                 std::span<const std::byte> metadata) {
  Stream& stream = streams_[header.stream];
  if (header.kind == FrameKind::tensor) {
    wire::Tensor tensor;
    if (!tensor.ParseFromArray(metadata.data(), static_cast<int>(metadata.size())) ||
        tensor.encoded_bytes() > place_.size()) {
      throw ProtocolError("bad-metadata", "received a tensor of a different size");
    }
    stream.bytes = tensor.encoded_bytes();
  }
  return place_.first(stream.bytes).subspan(stream.placed, header.payloadBytes);
}

void ConnectionEnd::receivedFrame(const FrameHeader& header, std::span<const std::byte>,
                                  std::span<const std::byte> payload) {
  Stream& stream = streams_[header.stream];
  stream.placed += payload.size();
  if (stream.placed < stream.bytes) return;
  const std::size_t bytes = stream.bytes;
  streams_.erase(header.stream);
  if (onTensor) onTensor(bytes);
  if (missing_ > 0 && --missing_ == 0) all_.set_value();
}

std::unique_ptr<Transport> rawSockets(TwoMemories& memory) {
  return std::make_unique<RawSockets>(memory);
}

std::unique_ptr<Transport> connections(TwoMemories& memory, Protection protection) {
  return std::make_unique<Connections>(memory, protection);
}

}  // namespace cleave
