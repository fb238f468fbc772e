#include "common/http/http_server.h"

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/string.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/beast/http/write.hpp>
#include <boost/beast/version.hpp>
#include <exception>
#include <optional>
#include <utility>

#include "common/core/error.h"
#include "common/core/log.h"
#include "common/net/streams/accept.h"
#include "common/net/streams/listen.h"

namespace cleave {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::ip::tcp;
using boost::system::error_code;
using Parser = http::request_parser<http::empty_body>;

constexpr std::chrono::seconds kDrain{1};

// Allows only a page's own inline script and style, images embedded in it, and requests to this
// server.
constexpr const char* kContentPolicy =
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src 'self' "
    "data: blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

// Empty, or ":" and digits.
bool isPort(std::string_view text) {
  return text.empty() || (text.starts_with(':') &&
                          text.find_first_not_of("0123456789", 1) == std::string_view::npos);
}

// Whether a Host header (RFC 9110, 7.2) names this machine: "localhost:8900", "127.0.0.1",
// "[::1]:80". A browser sends whatever host the URL contains: "[::1].evil" must not pass as
// "[::1]".
bool namesLoopback(std::string_view host) {
  const bool isBracketed = host.starts_with('[');
  const std::size_t end = isBracketed ? host.find(']') : host.find(':');
  if (isBracketed && end == std::string_view::npos) return false;
  const std::string name(isBracketed ? host.substr(1, end - 1) : host.substr(0, end));
  const std::size_t port = isBracketed ? end + 1 : std::min(end, host.size());
  if (!isPort(host.substr(port))) return false;
  error_code error;
  if (isBracketed) {
    const auto address = asio::ip::make_address_v6(name, error);
    return !error && address.is_loopback();
  }
  if (beast::iequals(name, "localhost")) return true;
  const auto address = asio::ip::make_address_v4(name, error);
  return !error && address.is_loopback();
}

HttpAnswer refusal(http::status status, const std::string& sentence) {
  return {static_cast<unsigned>(status), "text/plain; charset=utf-8", sentence + "\n"};
}

// Checks a request before its path is looked up; returns the refusal, if any.
std::optional<HttpAnswer> refused(const Parser& parser, bool loopback) {
  const auto& request = parser.get();
  if (request.method() != http::verb::get && request.method() != http::verb::head) {
    return refusal(http::status::method_not_allowed, "only GET and HEAD are supported");
  }
  if (parser.chunked() || parser.content_length().value_or(0) > 0) {
    return refusal(http::status::payload_too_large, "requests with a body are not supported");
  }
  if (!loopback) return std::nullopt;
  if (request.count(http::field::host) != 1 || !namesLoopback(request[http::field::host])) {
    return refusal(
        http::status::forbidden,
        "this address accepts requests from its own machine only: use localhost or 127.0.0.1");
  }
  return std::nullopt;
}

HttpRequest requestOf(std::string_view target) {
  const std::size_t mark = target.find('?');
  if (mark == std::string_view::npos) return {std::string(target), ""};
  return {std::string(target.substr(0, mark)), std::string(target.substr(mark + 1))};
}

// The answer to a request that cannot be parsed; nullopt if there is no one to answer.
std::optional<HttpAnswer> unreadable(const error_code& error) {
  if (error.category() != http::make_error_code(http::error::bad_method).category() ||
      error == http::error::end_of_stream || error == http::error::partial_message) {
    return std::nullopt;
  }
  if (error == http::error::header_limit || error == http::error::buffer_overflow) {
    return refusal(http::status::request_header_fields_too_large, "the request is too long");
  }
  return refusal(http::status::bad_request, "this is not a valid HTTP request");
}

template <typename Body>
void fillHead(http::response<Body>& response, const HttpAnswer& answer, bool keepOpen) {
  response.result(answer.status);
  response.set(http::field::content_type, answer.type);
  response.set(http::field::cache_control, "no-store");
  response.set("X-Content-Type-Options", "nosniff");
  response.set("Content-Security-Policy", kContentPolicy);
  response.set("Cross-Origin-Resource-Policy", "same-origin");
  response.set("Referrer-Policy", "no-referrer");
  if (answer.status == static_cast<unsigned>(http::status::method_not_allowed)) {
    response.set(http::field::allow, "GET, HEAD");
  }
  response.keep_alive(keepOpen);
  response.content_length(answer.body.size());
}

}  // namespace

