// The HTTP server with different clients: correct and slow ones, too long requests, many clients at
// once, and requests from web pages.
#include "common/http/http_server.h"

#include <atomic>
#include <boost/asio/connect.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>
#include <catch2/catch.hpp>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

#include "common/core/clock.h"
#include "common/core/error.h"

namespace cleave {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using namespace std::chrono_literals;
using Catch::Contains;
using Catch::StartsWith;

HttpSettings settingsOf(const std::string& listen = "127.0.0.1:0") {
  HttpSettings settings;
  settings.listen = {"--dashboard", listen};
  settings.option = "--dashboard ";
  settings.anywhereOption = "--anywhere";
  return settings;
}

HttpHandlers handlers() {
  return {{"/",
           [](const HttpRequest&) {
             return HttpAnswer{200, "text/html", "<p>hello</p>"};
           }},
          {"/echo",
           [](const HttpRequest& request) {
             return HttpAnswer{200, "text/plain", request.path + "|" + request.query};
           }},
          {"/large",
           [](const HttpRequest&) {
             return HttpAnswer{200, "text/plain", std::string(std::size_t{8} << 20, 'x')};
           }},
          {"/broken", [](const HttpRequest&) -> HttpAnswer { throw std::runtime_error("torn"); }}};
}

// A client's connection.
class Reader {
 public:
  explicit Reader(std::uint16_t port) : socket_(context_) {
    socket_.connect({asio::ip::address_v4::loopback(), port});
  }
  void send(const std::string& text) { asio::write(socket_, asio::buffer(text)); }
  // Reads until the server closes.
  std::string rest() {
    std::string text;
    boost::system::error_code end;
    asio::read(socket_, asio::dynamic_buffer(text), end);
    return text;
  }
  // Reads only the beginning of a response.
  void waitForAnswer() { readSome(); }
  // Reads a response with a Content-Length; the connection stays open.
  std::string answer() {
    while (received_.find("\r\n\r\n") == std::string::npos) readSome();
    const std::size_t head = received_.find("\r\n\r\n") + 4;
    const std::string key = "Content-Length: ";
    const std::size_t length = std::stoul(received_.substr(received_.find(key) + key.size()));
    while (received_.size() < head + length) readSome();
    const std::string whole = received_.substr(0, head + length);
    received_.erase(0, head + length);
    return whole;
  }

 private:
  void readSome() {
    char bytes[4096];
    received_.append(bytes, socket_.read_some(asio::buffer(bytes)));
  }
  asio::io_context context_;
  tcp::socket socket_;
  std::string received_;
};

// Sends one request and returns the complete response, up to the server's close.
std::string ask(const HttpServer& server, const std::string& request) {
  Reader reader(server.port());
  reader.send(request);
  return reader.rest();
}

std::string get(const std::string& target, const std::string& host = "localhost") {
  return "GET " + target + " HTTP/1.1\r\nHost: " + host + "\r\nConnection: close\r\n\r\n";
}

// The error code, and the error's text with its hint, of starting a server with these settings.
std::pair<std::string, std::string> refusalOf(const HttpSettings& settings) {
  try {
    const HttpServer server(settings, handlers());
    return {};
  } catch (const UsageError& error) {
    return {error.code(), std::string(error.what()) + "; " + error.hint()};
  }
}

}  // namespace

TEST_CASE("a handler receives path and query, and its response has security headers") {
  const HttpServer server(settingsOf(), handlers());
  CHECK(server.url() == "http://127.0.0.1:" + std::to_string(server.port()));
  const std::string page = ask(server, get("/"));
  CHECK_THAT(page, StartsWith("HTTP/1.1 200 OK\r\n"));
  CHECK_THAT(page, Catch::EndsWith("\r\n\r\n<p>hello</p>"));
  CHECK_THAT(page, Contains("Content-Type: text/html\r\n"));
  CHECK_THAT(page, Contains("Cache-Control: no-store\r\n"));
  CHECK_THAT(page, Contains("X-Content-Type-Options: nosniff\r\n"));
  CHECK_THAT(page, Contains("Content-Security-Policy: default-src 'none'; script-src"));
  CHECK_THAT(ask(server, get("/echo?from=3&to=4")), Catch::EndsWith("/echo|from=3&to=4"));
  CHECK_THAT(ask(server, get("/echo?")), Catch::EndsWith("/echo|"));
}

