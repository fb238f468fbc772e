// How a connection ends, for every order of events.
#include "common/net/connection_end.h"

#include <catch2/catch.hpp>

#include "common/core/error.h"
#include "tests/support/error_code.h"

using namespace cleave;
using namespace std::chrono_literals;

namespace {

const SteadyTime kStart{1000s};

std::exception_ptr error(const char* code) {
  return std::make_exception_ptr(RunError(code, "sentence"));
}

std::string codeOf(const ConnectionEnd& end) {
  return errorCode([&] { end.outcome(); });
}

}  // namespace

TEST_CASE("if our Bye is followed by the peer's, the outcome is the peer's reason") {
  ConnectionEnd end;
  CHECK(!end.mustSayBye());
  end.sayBye("interrupted", kStart);
  end.sayBye("again", kStart);
  CHECK(end.mustSayBye());
  CHECK(end.ourReason() == "interrupted");
  CHECK(!end.deadline());  // sending the queued data may take a long time
  end.byeWritten(kStart);
  CHECK(!end.mustSayBye());
  CHECK(end.deadline() == kStart + kByeWait);
  CHECK(end.outcome() == "interrupted");  // if the peer sends nothing more
  end.readEnded(error("connection-closed"), kStart);
  CHECK(end.outcome() == "interrupted");
  end.peerBye("done", kStart);
  CHECK(end.outcome() == "done");
}

TEST_CASE("the peer's Bye is answered with our reason, if there is one") {
  ConnectionEnd end;
  SECTION("our reason was given before") {
    end.sayBye("from here", kStart);
    end.peerBye("from there", kStart);
    CHECK(end.ourReason() == "from here");
  }
  SECTION("our reason is the default") {
    end.peerBye("from there", kStart);
    end.sayBye("too late", kStart);
    CHECK(end.ourReason() == "done");
  }
  CHECK(end.mustSayBye());
  CHECK(end.deadline() == kStart + kByeWait);
  end.byeWritten(kStart);
  CHECK(end.state() == EndState::closed);
  CHECK(end.outcome() == "from there");
}

TEST_CASE("a peer that has sent Bye may close without reading ours") {
  ConnectionEnd end;
  end.peerBye("from there", kStart);
  end.writeFailed(error("connection-lost"), kStart);
  CHECK(end.state() == EndState::closed);
  CHECK(end.outcome() == "from there");
}

TEST_CASE("after a write error, an earlier Failure from the peer is the cause") {
  ConnectionEnd end;
  end.writeFailed(error("written"), kStart);
  CHECK(!end.hasFailed());
  CHECK(end.deadline() == kStart + kFailureWait);
  CHECK(codeOf(end) == "written");  // if nothing more arrives
  SECTION("the peer's Failure") {
    end.failure(error("bad-tensor"), kStart);
    CHECK(codeOf(end) == "bad-tensor");
  }
  SECTION("the peer's Bye") {
    end.peerBye("shutting-down", kStart);
    CHECK(end.outcome() == "shutting-down");
  }
  SECTION("an invalid frame") {
    end.fault(error("bad-checksum"), kStart);
    CHECK(codeOf(end) == "bad-checksum");
  }
  SECTION("the end of the peer's stream adds no cause, and ends the wait") {
    end.readEnded(error("read"), kStart);
    end.fault(error("later"), kStart);
    CHECK(end.state() == EndState::failed);
    CHECK(codeOf(end) == "written");
    CHECK(end.deadline() == kStart);
  }
}

TEST_CASE("the end of the stream is an error, unless our Bye has been written") {
  ConnectionEnd end;
  SECTION("open") {}
  SECTION("while our Bye waits or is being written") { end.sayBye("done", kStart); }
  end.readEnded(error("connection-closed"), kStart);
  end.byeWritten(kStart);
  CHECK(end.state() == EndState::failed);
  CHECK(codeOf(end) == "connection-closed");
  CHECK(end.deadline() == kStart);
}

TEST_CASE("the first error wins, in any state") {
  ConnectionEnd end;
  SECTION("open") {}
  SECTION("after our Bye") {
    end.sayBye("done", kStart);
    end.byeWritten(kStart);
  }
  SECTION("after the peer's Bye") { end.peerBye("done", kStart); }
  SECTION("after both Byes") {
    end.peerBye("done", kStart);
    end.byeWritten(kStart);
  }
  SECTION("after a write error") { end.writeFailed(error("written"), kStart); }
  end.fault(error("first"), kStart);
  CHECK(end.state() == EndState::failing);
  CHECK(end.deadline() == kStart + kFailureWait);
  end.fault(error("second"), kStart);
  end.failure(error("third"), kStart);
  end.readEnded(error("fourth"), kStart);
  end.writeFailed(error("fifth"), kStart);
  end.sayBye("done", kStart);
  end.byeWritten(kStart);
  end.peerBye("done", kStart);
  CHECK(end.state() == EndState::failing);
  CHECK(end.deadline() == kStart + kFailureWait);
  CHECK(codeOf(end) == "first");
}

TEST_CASE("the peer's Failure needs no answer") {
  ConnectionEnd end;
  end.failure(error("bad-tensor"), kStart);
  end.fault(error("later"), kStart);
  CHECK(end.state() == EndState::failed);
  CHECK(end.deadline() == kStart);
  CHECK(codeOf(end) == "bad-tensor");
}

TEST_CASE("the deadline only ever moves earlier, except when run() begins after a fault") {
  ConnectionEnd end;
  end.peerBye("done", kStart);
  end.fault(error("first"), kStart + 1500ms);
  CHECK(end.deadline() == kStart + kByeWait);

  ConnectionEnd early;
  early.runBegins(kStart);
  CHECK(!early.deadline());
  early.fault(error("first"), kStart);
  early.runBegins(kStart + 1min);
  CHECK(early.deadline() == kStart + 1min + kFailureWait);
}