tcp::endpoint endpointOf(const HttpSettings& settings) {
  const tcp::endpoint endpoint = parseListen(settings.listen);
  if (endpoint.address().is_loopback() || settings.anywhere) return endpoint;
  throw UsageError(
      "unsafe-bind",
      settings.listen.place + ": listening on " + hostText(endpoint.address()) +
          " without TLS would show everything to anyone who can reach it",
      "listen on 127.0.0.1, or, on a network that you trust, add " + settings.anywhereOption);
}

// One connection to a browser or another HTTP client.
class HttpServer::Session {
 public:
  Session(HttpServer& server, tcp::socket socket)
      : server_(server), stream_(std::move(socket)), buffer_(server.settings_.headBytes) {
    place_ = server_.sessions_.insert(server_.sessions_.end(), this);
  }
  ~Session() { leave(); }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  asio::awaitable<void> serve() {
    bool isOpen = true;
    while (isOpen) isOpen = co_await serveOne();
    co_await close();
  }

  // Whether the session waits for a request, or for the rest of one.
  bool isSilent() const { return isSilent_; }
  void replace() {
    leave();
    stream_.close();
  }

 private:
  void leave() {
    if (std::exchange(hasLeft_, true)) return;
    server_.sessions_.erase(place_);
  }
  void answers() { isSilent_ = false; }
  void waits() {
    isSilent_ = true;
    if (!hasLeft_) server_.sessions_.splice(server_.sessions_.end(), server_.sessions_, place_);
  }

  // Returns whether another request may follow.
  asio::awaitable<bool> serveOne() {
    if (!co_await firstByte()) co_return false;
    Parser parser;
    parser.header_limit(static_cast<std::uint32_t>(server_.settings_.headBytes));
    parser.body_limit(boost::none);  // refused() rejects requests with a body
    error_code error;
    stream_.expires_after(server_.settings_.request);
    co_await http::async_read_header(stream_, buffer_, parser,
                                     asio::redirect_error(asio::use_awaitable, error));
    if (error) {
      if (const auto why = unreadable(error)) co_await write(*why, false, 11, false);
      co_return false;
    }
    answers();
    const auto& request = parser.get();
    const bool withBody = request.method() != http::verb::head;
    const bool loopback = server_.endpoint_.address().is_loopback();
    if (const auto why = refused(parser, loopback)) {
      co_return co_await write(*why, withBody, request.version(), false);
    }
    const HttpAnswer answer = server_.answer(requestOf(request.target()));
    const bool isOpen = co_await write(answer, withBody, request.version(), request.keep_alive());
    waits();
    co_return isOpen;
  }

  // Waits until a request begins.
  asio::awaitable<bool> firstByte() {
    if (buffer_.size() > 0) co_return true;
    error_code error;
    stream_.expires_after(server_.settings_.idle);
    const std::size_t bytes = co_await stream_.async_read_some(
        buffer_.prepare(buffer_.max_size()), asio::redirect_error(asio::use_awaitable, error));
    buffer_.commit(bytes);
    co_return !error;
  }

  asio::awaitable<bool> write(HttpAnswer answer, bool withBody, unsigned version, bool keepOpen) {
    error_code error;
    stream_.expires_after(server_.settings_.answer);
    if (withBody) {
      http::response<http::string_body> response;
      response.version(version);
      fillHead(response, answer, keepOpen);
      response.body() = std::move(answer.body);
      const Waiting waiting(server_, response.body().size());
      co_await http::async_write(stream_, response,
                                 asio::redirect_error(asio::use_awaitable, error));
    } else {
      http::response<http::empty_body> response;
      response.version(version);
      fillHead(response, answer, keepOpen);
      http::response_serializer<http::empty_body> serializer(response);
      co_await http::async_write_header(stream_, serializer,
                                        asio::redirect_error(asio::use_awaitable, error));
    }
    co_return !error && keepOpen;
  }

