#include "client/commands/listing.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>

#include "client/config/learning_rate.h"
#include "client/config/settings.h"
#include "common/engine/schedule.h"
#include "common/model/model.h"
#include "common/model/optimizer.h"
#include "compression/registry.h"

namespace cleave {
namespace {

constexpr std::size_t kListColumns = 96;

std::vector<ListedItem> models() {
  std::vector<ListedItem> items;
  for (const ModelRow& row : modelTable()) {
    items.push_back({std::string(row.name), std::string(row.description),
                     std::string(row.parameters), fmt::format("model: {}", row.example)});
  }
  return items;
}

std::vector<ListedItem> schedules() {
  std::vector<ListedItem> items;
  for (const Schedule& row : scheduleTable()) {
    const std::string usual = row.perHop == 0 ? "M" : fmt::format("{} * (S + 1)", row.perHop);
    const std::string range = row.min == 0 ? "M" : fmt::format("{}..M ({})", row.min, usual);
    items.push_back({std::string(row.name), std::string(row.description),
                     fmt::format("in_flight={}, for M micro-batches and S bodies", range),
                     fmt::format("train: {{schedule: {}, in_flight: 0}}", row.name)});
  }
  return items;
}

std::vector<ListedItem> codecs() {
  std::vector<ListedItem> items = {
      {"auto",
       "the default: train measures a few steps, then chooses for "
       "each direction the least lossy of "
       "none, block:bits=8 and block:bits=4 whose step is at most "
       "about 3 % longer than the shortest, within limits of bytes and "
       "seconds per step",
       "min_bits=2..8 (4), max_ratio=0..1 (1), max_step=SECONDS (0)", "codec: auto"}};
  for (const CodecRow& row : codecTable()) {
    items.push_back({std::string(row.name), std::string(row.description),
                     std::string(row.parameters), fmt::format("codec: {}", row.example)});
  }
  return items;
}

std::vector<ListedItem> optimizers() {
  std::vector<ListedItem> items;
  for (const OptimizerRow& row : optimizerTable()) {
    std::string parameters;
    for (const OptimizerParameterRow& parameter : row.parameters) {
      parameters += fmt::format("{}{} {} ({:g})", parameters.empty() ? "" : ", ", parameter.name,
                                parameter.range, parameter.defaultValue);
    }
    items.push_back({std::string(row.name), std::string(row.description), parameters,
                     fmt::format("train: {{optimizer: {{name: {}}}}}", row.name)});
  }
  return items;
}

std::vector<ListedItem> learningRates() {
  std::vector<ListedItem> items;
  for (const LearningRateRow& row : learningRateTable()) {
    items.push_back(
        {std::string(row.name), std::string(row.description),
         fmt::format("peak=0..1e6 (0.1), warmup_epochs=0..1e6 (0){}{}",
                     row.decays ? ", end=0..1e6 (0)" : "",
                     row.hasPower ? ", power=0.01..100 (1)" : ""),
         fmt::format("train: {{learning_rate: {{schedule: {}, peak: 0.1}}}}", row.name)});
  }
  return items;
}

constexpr ListingRow kListings[] = {
    {"models", "Lists the models",
     "Models (model.name); a cut is a block's position, and train --dry-run shows the blocks.",
     models},
    {"schedules", "Lists the schedules",
     "Schedules (train.schedule). They affect the time of a step, never the result.", schedules},
    {"codecs", "Lists the codecs",
     "Codecs (codec, or codec.FLOW for activation/0, activation/1, gradient/1, gradient/0).",
     codecs},
    {"optimizers", "Lists the optimizers",
     "Optimizers (train.optimizer.name), the same for head, body and tail.", optimizers},
    {"learning-rates", "Lists the learning-rate schedules",
     "Learning-rate schedules (train.learning_rate.schedule), after a linear warm-up.",
     learningRates},
};

// Wraps `text` at kListColumns columns, at spaces and after commas. All lines except the first are
// indented.
std::string wrapped(const std::string& text, std::size_t indent) {
  std::string out;
  std::size_t column = indent;
  bool space = false;  // before the next word
  for (std::size_t begin = 0; begin < text.size();) {
    if (text[begin] == ' ') {
      space = true;
      ++begin;
      continue;
    }
    std::size_t end = std::min(text.find_first_of(" ,", begin), text.size());
    if (end < text.size() && text[end] == ',') ++end;
    const std::string word = text.substr(begin, end - begin);
    if (column > indent && column + (space ? 1 : 0) + word.size() > kListColumns) {
      out += '\n';
      out.append(indent, ' ');
      column = indent;
    } else if (space && column > indent) {
      out += ' ';
      ++column;
    }
    out += word;
    column += word.size();
    space = false;
    begin = end;
  }
  return out;
}

void printItems(const ListingRow& row, const std::vector<ListedItem>& items) {
  std::size_t width = 0;
  for (const ListedItem& item : items) width = std::max(width, item.name.size());
  std::cout << row.about << "\n";
  for (const ListedItem& item : items) {
    const std::size_t indent = width + 4;
    std::string under(1 + indent, ' ');
    under.front() = '\n';
    constexpr std::string_view kParameters = "parameters: ";
    constexpr std::string_view kRatio = "ratio:      ";
    constexpr std::string_view kExample = "example:    ";
    std::cout << fmt::format("\n  {:<{}}  ", item.name, width) << wrapped(item.description, indent);
    if (!item.parameters.empty()) {
      std::cout << under << kParameters << wrapped(item.parameters, indent + kParameters.size());
    }
    if (item.ratio) {
      std::cout << under << kRatio << (item.ratioIsExact ? "" : "at most ")
                << fmt::format("{:.4f}", *item.ratio);
    }
    std::cout << under << kExample << item.example << "\n";
  }
  std::cout << std::flush;
}

}  // namespace

std::span<const ListingRow> listingTable() { return kListings; }

std::vector<KeyText> configurationKeys() { return clientKeys(); }

int listCommand(const ListingRow& row, bool json) {
  const std::vector<ListedItem> items = row.items();
  if (!json) {
    printItems(row, items);
    return 0;
  }
  using Json = nlohmann::ordered_json;
  Json list = Json::array();
  for (const ListedItem& item : items) {
    Json entry = {{"name", item.name},
                  {"description", item.description},
                  {"parameters", item.parameters},
                  {"example", item.example}};
    if (item.ratio) {
      entry["ratio"] = *item.ratio;
      entry["ratio_is"] = item.ratioIsExact ? "exact" : "at most";
    }
    list.push_back(std::move(entry));
  }
  std::cout << Json{{std::string(row.command), list}}.dump(2) << std::endl;
  return 0;
}

}  // namespace cleave
