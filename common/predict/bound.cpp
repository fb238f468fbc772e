#include "common/predict/bound.h"

#include <algorithm>
#include <array>
#include <optional>
#include <ranges>
#include <stdexcept>

#include "common/core/random.h"

namespace cleave {
namespace {

constexpr std::array<std::string_view, kBottlenecks> kNames = {
    "client compute", "server compute", "uplink", "downlink", "latency", "codec"};

double positive(double x) { return std::max(x, 0.0); }

// The seconds that a schedule that splits the backward can defer.
double weightsApart(const BodyCosts& body) {
  return body.place.contains(gradientAt(body.place.firstCut)) ? body.weights : 0;
}

// A resource that a micro-batch uses on its path.
struct Resource {
  Bottleneck kind = Bottleneck::clientCompute;
  std::size_t body = 0;     // see StepBound
  bool isOfServer = false;  // a codec of a server, or a direct link
  bool operator==(const Resource&) const = default;
};
// One use of a resource by a micro-batch.
struct Visit {
  Resource resource;
  double seconds = 0;
};
using Path = std::vector<Visit>;

// Lists the visits of a micro-batch in order. Without direct links, a tensor from one body to the
// next crosses the links of both; the client forwards it unchanged.
class PathMaker {
 public:
  PathMaker(const StepCosts& costs, bool splitsBackward)
      : costs_(costs), splitsBackward_(splitsBackward) {}

  Path path() {
    const std::size_t bodies = costs_.bodies.size();
    visit({Bottleneck::clientCompute}, costs_.headForward);
    for (std::size_t b = 0; b < bodies; ++b) {
      const Place& place = costs_.bodies[b].place;
      const bool isFirst = b == 0, isLast = b + 1 == bodies;
      if (isFirst || !hasEdges()) up(b, activationAt(place.firstCut), isFirst);
      visit({Bottleneck::serverCompute, b}, costs_.bodies[b].forward);
      if (isLast || !hasEdges()) {
        down(b, activationAt(place.lastCut), isLast);
      } else {
        across(b, b + 1, activationAt(place.lastCut));
      }
    }
    visit({Bottleneck::clientCompute}, costs_.tailStep);
    std::optional<std::size_t> last;  // the last body that computes a backward
    for (std::size_t b = bodies; b-- > 0;) {
      const Place& place = costs_.bodies[b].place;
      const bool isFirst = b == 0, isLast = b + 1 == bodies;
      if (!place.contains(gradientAt(place.lastCut))) break;
      last = b;
      if (isLast || !hasEdges()) up(b, gradientAt(place.lastCut), isLast);
      visit({Bottleneck::serverCompute, b},
            costs_.bodies[b].backward - (splitsBackward_ ? weightsApart(costs_.bodies[b]) : 0));
      if (isFirst || !hasEdges()) {
        down(b, gradientAt(place.firstCut), isFirst);
      } else {
        across(b, b - 1, gradientAt(place.firstCut));
      }
    }
    const Place& first = costs_.bodies.front().place;
    if (first.contains(gradientAt(first.firstCut))) {
      visit({Bottleneck::clientCompute}, costs_.headBackward);
    } else if (last) {
      visit({Bottleneck::latency}, costs_.bodies[*last].latency);  // latency of BodyDone
    }
    return std::move(path_);
  }

 private:
  void visit(const Resource& resource, double seconds) { path_.push_back({resource, seconds}); }
  bool hasEdges() const { return !costs_.edges.empty(); }
  Resource link(Bottleneck direction, std::size_t b) const {
    return {direction, costs_.sharesLink ? 0 : b};
  }

