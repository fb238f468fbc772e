#include "server/status/status_socket.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/read_until.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "common/core/error.h"
#include "common/core/log.h"
#include "common/net/streams/accept.h"

namespace cleave {
namespace {

namespace asio = boost::asio;
namespace fs = std::filesystem;

constexpr mode_t kOwnersFolder = 0700;
constexpr mode_t kOwnersFile = 0600;
constexpr std::size_t kMaxReaders = 16;
constexpr std::chrono::seconds kAnswerDeadline{2};

RunError noStatus(const std::string& why) { return RunError("no-status", why); }

fs::path folderOf(const std::string& path) {
  const fs::path folder = fs::path(path).parent_path();
  return folder.empty() ? "." : folder;
}

// Creates the folder, or checks that no other user can access it.
void makeOwnersFolder(const std::string& path) {
  const fs::path folder = folderOf(path);
  std::error_code ignored;
  fs::create_directories(folder.parent_path(), ignored);
  if (::mkdir(folder.c_str(), kOwnersFolder) == 0) return;
  struct stat found {};
  if (errno != EEXIST || ::stat(folder.c_str(), &found) != 0) {
    throw noStatus(folder.string() + " cannot be created: " + std::strerror(errno));
  }
  constexpr mode_t kOthers = S_IRWXG | S_IRWXO;
  if (found.st_uid == ::geteuid() && (found.st_mode & kOthers) == 0) return;
  throw UsageError(
      "status-exposed",
      "the folder of the status socket, " + folder.string() + ", can be opened by other users",
      "use a folder of the server's own: --set status.socket=DIR/socket, where DIR does not exist "
      "yet or has the mode 0700; or --set status.socket=off");
}

// Whether the peer is the server's user, or root, who has the same permissions anyway.
bool isOperator(int socket) {
  ucred peer{};
  socklen_t size = sizeof peer;
  return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 &&
         (peer.uid == ::geteuid() || peer.uid == 0);
}

}  // namespace

SocketPlace::SocketPlace(const std::string& path)
    : name_(fs::path(path).filename()),
      folder_(::open(folderOf(path).c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC)) {
  if (!folder_) {
    throw noStatus(folderOf(path).string() + " cannot be opened: " + std::strerror(errno));
  }
}

std::string SocketPlace::address() const {
  return "/proc/self/fd/" + std::to_string(folder_.get()) + "/" + name_;
}

SocketLock::SocketLock(const SocketPlace& place)
    : file_(::openat(place.folder(), (place.name() + ".lock").c_str(),
                     O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, kOwnersFile)) {
  if (!file_) throw noStatus(std::string("its lock cannot be created: ") + std::strerror(errno));
  if (::flock(file_.get(), LOCK_EX | LOCK_NB) == 0) return;
  throw noStatus("another server uses it; give another path: --set status.socket=PATH");
}

std::unique_ptr<StatusSocket> StatusSocket::open(asio::any_io_executor io, const std::string& path,
                                                 Answer answer) {
  if (path.empty()) return nullptr;
  try {
    makeOwnersFolder(path);
    return std::unique_ptr<StatusSocket>(new StatusSocket(std::move(io), path, std::move(answer)));
  } catch (const UsageError&) {
    throw;
  } catch (const std::exception& error) {
    processLog()->warn("no status at {}: {}", path, error.what());
    return nullptr;
  }
}

StatusSocket::StatusSocket(asio::any_io_executor io, const std::string& path, Answer answer)
    : place_(path), lock_(place_), answerTo_(std::move(answer)), acceptor_(io) {
  const std::string address = place_.address();
  ::unlink(address.c_str());
  acceptor_.open();
  acceptor_.bind(Protocol::endpoint(address));
  // Sets the mode before listening, so that nobody can connect earlier.
  ::chmod(address.c_str(), kOwnersFile);
  acceptor_.listen();
}

StatusSocket::~StatusSocket() { ::unlink(place_.address().c_str()); }

asio::awaitable<void> StatusSocket::serve() {
  return acceptAll<Protocol>(
      acceptor_, [this](Protocol::socket socket) { admit(std::move(socket)); },
      [](const boost::system::error_code&) {});
}

void StatusSocket::admit(Protocol::socket socket) {
  if (!isOperator(socket.native_handle())) {
    processLog()->warn("status: refused a process of another user");
    return;
  }
  if (readers_.size() >= kMaxReaders) replaceOne();
  const auto reader = std::make_shared<Reader>(std::move(socket));
  readers_.push_back(reader);
  asio::co_spawn(acceptor_.get_executor(), answer(reader),
                 [this, reader](std::exception_ptr failed) {
                   readers_.remove(reader);
                   if (failed) std::rethrow_exception(failed);
                 });
}

// Closes the oldest connection that has sent no request, so that idle ones cannot keep others out;
// if all have, the oldest.
void StatusSocket::replaceOne() {
  auto replaced = std::find_if(readers_.begin(), readers_.end(),
                               [](const auto& reader) { return reader->isSilent; });
  if (replaced == readers_.end()) replaced = readers_.begin();
  boost::system::error_code ignored;
  (*replaced)->socket.close(ignored);
  readers_.erase(replaced);
}

asio::awaitable<void> StatusSocket::answer(std::shared_ptr<Reader> reader) {
  using namespace asio::experimental::awaitable_operators;
  Protocol::socket& socket = reader->socket;
  asio::steady_timer deadline(socket.get_executor(), kAnswerDeadline);
  std::string request;
  co_await (asio::async_read_until(socket, asio::dynamic_buffer(request, kMaxRequestBytes), '\n',
                                   asio::as_tuple(asio::use_awaitable)) ||
            deadline.async_wait(asio::as_tuple(asio::use_awaitable)));
  if (!socket.is_open()) co_return;  // replaced
  reader->isSilent = false;
  request.resize(std::min(request.size(), request.find('\n')));
  const std::string text = answerTo_(request);
  deadline.expires_after(kAnswerDeadline);
  co_await (asio::async_write(socket, asio::buffer(text), asio::as_tuple(asio::use_awaitable)) ||
            deadline.async_wait(asio::as_tuple(asio::use_awaitable)));
}

}  // namespace cleave
