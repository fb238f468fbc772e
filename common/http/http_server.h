// A small HTTP server for a program's metrics and pages, with a thread of its own. It is read-only
// (GET and HEAD). Connections, bytes and time are limited, so that HTTP clients cost the program
// almost nothing, even if they stall.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <string>

#include "common/http/http_settings.h"
#include "common/net/streams/io_thread.h"

namespace cleave {

// The endpoint that the settings specify. Throws UsageError "bad-address", "unsafe-bind".
boost::asio::ip::tcp::endpoint endpointOf(const HttpSettings& settings);

struct HttpRequest {
  std::string path;   // "/metrics"
  std::string query;  // everything after the '?', not decoded
};

struct HttpAnswer {
  unsigned status = 200;
  std::string type = "text/plain; charset=utf-8";
  std::string body;
};

// Answers a request. It runs on the server's thread and blocks all other requests meanwhile.
// Exceptions are logged and answered with status 500.
using HttpHandler = std::function<HttpAnswer(const HttpRequest&)>;
// Handlers by exact path, such as "/" and "/metrics".
using HttpHandlers = std::map<std::string, HttpHandler, std::less<>>;

// On a loopback address, answers only requests whose Host is a loopback address or localhost:
// otherwise a web page could read the server's answers through a DNS name that resolves to this
// machine. The headers of answers make browsers run only code that is inline in the page, load only
// from this server, and store nothing.
class HttpServer {
 public:
  // Listens, and starts serving. Throws the errors of endpointOf(), and UsageError "port-in-use" or
  // "cannot-bind".
  HttpServer(HttpSettings settings, HttpHandlers handlers);
  // Stops immediately, except that a running handler finishes.
  ~HttpServer();

  std::uint16_t port() const { return endpoint_.port(); }
  // "http://127.0.0.1:8900"
  std::string url() const;

 private:
  class Session;
  bool replaceSilent();
  void start(boost::asio::ip::tcp::socket socket);
  HttpAnswer answer(const HttpRequest& request) const;

  const HttpSettings settings_;
  const HttpHandlers handlers_;
  boost::asio::ip::tcp::endpoint endpoint_;
  // The server's thread only.
  std::list<Session*> sessions_;  // without the replaced ones; those that wait longest first
  std::size_t waitingBytes_ = 0;  // bytes of answers that are being sent

  IoThread io_;
  boost::asio::ip::tcp::acceptor acceptor_;
};

}  // namespace cleave