  void up(std::size_t b, Flow flow, bool isClients) {
    const BodyCosts& body = costs_.bodies[b];
    if (!body.place.contains(flow)) return;
    const FlowCosts tensor = costs_.flows.get(flow);
    if (isClients) visit({Bottleneck::codec, 0, false}, tensor.encodeSeconds);
    visit(link(Bottleneck::uplink, b), tensor.bytes / body.rateUp);
    visit({Bottleneck::latency}, body.latency);
    visit({Bottleneck::codec, b, true}, tensor.decodeSeconds);
  }
  void down(std::size_t b, Flow flow, bool isClients) {
    const BodyCosts& body = costs_.bodies[b];
    if (!body.place.contains(flow)) return;
    const FlowCosts tensor = costs_.flows.get(flow);
    visit({Bottleneck::codec, b, true}, tensor.encodeSeconds);
    visit(link(Bottleneck::downlink, b), tensor.bytes / body.rateDown);
    visit({Bottleneck::latency}, body.latency);
    if (isClients) visit({Bottleneck::codec, 0, false}, tensor.decodeSeconds);
  }
  // Over the direct link between two neighbouring bodies.
  void across(std::size_t from, std::size_t to, Flow flow) {
    if (!costs_.bodies[from].place.contains(flow)) return;
    const EdgeCosts& edge = costs_.edges[std::min(from, to)];
    const FlowCosts tensor = costs_.flows.get(flow);
    visit({Bottleneck::codec, from, true}, tensor.encodeSeconds);
    visit({from < to ? Bottleneck::uplink : Bottleneck::downlink, std::max(from, to), true},
          tensor.bytes / edge.rate);
    visit({Bottleneck::latency}, edge.latency);
    visit({Bottleneck::codec, to, true}, tensor.decodeSeconds);
  }

