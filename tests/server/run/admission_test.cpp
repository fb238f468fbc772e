// Admission: the limits of the server and of each identity, and the ownership of runs.
#include "server/run/admission.h"

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <stdexcept>

#include "client/run/temporary_folder.h"
#include "compression/registry.h"
#include "tests/support/error_code.h"

namespace cleave {
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;
using Tickets = std::vector<std::unique_ptr<Admission::Ticket>>;

// `keptSamples`: samples of the training data that a codec keeps; 0: none.
RunPlan smallPlan(std::uint32_t keptSamples = 0) {
  RunSpec spec;
  spec.trainSamples = keptSamples;
  if (keptSamples > 0) spec.codecs["activation/0"] = parseCodec("delta(block:bits=4)");
  spec.model = {"mlp", {}, {16}, 4};
  spec.cut0 = 1;
  spec.cut1 = 2;
  spec.maxBatch = spec.trainBatch = 8;
  spec.microBatches = 2;
  return planRun(spec);
}

// A server's admission with its own store and the given access file.
class Guard {
 public:
  explicit Guard(const std::string& accessText) {
    settings.allowedModels = {"mlp", "small_cnn"};
    settings.maxSessions = 5;
    settings.store = folder_ + "/store";
    fs::create_directory(settings.store);
    settings.memoryBytes = std::size_t{1} << 30;
    std::ofstream(folder_ + "/access.yaml") << accessText;
    access_.emplace(folder_ + "/access.yaml", settings.allowedModels);
    restart();
  }
  void restart() { admission.emplace(settings, *access_); }

  // Creates the run's folder immediately, like a session.
  std::unique_ptr<Admission::Ticket> admit(const std::string& identity, const std::string& run,
                                           SteadyTime time = {}) {
    admission->checkRun(identity, run, plan);
    auto ticket = admission->admit(identity, plan, 0, time);
    fs::create_directories(settings.store + "/" + identity + "/" + run);
    return ticket;
  }
  // The error of a run that does not fit into memory.
  RunError memoryError(const std::string& identity, const std::string& run) {
    try {
      admit(identity, run);
    } catch (const RunError& error) {
      CHECK(error.code() == "not-enough-memory");
      return error;
    }
    FAIL("no error");
    throw std::logic_error("not reached");
  }
  std::string refusal(const std::string& identity, const std::string& run) {
    return errorCode([&] { admit(identity, run); });
  }

  ServerSettings settings;
  RunPlan plan = smallPlan();
  std::optional<Admission> admission;

 private:
  const TemporaryFolder temporary_;
  const std::string folder_ = temporary_.path();
  std::optional<Access> access_;
};

}  // namespace

TEST_CASE(
    "sessions are limited per identity, and one identity cannot use up the sessions of others") {
  Guard guard("a: {sessions: 2}\ndefault: {}\n");
  Tickets tickets;
  tickets.push_back(guard.admit("a", "a-1"));
  tickets.push_back(guard.admission->admitProbe("a"));
  CHECK(guard.refusal("a", "a-2") == "too-many-sessions");
  CHECK(errorCode([&] { guard.admission->admitProbe("a"); }) == "too-many-sessions");
  CHECK_THAT(errorText([&] { guard.admit("a", "a-2"); }),
             Contains("a already has its maximum of 2 sessions"));
  for (const char* run : {"b-1", "b-2", "b-3"}) tickets.push_back(guard.admit("b", run));
  CHECK_THAT(errorText([&] { guard.admit("b", "b-4"); }),
             Contains("this server already has its maximum of 5 sessions"));
  tickets.erase(tickets.begin());
  tickets.push_back(guard.admit("a", "a-2"));
}

