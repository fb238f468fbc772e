// bench_transport: transfers tensors over loopback with a Connection (plain and within TLS), a raw
// socket, Gloo and Asio's ssl::stream, and measures how quickly an urgent tensor arrives over a
// slow link. Prints a line of JSON per measurement.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cstring>
#include <iostream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "common/core/error.h"
#include "common/core/random.h"
#include "tests/bench/processor_time.h"
#include "tests/bench/transports.h"

namespace cleave {
namespace {

using boost::asio::ip::tcp;
using Json = nlohmann::ordered_json;

constexpr std::size_t kMegabyte = 1000 * 1000;

std::vector<std::byte> noise(std::size_t bytes) {
  std::vector<std::byte> noise(bytes);
  const RandomKey key = randomKey(1, "bench");
  for (std::size_t j = 0; j + sizeof(std::uint64_t) <= bytes; j += sizeof(std::uint64_t)) {
    const std::uint64_t bits = randomBits(key, j);
    std::memcpy(noise.data() + j, &bits, sizeof bits);
  }
  return noise;
}

// ---- Throughput ----

struct ThroughputOptions {
  std::vector<std::size_t> megabytes = {1, 4, 16, 64};
  std::vector<std::string> transports = {"raw",  "connection",     "connection-checksum",
                                         "gloo", "connection-tls", "asio-tls"};
  std::size_t total = 256;
  bool backwards = false;
  bool oneWay = false;
};

std::unique_ptr<Transport> makeTransport(const std::string& name, TwoMemories& memory) {
  if (name == "raw") return rawSockets(memory);
  if (name == "gloo") return glooPair(memory);
  if (name == "connection") return connections(memory, Protection::none);
  if (name == "connection-checksum") return connections(memory, Protection::checksum);
  if (name == "connection-tls") return connections(memory, Protection::tls);
  if (name == "asio-tls") return asioTls(memory);
  throw UsageError("bad-transport", "'" + name + "' is not a transport");
}

int measureThroughput(ThroughputOptions options) {
  const std::size_t largest = *std::ranges::max_element(options.megabytes) * kMegabyte;
  TwoMemories memory;
  for (EndMemory& end : memory) end = {noise(largest), std::vector<std::byte>(largest)};

  if (options.backwards) std::ranges::reverse(options.transports);
  std::vector<std::unique_ptr<Transport>> transports;
  for (const std::string& name : options.transports) {
    transports.push_back(makeTransport(name, memory));
    // Repeats transfers until the kernel's buffers and the segments have reached their final size.
    transports.back()->move({largest, 1 + 64 * kMegabyte / largest, true});
  }
  for (const std::size_t megabytes : options.megabytes) {
    for (const bool bothWays : {false, true}) {
      if (bothWays && options.oneWay) continue;
      const Load load{megabytes * kMegabyte, std::max<std::size_t>(1, options.total / megabytes),
                      bothWays};
      for (std::size_t j = 0; j < transports.size(); ++j) {
        const double processorBefore = processorSeconds();
        const SteadyTime start = now();
        transports[j]->move(load);
        const double seconds = secondsSince(start);
        const double bytes = static_cast<double>(load.bytes * load.count) * (bothWays ? 2 : 1);
        std::cout << Json{{"transport", options.transports[j]},
                          {"megabytes", megabytes},
                          {"both_ways", bothWays},
                          {"bytes_per_second", bytes / seconds},
                          {"processor_seconds_per_byte",
                           (processorSeconds() - processorBefore) / bytes}}
                  << std::endl;
      }
    }
  }
  return 0;
}

// ---- An urgent tensor ----

struct UrgentOptions {
  int repetitions = 20;
  std::size_t bulkBytes = 12 * kMegabyte;
  std::size_t urgentBytes = kMegabyte / 10;
};

// Lets another thread wait for the arrival time of the last tensor of a given size.
class Arrival {
 public:
  void expect(std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    bytes_ = bytes;
    arrived_ = {};
  }
  void happened(std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    if (bytes == bytes_) arrived_.set_value(now());
  }
  SteadyTime wait() { return arrived_.get_future().get(); }