TEST_CASE("HEAD returns the headers only") {
  const HttpServer server(settingsOf(), handlers());
  const std::string head =
      ask(server, "HEAD /large HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
  CHECK_THAT(head, Contains("Content-Length: 8388608\r\n"));
  CHECK_THAT(head, Catch::EndsWith("\r\n\r\n"));
}

TEST_CASE("a connection serves many requests, including pipelined ones") {
  const HttpServer server(settingsOf(), handlers());
  Reader reader(server.port());
  const std::string request = "GET /echo?n HTTP/1.1\r\nHost: localhost\r\n\r\n";
  for (int i = 0; i < 3; ++i) {
    reader.send(request);
    CHECK_THAT(reader.answer(), Catch::EndsWith("/echo|n"));
  }
  reader.send(request + request);
  CHECK_THAT(reader.answer(), Catch::EndsWith("/echo|n"));
  CHECK_THAT(reader.answer(), Catch::EndsWith("/echo|n"));
}

TEST_CASE("missing paths, forbidden methods and invalid HTTP are refused with a reason") {
  const HttpServer server(settingsOf(), handlers());
  CHECK_THAT(ask(server, get("/secret")), StartsWith("HTTP/1.1 404 "));
  CHECK_THAT(ask(server, get("/echo/../")), StartsWith("HTTP/1.1 404 "));
  const std::string posted =
      ask(server, "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n");
  CHECK_THAT(posted, StartsWith("HTTP/1.1 405 ") && Contains("Allow: GET, HEAD\r\n"));
  CHECK_THAT(ask(server, "DELETE / HTTP/1.1\r\nHost: localhost\r\n\r\n"),
             StartsWith("HTTP/1.1 405 "));
  CHECK_THAT(ask(server, "GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nhello"),
             StartsWith("HTTP/1.1 413 "));
  CHECK_THAT(ask(server, "GET / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"),
             StartsWith("HTTP/1.1 413 "));
  CHECK_THAT(ask(server, "CLV1\r\n\r\n"), StartsWith("HTTP/1.1 400 "));
  CHECK_THAT(ask(server, std::string("\0\1\2\3\r\n\r\n", 8)), StartsWith("HTTP/1.1 400 "));
  CHECK_THAT(ask(server, get("/broken")), StartsWith("HTTP/1.1 500 ") && !Contains("torn"));
  CHECK_THAT(ask(server, get("/")), StartsWith("HTTP/1.1 200 "));
}

TEST_CASE("a request longer than the limit is refused, however it is split") {
  const HttpServer server(settingsOf(), handlers());
  const std::string tooLong(std::size_t{16} << 10, 'a');
  CHECK_THAT(ask(server, get("/" + tooLong)), StartsWith("HTTP/1.1 431 "));
  CHECK_THAT(ask(server, "GET / HTTP/1.1\r\nHost: localhost\r\nX: " + tooLong + "\r\n\r\n"),
             StartsWith("HTTP/1.1 431 "));
  CHECK_THAT(ask(server, "GET /" + tooLong),
             StartsWith("HTTP/1.1 431 "));  // the request line never ends
}

TEST_CASE("on loopback, only requests for a Host of this machine are served") {
  const HttpServer server(settingsOf(), handlers());
  for (const char* host : {"localhost", "LOCALHOST:8900", "127.0.0.1", "127.0.0.1:1", "[::1]:80",
                           "[::1]", "localhost:"}) {
    CAPTURE(host);
    CHECK_THAT(ask(server, get("/", host)), StartsWith("HTTP/1.1 200 "));
  }
  for (const char* host : {"evil.example",
                           "evil.example:80",
                           "localhost.evil.example",
                           "10.0.0.1",
                           "",
                           "[",
                           "[::1",
                           "127.0.0.1.evil.example",
                           "::1",
                           "localhost, evil",
                           "[::1].evil.example",
                           "[::1]evil",
                           "[::1]:80.evil",
                           "[::1]:80:80",
                           "[localhost]",
                           "[127.0.0.1]",
                           "[::1",
                           "[]",
                           "localhost:80.evil",
                           "127.0.0.1:80@evil",
                           "localhost:evil",
                           "[fe80::1%25lo]"}) {
    CAPTURE(host);
    CHECK_THAT(ask(server, get("/", host)), StartsWith("HTTP/1.1 403 "));
  }
  CHECK_THAT(ask(server, "GET / HTTP/1.1\r\nConnection: close\r\n\r\n"),
             StartsWith("HTTP/1.1 403 "));
  CHECK_THAT(ask(server, "GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n"),
             StartsWith("HTTP/1.1 403 "));
}

TEST_CASE("with `anywhere`, requests for any Host are served") {
  HttpSettings settings = settingsOf("0.0.0.0:0");
  settings.anywhere = true;
  const HttpServer server(settings, handlers());
  CHECK_THAT(ask(server, get("/", "server.example:9100")), StartsWith("HTTP/1.1 200 "));
}

TEST_CASE("an address that is unusable or not allowed is refused with a hint") {
  const auto [alone, place] = refusalOf(settingsOf("8900"));
  CHECK(alone == "bad-address");
  CHECK_THAT(place, Contains("127.0.0.1:8900"));  // the port from the settings
  CHECK(refusalOf(settingsOf("localhost:8900")).first == "bad-address");
  CHECK(refusalOf(settingsOf("127.0.0.1:70000")).first == "bad-address");
  CHECK(refusalOf(settingsOf("192.0.2.1:0")).first == "unsafe-bind");
  HttpSettings foreign = settingsOf("192.0.2.1:0");
  foreign.anywhere = true;
  CHECK(refusalOf(foreign).first == "cannot-bind");

  const auto [code, text] = refusalOf(settingsOf("0.0.0.0:8900"));
  CHECK(code == "unsafe-bind");
  CHECK_THAT(text, StartsWith("--dashboard: listening on 0.0.0.0 without TLS would show") &&
                       Contains("add --anywhere"));

  const HttpServer server(settingsOf(), handlers());
  const auto [taken, advice] = refusalOf(settingsOf("127.0.0.1:" + std::to_string(server.port())));
  CHECK(taken == "port-in-use");
  CHECK_THAT(advice, Contains("--dashboard 127.0.0.1:" +
                              std::to_string(server.port() == 65535 ? 65534 : server.port() + 1)));
}

TEST_CASE("idle connections do not keep others out: the one that waited longest is closed") {
  HttpSettings settings = settingsOf();
  settings.connections = 3;
  const HttpServer server(settings, handlers());
  const std::string keepOpen = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
  Reader first(server.port());
  first.send(keepOpen);
  first.answer();
  std::vector<std::unique_ptr<Reader>> idle;
  for (int i = 0; i < 2; ++i) idle.push_back(std::make_unique<Reader>(server.port()));
  first.send(keepOpen);  // now it has waited for less time than the others
  first.answer();
  for (int i = 0; i < 600; ++i) {
    idle.push_back(std::make_unique<Reader>(server.port()));
    if (i % 2 == 0) idle.back()->send("GET / HT");
    if (i % 100 == 0) CHECK_THAT(ask(server, get("/")), StartsWith("HTTP/1.1 200 "));
  }
  CHECK(idle.front()->rest().empty());
  CHECK_THAT(ask(server, get("/")), StartsWith("HTTP/1.1 200 "));
}

TEST_CASE("a connection beyond the limit is told to retry if all others are being answered") {
  HttpSettings settings = settingsOf();
  settings.connections = 3;
  settings.waitingBytes = std::size_t{1} << 30;
  HttpHandlers larger = handlers();
  larger["/large"] = [](const HttpRequest&) {  // more than the kernel's buffers
    return HttpAnswer{200, "text/plain", std::string(std::size_t{32} << 20, 'x')};
  };
  const HttpServer server(settings, larger);
  std::vector<std::unique_ptr<Reader>> readers;
  for (std::size_t i = 0; i < settings.connections; ++i) {
    readers.push_back(std::make_unique<Reader>(server.port()));
    readers.back()->send(get("/large"));
    readers.back()->waitForAnswer();
  }
  const auto answerOf = [&]() -> std::string {
    try {
      return ask(server, get("/"));
    } catch (const boost::system::system_error&) {
      return "";  // closed before the request was sent
    }
  };
  std::string refused;
  for (int i = 0; i < 500 && !refused.starts_with("HTTP/1.1 503"); ++i) refused = answerOf();
  CHECK_THAT(refused, StartsWith("HTTP/1.1 503 "));
  readers.pop_back();  // the server detects the close a moment later
  std::string answered;
  for (int i = 0; i < 500 && !answered.starts_with("HTTP/1.1 200"); ++i) answered = answerOf();
  CHECK_THAT(answered, StartsWith("HTTP/1.1 200 "));
}

TEST_CASE("many concurrent readers all receive their response") {
  const HttpServer server(settingsOf(), handlers());
  std::atomic<int> good = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 16; ++i) {
    threads.emplace_back([&] {
      for (int j = 0; j < 20; ++j) good += ask(server, get("/echo?a")).ends_with("/echo|a") ? 1 : 0;
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(good == 16 * 20);
}

TEST_CASE("silent, slow and non-reading peers time out, and others are served") {
  HttpSettings settings = settingsOf();
  settings.idle = settings.request = settings.answer = 300ms;
  settings.waitingBytes = 1;
  const HttpServer server(settings, handlers());
  const SteadyTime start = now();
  Reader silent(server.port());
  Reader dripping(server.port());
  dripping.send("GET / HT");
  Reader deaf(server.port());
  deaf.send(get("/large"));
  // Until that response has been read, all other requests are answered with 503.
  std::string other;
  while (!other.starts_with("HTTP/1.1 503") && secondsSince(start) < 10) {
    other = ask(server, get("/"));
  }
  CHECK_THAT(other, StartsWith("HTTP/1.1 503 "));
  CHECK(silent.rest().empty());
  CHECK(dripping.rest().empty());
  while (!other.starts_with("HTTP/1.1 200") && secondsSince(start) < 10) {
    other = ask(server, get("/"));
  }
  CHECK_THAT(other, StartsWith("HTTP/1.1 200 "));
  CHECK(deaf.rest().size() < std::size_t{8} << 20);
  CHECK(secondsSince(start) < 10);
}

TEST_CASE("a server that stops closes its connections immediately") {
  auto server = std::make_unique<HttpServer>(settingsOf(), handlers());
  Reader idle(server->port());
  Reader dripping(server->port());
  dripping.send("GET /");
  Reader deaf(server->port());
  deaf.send(get("/large"));
  const SteadyTime start = now();
  server.reset();
  idle.rest();
  dripping.rest();
  CHECK(secondsSince(start) < 5);
}

}  // namespace cleave
