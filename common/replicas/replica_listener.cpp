#include "common/replicas/replica_listener.h"

#include <boost/asio/buffer.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/system/system_error.hpp>
#include <chrono>
#include <utility>

#include "common/core/endpoint.h"
#include "common/core/error.h"
#include "common/core/log.h"
#include "common/net/streams/accept.h"
#include "common/net/streams/listen.h"
#include "common/net/streams/same_secret.h"

namespace cleave {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

constexpr std::chrono::seconds kHelloTime{5};
constexpr std::size_t kMaxUnidentified = 64;
constexpr const char* kListenHint =
    "this server's address is the one at replicas.rank in replicas.hosts; correct the rank, or "
    "change the address in the configurations of all replicas";

tcp::endpoint resolve(asio::io_context& io, const std::string& address) {
  const Endpoint endpoint = parseEndpoint({"replicas", address}, 0);
  error_code error;
  tcp::resolver resolver(io);
  const auto found =
      resolver.resolve(endpoint.host, std::to_string(endpoint.port), tcp::resolver::passive, error);
  if (error || found.empty()) {
    throw UsageError("cannot-bind", "cannot listen on " + address + ": " + error.message(),
                     kListenHint);
  }
  return found.begin()->endpoint();
}

// Coroutines handle their errors; anything else is a bug, and must not end other groups.
void logBug(const std::exception_ptr& error) {
  if (!error) return;
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& bug) {
    processLog()->error("the connection of a replica has failed: {}", bug.what());
  }
}

}  // namespace

ReplicaListener::ReplicaListener(const std::string& address) : acceptor_(io_.context()) {
  listenOn(acceptor_, resolve(io_.context(), address), {"", "", kListenHint});
  endpoint_ = acceptor_.local_endpoint();
  asio::co_spawn(io_.context(),
                 acceptAll<tcp>(
                     acceptor_, [this](tcp::socket socket) { accept(std::move(socket)); },
                     [](const error_code& failed) {
                       processLog()->warn("cannot accept a replica's connection: {}",
                                          failed.message());
                     }),
                 logBug);
}

// Before the members are destroyed, which the io thread uses.
ReplicaListener::~ReplicaListener() { io_.stop(); }

tcp::endpoint ReplicaListener::reachableEndpoint() const {
  if (!endpoint_.address().is_unspecified()) return endpoint_;
  const bool isV6 = endpoint_.address().is_v6();
  const asio::ip::address loopback = isV6 ? asio::ip::address(asio::ip::address_v6::loopback())
                                          : asio::ip::address(asio::ip::address_v4::loopback());
  return {loopback, endpoint_.port()};
}

void ReplicaListener::open(std::shared_ptr<GroupHub> hub) {
  asio::post(executor(), [this, hub = std::move(hub)] { hubs_.push_back(hub); });
}

void ReplicaListener::close(std::shared_ptr<GroupHub> hub) {
  asio::post(executor(), [this, hub = std::move(hub)] { std::erase(hubs_, hub); });
}

void ReplicaListener::accept(tcp::socket socket) {
  auto shared = std::make_shared<tcp::socket>(std::move(socket));
  unidentified_.push_back(shared);
  if (unidentified_.size() > kMaxUnidentified) {
    error_code ignored;
    unidentified_.front()->close(ignored);
    unidentified_.pop_front();
  }
  asio::co_spawn(io_.context(), identify(std::move(shared)), logBug);
}

asio::awaitable<void> ReplicaListener::identify(SharedSocket socket) {
  std::string bytes(kHelloBytes, '\0');
  const asio::steady_timer deadline = closeAfter(kHelloTime, socket);
  try {
    co_await asio::async_read(*socket, asio::buffer(bytes), asio::use_awaitable);
  } catch (const boost::system::system_error&) {
    bytes.clear();
  }
  std::erase(unidentified_, socket);
  const GroupHello hello = decodeHello(bytes);
  std::shared_ptr<GroupHub> group;
  for (const auto& hub : hubs_) {
    if (isSameSecret(hub->digest(), hello.digest)) group = hub;
  }
  if (group != nullptr) group->admit(hello, std::move(socket));
}

}  // namespace cleave
