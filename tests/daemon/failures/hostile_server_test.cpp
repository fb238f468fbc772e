// A server that violates the protocol: its texts are escaped before they reach the terminal or a
// file, and out-of-range numbers end the client.
#include <algorithm>
#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>
#include <catch2/catch.hpp>
#include <functional>
#include <nlohmann/json.hpp>
#include <thread>

#include "common/core/printable.h"
#include "common/net/frames/frame.h"
#include "proto/wire.pb.h"
#include "tests/daemon/mistakes.h"

namespace cleave::test {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

// Escape sequences, line breaks, C1 control characters and a direction override.
const std::string kHostile =
    "evil\x1b[2J\x1b]0;title\x07\r\nfake line\xc2\x9b"
    "31m\xe2\x80\xae";

struct Answer {
  FrameKind kind;
  std::string metadata;
};

// What a server does after its answers: it ends its stream and waits until the client has closed,
// or it waits without ending the stream, or it closes.
enum class Then : std::uint8_t { ends, waits, closes };

// A server that answers each client's Hello with these frames, one client after the other.
class HostileServer {
 public:
  explicit HostileServer(std::function<std::vector<Answer>(const wire::Hello&)> answersTo,
                         Then then = Then::ends)
      : acceptor_(context_, tcp::endpoint(asio::ip::address_v4::loopback(), 0)),
        answersTo_(std::move(answersTo)),
        then_(then),
        thread_([this] { serve(); }) {}
  ~HostileServer() {
    isStopped_ = true;
    error_code ignored;
    tcp::socket(context_).connect(acceptor_.local_endpoint(), ignored);  // ends accept()
    thread_.join();
  }
  int clients() const { return clients_; }
  std::string address() const {
    return "127.0.0.1:" + std::to_string(acceptor_.local_endpoint().port());
  }

 private:
  void serve() {
    while (true) {
      error_code error;
      tcp::socket socket = acceptor_.accept(error);
      if (isStopped_) return;
      ++clients_;
      serve(socket);
    }
  }

  void serve(tcp::socket& socket) {
    error_code error;
    HeaderBytes head;
    asio::read(socket, asio::buffer(head), error);
    if (error) return;
    std::string metadata(decodeHeader(head).metadataBytes, '\0');
    asio::read(socket, asio::buffer(metadata), error);
    wire::Hello hello;
    hello.ParseFromString(metadata);
    for (const auto& [kind, answer] : answersTo_(hello)) {
      std::vector<std::byte> frame;
      encodeHead(kind, 0, answer, {}, true, frame);
      asio::write(socket, asio::buffer(frame), error);
    }
    if (then_ == Then::closes) return;
    if (then_ == Then::ends) socket.shutdown(tcp::socket::shutdown_send, error);
    char rest[4096];
    while (!error) socket.read_some(asio::buffer(rest), error);
  }

  asio::io_context context_;
  tcp::acceptor acceptor_;
  const std::function<std::vector<Answer>(const wire::Hello&)> answersTo_;
  const Then then_;
  std::atomic<bool> isStopped_ = false;
  std::atomic<int> clients_ = 0;
  std::thread thread_;
};

// The HelloOk of a correct server.
wire::HelloOk correctAnswer(const wire::Hello& hello) {
  wire::HelloOk ok;
  ok.set_threads(1);
  if (hello.has_run_spec()) {  // not of a probe
    const auto spec = nlohmann::json::parse(hello.run_spec().fields());
    ok.set_in_flight(spec.at("train.micro_batches"));  // the default of the schedule `priority`
  }
  ok.set_session(1);
  ok.set_software("cleave");
  ok.set_body_bytes(1000);
  ok.set_weights_allowed(true);
  ok.set_device("cpu");
  return ok;
}

Answer frameOf(FrameKind kind, const google::protobuf::MessageLite& message) {
  return {kind, message.SerializeAsString()};
}

wire::Failure hostileFailure() {
  wire::Failure failure;
  failure.set_code("bad\x1b[2Jcode");
  failure.set_sentence(kHostile + "sentence");
  failure.set_hint(kHostile + "hint");
  return failure;
}

// Checks that every line of the text is printable. Cleave's own colours do not appear, because a
// pipe does not get them.
void checkPrintable(const std::string& what, const std::string& text) {
  INFO(what);
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    INFO(line);
    CHECK(printable(line, std::max<std::size_t>(line.size(), 3)) == line);
  }
  CHECK(text.find('\r') == std::string::npos);
  CHECK(text.find("\nfake line") == std::string::npos);
}

void checkAllPrintable(const Ended& ended, const std::string& runFolder) {
  checkPrintable("stdout", ended.output);
  checkPrintable("stderr", ended.errors);
  if (!std::filesystem::exists(runFolder)) return;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(runFolder)) {
    if (entry.is_regular_file()) {
      checkPrintable(entry.path().string(), readFile(entry.path().string()));
    }
  }
}

