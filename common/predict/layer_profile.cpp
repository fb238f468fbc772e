#include "common/predict/layer_profile.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>
#include <map>
#include <span>
#include <sstream>
#include <stdexcept>
#include <utility>

#include "common/core/error.h"
#include "common/core/printable.h"
#include "common/predict/profile.h"

namespace cleave {
namespace {

constexpr std::size_t kMaxBytes = 16 << 20;
constexpr std::size_t kMaxNodes = 4096;

struct Node {
  std::string id, name;
  LayerCosts costs;
  std::vector<std::size_t> inputs;  // indices of nodes
};

// The sum of the values after "KEY=", which are one number, or a list: [1.0; 2.0].
double valueOf(const std::string& line, const std::string& key) {
  const std::size_t at = line.find(key + "=");
  if (at == std::string::npos) throw std::invalid_argument("it has no " + key);
  std::string text = line.substr(at + key.size() + 1);
  if (text.starts_with('[')) {
    text = text.substr(1, text.find(']') - 1);
  } else {
    text = text.substr(0, text.find(','));
  }
  double sum = 0;
  std::size_t begin = 0;
  while (begin <= text.size()) {
    begin = std::min(text.find_first_not_of(' ', begin), text.size());
    double number = 0;
    const auto [end, error] =
        std::from_chars(text.data() + begin, text.data() + text.size(), number);
    const auto next = static_cast<std::size_t>(end - text.data());
    const bool isEnd = next == text.size() || text[next] == ';';
    if (error != std::errc() || !isEnd || !std::isfinite(number) || number < 0) {
      throw std::invalid_argument(fmt::format("'{}' is not a value of {}", printable(text), key));
    }
    sum += number;
    begin = next + 1;
  }
  return sum;
}

// The parts of a line between " -- ".
std::vector<std::string> partsOf(std::string line) {
  std::vector<std::string> parts;
  constexpr std::string_view kSeparator = " -- ";
  std::size_t at = 0;
  while ((at = line.find(kSeparator)) != std::string::npos) {
    parts.push_back(line.substr(0, at));
    line.erase(0, at + kSeparator.size());
  }
  parts.push_back(std::move(line));
  return parts;
}

class GraphReader {
 public:
  void readLine(std::string line) {
    if (!line.empty() && line.back() == '\r') line.pop_back();
    if (line.empty()) return;
    const bool isEdge = line.front() == '\t';
    const std::vector<std::string> parts = partsOf(isEdge ? line.substr(1) : line);
    if (isEdge) {
      if (parts.size() != 2) throw std::invalid_argument("an edge has two nodes");
      nodes_[find(parts[1])].inputs.push_back(find(parts[0]));
    } else {
      addNode(parts);
    }
  }

  LayerProfile chain() {
    sortByInputs();
    std::vector<std::size_t> lastUse(nodes_.size(), 0);  // position of the last node that needs it
    for (std::size_t n = 0; n < nodes_.size(); ++n) {
      for (const std::size_t input : nodes_[n].inputs) lastUse[input] = n;
    }
    std::vector<double> unused(nodes_.size() + 1);  // bytes that are not needed after a position
    LayerProfile profile;
    double sent = 0;
    for (std::size_t n = 0; n < nodes_.size(); ++n) {
      const Node& node = nodes_[n];
      if (lastUse[n] > n) {
        sent += node.costs.outputBytes;
        unused[lastUse[n]] += node.costs.outputBytes;
      }
      sent -= unused[n];
      std::vector<LayerCosts>& layers = profile.layers;
      if (layers.empty() || (node.costs.seconds > 0 && layers.back().seconds > 0)) {
        layers.emplace_back();
        profile.names.emplace_back();
      }
      layers.back().seconds += node.costs.seconds;
      layers.back().outputBytes = std::max(sent, 0.0);
      layers.back().parameterBytes += node.costs.parameterBytes;
      layers.back().savedBytes += node.costs.outputBytes;
      if (profile.names.back().empty() || node.costs.seconds > 0) {
        profile.names.back() = fmt::format("{} {}", node.id, node.name);
      }
    }
    if (profile.layers.empty()) throw std::invalid_argument("it has no nodes");
    return profile;
  }

