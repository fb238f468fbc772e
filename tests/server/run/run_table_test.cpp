// The runs that a server serves: which clients may take over a run, and what remains of a run that
// has ended.
#include "server/run/run_table.h"

#include <stdlib.h>

#include <boost/asio/co_spawn.hpp>
#include <catch2/catch.hpp>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/error_code.h"
#include "tests/support/network/loopback.h"

namespace cleave {
namespace {

namespace fs = std::filesystem;

// Connections of the run's client, first and second, and of another one.
constexpr std::uint64_t kOwnId = 7;
constexpr std::uint64_t kNextId = 8;
constexpr std::uint64_t kOtherId = 9;

std::string newFolder() {
  std::string name = (fs::temp_directory_path() / "cleave-runs-XXXXXX").string();
  REQUIRE(::mkdtemp(name.data()) != nullptr);
  return name;
}

ServerSettings settingsWith(const std::string& store, std::chrono::milliseconds park,
                            EdgeSettings edges) {
  ServerSettings settings;
  settings.park = park;
  settings.maxSessions = 2;
  settings.threads = 1;
  settings.allowedModels = {"mlp"};
  settings.memoryBytes = std::size_t{1} << 30;
  settings.share.diskBytes = std::size_t{1} << 30;
  settings.store = store;
  settings.keepUsage = false;  // its thread could write after the folder was removed
  settings.edges = std::move(edges);
  return settings;
}

// All parts of a server except its sessions. The device runs no actions.
class Host : public Loopback {
 public:
  explicit Host(std::chrono::milliseconds park = std::chrono::hours(1), EdgeSettings edges = {},
                const ReplicaGroup* replicas = nullptr)
      : settings_(settingsWith(store_, park, std::move(edges))), replicas_(replicas) {}
  explicit Host(EdgeSettings edges) : Host(std::chrono::hours(1), std::move(edges)) {}
  ~Host() { fs::remove_all(store_); }

  RunRequest request(const std::string& identity, const std::string& run,
                     std::uint64_t generation = 1) {
    RunRequest request;
    request.identity = identity;
    request.session = ++sessions_;
    request.hello.set_run_id(run);
    request.hello.set_generation(generation);
    request.hello.add_connections(kOwnId);
    RunSpec& spec = request.spec;
    spec.model = {"mlp", {}, {16}, 4};
    spec.cut0 = 1;
    spec.cut1 = 2;
    spec.maxBatch = spec.trainBatch = 8;
    spec.microBatches = 2;
    toWire(spec, *request.hello.mutable_run_spec());
    return request;
  }

  // Makes a request with a connection whose client does nothing.
  std::shared_ptr<Seat> admit(RunRequest request) {
    auto seat = runs.admit(request);
    open(seat, request);
    return seat;
  }
  void open(const std::shared_ptr<Seat>& seat, const RunRequest& request) {
    bool opened = false;
    boost::asio::co_spawn(io_, seat->run().open(), [&](const std::exception_ptr& error) {
      opened = true;
      if (error) std::rethrow_exception(error);
    });
    runUntil([&] { return opened; });
    seat->attach(request, newConnection());
  }
  wire::HelloOk helloOk(const std::shared_ptr<Seat>& seat) const {
    return seat->run().helloOk(*seat);
  }
  std::string refusal(RunRequest request) {
    return errorCode([&] { runs.admit(std::move(request)); });
  }

  void close(std::shared_ptr<Seat> seat) {
    bool closed = false;
    boost::asio::co_spawn(io_, runs.close(std::move(seat)), [&](const std::exception_ptr& error) {
      CHECK_FALSE(error);
      closed = true;
    });
    runUntil([&] { return closed; });
  }

  // What a session does with a run that it has received from the table.
  void serve(const std::shared_ptr<Seat>& seat, Outcome& outcome) {
    boost::asio::co_spawn(
        io_, seat->serve(), [&outcome](const std::exception_ptr& error, const std::string&) {
          outcome.done = true;
          outcome.code = error ? errorCode([&] { std::rethrow_exception(error); }) : "";
        });
  }
  // A request that continues the run, with the next generation.
  RunRequest continuing(const Seat& seat) {
    RunRequest next = seat.request();
    next.session = ++sessions_;
    next.hello.set_generation(seat.lastConnection().generation + 1);
    next.hello.set_token(seat.token());
    return next;
  }
  std::string refusalToContinue(const RunRequest& request) {
    return errorCode([&] { runs.find(request); });
  }
  void reattach(const RunRequest& request) { runs.find(request)->attach(request, newConnection()); }

  std::string folderOf(const RunRequest& request) const {
    return store_ + "/" + request.identity + "/" + request.runId();
  }

