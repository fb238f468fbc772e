// The emulated link: accepts connections, relays them to the target through one shaper per
// direction, and executes the script's events. Everything runs on the thread that runs the
// io_context.
#pragma once

#include <array>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <string>

#include "tools/link/connection.h"
#include "tools/link/script.h"
#include "tools/link/settings.h"
#include "tools/link/shaper.h"

namespace cleave::link {

// Maximum open connections. Further connections are reset when accepted.
inline constexpr std::size_t kMaxConnections = 256;

class Relay {
 public:
  // Listens immediately, and accepts once the context runs. Throws UsageError if it cannot listen
  // on the address, or if the target's name does not resolve.
  Relay(boost::asio::io_context& context, const Settings& settings);
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  std::string address() const;  // such as "127.0.0.1:43211"
  // Resets all connections and stops accepting, so that the context runs out of work.
  void stop();

  const Shaper& up() const { return up_; }
  const Shaper& down() const { return down_; }
  std::size_t openConnections() const { return connections_.size(); }
  std::uint64_t acceptedConnections() const { return accepted_; }

 private:
  using Tcp = boost::asio::ip::tcp;

  void admit(Tcp::socket socket);
  boost::asio::awaitable<void> connect(std::shared_ptr<Connection> connection,
                                       std::uint64_t number);
  boost::asio::awaitable<boost::system::error_code> connectTo(Tcp::socket& socket);
  void wakeSoon();
  void pump();
  void runScript(Time now);
  void happen(const Event& event, Time now);
  void changeShaper(Shaper& shaper, int& downs, const Event& event, Time now);
  void setTimer(Time now);
  Time now() const { return std::chrono::steady_clock::now() - begin_; }

  boost::asio::io_context& context_;
  const Settings settings_;
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  Tcp::acceptor acceptor_;
  Tcp::resolver::results_type targets_;
  Shaper up_;
  Shaper down_;
  int downsUp_ = 0;  // number of blackholes in progress, per direction
  int downsDown_ = 0;
  Script script_;
  std::optional<Time> scriptBegin_;
  std::list<std::shared_ptr<Connection>> connections_;
  std::uint64_t accepted_ = 0;
  boost::asio::steady_timer timer_;
  boost::asio::steady_timer linkUp_;  // cancelled when new connections may reach the target again
  bool pumpPosted_ = false;
  bool stopped_ = false;
};

}  // namespace cleave::link
