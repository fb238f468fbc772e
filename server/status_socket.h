// The server's status for its operator: a Unix socket that only the server's own user can open. A
// program that connects sends one line and receives one document; then the connection ends.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <functional>
#include <memory>
#include <string>

#include "common/core/open_file.h"

namespace cleave {

// Maximum size of a document; a reader need not take more.
inline constexpr std::size_t kMostStatusBytes = std::size_t{1} << 20;

// Maximum length of the line.
inline constexpr std::size_t kMostRequestBytes = 64;

// An open folder that has a socket's file, and the file's address. Unix sockets' paths end at 107
// bytes; by way of the folder's descriptor any path will do.
class SocketPlace {
 public:
  // Throws RunError "no-status": there is no such folder.
  explicit SocketPlace(const std::string& path);

  int folder() const { return folder_.get(); }
  const std::string& name() const { return name_; }
  std::string address() const;  // valid while this lives

 private:
  const std::string name_;
  OpenFile folder_;
};

// Whose socket it is: another server that comes to the same place is refused, and one that was
// killed holds it no more.
class SocketLock {
 public:
  explicit SocketLock(const SocketPlace& place);  // throws RunError "no-status"

 private:
  OpenFile file_;
};

// io thread, but for open() and the destructor.
class StatusSocket {
 public:
  // The document for a line, without its end; the line is "" if the reader sends none.
  using Answer = std::function<std::string(const std::string& request)>;

  // Listens at `path`, 0600 in a folder that it makes if there is none, 0700. Null where `path` is
  // empty, or, after a warning in the log, where it cannot: another server has the path, or the
  // file system has no sockets. A server is not to fail for want of it. A socket that a server left
  // behind is replaced. Throws UsageError "status-exposed": others can open the folder.
  static std::unique_ptr<StatusSocket> open(boost::asio::any_io_executor io,
                                            const std::string& path, Answer answer);
  ~StatusSocket();  // removes the socket
  StatusSocket(const StatusSocket&) = delete;
  StatusSocket& operator=(const StatusSocket&) = delete;

  // Until its io context ends.
  boost::asio::awaitable<void> serve();

 private:
  using Protocol = boost::asio::local::stream_protocol;
  StatusSocket(boost::asio::any_io_executor io, const std::string& path, Answer answer);
  boost::asio::awaitable<void> answer(Protocol::socket socket);

  const SocketPlace place_;
  const SocketLock lock_;
  const Answer answerTo_;
  Protocol::acceptor acceptor_;
  std::size_t answering_ = 0;
};

}  // namespace cleave
