// Errors caused by a user, a peer, a file or the network. what() says what went wrong and where;
// hint() says how to fix it. Bugs in Cleave itself are assertions instead.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace cleave {

// What an error ends, which decides what may still help. Sent to the peer, in Refused and Failure.
enum class ErrorKind : std::uint8_t {
  run,        // the run
  usage,      // wrong use or unsafe configuration: the same command fails again
  attempt,    // this attempt of the run, which may start again from its last checkpoint
  link,       // only the connection: the run may continue over the next one
  interrupt,  // the user ended the program; never sent
};

// Codes are sent in Refused and Failure and written to logs: lower case with hyphens, such as
// "unknown-codec".
class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, std::string code, const std::string& sentence, std::string hint,
        double retrySeconds = 0)
      : std::runtime_error(sentence),
        kind_(kind),
        code_(std::move(code)),
        hint_(std::move(hint)),
        retrySeconds_(retrySeconds) {}

  ErrorKind kind() const { return kind_; }
  const std::string& code() const { return code_; }
  // One sentence of advice, or empty.
  const std::string& hint() const { return hint_; }
  // What must change: the path of a key in the client's configuration ("model.width"), in the
  // server's if the error is not sent, an option ("--resume"), or "disk". Set where the error is
  // thrown. Sent to the peer. Empty: unknown.
  const std::string& key() const { return key_; }
  // The location of that key: "configs/a.yaml:12", "--set train.batch=0"; empty: unknown.
  const std::string& location() const { return location_; }
  // 1: a run failed. 2: usage error or unsafe configuration.
  int exitCode() const { return kind_ == ErrorKind::usage ? 2 : 1; }
  // The delay after which a retry may succeed; 0: unknown, or never.
  double retrySeconds() const { return retrySeconds_; }

 protected:
  std::string key_;
  std::string location_;

 private:
  ErrorKind kind_;
  std::string code_;
  std::string hint_;
  double retrySeconds_;
};

// Invalid use: flags, configuration, files that do not match. The program exits with code 2.
class UsageError : public Error {
 public:
  UsageError(std::string code, const std::string& sentence, std::string hint = "")
      : Error(ErrorKind::usage, std::move(code), sentence, std::move(hint)) {}
  // The same error with other texts.
  UsageError(const Error& error, const std::string& sentence, std::string hint)
      : UsageError(error.code(), sentence, std::move(hint)) {
    key_ = error.key();
    location_ = error.location();
  }

  // Returns the same error with this key() and location().
  UsageError about(std::string key, std::string location = "") && {
    key_ = std::move(key);
    location_ = std::move(location);
    return std::move(*this);
  }
};

// A run failed after it started, because of the network, the peer, the disk or its numbers. The
// program exits with code 1.
class RunError : public Error {
 public:
  RunError(std::string code, const std::string& sentence, std::string hint = "",
           double retrySeconds = 0)
      : RunError(ErrorKind::run, std::move(code), sentence, std::move(hint), retrySeconds) {}
  // ErrorKind::usage: the fault is another program's configuration, or that of this program's peer.
  RunError(ErrorKind kind, std::string code, const std::string& sentence, std::string hint = "",
           double retrySeconds = 0)
      : Error(kind, std::move(code), sentence, std::move(hint), retrySeconds) {}
  // The same error with other texts.
  RunError(const Error& error, const std::string& sentence, std::string hint)
      : RunError(error.kind(), error.code(), sentence, std::move(hint), error.retrySeconds()) {
    key_ = error.key();
    location_ = error.location();
  }

  // Returns the same error with this key().
  RunError about(std::string key) && {
    key_ = std::move(key);
    return std::move(*this);
  }
};

// The peer violated the protocol (proto/PROTOCOL.md). Ends its session; the peer receives it as a
// Failure.
class ProtocolError : public RunError {
 public:
  using RunError::RunError;
};

}  // namespace cleave
