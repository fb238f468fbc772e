#include "common/net/streams/listen.h"

#include "common/core/endpoint.h"
#include "common/core/error.h"

namespace cleave {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

[[noreturn]] void refuseListen(const tcp::endpoint& endpoint, const ListenOptions& options,
                               const error_code& error) {
  const std::string sentence = "cannot listen on " + textOf(endpoint) + ": ";
  const auto otherPort = [&](int port) { return options.port + std::to_string(port); };
  const auto hintOr = [&](const std::string& usual) {
    return options.hint.empty() ? usual : options.hint;
  };
  if (error == asio::error::address_in_use) {
    const int next = endpoint.port() == 65535 ? 65534 : endpoint.port() + 1;
    throw UsageError("port-in-use", sentence + "another program already uses the port",
                     hintOr("stop it, or choose another port: " + otherPort(next) +
                            "; port 0 picks a free one"));
  }
  throw UsageError("cannot-bind", sentence + error.message(),
                   hintOr(error == asio::error::access_denied
                              ? "choose a port above 1023: " + otherPort(8000 + endpoint.port())
                              : "set " + options.address + " to an address of this machine"));
}

}  // namespace

tcp::endpoint parseListen(const Placed& value) {
  const Endpoint endpoint = parseEndpoint(value, 0);
  error_code error;
  const auto address = asio::ip::make_address(endpoint.host, error);
  if (error) {
    refuseEndpoint(value, "is not an IP address with a port",
                   "use 127.0.0.1 for this machine alone, or the address of one of its interfaces");
  }
  return {address, endpoint.port};
}

void listenOn(tcp::acceptor& acceptor, const tcp::endpoint& endpoint,
              const ListenOptions& options) {
  error_code error;
  if (!acceptor.is_open()) acceptor.open(endpoint.protocol(), error);
  if (!error) acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor.bind(endpoint, error);
  if (!error) acceptor.listen(asio::socket_base::max_listen_connections, error);
  if (error) refuseListen(endpoint, options, error);
}

std::string hostText(const asio::ip::address& address) {
  return address.is_v6() ? "[" + address.to_string() + "]" : address.to_string();
}

std::string textOf(const tcp::endpoint& endpoint) {
  return hostText(endpoint.address()) + ":" + std::to_string(endpoint.port());
}

}  // namespace cleave
