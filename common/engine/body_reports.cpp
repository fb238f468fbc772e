#include "common/engine/body_reports.h"

#include <algorithm>
#include <cassert>
#include <string>

#include "common/core/error.h"

namespace cleave {
namespace {

[[noreturn]] void throwDiffers(std::size_t rank, const std::string& what, std::uint64_t step) {
  throw RunError("replicas-differ",
                 "replica " + std::to_string(rank) + " of the body has other " + what + " step " +
                     std::to_string(step) + " than replica 0",
                 "use the same version of Cleave, device and processor for all replicas");
}

// NaNs may differ.
void checkSameReport(const GradientReport& first, const GradientReport& other, std::size_t rank,
                     std::uint64_t step) {
  if (first.finite == other.finite && (!first.finite || first.squareSum == other.squareSum)) {
    return;
  }
  throwDiffers(rank, "gradients in", step);
}

}  // namespace

BodyReports::BodyReports(const std::vector<Replica>& peers) {
  for (const Replica& replica : peers) peers_.emplace_back().replica = replica;
}

void BodyReports::restore(std::uint64_t step) {
  for (Peer& peer : peers_) peer.applied = peer.reported = step;
}

void BodyReports::reported(std::size_t peer, const BodyDone& done) {
  assert(done.step == peers_[peer].reported + 1);
  peers_[peer].done.push_back(done);
  peers_[peer].reported = done.step;
}

const BodyDone* BodyReports::next(std::size_t peer) const {
  return peers_[peer].done.empty() ? nullptr : &peers_[peer].done.front();
}

bool BodyReports::areComplete() const {
  return std::none_of(peers_.begin(), peers_.end(),
                      [](const Peer& peer) { return peer.done.empty(); });
}

std::vector<BodyDone> BodyReports::take() {
  assert(areComplete());
  std::vector<BodyDone> reports;
  for (Peer& peer : peers_) {
    const BodyDone& done = peer.taken.emplace(peer.done.front());
    assert(done.step == peers_.front().taken->step);
    peer.done.pop_front();
    if (peer.replica.rank == 0) {
      reports.push_back(done);
      reports.back().sumSeconds = done.reduceSeconds;
      continue;
    }
    BodyDone& body = reports.back();
    checkSameReport(body.report, done.report, peer.replica.rank, done.step);
    body.report.peakMemory = std::max(body.report.peakMemory, done.report.peakMemory);
    body.forwardSeconds += done.forwardSeconds;
    body.backwardSeconds += done.backwardSeconds;
    body.weightsSeconds += done.weightsSeconds;
    body.codecSeconds += done.codecSeconds;
    body.sumSeconds = std::min(body.sumSeconds, done.reduceSeconds);
    body.reduceSeconds = std::max(body.reduceSeconds, done.reduceSeconds);
    body.updateSeconds = std::max(body.updateSeconds, done.updateSeconds);
  }
  return reports;
}

void BodyReports::forgetTaken() {
  for (Peer& peer : peers_) peer.taken.reset();
}

void BodyReports::applied(std::size_t peer, const StepOk& ok) {
  assert(ok.step > peers_[peer].applied);
  peers_[peer].applied = ok.step;
  const Replica& replica = peers_[peer].replica;
  if (replica.isAlone()) return;
  peers_[peer].updates.push_back(ok);
  checkSameWeights(peer - replica.rank);
}

std::uint64_t BodyReports::appliedByAll() const {
  std::uint64_t applied = peers_.front().applied;
  for (const Peer& peer : peers_) applied = std::min(applied, peer.applied);
  return applied;
}

// `first`: replica 0 of the body. Equal gradients do not imply equal weights, because gradients are
// equal after the reduction in any case.
void BodyReports::checkSameWeights(std::size_t first) {
  const auto begin = peers_.begin() + static_cast<std::ptrdiff_t>(first);
  const auto end = begin + begin->replica.count;
  if (std::any_of(begin, end, [](const Peer& peer) { return peer.updates.empty(); })) return;
  const StepOk ok = begin->updates.front();
  for (auto peer = begin; peer != end; ++peer) {
    if (peer->updates.front().weights != ok.weights) {
      throwDiffers(peer->replica.rank, "weights after", ok.step);
    }
    peer->updates.pop_front();
  }
}

}  // namespace cleave
