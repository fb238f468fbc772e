// A small HTTP server for what a daemon shows: figures and pages. Read-only (GET and HEAD), and
// bounded in connections, bytes and time, so that whoever reads it, or holds it up, costs the
// daemon next to nothing. It has a thread of its own.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "common/http/http_settings.h"
#include "common/net/io_thread.h"

namespace cleave {

// Where they say to listen. Throws UsageError "bad-address", "unsafe-bind".
boost::asio::ip::tcp::endpoint endpointOf(const HttpSettings& settings);

struct HttpRequest {
  std::string path;   // "/metrics"
  std::string query;  // what follows the '?', as it came
};

struct HttpAnswer {
  unsigned status = 200;
  std::string type = "text/plain; charset=utf-8";
  std::string body;
};

// Runs on the server's thread, where all other requests wait for it. What it throws is logged, and
// answered with status 500.
using HttpHandler = std::function<HttpAnswer(const HttpRequest&)>;
// By exact path, such as "/" and "/metrics".
using HttpHandlers = std::map<std::string, HttpHandler, std::less<>>;

// On a loopback address it answers only requests whose Host is one, or localhost: else a page of
// the web could read it through a name that it lets point here. Browsers are told to run what
// stands in a page itself, to load from this server only, and to keep nothing.
class HttpServer {
 public:
  // Listens, and serves from then on. Throws UsageError as endpointOf(), "port-in-use",
  // "cannot-bind".
  HttpServer(HttpSettings settings, HttpHandlers handlers);
  // Ends at once, but for a handler under way.
  ~HttpServer();

  std::uint16_t port() const { return endpoint_.port(); }
  // "http://127.0.0.1:8900"
  std::string url() const;

 private:
  class Session;
  boost::asio::awaitable<void> accept();
  void start(boost::asio::ip::tcp::socket socket);
  HttpAnswer answer(const HttpRequest& request) const;

  const HttpSettings settings_;
  const HttpHandlers handlers_;
  boost::asio::ip::tcp::endpoint endpoint_;
  // The server's thread only.
  std::size_t open_ = 0;          // connections
  std::size_t waitingBytes_ = 0;  // of answers not yet taken

  IoThread io_;
  boost::asio::ip::tcp::acceptor acceptor_;
};

}  // namespace cleave