  const StepCosts& costs_;
  const bool splitsBackward_;
  Path path_;
};

struct Term {
  double untilServed = 0;  // the time until the first micro-batch, the work and the idle time
  double rest = 0;         // of the path
};

// The micro-batches of a step that a resource serves: M / R on average for a replica's, M / K for a
// member's. If this were rounded up, a step of replicas that differ in speed could be shorter than
// the bound.
double servedBy(const Resource& resource, const StepCosts& costs) {
  const bool isLink = resource.kind == Bottleneck::uplink || resource.kind == Bottleneck::downlink;
  const bool isOfReplica = resource.kind == Bottleneck::serverCompute || resource.isOfServer ||
                           (isLink && !costs.sharesLink);
  const bool isOfMember = isLink || resource.kind == Bottleneck::clientCompute ||
                          (resource.kind == Bottleneck::codec && !resource.isOfServer);
  const double share = static_cast<double>(costs.microBatches) /
                       (isOfReplica ? costs.bodies[resource.body].replicas.count : 1) /
                       (isOfMember ? costs.members : 1);
  return std::max(1.0, share);
}

// Seconds from the end of a member's last action until it has the sum over all members. If the head
// is not trained, other paths to the end of the step may be longer.
double memberSumSeconds(const StepCosts& costs) {
  const BodyCosts& first = costs.bodies.front();
  if (costs.members == 1 || !first.place.contains(gradientAt(first.place.firstCut))) return 0;
  return costs.memberBytes / first.rateUp + costs.memberBytes / first.rateDown + 2 * first.latency;
}

// Seconds from the end of a resource's last visit (null: from the start of the path) until the
// client has received the BodyDone of this body, which has replicas: the rest of the path up to the
// body's last backward, the sum, and the latency. 0 if the last visit follows that backward.
double untilReportOf(std::size_t body, const StepCosts& costs, const Path& path,
                     const Resource* resource) {
  const Resource server{Bottleneck::serverCompute, body};
  double seconds = 0;
  bool isBefore = false;
  for (const Visit& visit : std::views::reverse(path)) {
    if (resource != nullptr && visit.resource == *resource) break;
    isBefore = isBefore || visit.resource == server;
    if (isBefore) seconds += visit.seconds;
  }
  const bool isServer = resource != nullptr && *resource == server;
  const BodyCosts& costsOfBody = costs.bodies[body];
  return isBefore || isServer ? seconds + costsOfBody.replicas.seconds + costsOfBody.latency : 0;
}

// The longest time of all bodies with replicas; 0 without any.
double untilReport(const StepCosts& costs, const Path& path, const Resource* resource) {
  double seconds = 0;
  for (std::size_t b = 0; b < costs.bodies.size(); ++b) {
    if (costs.bodies[b].replicas.count == 1) continue;
    seconds = std::max(seconds, untilReportOf(b, costs, path, resource));
  }
  return seconds;
}

// The minimum time in which the resource serves all M micro-batches. Before the first micro-batch
// arrives for its second visit, the resource can serve only first visits. After the last
// micro-batch has finished its second-to-last visit, it can serve only last visits. In between,
// codecs may serve any visit.
Term termOf(const Resource& resource, const Path& path, double m) {
  double before = 0, work = 0, since = 0;
  std::vector<double> visits, gaps;
  for (const Visit& visit : path) {
    if (!(visit.resource == resource)) {
      since += visit.seconds;
      continue;
    }
    if (visits.empty()) {
      before = since;
    } else {
      gaps.push_back(since);
    }
    visits.push_back(visit.seconds);
    work += visit.seconds;
    since = 0;
  }
  double idle = 0;
  if (resource.kind != Bottleneck::codec && !gaps.empty()) {
    idle = positive(gaps.front() - (m - 1) * visits.front());
    if (gaps.size() > 1) idle += positive(gaps.back() - (m - 1) * visits.back());
  }
  return {before + m * work + idle, since};
}

bool isOne(const Resource& a, const Resource& b) { return a == b; }
// Takes all codecs as one resource.
bool isSame(const Resource& a, const Resource& b) {
  return a == b || (a.kind == Bottleneck::codec && b.kind == Bottleneck::codec);
}

// Seconds of a resource.
struct Use {
  double seconds = 0;
  Resource resource;
};

// The longest use; of equally long ones, the first one in this order: client, server, uplink,
// downlink, codecs, latency.
Use longest(std::vector<Use> uses) {
  const auto rank = [](const Use& use) {
    return use.resource.kind == Bottleneck::latency ? kBottlenecks
                                                    : static_cast<std::size_t>(use.resource.kind);
  };
  std::stable_sort(uses.begin(), uses.end(),
                   [&](const Use& a, const Use& b) { return rank(a) < rank(b); });
  return *std::max_element(uses.begin(), uses.end(),
                           [](const Use& a, const Use& b) { return a.seconds < b.seconds; });
}

void add(std::vector<Use>& uses, const Visit& visit,
         bool (*areOne)(const Resource&, const Resource&)) {
  const auto found = std::find_if(uses.begin(), uses.end(), [&](const Use& use) {
    return areOne(use.resource, visit.resource);
  });
  if (found == uses.end()) {
    uses.push_back({visit.seconds, visit.resource});
  } else {
    found->seconds += visit.seconds;
  }
}

}  // namespace

// ---- Costs ----

StepCosts StepCosts::inMicroBatches(std::uint32_t number) const {
  StepCosts costs = *this;
  const double factor = static_cast<double>(microBatches) / number;
  for (double* part : {&costs.headForward, &costs.tailStep, &costs.headBackward}) *part *= factor;
  for (BodyCosts& body : costs.bodies) {
    body.forward *= factor;
    body.backward *= factor;
    body.weights *= factor;
  }
  for (auto& [flow, tensor] : costs.flows) {
    tensor.bytes *= factor;
    tensor.encodeSeconds *= factor;
    tensor.decodeSeconds *= factor;
  }
  costs.microBatches = number;
  return costs;
}

std::vector<Place> StepCosts::places() const {
  std::vector<Place> places;
  for (const BodyCosts& body : bodies) places.push_back(body.place);
  return places;
}

std::size_t StepCosts::servers() const {
  std::size_t servers = 0;
  for (const BodyCosts& body : bodies) servers += body.replicas.count;
  return servers;
}

std::uint32_t StepCosts::maxReplicas() const {
  std::uint32_t max = 1;
  for (const BodyCosts& body : bodies) max = std::max(max, body.replicas.count);
  return max;
}

double reduceSeconds(const ReplicaCosts& replicas, double rate, double latency) {
  if (replicas.count == 1) return 0;
  const double others = replicas.count - 1;
  return 2 * others / replicas.count * replicas.bytes / rate + 4 * latency;
}

Division StepCosts::division(std::optional<std::uint32_t> draw) const {
  if (members == 1) return {microBatches, microBatches};
  std::vector<std::uint32_t> shares(members);
  if (!draw || batch == 0) {
    const EvenSplit split{members, microBatches};
    for (std::uint32_t m = 0; m < members; ++m) shares[m] = split.size(m);
    return Division::ofMembers(shares, 1);
  }
  const RandomKey key = randomKey(1, "simulator.shares", {*draw});
  for (std::uint32_t s = 0; s < batch; ++s) ++shares[randomBits(key, s) % members];
  return Division::ofMembers(shares, largest);
}

// With direct links, only the links of the first body and of the last one carry tensors.
bool StepCosts::hasRates() const {
  const auto isKnown = [](const BodyCosts& body, Flow flow) {
    const double rate = body.place.isUp(flow) ? body.rateUp : body.rateDown;
    return rate > 0 || !body.place.contains(flow);
  };
  const auto areKnown = [&](const BodyCosts& body, int cut) {
    return isKnown(body, activationAt(cut)) && isKnown(body, gradientAt(cut));
  };
  if (!edges.empty()) {
    return areKnown(bodies.front(), bodies.front().place.firstCut) &&
           areKnown(bodies.back(), bodies.back().place.lastCut) &&
           std::all_of(edges.begin(), edges.end(),
                       [](const EdgeCosts& edge) { return edge.rate > 0; });
  }
  return std::all_of(bodies.begin(), bodies.end(),
                     [](const BodyCosts& body) { return body.hasRates(); });
}

bool StepCosts::hasWeights() const {
  return std::any_of(bodies.begin(), bodies.end(),
                     [](const BodyCosts& body) { return body.weights > 0; });
}

BodyCosts StepCosts::slowestLink() const {
  // With direct links, no tensors measure the rates of the other links.
  const auto lower = [this](double a, double b) {
    return !edges.empty() && (a == 0 || b == 0) ? std::max(a, b) : std::min(a, b);
  };
  BodyCosts slowest = bodies.front();
  for (const BodyCosts& body : bodies) {
    slowest.rateUp = lower(slowest.rateUp, body.rateUp);
    slowest.rateDown = lower(slowest.rateDown, body.rateDown);
    slowest.latency = std::max(slowest.latency, body.latency);
  }
  return slowest;
}

ClientBytes clientBytesOf(const StepCosts& costs) {
  ClientBytes bytes;
  const int first = costs.bodies.front().place.firstCut;
  const int last = costs.bodies.back().place.lastCut;
  for (const BodyCosts& body : costs.bodies) {
    for (const Flow flow : body.place.flows()) {
      if (!costs.edges.empty() && flow.cut != first && flow.cut != last) continue;
      (body.place.isUp(flow) ? bytes.up : bytes.down) += costs.flows.at(flow).bytes;
    }
  }
  return bytes;
}

double& StepCosts::of(ActionKind kind, std::size_t body) {
  switch (kind) {
    case ActionKind::headForward:
      return headForward;
    case ActionKind::tailStep:
      return tailStep;
    case ActionKind::headBackward:
      return headBackward;
    case ActionKind::bodyForward:
      return bodies[body].forward;
    case ActionKind::bodyBackward:
      return bodies[body].backward;
    case ActionKind::bodyWeights:
      return bodies[body].weights;
    default:
      throw std::logic_error("only scheduled actions have costs");
  }
}

double StepCosts::of(ActionKind kind, std::size_t body) const {
  return const_cast<StepCosts&>(*this).of(kind, body);
}

std::string_view bottleneckName(Bottleneck bottleneck) {
  return kNames[static_cast<std::size_t>(bottleneck)];
}

// ---- The bound ----

StepBound stepBound(const StepCosts& costs, bool splitsBackward) {
  const Path path = PathMaker(costs, splitsBackward).path();

  double pathSeconds = 0;
  std::vector<Use> terms;   // per resource
  std::vector<Use> shares;  // seconds of the path per resource; all codecs together
  for (const Visit& visit : path) {
    pathSeconds += visit.seconds;
    add(shares, visit, isSame);
    const bool isNew = std::none_of(terms.begin(), terms.end(),
                                    [&](const Use& use) { return use.resource == visit.resource; });
    if (!isNew || visit.resource.kind == Bottleneck::latency) continue;
    const double m = servedBy(visit.resource, costs);
    const Term term = termOf(visit.resource, path, m);
    double seconds = term.untilServed + std::max(term.rest + memberSumSeconds(costs),
                                                 untilReport(costs, path, &visit.resource));
    if (splitsBackward && visit.resource.kind == Bottleneck::serverCompute) {
      // BodyDone follows the last BodyWeights.
      const BodyCosts& body = costs.bodies[visit.resource.body];
      seconds = std::max(seconds, term.untilServed + m * weightsApart(body) +
                                      body.replicas.seconds + body.latency);
    }
    terms.push_back({seconds, visit.resource});
  }
  const Use max = longest(terms);
  const Use share = longest(shares);
  pathSeconds = std::max(pathSeconds + memberSumSeconds(costs), untilReport(costs, path, nullptr));
  const double seconds = std::max(max.seconds, pathSeconds);
  const double m = servedBy(max.resource, costs);
  double busy = m * std::find_if(shares.begin(), shares.end(), [&](const Use& use) {
                      return isSame(use.resource, max.resource);
                    })->seconds;
  if (splitsBackward && max.resource.kind == Bottleneck::serverCompute) {
    busy += m * weightsApart(costs.bodies[max.resource.body]);
  }
  const bool pathRules = pathSeconds >= max.seconds || 2 * busy < seconds;
  const Resource& named = pathRules ? share.resource : max.resource;
  return {seconds + costs.updateSeconds, named.kind, named.body};
}

StepBound steadyStepBound(const StepCosts& costs, std::uint32_t staleness, bool splitsBackward) {
  const Path path = PathMaker(costs, splitsBackward).path();
  double pathSeconds = 0;
  std::vector<Use> work;    // per resource and step
  std::vector<Use> shares;  // as in stepBound()
  for (const Visit& visit : path) {
    pathSeconds += visit.seconds;
    add(shares, visit, isSame);
    const Visit ofStep{visit.resource, servedBy(visit.resource, costs) * visit.seconds};
    if (visit.resource.kind != Bottleneck::latency) add(work, ofStep, isOne);
  }
  for (Use& use : work) {
    if (use.resource.kind == Bottleneck::clientCompute) use.seconds += costs.updateSeconds;
    if (use.resource.kind == Bottleneck::serverCompute && splitsBackward) {
      use.seconds += servedBy(use.resource, costs) * weightsApart(costs.bodies[use.resource.body]);
    }
  }
  const Use max = longest(work);
  pathSeconds = std::max(pathSeconds, untilReport(costs, path, nullptr)) + costs.updateSeconds;
  const double latencyBound = pathSeconds / (staleness + 1);
  const Resource named = latencyBound > max.seconds ? longest(shares).resource : max.resource;
  return {std::max(max.seconds, latencyBound), named.kind, named.body};
}

}  // namespace cleave