TEST_CASE("each member of a cohort needs a session, and memory for its samples and sums") {
  Guard guard("default: {}\n");
  Tickets tickets;
  tickets.push_back(guard.admit("a", "a-1"));
  const std::size_t ofRun = guard.admission->admittedBytes();
  tickets.push_back(guard.admission->admitMember("b", guard.plan, memberBytes(1000, 10)));
  CHECK(guard.admission->admittedBytes() == ofRun + memberBytes(1000, 10));
  CHECK(memberBytes(2000, 10) - memberBytes(1000, 10) >= 1000 * 2 * sizeof(std::uint32_t));
  CHECK(memberBytes(1000, std::size_t{1} << 20) - memberBytes(1000, 0) >=
        (std::size_t{1} << 20) * sizeof(float));
  CHECK(cohortBytes(std::size_t{1} << 20, 0) - cohortBytes(0, 0) ==
        (std::size_t{2} << 20) * sizeof(float));
  CHECK(cohortBytes(0, 1 << 20) >= cohortBytes(0, 0) + (1 << 20) - (1 << 10));
  const auto admit = [&](std::size_t bytes) {
    tickets.push_back(guard.admission->admitMember("c", guard.plan, bytes));
  };
  for (const std::uint64_t many : {std::uint64_t{1} << 31, ~std::uint64_t{}}) {
    CHECK(errorCode([&] { admit(memberBytes(many, 10)); }) == "not-enough-memory");
  }
  CHECK(errorCode([&] { admit(memberBytes(0, ~std::uint64_t{})); }) == "not-enough-memory");
  for (int j = 0; j < 3; ++j) admit(memberBytes(1, 1));
  CHECK(errorCode([&] { admit(memberBytes(1, 1)); }) == "too-many-sessions");
}

TEST_CASE("an identity without a limit in the access file has the server's limit") {
  Guard guard("a: {sessions: 3}\ndefault: {}\n");
  guard.settings.share.sessions = 2;
  Tickets tickets;
  for (const char* run : {"b-1", "b-2"}) tickets.push_back(guard.admit("b", run));
  CHECK_THAT(errorText([&] { guard.admit("b", "b-3"); }),
             Contains("b already has its maximum of 2 sessions") &&
                 Contains("limits.sessions_per_identity"));
  CHECK(errorCode([&] { guard.admission->admitProbe("b"); }) == "too-many-sessions");
  for (const char* run : {"a-1", "a-2", "a-3"}) tickets.push_back(guard.admit("a", run));
  CHECK_THAT(errorText([&] { guard.admit("c", "c-1"); }),
             Contains("this server already has its maximum of 5 sessions"));
}

TEST_CASE("an identity is limited in runs per hour, and others are not affected") {
  using namespace std::chrono_literals;
  Guard guard("a: {runs_per_hour: 3}\nb: {runs_per_hour: 0}\ndefault: {}\n");
  guard.settings.share.runsPerHour = 1;
  const SteadyTime start{};
  for (int j = 0; j < 3; ++j) guard.admit("a", "a-" + std::to_string(j), start + j * 10min);
  try {
    guard.admit("a", "a-3", start + 50min);
    FAIL("it was admitted");
  } catch (const RunError& error) {
    CHECK(error.code() == "too-many-runs");
    CHECK(error.retrySeconds() == 600);
  }
  CHECK(guard.refusal("b", "b-1") == "too-many-runs");
  guard.admit("c", "c-1", start + 50min);
  CHECK(errorCode([&] { guard.admit("c", "c-2", start + 60min); }) == "too-many-runs");
  guard.admit("a", "a-3", start + 60min);
  CHECK(errorCode([&] { guard.admit("a", "a-4", start + 60min); }) == "too-many-runs");
}

TEST_CASE("a run that is refused for another reason does not count towards the hourly limit") {
  Guard guard("default: {runs_per_hour: 1}\n");
  guard.settings.memoryBytes = 1;
  CHECK(guard.refusal("a", "a-1") == "not-enough-memory");
  guard.settings.memoryBytes = std::size_t{1} << 30;
  CHECK(guard.refusal("a", "a-1").empty());
}

