// In a separate file, so that no source includes both Gloo's and Asio's headers.
#include <gloo/transport/context.h>
#include <gloo/transport/device.h>
#include <gloo/transport/tcp/device.h>

#include <array>
#include <future>

#include "tests/bench/transports.h"

namespace cleave {
namespace {

namespace tcp = gloo::transport::tcp;

// The number of tensors posted in advance. With only one, each tensor would wait for a round trip.
constexpr std::size_t kUnderWay = 2;

class GlooPair : public Transport {
 public:
  explicit GlooPair(TwoMemories& memory) : memory_(memory) {
    std::array<std::vector<char>, 2> addresses;
    for (std::size_t rank = 0; rank < 2; ++rank) {
      End& end = ends_[rank];
      end.device = tcp::CreateDevice(tcp::attr("127.0.0.1"));
      end.context = end.device->createContext(static_cast<int>(rank), 2);
      end.context->setTimeout(std::chrono::minutes(5));
      addresses[rank] = end.context->createPair(end.other(rank))->address().bytes();
    }
    // Each connect() waits for the other end's.
    auto second = std::async(std::launch::async, [&] { pair(1)->connect(addresses[0]); });
    pair(0)->connect(addresses[1]);
    second.get();
  }

  ~GlooPair() override {
    for (std::size_t rank = 0; rank < 2; ++rank) pair(rank)->close();
  }

  void move(const Load& load) override {
    const auto end = [&](std::size_t rank) { work(rank, load, rank == 0, rank == 1); };
    const auto bothWays = [&](std::size_t rank) { work(rank, load, true, true); };
    auto second = std::async(std::launch::async, [&] { load.bothWays ? bothWays(1) : end(1); });
    load.bothWays ? bothWays(0) : end(0);
    second.get();
  }

 private:
  struct End {
    std::shared_ptr<gloo::transport::Device> device;
    std::shared_ptr<gloo::transport::Context> context;
    static int other(std::size_t rank) { return 1 - static_cast<int>(rank); }
  };
  using Buffer = std::unique_ptr<gloo::transport::UnboundBuffer>;

  std::unique_ptr<gloo::transport::Pair>& pair(std::size_t rank) {
    return ends_[rank].context->getPair(End::other(rank));
  }

  void work(std::size_t rank, const Load& load, bool sends, bool receives) {
    std::array<Buffer, kUnderWay> sources, places;
    const auto buffer = [&](std::vector<std::byte>& memory) {
      return ends_[rank].context->createUnboundBuffer(memory.data(), load.bytes);
    };
    const int other = End::other(rank);
    for (std::size_t j = 0; j < load.count + kUnderWay; ++j) {
      Buffer& source = sources[j % kUnderWay];
      Buffer& place = places[j % kUnderWay];
      if (source) source->waitSend();
      if (place) place->waitRecv();
      source.reset();
      place.reset();
      if (j >= load.count) continue;
      // Receives are posted before sends, so that incoming data has a buffer.
      if (receives) (place = buffer(memory_[rank].place))->recv(other, slot(other, j));
      if (sends) (source = buffer(memory_[rank].source))->send(other, slot(rank, j));
    }
  }

  static std::uint64_t slot(std::size_t sender, std::size_t tensor) { return 2 * tensor + sender; }

  TwoMemories& memory_;
  std::array<End, 2> ends_;
};

}  // namespace

std::unique_ptr<Transport> glooPair(TwoMemories& memory) {
  return std::make_unique<GlooPair>(memory);
}

}  // namespace cleave
