// The server's status socket: a Unix socket that only the server's own user can open. A program
// that connects sends one line and receives one document; then the connection ends.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <utility>

#include "common/core/open_file.h"

namespace cleave {

// Maximum size of a document that a reader must accept.
inline constexpr std::size_t kMaxStatusBytes = std::size_t{1} << 20;

// Maximum length of the request line.
inline constexpr std::size_t kMaxRequestBytes = 64;

// The address of a socket's file, through its open folder: paths of Unix sockets are limited to 107
// bytes, but with the folder's descriptor a path of any length works.
class SocketPlace {
 public:
  // Throws RunError "no-status" if there is no such folder.
  explicit SocketPlace(const std::string& path);

  int folder() const { return folder_.get(); }
  const std::string& name() const { return name_; }
  std::string address() const;  // valid while this object exists

 private:
  const std::string name_;
  OpenFile folder_;
};

// Ownership of the socket's path: a second server with the same path is refused. The lock of a
// killed server is released.
class SocketLock {
 public:
  explicit SocketLock(const SocketPlace& place);  // throws RunError "no-status"

 private:
  OpenFile file_;
};

// io thread, except open() and the destructor.
class StatusSocket {
 public:
  // Returns the document for a request line, without its newline; the line is "" if the reader
  // sends none.
  using Answer = std::function<std::string(const std::string& request)>;

  // Listens at `path` with mode 0600, in a folder with mode 0700 that is created if necessary.
  // Returns null if `path` is empty, or, after a warning in the log, if it cannot listen: another
  // server has the path, or the file system does not support sockets. The server can run without
  // it. A socket that an earlier server left behind is replaced. Throws UsageError "status-exposed"
  // if others can open the folder.
  static std::unique_ptr<StatusSocket> open(boost::asio::any_io_executor io,
                                            const std::string& path, Answer answer);
  ~StatusSocket();  // removes the socket
  StatusSocket(const StatusSocket&) = delete;
  StatusSocket& operator=(const StatusSocket&) = delete;

  // Runs until its io context ends.
  boost::asio::awaitable<void> serve();

 private:
  using Protocol = boost::asio::local::stream_protocol;
  StatusSocket(boost::asio::any_io_executor io, const std::string& path, Answer answer);
  // A connected program.
  struct Reader {
    explicit Reader(Protocol::socket connected) : socket(std::move(connected)) {}
    Protocol::socket socket;
    bool isSilent = true;  // has sent no request yet
  };
  void admit(Protocol::socket socket);
  void replaceOne();
  boost::asio::awaitable<void> answer(std::shared_ptr<Reader> reader);

  const SocketPlace place_;
  const SocketLock lock_;
  const Answer answerTo_;
  Protocol::acceptor acceptor_;
  std::list<std::shared_ptr<Reader>> readers_;  // the oldest first
};

}  // namespace cleave