TEST_CASE(
    "an identity's runs are limited to its share of memory, and release memory when they end") {
  Guard guard("a: {memory_mib: 256}\ndefault: {}\n");
  const std::size_t needed = serverBytes(guard.plan) + snapshotBytes(guard.plan);
  REQUIRE(needed > serverBytes(guard.plan));
  const std::size_t max = (std::size_t{256} << 20) / needed;
  REQUIRE(max > 1);
  guard.settings.maxSessions = static_cast<std::uint32_t>(max) + 10;
  Tickets tickets;
  for (std::size_t j = 0; j < max; ++j) {
    tickets.push_back(guard.admit("a", "a-" + std::to_string(j)));
  }
  CHECK(guard.refusal("a", "a-more") == "not-enough-memory");
  CHECK_THAT(errorText([&] { guard.admit("a", "a-more"); }),
             Contains("a has") && Contains("left of 256 MiB"));
  tickets.push_back(guard.admit("b", "b-1"));
  tickets.erase(tickets.begin());
  tickets.push_back(guard.admit("a", "a-more"));

  guard.settings.allowCheckpoints = false;
  const std::size_t before = guard.admission->admittedBytes();
  tickets.push_back(guard.admit("b", "b-2"));
  CHECK(guard.admission->admittedBytes() - before == serverBytes(guard.plan));
}

TEST_CASE("a run that fits once others have ended may be retried") {
  Guard guard("default: {}\n");
  const auto first = guard.admit("a", "a-1");
  guard.settings.memoryBytes = guard.admission->admittedBytes() + 1;
  CHECK(guard.memoryError("a", "a-2").retrySeconds() > 0);
}

TEST_CASE("a run that exceeds its identity's share is not retried, even if the server is full") {
  Guard guard("small: {memory_mib: 0}\ndefault: {}\n");
  const auto first = guard.admit("a", "a-1");
  guard.settings.memoryBytes = guard.admission->admittedBytes() + 1;
  const RunError error = guard.memoryError("small", "small-1");
  CHECK_THAT(error.what(), Contains("small has"));
  CHECK(error.retrySeconds() == 0);
}

TEST_CASE("a run whose codec keeps more samples than fit into memory is refused with a hint") {
  Guard guard("default: {}\n");
  guard.plan = smallPlan(1 << 30);
  const RunError error = guard.memoryError("a", "a-1");
  CHECK_THAT(error.hint(), Contains("delta") && Contains("is for codecs"));
  CHECK(error.retrySeconds() == 0);  // it does not fit later either
  guard.plan = smallPlan(1 << 10);
  CHECK(guard.refusal("a", "a-1").empty());
}

TEST_CASE("a trial requires a session and memory, but needs no permitted run id") {
  Guard guard("a: {runs: [mine-*], sessions: 2}\ndefault: {}\n");
  Tickets tickets;
  tickets.push_back(guard.admission->admitTrial("a", guard.plan));
  CHECK(guard.admission->admittedBytes() == serverBytes(guard.plan));
  tickets.push_back(guard.admit("a", "mine-1"));
  CHECK(errorCode([&] { guard.admission->admitTrial("a", guard.plan); }) == "too-many-sessions");
  guard.settings.allowedModels = {};
  CHECK(errorCode([&] { guard.admission->admitTrial("b", guard.plan); }) == "model-not-allowed");
}

TEST_CASE("an identity may train only models that both its entry and the server allow") {
  Guard guard("a: {models: [small_cnn]}\nb: {models: []}\nc: {}\n");
  CHECK(guard.refusal("a", "run") == "model-not-allowed");
  CHECK(guard.refusal("b", "run") == "model-not-allowed");
  CHECK(guard.refusal("c", "run").empty());
  guard.settings.allowedModels = {"small_cnn"};
  CHECK(guard.refusal("c", "other") == "model-not-allowed");
}

TEST_CASE("an unknown identity may start neither a run nor a probe") {
  Guard guard("a: {}\n");
  CHECK(guard.refusal("b", "run") == "unknown-identity");
  CHECK(errorCode([&] { guard.admission->admitProbe("b"); }) == "unknown-identity");
}

TEST_CASE("a run belongs to the identity that began it, even after a restart") {
  Guard guard("default: {}\n");
  guard.admit("a", "run-1");
  CHECK(guard.refusal("b", "run-1") == "others-run");
  CHECK(guard.refusal("local", "run-1") == "others-run");
  guard.restart();
  CHECK(guard.refusal("b", "run-1") == "others-run");
  CHECK(guard.refusal("a", "run-1").empty());
}

}  // namespace cleave