 private:
  void addNode(const std::vector<std::string>& parts) {
    if (parts.size() < 3) throw std::invalid_argument("a node has an id, a name and its costs");
    if (nodes_.size() == kMaxNodes) throw std::invalid_argument("it has too many nodes");
    const std::string& costs = parts.back();
    if (!numbers_.emplace(parts[0], nodes_.size()).second) {
      throw std::invalid_argument("two nodes are called " + printable(parts[0]));
    }
    const double seconds =
        1e-3 * (valueOf(costs, "forward_compute_time") + valueOf(costs, "backward_compute_time"));
    nodes_.push_back(
        {printable(parts[0]),
         printable(parts[1]),
         {seconds, valueOf(costs, "activation_size"), valueOf(costs, "parameter_size")},
         {}});
  }

  std::size_t find(const std::string& id) const {
    const auto found = numbers_.find(id);
    if (found == numbers_.end()) throw std::invalid_argument("no node is " + printable(id));
    return found->second;
  }

  // Orders the nodes so that each one is after its inputs; otherwise in the file's order.
  void sortByInputs() {
    std::vector<Node> sorted;
    std::vector<std::size_t> position(nodes_.size(), kMaxNodes);  // in `sorted`
    const auto isDone = [&](std::size_t n) { return position[n] < kMaxNodes; };
    while (sorted.size() < nodes_.size()) {
      std::size_t next = 0;
      while (next < nodes_.size() &&
             (isDone(next) ||
              !std::all_of(nodes_[next].inputs.begin(), nodes_[next].inputs.end(), isDone))) {
        ++next;
      }
      if (next == nodes_.size()) throw std::invalid_argument("its edges form a cycle");
      position[next] = sorted.size();
      sorted.push_back(nodes_[next]);
    }
    for (Node& node : sorted) {
      for (std::size_t& input : node.inputs) input = position[input];
    }
    nodes_ = std::move(sorted);
  }

  std::vector<Node> nodes_;
  std::map<std::string, std::size_t> numbers_;  // by id
};

LayerProfile fromText(const std::string& text) {
  GraphReader reader;
  std::istringstream lines(text);
  std::size_t number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    try {
      reader.readLine(line);
    } catch (const std::exception& error) {
      throw std::invalid_argument(fmt::format("line {}: {}", number, error.what()));
    }
  }
  return reader.chain();
}

LayerProfile fromProfile(const Profile& profile, std::uint32_t batch) {
  LayerProfile layers{{}, {}, batch == 0 ? profile.batch : batch};
  const double samples = layers.batch;
  for (const BlockProfile& block : profile.blocks) {
    const PassSeconds pass = profile.passSeconds(std::span(&block.name, 1), layers.batch);
    layers.names.push_back(block.name);
    layers.layers.push_back({pass.forward + pass.backward, block.outputBytes * samples,
                             block.parameterBytes, block.savedBytes * samples});
  }
  layers.layers.back().seconds += profile.lossSeconds(layers.batch);
  return layers;
}

}  // namespace

LayerProfile readLayerProfile(const std::string& path, std::uint32_t batch) {
  std::ifstream file(path, std::ios::binary);
  std::string text(kMaxBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(file.gcount()));
  if (text.starts_with('{')) return fromProfile(readProfile(path), batch);
  try {
    if (!file.is_open()) throw std::invalid_argument("cannot be read");
    if (text.size() > kMaxBytes) throw std::invalid_argument("is larger than 16 MiB");
    LayerProfile profile = fromText(text);
    profile.batch = batch;
    return profile;
  } catch (const std::exception& error) {
    throw UsageError("bad-profile", fmt::format("{}: {}", path, error.what()),
                     "make a profile with cleave-client profile, or name a text profile of "
                     "PipeDream (graph.txt)");
  }
}

}  // namespace cleave
