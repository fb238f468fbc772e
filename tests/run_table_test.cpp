// The runs that a server serves: who may have a run that is served already, and what a run leaves.
#include "server/run_table.h"

#include <stdlib.h>

#include <boost/asio/co_spawn.hpp>
#include <catch2/catch.hpp>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "tests/error_code.h"
#include "tests/loopback.h"

namespace cleave {
namespace {

namespace fs = std::filesystem;

std::string newFolder() {
  std::string name = (fs::temp_directory_path() / "cleave-runs-XXXXXX").string();
  REQUIRE(::mkdtemp(name.data()) != nullptr);
  return name;
}

ServerSettings settingsWith(const std::string& store) {
  ServerSettings settings;
  settings.threads = 1;
  settings.allowedModels = {"mlp"};
  settings.memoryBytes = std::size_t{1} << 30;
  settings.share.diskBytes = std::size_t{1} << 30;
  settings.store = store;
  return settings;
}

// All of a server except its sessions. Nothing runs on the device.
class Host : public Loopback {
 public:
  ~Host() { fs::remove_all(store_); }

  RunRequest request(const std::string& identity, const std::string& run,
                     std::uint64_t generation = 1) {
    RunRequest request;
    request.identity = identity;
    request.session = ++sessions_;
    request.hello.set_run_id(run);
    request.hello.set_generation(generation);
    wire::RunSpec& spec = *request.hello.mutable_run_spec();
    spec.set_model("mlp");
    spec.set_cut0(1);
    spec.set_cut1(2);
    spec.add_sample_shape(16);
    spec.set_classes(4);
    spec.set_max_batch(8);
    spec.set_micro_batches(2);
    spec.set_schedule("priority");
    spec.mutable_optimizer()->set_name("sgd");
    spec.set_precision("f32");
    return request;
  }

  // With a connection whose client does nothing.
  std::shared_ptr<ServedRun> admit(RunRequest request) {
    auto [server, client] = connect();
    clients_.push_back(std::move(client));
    connection = std::make_shared<Connection>(std::move(server), ConnectionOptions{});
    return runs.admit(std::move(request), connection);
  }
  std::string refusal(RunRequest request) {
    return errorCode([&] { admit(std::move(request)); });
  }

  void close(std::shared_ptr<ServedRun> run) {
    bool closed = false;
    boost::asio::co_spawn(io_, runs.close(std::move(run)), [&](const std::exception_ptr& error) {
      CHECK_FALSE(error);
      closed = true;
    });
    runUntil([&] { return closed; });
  }

  std::string folderOf(const RunRequest& request) const {
    return store_ + "/" + request.identity + "/" + request.runId();
  }

 private:
  const std::string store_ = newFolder();
  const ServerSettings settings_ = settingsWith(store_);
  Access access_{"", settings_.allowedModels};
  RunStore runStore_{settings_, access_, cpuDevice(), nullptr};
  SessionLines lines_;
  DeviceExecutor device_;
  CodecExecutor codecs_{1};
  const RunResources resources_{.settings = settings_,
                                .compute = cpuDevice(),
                                .device = device_,
                                .io = io_.get_executor(),
                                .pool = std::make_shared<BufferPool>(),
                                .codecs = codecs_,
                                .helper = nullptr,
                                .store = runStore_,
                                .lines = lines_};
  std::vector<boost::asio::ip::tcp::socket> clients_;
  std::uint64_t sessions_ = 0;

 public:
  Admission admission{settings_, access_};
  RunTable runs{resources_, admission};
  std::shared_ptr<Connection> connection;  // of the latest request
};

}  // namespace

TEST_CASE("a newer connection of a run ends the older one, and must wait for its end") {
  Host host;
  const auto run = host.admit(host.request("a", "run-1", 3));
  Sink sink;
  Outcome outcome;
  const auto older = host.connection;
  host.start(*older, sink, outcome);
  CHECK(host.refusal(host.request("a", "run-1", 2)) == "stale-generation");
  CHECK(host.refusal(host.request("a", "run-1", 3)) == "run-in-use");
  host.settle();
  CHECK_FALSE(outcome.done);
  CHECK(host.refusal(host.request("a", "run-1", 4)) == "run-in-use");
  host.runUntil([&] { return outcome.done; });
  CHECK(outcome.code == "stale-generation");
  CHECK(host.refusal(host.request("a", "run-1", 4)) == "run-in-use");
  host.close(run);
  CHECK(host.refusal(host.request("a", "run-1", 4)).empty());
}

TEST_CASE("a stranger can neither have nor end a served run, even before it has a folder") {
  Host host;
  const auto request = host.request("a", "run-1");
  const auto run = host.admit(request);
  REQUIRE_FALSE(fs::exists(host.folderOf(request)));
  Sink sink;
  Outcome outcome;
  const auto owners = host.connection;
  host.start(*owners, sink, outcome);
  CHECK(host.refusal(host.request("b", "run-1", 2)) == "others-run");
  host.settle();
  CHECK_FALSE(outcome.done);
  owners->abandon();
  host.runUntil([&] { return outcome.done; });
}

TEST_CASE("an opened run has its records and memory, and a closed one leaves its records only") {
  Host host;
  const auto request = host.request("a", "run-1");
  auto run = host.admit(request);
  run->open();
  CHECK(host.admission.admittedBytes() > 0);
  CHECK(run->helloOk().session() == request.session);
  CHECK(run->helloOk().weights_allowed());
  host.close(std::move(run));
  CHECK(host.admission.admittedBytes() == 0);
  for (const char* file : {"config.yaml", "environment.json", "log.txt", "steps.csv"}) {
    INFO(file);
    CHECK(fs::exists(host.folderOf(request) + "/" + file));
  }
}

TEST_CASE("trials need no run id of their own, and leave nothing") {
  Host host;
  auto request = host.request("a", "run-1");
  request.hello.add_features(std::string(kTrialFeature));
  auto first = host.admit(request);
  request.session += 1;
  auto second = host.admit(request);
  for (const auto& trial : {first, second}) trial->open();
  CHECK_FALSE(first->helloOk().weights_allowed());
  host.close(std::move(first));
  CHECK(host.admission.admittedBytes() > 0);
  host.close(std::move(second));
  CHECK(host.admission.admittedBytes() == 0);
  CHECK_FALSE(fs::exists(host.folderOf(request)));
}

}  // namespace cleave