  // Continues to read briefly: unread data from the peer would turn the close into a reset, which
  // may overtake our last answer.
  asio::awaitable<void> close() {
    error_code error;
    stream_.socket().shutdown(tcp::socket::shutdown_send, error);
    stream_.expires_after(kDrain);
    while (!error) {
      buffer_.clear();
      co_await stream_.async_read_some(buffer_.prepare(buffer_.max_size()),
                                       asio::redirect_error(asio::use_awaitable, error));
    }
  }

  // Counts an answer's bytes while it is being sent.
  class Waiting {
   public:
    Waiting(HttpServer& server, std::size_t bytes) : server_(server), bytes_(bytes) {
      server_.waitingBytes_ += bytes_;
    }
    ~Waiting() { server_.waitingBytes_ -= bytes_; }
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;

   private:
    HttpServer& server_;
    const std::size_t bytes_;
  };

  HttpServer& server_;
  beast::tcp_stream stream_;
  beast::flat_buffer buffer_;
  std::list<Session*>::iterator place_;  // in the server's list, until it has left it
  bool hasLeft_ = false;
  bool isSilent_ = true;
};

HttpServer::HttpServer(HttpSettings settings, HttpHandlers handlers)
    : settings_(std::move(settings)),
      handlers_(std::move(handlers)),
      endpoint_(endpointOf(settings_)),
      acceptor_(io_.context()) {
  listenOn(acceptor_, endpoint_,
           {settings_.listen.place, settings_.option + hostText(endpoint_.address()) + ":"});
  endpoint_ = acceptor_.local_endpoint();
  // An exception from a coroutine is a bug: it ends the process instead of vanishing.
  asio::co_spawn(io_.context(),
                 acceptAll<tcp>(
                     acceptor_, [this](tcp::socket socket) { start(std::move(socket)); },
                     [](const error_code&) {}),
                 [](std::exception_ptr bug) {
                   if (bug) std::rethrow_exception(bug);
                 });
}

HttpServer::~HttpServer() { io_.stop(); }

std::string HttpServer::url() const { return "http://" + textOf(endpoint_); }

// Closes the connection that has waited longest for a request, so that idle connections cannot keep
// others out. Returns false if all are being answered.
bool HttpServer::replaceSilent() {
  const auto silent = std::find_if(sessions_.begin(), sessions_.end(),
                                   [](const Session* session) { return session->isSilent(); });
  if (silent == sessions_.end()) return false;
  (*silent)->replace();
  return true;
}

void HttpServer::start(tcp::socket socket) {
  if (sessions_.size() >= settings_.connections && !replaceSilent()) {
    // Sends what the kernel accepts immediately, without waiting.
    static constexpr char kFull[] =
        "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 5\r\nContent-Length: 0\r\nConnection: "
        "close\r\n\r\n";
    error_code ignored;
    socket.non_blocking(true, ignored);
    socket.write_some(asio::buffer(kFull, sizeof kFull - 1), ignored);
    socket.shutdown(tcp::socket::shutdown_send, ignored);
    return;
  }
  auto session = std::make_shared<Session>(*this, std::move(socket));
  asio::co_spawn(io_.context(), session->serve(), [session](std::exception_ptr bug) {
    if (bug) std::rethrow_exception(bug);
  });
}

HttpAnswer HttpServer::answer(const HttpRequest& request) const {
  const auto handler = handlers_.find(request.path);
  if (handler == handlers_.end()) {
    return refusal(http::status::not_found, "there is no page at this path");
  }
  if (waitingBytes_ >= settings_.waitingBytes) {
    return refusal(http::status::service_unavailable,
                   "too many requests are in progress: try again");
  }
  try {
    return handler->second(request);
  } catch (const std::exception& error) {
    processLog()->warn("http: {} failed: {}", handler->first, error.what());
    return refusal(http::status::internal_server_error, "the request failed; see the log");
  }
}

}  // namespace cleave
