#include "server/run/run_edges.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <utility>
#include <variant>

#include "common/core/printable.h"
#include "common/link/edge.h"
#include "common/link/probe/trial.h"
#include "common/link/transfer_order.h"
#include "common/run/run_folder.h"

namespace cleave {
namespace {

constexpr std::size_t kMaxAddress = 300;

[[noreturn]] void refuseHello(const std::string& sentence) {
  throw ProtocolError("bad-metadata", sentence);
}

void checkToken(const wire::Edge& edge) {
  if (edge.token().size() == kEdgeTokenBytes) return;
  refuseHello(fmt::format("the token of a direct link has {} bytes instead of {}",
                          edge.token().size(), kEdgeTokenBytes));
}

Endpoint addressOf(const wire::Edge& edge) {
  const std::string text = printable(edge.address(), kMaxAddress);
  try {
    return parseEndpoint({"the address of a direct link", text}, 1);
  } catch (const UsageError& error) {
    refuseHello(error.what());
  }
}

void checkAllowed(const wire::Edge& edge, const EdgeSettings& settings) {
  const std::vector<Endpoint>& allowed = settings.allow;
  if (std::find(allowed.begin(), allowed.end(), addressOf(edge)) != allowed.end()) return;
  const std::string text = printable(edge.address(), kMaxAddress);
  throw UsageError(
      "edge-not-allowed",
      fmt::format("this server may not connect to {}, the server of the next blocks", text),
      fmt::format("add it to this server's configuration: edges: {{allow: [\"{}\"]}}; or set "
                  "connect.direct to false",
                  text));
}

}  // namespace

void checkEdges(const wire::Hello& hello, const RunPlan& plan, const EdgeSettings& settings) {
  if (!asksForEdges(hello)) return;
  if (hello.kind() == wire::Hello::TRIAL) refuseHello("a trial has direct links");
  checkEdgeCodecs(plan, hello.has_edge_before(), hello.has_edge_after());
  if (hello.has_edge_before()) {
    checkToken(hello.edge_before());
    if (!settings.isAccepting) {
      throw UsageError("edges-not-accepted",
                       "this server does not accept direct links from other servers",
                       "add to this server's configuration: edges: {accept: true}; or set "
                       "connect.direct to false");
    }
  }
  if (hello.has_edge_after()) {
    checkToken(hello.edge_after());
    checkRunId(hello.edge_after().run_id());
    checkAllowed(hello.edge_after(), settings);
  }
}

RunEdges::RunEdges(const wire::Hello& hello, const ServerSettings& settings,
                   const ServerCertificates& certificates, const boost::asio::any_io_executor& io,
                   const std::function<void(const RunError&)>& failed) {
  const auto add = [&](const wire::Edge& edge, std::optional<EdgeTarget> target) {
    RunEdgeOptions options{.token = edge.token(),
                           .target = std::move(target),
                           .connection = settings.connection,
                           .certificates = &certificates,
                           .patience = settings.park};
    return edges_.emplace_back(std::make_shared<RunEdge>(std::move(options), io, failed));
  };
  if (hello.has_edge_before()) before_ = add(hello.edge_before(), std::nullopt);
  if (!hello.has_edge_after()) return;
  const wire::Edge& after = hello.edge_after();
  after_ = add(after, EdgeTarget{addressOf(after), after.run_id()});
}

std::shared_ptr<RunEdge> RunEdges::find(const std::string& token) const {
  return before_ && before_->hasToken(token) ? before_ : nullptr;
}

// ---- Flows ----

void RunEdges::takeFlows(TensorLinkOptions& client) const {
  if (isEmpty()) return;
  const Place& place = client.place;
  client.order =
      std::make_shared<TransferOrder>(client.role, place, client.inFlight, client.account, true);
  client.edgeSnrs = std::make_shared<StepSnrs>();
  for (const Flow flow : place.flows()) {
    if (flow.cut == place.firstCut ? before_ != nullptr : after_ != nullptr) {
      client.elsewhere[flow] = true;
    }
  }
}

void RunEdges::start(const TensorLinkOptions& client, const std::shared_ptr<BufferPool>& pool,
                     const std::function<void(Message)>& deliver,
                     const std::function<void(const TransferRecord&)>& record) {
  const auto startAt = [&](const std::shared_ptr<RunEdge>& edge, int cut) {
    if (!edge) return;
    TensorLinkOptions options = client;
    options.isEdge = true;
    options.initialWeights = false;
    options.maxBlobBytes = 0;
    options.elsewhere = {};
    options.watched = [snrs = client.edgeSnrs](const Key& key, double snrDb) {
      snrs->add(key.step, snrDb);
    };
    for (const Flow flow : options.place.flows()) {
      if (flow.cut != cut) options.elsewhere[flow] = true;
    }
    edge->start(std::move(options), pool, deliver, record);
  };
  startAt(before_, client.place.firstCut);
  startAt(after_, client.place.lastCut);
}

// Sends tensors over the link that their flow crosses, and everything else to the client.
class RunEdges::Router : public EngineLink {
 public:
  Router(std::shared_ptr<TensorLink> client, RunEdges edges)
      : client_(std::move(client)), edges_(std::move(edges)) {}

  void send(Message message) override {
    if (auto* tensor = std::get_if<TensorMessage>(&message)) {
      if (RunEdge* const edge = edgeOf(tensor->flow)) return edge->send(std::move(*tensor));
    } else if (auto* done = std::get_if<BodyDone>(&message)) {
      for (TensorLink* const link : edges_.links()) done->codecSeconds += link->takeCodecSeconds();
      if (edges_.before_) done->edge = edges_.before_->report();
    }
    client_->send(std::move(message));
  }
  void commit(std::uint64_t step) override {
    client_->commit(step);
    for (TensorLink* const link : edges_.links()) link->commit(step);
  }

 private:
  RunEdge* edgeOf(Flow flow) const {
    for (const auto& edge : edges_.edges_) {
      if (edge->tensors().carries(flow)) return edge.get();
    }
    return nullptr;
  }

  const std::shared_ptr<TensorLink> client_;
  const RunEdges edges_;
};

std::shared_ptr<EngineLink> RunEdges::with(std::shared_ptr<TensorLink> client) const {
  if (isEmpty()) return client;
  return std::make_shared<Router>(std::move(client), *this);
}

std::vector<TensorLink*> RunEdges::links() const {
  std::vector<TensorLink*> links;
  for (const auto& edge : edges_) links.push_back(&edge->tensors());
  return links;
}

// ---- State ----

std::optional<SteadyTime> RunEdges::lastActivity() const {
  std::optional<SteadyTime> last;
  for (const auto& edge : edges_) last = std::max(last, edge->lastActivity());
  return last;
}

void RunEdges::close(const std::shared_ptr<const void>& held) {
  for (const auto& edge : edges_) edge->close(held);
}

}  // namespace cleave