 private:
  std::mutex mutex_;
  std::size_t bytes_ = 0;
  std::promise<SteadyTime> arrived_;
};

// With cleave-link in between, prints this program's port to stdout and reads the link's port from
// stdin.
int measureUrgent(const UrgentOptions& options) {
  TwoMemories memory;
  for (EndMemory& end : memory) {
    end = {noise(options.bulkBytes), std::vector<std::byte>(options.bulkBytes)};
  }
  Arrival urgent;
  std::array<ConnectionEnd, 2> ends;
  ConnectionEnd& sender = ends[0];
  ConnectionEnd& receiver = ends[1];
  receiver.onTensor = [&](std::size_t bytes) { urgent.happened(bytes); };

  tcp::acceptor acceptor(receiver.context(), {boost::asio::ip::address_v4::loopback(), 0});
  std::cout << Json{{"port", acceptor.local_endpoint().port()}} << std::endl;
  unsigned short port = 0;
  std::cin >> port;
  tcp::socket socket(sender.context());
  socket.connect({boost::asio::ip::address_v4::loopback(), port});
  receiver.start(acceptor.accept(), {}, memory[1].place);
  sender.start(std::move(socket), {}, memory[0].place);

  const auto bulk = std::span(memory[0].source);
  const auto gradient = bulk.first(options.urgentBytes);
  const auto sendUrgent = [&] {
    urgent.expect(gradient.size());
    const SteadyTime start = now();
    sender.send(gradient, 0);
    return std::chrono::duration<double>(urgent.wait() - start).count();
  };
  const RandomKey key = randomKey(2, "pauses");
  for (int j = -1; j < options.repetitions; ++j) {  // the first repetition only measures the rate
    std::future<void> all = receiver.expect(3);
    const double alone = sendUrgent();
    sender.send(bulk, 1);
    // The pause is random, so that the urgent tensor is not always queued at the same position in a
    // segment.
    const auto pause = 200 + randomBits(key, static_cast<std::uint64_t>(j + 1)) % 100;
    std::this_thread::sleep_for(std::chrono::milliseconds(pause));
    const double behind = sendUrgent();
    const bool overtook = all.wait_for(std::chrono::seconds(0)) != std::future_status::ready;
    all.get();
    if (j < 0) continue;
    std::cout << Json{{"seconds", behind},
                      {"alone_seconds", alone},
                      {"overtook", overtook},
                      {"segment_bytes", sender.segmentBytes()},
                      {"send_rate", sender.sendRate()}}
              << std::endl;
  }
  return 0;
}

}  // namespace
}  // namespace cleave

int main(int argc, char** argv) {
  CLI::App app{"Measures the transport between two ends on this machine", "bench_transport"};
  app.require_subcommand(1);
  cleave::ThroughputOptions throughput;
  CLI::App* moving = app.add_subcommand("throughput", "Bytes per second, by transport");
  moving->add_option("--megabytes", throughput.megabytes, "Sizes of the tensors in MB (1 4 16 64)");
  moving->add_option(
      "--transports", throughput.transports,
      "Some of raw, connection, connection-checksum, gloo, connection-tls, asio-tls (all)");
  moving->add_option("--total", throughput.total, "MB per measurement in each direction (256)");
  moving->add_flag("--one-way", throughput.oneWay, "Sends in one direction only");
  moving->add_flag("--backwards", throughput.backwards, "Runs the transports in reverse order");
  cleave::UrgentOptions urgent;
  CLI::App* urgently =
      app.add_subcommand("urgent",
                         "Seconds until an urgent tensor arrives. Prints the port that is the "
                         "target for cleave-link, and reads the port of cleave-link");
  urgently->add_option("--repetitions", urgent.repetitions, "Repetitions (20)");
  urgently->add_option("--bulk-bytes", urgent.bulkBytes,
                       "Bytes queued before the urgent tensor (12000000)");
  urgently->add_option("--urgent-bytes", urgent.urgentBytes, "Bytes of the urgent tensor (100000)");
  CLI11_PARSE(app, argc, argv);
  try {
    return moving->parsed() ? cleave::measureThroughput(throughput) : cleave::measureUrgent(urgent);
  } catch (const std::exception& error) {
    std::cerr << "bench_transport: " << error.what() << "\n";
    return 1;
  }
}
