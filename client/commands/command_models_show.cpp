// cleave-client models show: prints where an exported model can be cut.

#include <spdlog/fmt/fmt.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>

#include "client/commands/commands.h"
#include "common/core/printable.h"
#include "common/core/units.h"
#include "common/device/torch_errors.h"
#include "common/graph/costs.h"
#include "common/graph/cuts.h"
#include "common/graph/suggested_cuts.h"
#include "common/model/graph/graph_file.h"

namespace cleave {
namespace {

struct ModelsShowOptions {
  std::string file;
  bool all = false;
  bool json = false;
};

using Json = nlohmann::ordered_json;

std::string shapeOf(const wire::Graph& graph, std::uint32_t id) {
  return cleave::shapeText(graph.values(static_cast<int>(id)));
}

std::string tensorsText(const wire::Graph& graph, const GraphIds& ids) {
  std::string text;
  for (const std::uint32_t id : ids) text += (text.empty() ? "" : " ") + shapeOf(graph, id);
  return text;
}

// Returns "3.5 M parameters" if the unit begins with a space, and otherwise "2 GFLOP".
std::string amountText(double count, std::string_view unit) {
  constexpr std::pair<double, const char*> kPrefixes[] = {
      {1e12, "T"}, {1e9, "G"}, {1e6, "M"}, {1e3, "k"}};
  for (const auto& [factor, prefix] : kPrefixes) {
    if (count >= factor) return fmt::format("{:.3g} {}{}", count / factor, prefix, unit);
  }
  return fmt::format("{:.3g}{}{}", count, unit.starts_with(' ') ? "" : " ", unit);
}

Json describeInputs(const GraphFile& file) {
  Json inputs = Json::array();
  const wire::Graph& graph = file.graph();
  for (std::size_t n = 0; n < file.inputNames().size(); ++n) {
    const wire::Value& value = graph.values(static_cast<int>(graph.inputs(static_cast<int>(n))));
    inputs.push_back({{"name", file.inputNames()[n]},
                      {"dtype", value.dtype()},
                      {"shape", cleave::shapeText(value)}});
  }
  return inputs;
}

Json describeCut(const wire::Graph& graph, const GraphCuts& cuts, const GraphCut& cut,
                 const GraphCosts& whole) {
  const GraphCosts before = costsOf(graph, 0, cut.position);
  Json json = {{"names", cut.names},
               {"possible", cut.obstacle.empty()},
               {"suggested", false},
               {"tensors", cut.tensors.size()},
               {"shapes", tensorsText(graph, cut.tensors)},
               {"bytes_per_sample", cuts.bytesPerSample(cut)},
               {"parameters_before", before.parameters},
               {"parameters_after", whole.parameters - before.parameters},
               {"gflop_before", before.flopsPerSample / 1e9},
               {"gflop_after", (whole.flopsPerSample - before.flopsPerSample) / 1e9}};
  if (!cut.obstacle.empty()) json["obstacle"] = cut.obstacle;
  return json;
}

bool isSimple(const Json& cut) { return cut["possible"] && cut["tensors"] == 1; }

std::string nameOf(const Json& cut) { return printable(cut["names"].front().get<std::string>()); }

// How deep the module is in the model.
std::ptrdiff_t depthOf(const Json& cut) {
  const std::string name = nameOf(cut);
  return std::count(name.begin(), name.end(), '.');
}

// The cuts to list. Without `all`: the simple ones of the outermost modules, as long as they are
// not too many, and the suggested ones.
std::vector<Json> shownCuts(const Json& model, bool all) {
  constexpr std::size_t kMany = 24;
  if (all) return model["cuts"].get<std::vector<Json>>();
  std::vector<Json> simple;
  std::map<std::ptrdiff_t, std::size_t> counts;  // by depth
  for (const Json& cut : model["cuts"]) {
    if (!isSimple(cut)) continue;
    ++counts[depthOf(cut)];
    simple.push_back(cut);
  }
  std::size_t sum = 0;
  std::ptrdiff_t depth = counts.empty() ? 0 : counts.begin()->first;
  for (const auto& [each, count] : counts) {
    sum += count;
    if (sum <= kMany) depth = each;
  }
  std::erase_if(simple, [&](const Json& cut) { return depthOf(cut) > depth && !cut["suggested"]; });
  return simple;
}

// Returns the shares before and after the cut: "14.3 | 85.7 %".
std::string sharesText(double before, double whole) {
  const double percent = whole > 0 ? 100 * before / whole : 0;
  return fmt::format("{:.1f} | {:.1f} %", percent, 100 - percent);
}

void printCuts(const Json& model, bool all) {
  const std::vector<Json> shown = shownCuts(model, all);
  std::size_t width = 9;
  for (const Json& cut : shown) width = std::max(width, nameOf(cut).size());
  std::cout << fmt::format("{:<{}}  {:>10}  {:>16}  {:>16}\n", "", width, "bytes per", "parameters",
                           "compute");
  std::cout << fmt::format("{:<{}}  {:>10}  {:>16}  {:>16}  {}\n", "cut after", width, "sample",
                           "before | after", "before | after", "tensors that cross");
  for (const Json& cut : shown) {
    const std::string obstacle =
        cut.contains("obstacle") ? "; not possible: " + cut["obstacle"].get<std::string>() : "";
    std::cout << fmt::format("{:<{}}  {:>10}  {:>16}  {:>16}  {}{}{}\n", nameOf(cut), width,
                             bytesText(cut["bytes_per_sample"]),
                             sharesText(cut["parameters_before"], model["parameters"]),
                             sharesText(cut["gflop_before"], model["gflop"]),
                             cut["shapes"].get<std::string>(),
                             cut["suggested"] ? "  <- suggested" : "", obstacle);
  }
  for (const Json& name : model["only_in_evaluation"]) {
    if (!all) break;
    std::cout << fmt::format("{:<{}}  not possible: only evaluation uses this module\n",
                             printable(name.get<std::string>()), width);
  }
  if (const std::size_t more = model["cuts"].size() - shown.size(); more > 0) {
    std::cout << fmt::format(
        "\n{}: within these modules, where several tensors cross, or where no cut is possible; "
        "--all lists them\n",
        countText(more, "more position"));
  }
}

void print(const Json& model, bool all) {
  const std::string file = model["file"];
  std::cout << fmt::format(
      "{}: {} operators, {}; a forward pass takes {} per sample; exported with PyTorch {}\n", file,
      model["operators"].get<int>(), amountText(model["parameters"], " parameters"),
      amountText(model["gflop"].get<double>() * 1e9, "FLOP"), model["torch"].get<std::string>());
  for (const Json& input : model["inputs"]) {
    std::cout << fmt::format("  input   {}: {} {}\n", printable(input["name"].get<std::string>()),
                             input["dtype"].get<std::string>(), input["shape"].get<std::string>());
  }
  std::cout << fmt::format("  output  {}\n", model["output"].get<std::string>());
  if (!model["evaluation_graph"]) {
    std::cout
        << "  no evaluation graph: to evaluate exactly as model.eval(), export the model again "
           "with cleave_split.export\n";
  }
  std::cout << "\n";
  printCuts(model, all);
  const bool canBeCut = std::any_of(model["cuts"].begin(), model["cuts"].end(),
                                    [](const Json& cut) { return cut["possible"].get<bool>(); });
  if (!canBeCut) {
    std::cout << "\nThis model cannot be cut; --all shows the reasons. If its parameters are not "
                 "fp32, export model.float().\n";
    return;
  }
  std::string cuts = "FIRST, SECOND";
  if (model.contains("suggested_cuts")) {
    const Json& suggested = model["suggested_cuts"];
    cuts = printable(suggested[0].get<std::string>()) + ", " +
           printable(suggested[1].get<std::string>());
    std::cout << "\nSuggested: " << printable(model["reason"].get<std::string>())
              << ". For your machines and link: cleave-client plan\n";
  }
  std::cout << std::endl
            << "In a configuration:\n  model: {name: graph, file: " << file << ", cuts: [" << cuts
            << "]}" << std::endl;
}

int modelsShowCommand(const ModelsShowOptions& options) {
  const auto file = withTorchErrors([&] { return std::make_unique<GraphFile>(options.file); });
  const wire::Graph& graph = file->graph();
  const GraphCuts cuts(graph);
  const GraphCosts whole = costsOf(graph, 0, static_cast<std::size_t>(graph.nodes_size()));
  Json model = {{"file", file->path()},
                {"torch", printable(file->torchVersion())},
                {"operators", graph.nodes_size()},
                {"parameters", whole.parameters},
                {"weight_bytes", whole.weightBytes},
                {"gflop", whole.flopsPerSample / 1e9},
                {"inputs", describeInputs(*file)},
                {"output", shapeOf(graph, graph.outputs(0))},
                {"evaluation_graph", graph.has_evaluation()},
                {"only_in_evaluation", cuts.onlyInEvaluation()},
                {"cuts", Json::array()}};
  for (const GraphCut& cut : cuts.cuts()) {
    model["cuts"].push_back(describeCut(graph, cuts, cut, whole));
  }
  if (const auto suggested = suggestCuts(graph, cuts)) {
    model["suggested_cuts"] = {suggested->first.names.front(), suggested->last.names.front()};
    model["reason"] = suggested->reason();
    for (Json& cut : model["cuts"]) {
      cut["suggested"] =
          nameOf(cut) == model["suggested_cuts"][0] || nameOf(cut) == model["suggested_cuts"][1];
    }
  }
  if (options.json) {
    std::cout << model.dump(2) << std::endl;
  } else {
    print(model, options.all);
  }
  return 0;
}

}  // namespace

void addModelsShowCommand(CLI::App& models, std::function<int()>& command) {
  static ModelsShowOptions options;
  CLI::App* show = models.add_subcommand(
      "show", "Shows an exported model, and the modules after which it can be cut");
  show->add_option("FILE", options.file, "A file written by cleave_split.export, such as model.pt2")
      ->required();
  show->add_flag(
      "--all", options.all,
      "Also lists cuts that several tensors cross, and positions where no cut is possible");
  show->add_flag("--json", options.json, "Prints JSON");
  show->footer("Example:\n  cleave-client models show resnet18.pt2");
  show->callback([&] { command = [&] { return modelsShowCommand(options); }; });
}

}  // namespace cleave