TEST_CASE("a server's texts are escaped before they reach the terminal and files") {
  const TemporaryFolder folder;
  const auto hostileAnswer = [](const wire::Hello& hello) {
    wire::HelloOk ok = correctAnswer(hello);
    ok.set_software(kHostile + "software");
    ok.set_device(kHostile + "device");
    return frameOf(FrameKind::helloOk, ok);
  };
  wire::Bye bye;
  bye.set_reason(kHostile + "reason");
  const Answer ends[] = {frameOf(FrameKind::failure, hostileFailure()),
                         frameOf(FrameKind::bye, bye)};
  for (const Answer& end : ends) {
    const std::string name(frameKindName(end.kind));
    INFO(name);
    const HostileServer server([&](const wire::Hello& hello) {
      return std::vector<Answer>{hostileAnswer(hello), end};
    });
    const std::string run = folder.path(name);
    const Ended ended = runClient("train", run, {"--server", server.address()});
    CHECK(ended.code == kFailedRun);
    const std::string log = readFile(run + "/log.txt");
    CHECK_THAT(log, Catch::Contains("software") && Catch::Contains("device"));
    CHECK_THAT(ended.errors, Catch::Contains(end.kind == FrameKind::bye ? "reason" : "sentence"));
    checkAllPrintable(ended, run);
  }
}

TEST_CASE("the texts of a refusal are escaped before they reach the terminal and files") {
  const TemporaryFolder folder;
  for (const std::string command : {"train", "probe", "doctor"}) {
    INFO(command);
    const HostileServer server([](const wire::Hello&) {
      return std::vector<Answer>{frameOf(FrameKind::refused, hostileFailure())};
    });
    const std::string run = folder.path(command);
    const Ended ended = command == "train" ? runClient(command, run, {"--server", server.address()})
                                           : ask({command, "--server", server.address()});
    CHECK(ended.code != 0);
    CHECK_THAT(ended.output + ended.errors, Catch::Contains("sentence"));
    checkAllPrintable(ended, run);
  }
}

TEST_CASE("a HelloOk with numbers out of range is refused") {
  struct Row {
    const char* name;
    std::function<void(wire::HelloOk&)> change;
    const char* says;
  };
  const Row rows[] = {
      {"no session", [](auto& ok) { ok.set_session(0); }, "session 0"},
      {"nothing in flight", [](auto& ok) { ok.set_in_flight(0); }, "0 micro-batches"},
      {"one more", [](auto& ok) { ok.set_in_flight(ok.in_flight() + 1); }, "micro-batches"},
      {"too many in flight", [](auto& ok) { ok.set_in_flight(0xFFFFFFFF); }, "4294967295"},
      {"no threads", [](auto& ok) { ok.set_threads(0); }, "0 threads"},
      {"most threads", [](auto& ok) { ok.set_threads(0xFFFFFFFF); }, "4294967295"},
      {"no body", [](auto& ok) { ok.set_body_bytes(0); }, "0 bytes"},
      {"largest body", [](auto& ok) { ok.set_body_bytes(~0ull); }, "18446744073709551615"},
      {"unnamed weights", [](auto& ok) { ok.set_weights_stored(true); }, "had no digest"},
  };
  const TemporaryFolder folder;
  for (const Row& row : rows) {
    INFO(row.name);
    const HostileServer server([&](const wire::Hello& hello) {
      wire::HelloOk ok = correctAnswer(hello);
      row.change(ok);
      return std::vector<Answer>{frameOf(FrameKind::helloOk, ok)};
    });
    const std::string run = folder.path(row.name);
    checkError(runClient("train", run, {"--server", server.address()}), kFailedRun, {row.says});
    CHECK_FALSE(std::filesystem::exists(run));  // the run never started
  }
}

// ---- No progress ----

std::vector<Answer> accepts(const wire::Hello& hello) {
  wire::HelloOk ok = correctAnswer(hello);
  ok.set_token(1);
  return {frameOf(FrameKind::helloOk, ok)};
}

TEST_CASE("a client gives up if each connection is accepted and closed") {
  const TemporaryFolder folder;
  const HostileServer server(accepts, Then::closes);
  const std::string run = folder.path("run");
  checkError(runClient("train", run,
                       {"--server", server.address(), "--set", "connect.reconnect_seconds=1"}),
             kFailedRun, {"broke within", "check the server's log"});
  CHECK(server.clients() > 2);
  CHECK(server.clients() < 10);  // it pauses between them
}

TEST_CASE("a client gives up if the server answers nothing") {
  const TemporaryFolder folder;
  const HostileServer server(accepts, Then::waits);
  for (const std::string probe : {"false", "true"}) {
    INFO(probe);
    const Ended ended = runClient("train", folder.path("run" + probe),
                                  {"--server", server.address(), "--set", "probe.first=" + probe,
                                   "--set", "connect.progress_seconds=1"});
    checkError(ended, kFailedRun,
               {probe == "true" ? "no byte of a probe" : "connect.progress_seconds"});
  }
}

}  // namespace
}  // namespace cleave::test
