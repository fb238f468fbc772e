// Errors caused by a user, a peer, a file or the network. what() says what went wrong and where;
// hint() says how to fix it. Bugs in Cleave itself are assertions instead.
#pragma once

#include <stdexcept>
#include <string>

namespace cleave {

// Codes are sent in Refused and Failure and written to logs: lower case with hyphens, such as
// "unknown-codec".
class Error : public std::runtime_error {
 public:
  Error(std::string code, const std::string& sentence, std::string hint, int exitCode,
        double retrySeconds = 0)
      : std::runtime_error(sentence),
        code_(std::move(code)),
        hint_(std::move(hint)),
        exitCode_(exitCode),
        retrySeconds_(retrySeconds) {}

  const std::string& code() const { return code_; }
  // One sentence of advice, or empty.
  const std::string& hint() const { return hint_; }
  // The key that the error is about: its name in the map that was checked ("width"), or its path in
  // the configuration ("model.width"). Empty: none.
  const std::string& key() const { return key_; }
  // The location of that key: "configs/a.yaml:12", "--set train.batch=0"; empty: unknown.
  const std::string& location() const { return location_; }
  // 1: a run failed. 2: usage error or unsafe configuration. All errors with the same code have the
  // same exit code.
  int exitCode() const { return exitCode_; }
  // The delay after which a retry may succeed; 0: unknown, or never.
  double retrySeconds() const { return retrySeconds_; }

 protected:
  std::string key_;
  std::string location_;

 private:
  std::string code_;
  std::string hint_;
  int exitCode_;
  double retrySeconds_;
};

// Invalid use: flags, configuration, files that do not match. The program exits with code 2.
class UsageError : public Error {
 public:
  UsageError(std::string code, const std::string& sentence, std::string hint = "")
      : Error(std::move(code), sentence, std::move(hint), 2) {}

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
  // `exitCode`: 2 for a usage error that the peer has found and reported.
  RunError(std::string code, const std::string& sentence, std::string hint = "",
           double retrySeconds = 0, int exitCode = 1)
      : Error(std::move(code), sentence, std::move(hint), exitCode, retrySeconds) {}
};

// The peer violated the protocol (proto/PROTOCOL.md). Ends its session; the peer receives it as a
// Failure.
class ProtocolError : public RunError {
 public:
  using RunError::RunError;
};

}  // namespace cleave
