#include "server/session.h"

#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <boost/asio/async_result.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <cmath>
#include <optional>
#include <utility>

#include "common/core/config.h"
#include "common/core/environment.h"
#include "common/core/log.h"
#include "common/core/printable.h"
#include "common/engine/participant.h"
#include "common/engine/worker.h"
#include "common/link/tensor_link.h"
#include "common/link/trial.h"
#include "common/link/wire_messages.h"
#include "common/net/notices.h"
#include "common/run/action_tables.h"
#include "common/run/plan.h"
#include "common/run/run_folder.h"
#include "common/run/torch_errors.h"
#include "server/hello.h"
#include "server/probe_session.h"
#include "server/run_record.h"

namespace cleave {
namespace {

namespace asio = boost::asio;

// Runs `function` on the device thread. The coroutine resumes on the io thread when it is done, or
// throws what it threw.
template <typename Function>
asio::awaitable<void> onDevice(ServerContext& context, Function function) {
  co_await asio::async_initiate<const asio::use_awaitable_t<>&, void(std::exception_ptr)>(
      [&context](auto handler, Function inner) {
        auto shared = std::make_shared<decltype(handler)>(std::move(handler));
        context.device.post([io = context.io, shared, inner = std::move(inner)]() mutable {
          std::exception_ptr error;
          try {
            inner();
          } catch (...) {
            error = std::current_exception();
          }
          asio::post(io, [shared, error] { (*shared)(error); });
        });
      },
      asio::use_awaitable, std::move(function));
}

// The coroutine resumes on the io thread once no task of the cancelled queue is running.
asio::awaitable<void> codecWorkEnded(CodecQueue& queue, asio::any_io_executor io) {
  co_await asio::async_initiate<const asio::use_awaitable_t<>&, void(std::exception_ptr)>(
      [&queue, io](auto handler) {
        auto shared = std::make_shared<decltype(handler)>(std::move(handler));
        queue.cancel([io, shared] { asio::post(io, [shared] { (*shared)(nullptr); }); });
      },
      asio::use_awaitable);
}

// JSON is also valid YAML.
std::string jsonOf(const wire::RunSpec& spec) {
  std::string json;
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  const auto status = google::protobuf::util::MessageToJsonString(spec, &json, options);
  if (!status.ok()) throw RunError("internal-error", "cannot write the run spec as JSON");
  return json;
}

void checkVersion(const wire::Hello& hello) {
  if (hello.least_version() <= kWireVersion && kWireVersion <= hello.greatest_version()) return;
  throw RunError("version-mismatch",
                 "the client supports versions " + std::to_string(hello.least_version()) + " to " +
                     std::to_string(hello.greatest_version()) +
                     " of the wire format, this server supports version " +
                     std::to_string(kWireVersion),
                 "install the same version of Cleave on both machines");
}

void checkFeatures(const wire::Hello& hello) {
  for (const std::string& feature : hello.features()) {
    if (feature == kProbeFeature || feature == kTraceFeature || feature == kTrialFeature) continue;
    throw RunError("missing-feature",
                   "the run needs the feature '" + feature + "'; this server supports only '" +
                       std::string(kProbeFeature) + "', '" + std::string(kTraceFeature) +
                       "' and '" + std::string(kTrialFeature) + "' beyond version " +
                       std::to_string(kWireVersion) + " of the wire format",
                   "install the client's version of Cleave at the server");
  }
}

// For a trial that uses more than any client needs: trials leave no records, so they are limited.
ProtocolError trialTooLong(const std::string& limit) {
  return ProtocolError("trial-too-long", "the trial takes more than " + limit,
                       "name a codec instead of auto");
}

[[noreturn]] void refuseWait() {
  throw UsageError(
      "wait-not-allowed",
      "this server does not allow wait.F2 and wait.B2, which occupy its device without "
      "computing",
      "remove them from the configuration, or set wait.allowed=true at the server");
}

}  // namespace

// State of an admitted run. Stage and engine are built, used and destroyed on the device thread.
struct Session::Run {
  wire::Hello hello;
  RunPlan plan;
  bool isTrial = false;  // no folder, no records, and weights cannot be fetched
  std::uint64_t batches = 0;
  int threads = 1;
  std::unique_ptr<Admission::Ticket> ticket;
  std::string folder;
  std::shared_ptr<spdlog::logger> log;
  std::shared_ptr<RunFiles> files;
  std::unique_ptr<RunRecord> record;
  std::shared_ptr<DiskShare> disk;
  Pace pace;
  std::unique_ptr<BodyStage> stage;
  std::shared_ptr<CodecQueue> codecQueue;
  std::shared_ptr<TensorLink> link;
  std::shared_ptr<EngineWorker> worker;
  std::uint64_t applied = 0;
};

Session::Session(ServerContext& context, asio::ip::tcp::socket socket, std::uint64_t number)
    : context_(context), number_(number) {
  boost::system::error_code error;
  const auto remote = socket.remote_endpoint(error);
  boost::system::error_code noLocal;
  const auto local = socket.local_endpoint(noLocal);
  clientIsLocal_ =
      !error && (remote.address().is_loopback() || remote.address() == local.address());
  ConnectionOptions options = context_.settings.connection;
  options.tls = context_.tls;
  connection_ = std::make_shared<Connection>(std::move(socket), std::move(options));
}

Session::~Session() = default;

// The peer's name in the log: its address, and the name in its certificate if it has one.
std::string Session::name() const {
  const std::string& identity = connection_->identity();
  return "session " + std::to_string(number_) + " from " + connection_->peer() +
         (identity.empty() ? "" : " (" + identity + ")");
}

void Session::shutDown() {
  if (!helloCame_) return connection_->abandon();
  connection_->fail(std::make_exception_ptr(RunError("shutting-down", "the server is shutting down",
                                                     "restart the server, then run again")));
}

void Session::end(const Error& error) {
  connection_->fail(std::make_exception_ptr(RunError(error.code(), error.what(), error.hint())));
}

void Session::endIfIdle(SteadyTime time) {
  const bool isBeingBuilt = !probe_ && !serving_;
  const bool waitsForServer = isBeingBuilt || connection_->outbox().hasTensors() ||
                              (serving_ && (run_->worker->hasWork() || run_->link->hasCodecWork()));
  const double idle = idle_.look(time, connection_->lastActivity(), waitsForServer);
  if (!admitted_ || idle < mostIdleSeconds_) return;
  connection_->fail(std::make_exception_ptr(ProtocolError(
      "session-idle",
      "the client has done nothing for " + std::to_string(std::lround(mostIdleSeconds_)) +
          " s (limits.idle_seconds in the server's configuration, or idle_seconds in its access "
          "file)",
      "run again; if the client computes for that long between two messages, ask the server's "
      "operator for a higher limit")));
}

void Session::endIfNoLongerAllowed() {
  if (!admitted_) return;  // it will be checked after its Hello
  try {
    if (context_.tls) connection_->checkPeerAgain(*context_.tls);
    context_.access.of(identity_);
  } catch (const Error& error) {
    context_.refusals.note(name(), error);
    end(error);
  }
}

void Session::drain() {
  draining_ = true;
  if (!run_) return shutDown();
  if (!serving_) return;  // serveRun() handles it
  context_.device.post([worker = run_->worker, connection = connection_, io = context_.io] {
    worker->drain([connection, io] {
      asio::post(io, [connection] { connection->sayBye("shutting-down"); });
    });
  });
}

std::optional<SessionStatus> Session::status() const {
  const bool isRun = run_ && run_->ticket;
  if (!isRun && !probe_) return std::nullopt;
  SessionStatus status;
  status.kind = kind_;
  status.number = number_;
  status.identity = identity_;
  status.peer = connection_->peer();
  status.seconds = secondsSince(start_);
  if (!isRun) return status;
  status.run = run_->hello.run_id();
  status.model = run_->plan.stage.model.name;
  status.memoryBytes = run_->ticket->bytes();
  status.pace = run_->pace.state();
  const std::uint64_t perEpoch = run_->plan.stepsPerEpoch;
  if (status.pace && status.pace->phase == Phase::train && perEpoch > 0) {
    status.epoch = (status.pace->step + perEpoch - 1) / perEpoch;
  }
  return status;
}

std::size_t Session::mailboxEntries() const { return serving_ ? run_->worker->waiting() : 0; }

asio::awaitable<void> Session::serve() {
  std::optional<std::string> refused;
  try {
    co_await open();
  } catch (const Error& error) {
    context_.refusals.note(name(), error);
    refused = failureMetadata(error);
  } catch (const std::exception& error) {
    processLog()->error("{}: failed: {}", name(), error.what());
    refused =
        failureMetadata(RunError("internal-error", "the server failed to build the run's model"));
  }
  if (refused) {
    // Without a Hello, the connection has already sent its reply, if any.
    if (helloCame_) co_await refuse(*refused);
  } else if (probe_) {
    co_await probe_->serve();
  } else {
    co_await serveRun();
  }
  co_await closeRun();
}

asio::awaitable<void> Session::refuse(std::string answer) {
  try {
    co_await connection_->writeHandshakeFrame(FrameKind::refused, std::move(answer));
  } catch (const Error&) {
    // The client has already disconnected; the refusal is in the log.
  }
}

asio::awaitable<void> Session::open() {
  const auto frame = co_await connection_->readHandshakeFrame(ConnectionState::awaitingHello);
  helloCame_ = true;
  if (!connection_->identity().empty()) identity_ = connection_->identity();
  // The certificates may have been reloaded since the handshake.
  if (context_.tls) connection_->checkPeerAgain(*context_.tls);
  auto hello = parseMetadata<wire::Hello>(
      FrameKind::hello, std::as_bytes(std::span(frame.metadata.data(), frame.metadata.size())));
  checkVersion(hello);
  checkFeatures(hello);
  connection_->throttleBy(context_.access.throttle(identity_));
  mostIdleSeconds_ =
      context_.access.of(identity_).idleSeconds.value_or(context_.settings.share.idleSeconds);
  if (!asksFor(hello, kProbeFeature)) {
    co_await openRun(std::move(hello));
  } else {
    kind_ = "probe";
    probe_ = std::make_unique<ProbeSession>(context_, connection_, identity_, number_, hello);
    admitted_ = true;
    co_await probe_->accept();
  }
}

void Session::openRecords() {
  Run& run = *run_;
  const std::string& runId = run.hello.run_id();
  run.disk = context_.disk.open(identity_, context_.access.of(identity_).diskBytes.value_or(
                                               context_.settings.share.diskBytes));
  run.folder = context_.settings.store + "/" + identity_ + "/" + runId;
  makeRunFolder(run.folder, "use another run.name, or try again: each run gets its own id");
  run.disk->take(DiskShare::kRunBytes);
  writeRunDescription(
      run.folder, context_.settings.resolved + "run_spec: " + jsonOf(run.hello.run_spec()) + "\n",
      run.threads, context_.compute.description());
  run.log = fileLog(run.folder + "/log.txt");
  run.files = std::make_shared<RunFiles>(context_.recorder, run.folder, RunIdentity{runId, number_},
                                         std::vector<std::string>{}, context_.settings.rotateBytes,
                                         run.disk);
  run.files->observe(context_.metrics);
}

bool Session::mayFetchWeights() const { return context_.settings.fetchWeights && !run_->isTrial; }

asio::awaitable<void> Session::openRun(wire::Hello hello) {
  run_ = std::make_unique<Run>();
  Run& run = *run_;
  run.hello = std::move(hello);
  const std::string& runId = run.hello.run_id();
  checkRunId(runId);
  run.plan = planRun(run.hello.run_spec());
  run.isTrial = asksFor(run.hello, kTrialFeature);
  if (run.isTrial) kind_ = "trial";
  if (run.plan.wait.any() && !context_.settings.allowWait) refuseWait();
  useDeviceCodecs(run.plan, context_.compute);
  if (run.isTrial) {
    run.ticket = context_.admission.admitTrial(identity_, number_, run.plan);
  } else {
    run.ticket = context_.admission.admit(
        identity_, runId, run.hello.generation(), run.plan, [connection = connection_] {
          connection->fail(std::make_exception_ptr(RunError(
              "stale-generation", "the run has connected again; this older connection ends")));
        });
  }
  admitted_ = true;
  const int asked = static_cast<int>(std::min(run.hello.run_spec().threads(), 1024u));
  const ThreadCount count =
      chooseThreads(usableCores(), asked, context_.settings.threads, clientIsLocal_);
  run.threads = count.threads;
  if (run.isTrial) {
    run.files = std::make_shared<RunFiles>();
  } else {
    openRecords();
  }
  run.record = std::make_unique<RunRecord>(*run.files, run.plan.stepsPerEpoch, run.disk);
  TensorLinkOptions options = linkOptions(run.plan, Role::server);
  options.errorEvery = context_.settings.errorEvery;
  options.helper = context_.helper;
  options.account = std::make_shared<MemoryAccount>(transitBytes(run.plan));
  options.codecQueue = run.codecQueue = context_.codecs.open();
  const auto trace = options.trace;
  const auto mailbox = std::make_shared<Mailbox>(context_.device, run.plan.inFlight);
  run.link = std::make_shared<TensorLink>(
      std::move(options), connection_, context_.pool, context_.io,
      [mailbox](Message message) { mailbox->deliver(std::move(message)); },
      [files = run.files](const TransferRecord& record) { files->transfer(record); });
  run.worker = std::make_shared<EngineWorker>(
      std::make_unique<Participant>(engineOptions(run.plan), run.plan.place,
                                    std::vector<std::shared_ptr<EngineLink>>{run.link}),
      mailbox, ActionTable{},
      [&run, connection = connection_] {
        const Engine& engine = run.worker->engine();
        if (run.isTrial && ++run.batches > kMaxTrialBatches) {
          throw trialTooLong(std::to_string(kMaxTrialBatches) + " batches");
        }
        const LinkTotals totals = run.link->totals();
        run.record->finishedBatch(engine, run.worker->betweenSteps(), totals);
        run.pace.finishedBatch(*engine.batch(), engine.seconds(), totals, connection->receiveRate(),
                               connection->sendRate());
      },
      [connection = connection_, io = context_.io](std::exception_ptr error) {
        asio::post(io, [connection, error] { connection->fail(error); });
      },
      context_.compute.queue(), trace);
  run.worker->limitActions(context_.settings.actionSeconds);
  buildLater(run);

  wire::HelloOk ok;
  ok.set_version(kWireVersion);
  ok.set_threads(static_cast<std::uint32_t>(run.threads));
  ok.set_in_flight(run.plan.inFlight);
  ok.set_session(number_);
  ok.set_software(softwareVersion());
  ok.set_body_bytes(maxWeightsBytes(run.plan));
  ok.set_weights_allowed(mayFetchWeights());
  ok.set_device(context_.settings.device);
  if (trace) ok.add_features(std::string(kTraceFeature));
  if (run.isTrial) ok.add_features(std::string(kTrialFeature));
  co_await connection_->writeHandshakeFrame(FrameKind::helloOk, ok.SerializeAsString());
  run.record->begin(run.link->totals());
  log(spdlog::level::info,
      fmt::format(
          "{}: {}{} blocks {} to {}, {} micro-batches, {} in flight, schedule {}; threads: {}",
          name(), run.isTrial ? "a trial of codecs: " : "", run.plan.stage.model.name,
          run.plan.stage.cuts.cut0, run.plan.stage.cuts.cut1 - 1, run.plan.microBatches,
          run.plan.inFlight, run.plan.schedule->name, count.text));
}

// Builds as the worker's first action, so that the Hello is answered without waiting for the device
// and the build time is charged to the session.
void Session::buildLater(Run& run) {
  run.worker->buildFirst([this, &run] {
    setComputeThreads(run.threads);
    run.stage = withTorchErrors([&] {
      return std::make_unique<BodyStage>(run.plan.stage, run.plan.wait, context_.compute);
    });
    return bodyActions(*run.stage, run.threads, mayFetchWeights());
  });
}

asio::awaitable<void> Session::serveRun() {
  Run& run = *run_;
  context_.device.attach(run.worker, identity_);
  serving_ = true;
  if (draining_) drain();
  asio::steady_timer deadline(context_.io, kMaxTrialSession);
  if (run.isTrial) {
    deadline.async_wait([connection = connection_](const boost::system::error_code& cancelled) {
      if (cancelled) return;
      connection->fail(std::make_exception_ptr(
          trialTooLong(std::to_string(kMaxTrialSession / std::chrono::minutes(1)) + " minutes")));
    });
  }
  try {
    const std::string reason = co_await connection_->run(*run.link);
    log(spdlog::level::info, fmt::format("session {}: the client ended it ({})", number_, reason));
  } catch (const std::exception& error) {
    log(spdlog::level::warn,
        fmt::format("session {}: ended: {}", number_, printable(error.what())));
    context_.refusals.count(error);
  }
  serving_ = false;
}

// Logs to the run's own log and, unless this identity has logged too many lines, to the server's.
void Session::log(spdlog::level::level_enum level, const std::string& line) {
  if (run_->log) run_->log->log(level, line);  // a trial has no log
  if (!context_.lines.take(identity_, now())) return;
  processLog()->log(level, "run {}: {}", run_->hello.run_id(), line);
}

void Session::completeRecords() {
  if (!run_ || !run_->link) return;
  run_->link->recordUnacknowledged();
  run_->record->end(run_->link->totals());
}

asio::awaitable<void> Session::closeRun() {
  if (!run_) co_return;
  Run& run = *run_;
  if (run.codecQueue) run.codecQueue->cancel();
  if (run.worker) {
    run.worker->stop();
    context_.device.detach(run.worker);
  }
  // If the stage was not built, there is nothing to destroy on the device thread, and no need to
  // wait for other runs' actions.
  const bool neverBuilt = run.worker && run.worker->cancelBuild();
  if (neverBuilt) run.worker.reset();
  if (run.worker) {
    co_await onDevice(context_, [&run] {
      run.applied = run.worker->engine().applied();
      run.worker.reset();
      run.stage.reset();
    });
  }
  if (run.link) {
    completeRecords();
    const LinkTotals totals = run.link->totals();
    log(spdlog::level::info, fmt::format("session {}: {} steps applied, {} bytes up, {} bytes down",
                                         number_, run.applied, totals.up(), totals.down()));
  }
  // The run's memory is in use until here, and admission counts it until then.
  if (run.codecQueue) co_await codecWorkEnded(*run.codecQueue, context_.io);
  run_.reset();
}

}  // namespace cleave
