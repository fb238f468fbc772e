#include "client/diagnose/admission.h"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <exception>
#include <functional>
#include <memory>
#include <utility>

#include "client/planning/trial_run.h"
#include "client/train/train_run.h"
#include "common/run/device.h"

namespace cleave {
namespace {

namespace asio = boost::asio;

// A trial in which nothing is sent receives no answers.
class NoFrames : public FrameSink {
 public:
  std::span<std::byte> placePayload(const FrameHeader&, std::span<const std::byte>) override {
    refuse();
  }
  void receivedFrame(const FrameHeader&, std::span<const std::byte>,
                     std::span<const std::byte>) override {
    refuse();
  }

 private:
  [[noreturn]] static void refuse() {
    throw ProtocolError("unexpected-message", "the server sent a frame that was not requested");
  }
};

asio::awaitable<wire::HelloOk> ask(const ServerAddress& address, const wire::Hello& hello) {
  // These are named variables because GCC 12 destroys temporaries of a co_await expression twice.
  const std::function<wire::Hello()> makeHello = [&hello] { return hello; };
  const asio::any_io_executor executor = co_await asio::this_coro::executor;
  OpenConnection open = co_await connectToServer(address, makeHello, 0);
  const std::shared_ptr<Connection> connection = open.connection;
  asio::post(executor, [connection] { connection->sayBye("done"); });  // while run() waits
  NoFrames sink;
  co_await connection->run(sink);
  co_return std::move(open.ok);
}

}  // namespace

wire::HelloOk askForAdmission(PreparedRun& run, std::size_t body, const ServerAddress& address) {
  const RunSpec spec = trialSpec(run, body);
  wire::Hello hello = trialHello(run, spec, static_cast<unsigned>(body + 1));
  if (run.settings.cohort.exists()) {
    wire::Member& member = *hello.mutable_member();
    run.device = &openDevice(run.settings.device);
    member = TrainRun(run).announcement();
    RunSpec ofRun = run.bodies[body].spec;
    ofRun.graph.clear();
    toWire(ofRun, *member.mutable_run_spec());
  }
  asio::io_context io;
  wire::HelloOk answer;
  std::exception_ptr error;
  asio::co_spawn(io, ask(address, hello), [&](std::exception_ptr failed, wire::HelloOk ok) {
    error = std::move(failed);
    answer = std::move(ok);
  });
  io.run();
  if (error) std::rethrow_exception(error);
  checkAnswer(answer, planRun(spec));
  return answer;
}

}  // namespace cleave
