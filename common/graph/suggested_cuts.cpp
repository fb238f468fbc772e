#include "common/graph/suggested_cuts.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <vector>

#include "common/core/units.h"
#include "common/graph/costs.h"

namespace cleave {
namespace {

struct Candidate {
  const GraphCut* cut = nullptr;
  GraphCosts before, after;
  double bytes = 0;
};

std::vector<Candidate> candidatesOf(const wire::Graph& graph, const GraphCuts& cuts) {
  const auto nodes = static_cast<std::size_t>(graph.nodes_size());
  std::vector<Candidate> candidates;
  for (const GraphCut& cut : cuts.cuts()) {
    if (!cut.obstacle.empty() || cut.tensors.size() != 1) continue;
    candidates.push_back({&cut, costsOf(graph, 0, cut.position),
                          costsOf(graph, cut.position, nodes), cuts.bytesPerSample(cut)});
  }
  return candidates;
}

// Sorts the candidates for one side, the best one first; of equal ones, the last one in the model
// is the best: the deepest head, or the shortest tail. `shareOf`: the client's share of the
// computation on that side.
template <typename Share>
void sortBest(std::vector<Candidate>& candidates, Share shareOf) {
  const auto excess = [&](const Candidate& each) {
    return std::max(0.0, shareOf(each) - SuggestedCuts::kMaxClientShare);
  };
  std::stable_sort(candidates.begin(), candidates.end(),
                   [&](const Candidate& a, const Candidate& b) {
                     if (excess(a) != excess(b)) return excess(a) < excess(b);
                     if (a.bytes != b.bytes) return a.bytes < b.bytes;
                     return a.cut->position > b.cut->position;
                   });
}

bool canSplit(const GraphCuts& cuts, const GraphCut& first, const GraphCut& last) {
  try {
    cuts.split({first, last});
    return true;
  } catch (const UsageError&) {
    return false;
  }
}

}  // namespace

std::string SuggestedCuts::reason() const {
  const auto sharesOf = [](const std::string& where) {
    return fmt::format("of the cuts with at most {:.0f} % {}, the fewest bytes cross ",
                       100 * kMaxClientShare, where);
  };
  const bool isLongHead = headShare > kMaxClientShare, isLongTail = tailShare > kMaxClientShare;
  const std::string among =
      isLongHead && isLongTail ? "no cuts leave less to the client on either side"
      : isLongHead ? "no first cut leaves less to the client; " + sharesOf("after it") + "the last"
      : isLongTail ? "no last cut leaves less to the client; " + sharesOf("before it") + "the first"
                   : sharesOf("on either side") + "these";
  return fmt::format(
      "the client computes the first {:.1f} % and the last {:.1f} % of a forward pass; {}: {} and "
      "{} per sample and direction",
      100 * headShare, 100 * tailShare, among, bytesText(firstBytes), bytesText(lastBytes));
}

std::optional<SuggestedCuts> suggestCuts(const wire::Graph& graph, const GraphCuts& cuts) {
  constexpr int kMaxTries = 100;  // each splits the whole graph
  const GraphCosts whole = costsOf(graph, 0, static_cast<std::size_t>(graph.nodes_size()));
  const double flops = std::max(whole.flopsPerSample, 1.0);
  const auto headShare = [&](const Candidate& each) { return each.before.flopsPerSample / flops; };
  const auto tailShare = [&](const Candidate& each) { return each.after.flopsPerSample / flops; };
  std::vector<Candidate> heads = candidatesOf(graph, cuts);
  std::vector<Candidate> tails = heads;
  std::erase_if(heads, [](const Candidate& each) {
    return each.before.parameters == 0 || each.before.flopsPerSample == 0;
  });
  std::erase_if(tails, [](const Candidate& each) { return each.after.parameters == 0; });
  sortBest(heads, headShare);
  sortBest(tails, tailShare);
  int tries = 0;
  for (const Candidate& first : heads) {
    for (const Candidate& last : tails) {
      if (last.cut->position <= first.cut->position) continue;
      if (costsOf(graph, first.cut->position, last.cut->position).parameters == 0) continue;
      if (++tries > kMaxTries) return std::nullopt;
      if (!canSplit(cuts, *first.cut, *last.cut)) continue;
      return SuggestedCuts{*first.cut,      *last.cut,   headShare(first),
                           tailShare(last), first.bytes, last.bytes};
    }
  }
  return std::nullopt;
}

}  // namespace cleave