 private:
  std::shared_ptr<Connection> newConnection() {
    auto [server, client] = connect();
    clients_.push_back(std::move(client));
    connection = std::make_shared<Connection>(std::move(server), ConnectionOptions{});
    return connection;
  }

  const std::string store_ = newFolder();
  const ServerSettings settings_;
  const ReplicaGroup* const replicas_;
  Access access_{"", settings_.allowedModels};
  RunStore runStore_{settings_, access_, cpuDevice(), nullptr, io_.get_executor()};
  SessionLines lines_;
  DeviceExecutor device_;
  CodecExecutor codecs_{1};
  const ServerCertificates certificates_{settings_.tls};
  const RunResources resources_{.settings = settings_,
                                .compute = cpuDevice(),
                                .device = device_,
                                .io = io_.get_executor(),
                                .pool = std::make_shared<BufferPool>(),
                                .codecs = codecs_,
                                .helper = nullptr,
                                .store = runStore_,
                                .lines = lines_,
                                .certificates = certificates_,
                                .replicas = replicas_};
  std::vector<boost::asio::ip::tcp::socket> clients_;
  std::uint64_t sessions_ = 0;

 public:
  Admission admission{settings_, access_};
  int runsClosed = 0;
  RunTable runs{resources_, admission, [this] { ++runsClosed; }};
  std::shared_ptr<Connection> connection;  // the connection of the latest request
};

}  // namespace

TEST_CASE("a new connection of a run ends the older one, and waits for its end") {
  Host host;
  const auto seat = host.admit(host.request("a", "run-1", 3));
  Outcome outcome;
  host.serve(seat, outcome);
  RunRequest other = host.request("a", "run-1", 4);
  other.hello.set_connections(0, kOtherId);
  CHECK(host.refusal(other) == "stale-generation");
  host.settle();
  CHECK_FALSE(outcome.done);
  RunRequest next = host.request("a", "run-1", 4);
  next.hello.set_connections(0, kNextId);
  next.hello.add_connections(kOwnId);
  CHECK(host.refusal(next) == "run-in-use");
  host.runUntil([&] { return outcome.done; });
  CHECK(outcome.code == "stale-generation");
  CHECK(host.refusal(next) == "run-in-use");
  host.close(seat);
  CHECK(host.refusal(next).empty());
}

TEST_CASE("a server is only the replica that its configuration names") {
  const ReplicaGroup group{{"127.0.0.1:1", "127.0.0.1:2"}, 1, std::chrono::seconds(1)};
  Host host(std::chrono::hours(1), {}, &group);
  Host plain;
  const auto request = [](Host& at, std::uint32_t replica, std::uint32_t replicas,
                          std::size_t attempt = 16) {
    RunRequest made = at.request("a", "run-1");
    made.spec.replicas = replicas;
    made.spec.replica = replica;
    made.hello.set_attempt(std::string(attempt, 'x'));
    toWire(made.spec, *made.hello.mutable_run_spec());
    return made;
  };
  CHECK(plain.refusal(request(plain, 1, 2)) == "no-replicas");
  CHECK(plain.refusal(request(plain, 0, 1)).empty());
  CHECK(host.refusal(request(host, 0, 2)) == "wrong-replica");
  CHECK(host.refusal(request(host, 2, 3)) == "bad-run-spec");  // of 2 micro-batches
  CHECK(host.refusal(request(host, 1, 2, 15)) == "bad-metadata");
  RunRequest trial = request(host, 1, 2);
  trial.hello.set_kind(wire::Hello::TRIAL);
  CHECK(host.refusal(trial) == "bad-metadata");
  const auto seat = host.admit(request(host, 1, 2));
  CHECK(host.helloOk(seat).replica_group().size() == 32);
  CHECK(seat->run().summary().find("replica 1 of 2") != std::string::npos);
  host.close(seat);
}

TEST_CASE("a client that takes a run over ends the connection of any other client") {
  Host host;
  auto seat = host.admit(host.request("a", "run-1", 3));
  Outcome outcome;
  host.serve(seat, outcome);
  RunRequest request = host.request("a", "run-1", 1);
  request.hello.set_connections(0, kOtherId);
  request.hello.set_take_over(true);
  CHECK(host.refusal(request) == "run-in-use");
  host.runUntil([&] { return outcome.done; });
  CHECK(outcome.code == "stale-generation");
  host.close(std::move(seat));
  const auto taken = host.admit(request);
  CHECK(taken->lastConnection().id == kOtherId);
  CHECK(taken->lastConnection().generation == 4);  // the records' rows continue
  CHECK(host.refusal(host.request("a", "run-1", 9)) == "stale-generation");
}

TEST_CASE("a client that took no part in a run's last connection cannot continue the run") {
  Host host;
  const auto seat = host.admit(host.request("a", "run-1", 3));
  Outcome outcome;
  host.serve(seat, outcome);
  RunRequest next = host.continuing(*seat);
  next.hello.set_connections(0, kNextId);
  CHECK(host.refusalToContinue(next) == "stale-generation");
  host.settle();
  CHECK_FALSE(outcome.done);
  next.hello.add_connections(kOwnId);
  CHECK(host.refusalToContinue(next).empty());
  host.connection->abandon();
  host.runUntil([&] { return outcome.done; });
}

TEST_CASE("a run that ends before its records are open does not start") {
  Host host;
  const auto request = host.request("a", "run-1");
  const auto seat = host.runs.admit(request);
  RunRequest next = host.request("a", "run-1", 2);
  next.hello.set_take_over(true);
  CHECK(host.refusal(next) == "run-in-use");
  CHECK(errorCode([&] { host.open(seat, request); }) == "stale-generation");
  host.close(seat);
  CHECK(host.refusal(next).empty());
}

TEST_CASE("another identity can neither take nor end a run, even before it has a folder") {
  Host host;
  const auto request = host.request("a", "run-1");
  const auto seat = host.runs.admit(request);
  REQUIRE_FALSE(fs::exists(host.folderOf(request)));
  CHECK(host.refusal(host.request("b", "run-1", 2)) == "others-run");
  host.open(seat, request);
  Outcome outcome;
  host.serve(seat, outcome);
  CHECK(host.refusal(host.request("b", "run-1", 2)) == "others-run");
  auto stolen = host.continuing(*seat);
  stolen.identity = "b";
  CHECK(host.refusalToContinue(stolen) == "others-run");
  host.settle();
  CHECK_FALSE(outcome.done);
  host.connection->abandon();
  host.runUntil([&] { return outcome.done; });
}

TEST_CASE("only the next connection of a run continues it") {
  Host host;
  const auto seat = host.admit(host.request("a", "run-1"));
  CHECK(host.helloOk(seat).token() == seat->token());
  CHECK_FALSE(host.helloOk(seat).has_arrived());
  const RunRequest next = host.continuing(*seat);
  CHECK(host.refusalToContinue(next).empty());
  auto other = next;
  other.hello.set_token(seat->token() + 1);
  CHECK(host.refusalToContinue(other) == "run-not-here");
  other = next;
  other.hello.set_connections(0, kOtherId);
  CHECK(host.refusalToContinue(other) == "stale-generation");
  other = next;
  other.spec.seed = 7;
  CHECK(host.refusalToContinue(other) == "other-run-spec");
  other = next;
  other.hello.set_run_id("run-2");
  CHECK(host.refusalToContinue(other) == "run-not-here");

  Outcome before, second;
  host.serve(seat, before);
  host.settle();
  host.reattach(next);
  host.runUntil([&] { return before.done; });  // the first connection was closed
  CHECK(host.helloOk(seat).has_arrived());
  CHECK(host.helloOk(seat).session() == next.session);
  host.serve(seat, second);
  host.settle();
  CHECK_FALSE(second.done);
  host.connection->abandon();
  host.runUntil([&] { return second.done; });
  host.close(seat);
  CHECK(host.refusalToContinue(host.continuing(*seat)) == "run-not-here");
}

TEST_CASE("a parked run waits for its client") {
  Host host;
  const auto request = host.request("a", "run-1");
  const auto seat = host.admit(request);
  seat->run().start();
  seat->park();
  CHECK(seat->isParked());
  REQUIRE(host.runs.parked().size() == 1);
  CHECK(host.runs.parked()[0].number == request.session);
  host.reattach(host.continuing(*seat));
  CHECK_FALSE(seat->isParked());
  CHECK(host.runs.parked().empty());
  host.close(seat);
}

// Parks a run, and checks that `end` ends it and frees all its resources.
template <typename End>
void checkParkedRunEnds(Host& host, End end) {
  auto seat = host.admit(host.request("a", "run-1"));
  seat->run().start();
  seat->park();
  const std::weak_ptr<Seat> parked = std::exchange(seat, nullptr);
  host.settle();
  REQUIRE_FALSE(parked.expired());
  end();
  host.runUntil([&] { return parked.expired(); });
}

TEST_CASE("a parked run ends when its time expires") {
  Host host(std::chrono::milliseconds(50));
  checkParkedRunEnds(host, [] {});
  CHECK(host.runs.empty());
  CHECK(host.runsClosed == 1);
  CHECK(host.admission.admittedBytes() == 0);
}

TEST_CASE("a parked run ends if another run needs its session slot") {
  Host host;
  const auto other = host.admit(host.request("b", "run-2"));
  checkParkedRunEnds(
      host, [&] { CHECK(host.refusal(host.request("b", "run-3")) == "too-many-sessions"); });
  host.close(host.admit(host.request("b", "run-3")));
  host.close(other);
}

TEST_CASE("the operator ends a parked run") {
  Host host;
  checkParkedRunEnds(host, [&] {
    host.runs.endParked(RunError("ended-by-operator", "ended"),
                        [](const Seat& seat) { return seat.request().identity == "b"; });
    CHECK(host.runs.parked().size() == 1);
    host.runs.endParked(RunError("ended-by-operator", "ended"), [](const Seat&) { return true; });
  });
}

TEST_CASE("a newer client of a parked run ends it, and takes its place") {
  Host host;
  checkParkedRunEnds(host,
                     [&] { CHECK(host.refusal(host.request("a", "run-1", 2)) == "run-in-use"); });
  host.close(host.runs.admit(host.request("a", "run-1", 2)));
}

TEST_CASE("an open run holds records and memory, and a closed run leaves only its records") {
  Host host;
  const auto request = host.request("a", "run-1");
  auto seat = host.admit(request);
  CHECK(host.admission.admittedBytes() > 0);
  CHECK(host.helloOk(seat).session() == request.session);
  CHECK(host.helloOk(seat).weights_allowed());
  host.close(std::move(seat));
  CHECK(host.admission.admittedBytes() == 0);
  for (const char* file : {"config.yaml", "environment.json", "log.txt", "steps.csv"}) {
    INFO(file);
    CHECK(fs::exists(host.folderOf(request) + "/" + file));
  }
}

TEST_CASE("trials need no run id, and leave no files") {
  Host host;
  auto request = host.request("a", "run-1");
  request.hello.set_kind(wire::Hello::TRIAL);
  auto first = host.admit(request);
  request.session += 1;
  auto second = host.admit(request);
  CHECK(host.helloOk(first).token() == 0);
  CHECK_FALSE(host.helloOk(first).weights_allowed());
  host.close(std::move(first));
  CHECK(host.admission.admittedBytes() > 0);
  host.close(std::move(second));
  CHECK(host.admission.admittedBytes() == 0);
  CHECK_FALSE(fs::exists(host.folderOf(request)));
}

TEST_CASE("another server finds the edge of a run by its token, until the run is closed") {
  Host host(EdgeSettings{{}, true, ""});
  const std::string token(16, 't');
  RunRequest request = host.request("a", "run-1", 1);
  request.hello.mutable_edge_before()->set_token(token);
  const auto found = [&](const std::string& runId, const std::string& text) {
    return errorCode([&] { host.runs.findEdge(runId, text); });
  };
  CHECK(found("run-1", token) == "edge-not-here");  // the client has not connected yet
  const auto seat = host.admit(request);
  CHECK(found("run-1", token).empty());
  CHECK(found("run-1", std::string(16, 'u')) == "edge-not-here");
  CHECK(found("run-1", token.substr(1)) == "edge-not-here");
  CHECK(found("run-1", "") == "edge-not-here");
  CHECK(found("run-2", token) == "edge-not-here");
  host.close(seat);
  CHECK(found("run-1", token) == "edge-not-here");
}

TEST_CASE("a run may have the edges that the server's configuration allows") {
  const auto refusal = [](bool isAccepting, const std::string& allowed,
                          const std::function<void(wire::Hello&)>& change) {
    EdgeSettings edges{{}, isAccepting, ""};
    if (!allowed.empty()) edges.allow = {parseEndpoint({"test", allowed}, 1)};
    Host host(edges);
    RunRequest request = host.request("a", "run-1", 1);
    change(request.hello);
    return host.refusal(request);
  };
  const auto before = [](wire::Hello& hello) {
    hello.mutable_edge_before()->set_token(std::string(16, 't'));
  };
  const auto after = [](wire::Hello& hello) {
    hello.mutable_edge_after()->set_token(std::string(16, 't'));
    hello.mutable_edge_after()->set_address("127.0.0.1:4801");
    hello.mutable_edge_after()->set_run_id("run-1-2");
  };
  CHECK(refusal(false, "", before) == "edges-not-accepted");
  CHECK(refusal(true, "", before).empty());
  CHECK(refusal(true, "", after) == "edge-not-allowed");
  CHECK(refusal(true, "127.0.0.1:4802", after) == "edge-not-allowed");
  CHECK(refusal(false, "127.0.0.1:4801", after).empty());
  CHECK(refusal(false, "[::1]:4801", [&](wire::Hello& hello) {
          after(hello);
          hello.mutable_edge_after()->set_address("[::1]:4801");
        }).empty());
}

}  // namespace cleave
