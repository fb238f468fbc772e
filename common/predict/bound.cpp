#include "common/predict/bound.h"

#include <algorithm>

namespace cleave {
namespace {

constexpr std::array<std::string_view, kBottlenecks> kNames = {
    "client compute", "server compute", "uplink", "downlink", "latency", "codec"};

double positive(double x) { return std::max(x, 0.0); }

}  // namespace

StepCosts StepCosts::inMicroBatches(std::uint32_t number) const {
  StepCosts costs = *this;
  const double factor = static_cast<double>(microBatches) / number;
  for (double& kind : costs.seconds) kind *= factor;
  for (double& flow : costs.bytes) flow *= factor;
  for (double& flow : costs.encodeSeconds) flow *= factor;
  for (double& flow : costs.decodeSeconds) flow *= factor;
  costs.microBatches = number;
  return costs;
}

double StepCosts::wireSeconds(Flow flow) const {
  return bytes[indexOf(flow)] / (isUp(flow) ? rateUp : rateDown);
}

double StepCosts::transitSeconds(Flow flow) const {
  return encodeSeconds[indexOf(flow)] + wireSeconds(flow) + decodeSeconds[indexOf(flow)];
}

std::string_view bottleneckName(Bottleneck bottleneck) {
  return kNames[static_cast<std::size_t>(bottleneck)];
}

StepBound stepBound(const StepCosts& costs) {
  const double m = costs.microBatches;
  const double f1 = costs.of(ActionKind::headForward);
  const double t3 = costs.of(ActionKind::tailStep);
  const double b1 = costs.of(ActionKind::headBackward);
  const double f2 = costs.of(ActionKind::bodyForward);
  const double b2 = costs.of(ActionKind::bodyBackward);
  const double a1 = costs.transitSeconds(Flow::activation0);
  const double a2 = costs.transitSeconds(Flow::activation1);
  const double g3 = costs.transitSeconds(Flow::gradient1);
  const double g1 = costs.transitSeconds(Flow::gradient0);
  const double latency = costs.latency;
  const auto& encode = costs.encodeSeconds;
  const auto& decode = costs.decodeSeconds;

  // From the end of a client action to the start of its next one on the same micro-batch: through
  // the server and back.
  const double forwardTrip = a1 + f2 + a2 + 2 * latency;
  const double backwardTrip = g3 + b2 + g1 + 2 * latency;
  const double client = m * (f1 + t3 + b1) + positive(forwardTrip - (m - 1) * f1) +
                        positive(backwardTrip - (m - 1) * b1);
  const double server = f1 + a1 + latency + m * (f2 + b2) +
                        positive(a2 + t3 + g3 + 2 * latency - (m - 1) * f2) + g1 + latency + b1;

  // A direction of the link starts with its first flow, when the first tensor has been encoded.
  // After the last tensor of its other flow has crossed, the rest of the path follows.
  const double wireA1 = costs.wireSeconds(Flow::activation0);
  const double wireA2 = costs.wireSeconds(Flow::activation1);
  const double wireG3 = costs.wireSeconds(Flow::gradient1);
  const double wireG1 = costs.wireSeconds(Flow::gradient0);
  const auto e = [&](Flow flow) { return encode[indexOf(flow)]; };
  const auto d = [&](Flow flow) { return decode[indexOf(flow)]; };
  const double untilTail = d(Flow::activation0) + f2 + a2 + t3 + e(Flow::gradient1) + 2 * latency;
  const double up = f1 + e(Flow::activation0) + m * (wireA1 + wireG3) +
                    positive(untilTail - (m - 1) * wireA1) + d(Flow::gradient1) + latency + b2 +
                    g1 + latency + b1;
  const double untilBack = d(Flow::activation1) + t3 + g3 + b2 + e(Flow::gradient0) + 2 * latency;
  const double down = f1 + a1 + latency + f2 + e(Flow::activation1) + m * (wireA2 + wireG1) +
                      positive(untilBack - (m - 1) * wireA2) + d(Flow::gradient0) + latency + b1;

  // One codec thread per side. Its work starts after the first HeadForward and ends before the last
  // HeadBackward.
  const double clientCodec =
      f1 +
      m * (e(Flow::activation0) + d(Flow::activation1) + e(Flow::gradient1) + d(Flow::gradient0)) +
      b1;
  const double serverCodec =
      f1 + e(Flow::activation0) + wireA1 + latency +
      m * (d(Flow::activation0) + e(Flow::activation1) + d(Flow::gradient1) + e(Flow::gradient0)) +
      wireG1 + d(Flow::gradient0) + latency + b1;

  const double wireUp = wireA1 + wireG3;
  const double wireDown = wireA2 + wireG1;
  const double codec = a1 + a2 + g3 + g1 - wireUp - wireDown;
  const double path = f1 + forwardTrip + t3 + backwardTrip + b1;

  struct Term {
    double seconds;
    Bottleneck bottleneck;
  };
  // On a tie, the first one is reported.
  const Term terms[] = {{client, Bottleneck::clientCompute},
                        {server, Bottleneck::serverCompute},
                        {up, Bottleneck::uplink},
                        {down, Bottleneck::downlink},
                        {std::max(clientCodec, serverCodec), Bottleneck::codec}};
  // The resource that takes most of the path, also used if the largest term is mostly waiting for
  // the path.
  const Term shares[] = {{f1 + t3 + b1, Bottleneck::clientCompute},
                         {f2 + b2, Bottleneck::serverCompute},
                         {wireUp, Bottleneck::uplink},
                         {wireDown, Bottleneck::downlink},
                         {codec, Bottleneck::codec},
                         {4 * latency, Bottleneck::latency}};
  const auto less = [](const Term& a, const Term& b) { return a.seconds < b.seconds; };
  const Term& greatest = *std::max_element(std::begin(terms), std::end(terms), less);
  const Term& share = *std::max_element(std::begin(shares), std::end(shares), less);
  const double seconds = std::max(greatest.seconds, path);
  // Total busy time of the resource of the largest term.
  const auto busy = [&](Bottleneck bottleneck) {
    for (const Term& one : shares) {
      if (one.bottleneck == bottleneck) return m * one.seconds;
    }
    return 0.0;
  };
  const bool pathRules = path >= greatest.seconds || 2 * busy(greatest.bottleneck) < seconds;
  return {seconds + costs.updateSeconds, pathRules ? share.bottleneck : greatest.bottleneck};
}

}  // namespace cleave
