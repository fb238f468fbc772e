// cleave-client data show: prints what the model receives.

#include <spdlog/fmt/fmt.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>

#include "client/commands/commands.h"
#include "client/config/settings.h"
#include "client/data/files/numbers.h"
#include "client/data/pictures/image_file.h"
#include "client/data/samples/inspect.h"
#include "common/core/durable.h"
#include "common/core/log.h"
#include "common/core/printable.h"
#include "common/core/units.h"

namespace cleave {
namespace {

struct DataShowOptions {
  CommonOptions common;
  std::string sheet;  // a file path; empty: no file
  bool json = false;
};

using Json = nlohmann::ordered_json;

constexpr std::uint32_t kFigureSamples = 256;
constexpr std::uint32_t kShownSamples = 3;
constexpr std::size_t kShownIds = 16;
constexpr std::size_t kShownClasses = 20;
constexpr std::size_t kShownColumns = 40;

Json describeArrays(const Dataset& data, const DataFigures& figures) {
  Json list = Json::array();
  const std::vector<SampleArray> arrays = data.arrays();
  for (std::size_t a = 0; a < arrays.size(); ++a) {
    const ValueFigures& values = figures.figures[a];
    Json array = {{"name", arrays[a].name},
                  {"role", a + 1 < arrays.size() ? "input" : "target"},
                  {"dtype", dtypeName(arrays[a].dtype)},
                  {"shape", arrays[a].shape},
                  {"min", values.min},
                  {"mean", values.mean},
                  {"max", values.max},
                  {"std", values.std},
                  {"not_finite", values.notFinite}};
    // For an input that is a list of integers, such as token ids, the first integers of a few
    // samples are shown.
    if (arrays[a].dtype == DType::i64 && arrays[a].shape.size() == 1 && a + 1 < arrays.size()) {
      Json& samples = array["samples"] = Json::array();
      for (std::uint32_t index = 0; index < std::min(data.size(), kShownSamples); ++index) {
        std::vector<std::int64_t> ids = readIntegers(data, index, a);
        ids.resize(std::min(ids.size(), kShownIds));
        samples.push_back(ids);
      }
    }
    list.push_back(std::move(array));
  }
  return list;
}

// `column`: an entry of "columns" in Dataset::learned().
Json describeColumn(const nlohmann::json& column) {
  if (!column.contains("categories")) {
    Json described = {{"name", column["name"]},
                      {"kind", "numeric"},
                      {"mean", column["mean"]},
                      {"std", column["std"]}};
    if (column.contains("form")) described["form"] = toString(numberFormFrom(column["form"]));
    return described;
  }
  return {{"name", column["name"]},
          {"kind", "categorical"},
          {"categories", column["categories"].size()}};
}

Json describeSplit(const Dataset& data) {
  const DataFigures figures = inspectData(data, kFigureSamples);
  Json split = {{"samples", data.size()}};
  if (!figures.counts.empty()) {
    split["counted_samples"] = figures.countedSamples;
    Json& classes = split["classes"] = Json::array();
    const std::vector<std::string> names = data.classNames();
    for (std::size_t c = 0; c < figures.counts.size(); ++c) {
      classes.push_back({{"name", classNameOf(names, c)}, {"samples", figures.counts[c]}});
    }
  }
  // How the columns of a table are read.
  const nlohmann::json learned = data.learned();
  if (learned.is_object() && learned.contains("columns")) {
    Json& columns = split["columns"] = Json::array();
    for (const nlohmann::json& column : learned["columns"])
      columns.push_back(describeColumn(column));
  }
  split["figure_samples"] = figures.figureSamples;
  split["arrays"] = describeArrays(data, figures);
  return split;
}

void printClasses(const Json& split) {
  const Json& classes = split["classes"];
  std::uint64_t min = classes[0]["samples"], max = 0;
  std::size_t width = 0, empty = 0;
  for (const Json& each : classes) {
    const std::uint64_t samples = each["samples"];
    min = std::min(min, samples);
    max = std::max(max, samples);
    empty += samples == 0 ? 1 : 0;
    width = std::max(width, each["name"].get_ref<const std::string&>().size());
  }
  const bool isPartial = split["counted_samples"] != split["samples"];
  std::cout << fmt::format(
      "  {} classes, {} each{}\n", classes.size(),
      min == max ? countText(min, "sample") : fmt::format("{} to {} samples", min, max),
      isPartial
          ? ", counted in " + countText(split["counted_samples"].get<std::uint32_t>(), "sample")
          : "");
  if (empty > 0 && !isPartial) {
    std::cout << fmt::format("  classes without samples: {}\n", empty);
  }
  const std::size_t shown = std::min(classes.size(), kShownClasses);
  for (std::size_t c = 0; c < shown; ++c) {
    std::cout << fmt::format("    {:>4}  {:<{}}  {:>8}\n", c,
                             printable(classes[c]["name"].get_ref<const std::string&>()), width,
                             classes[c]["samples"].get<std::uint64_t>());
  }
  if (shown < classes.size()) {
    std::cout << fmt::format("          {} more; --json lists all\n", classes.size() - shown);
  }
}

void printColumns(const Json& columns) {
  std::size_t width = 0;
  for (const Json& column : columns) {
    width = std::max(width, column["name"].get_ref<const std::string&>().size());
  }
  std::cout << fmt::format("  {}; data.numeric and data.categorical change their kind\n",
                           countText(columns.size(), "column"));
  const std::size_t shown = std::min(columns.size(), kShownColumns);
  for (std::size_t c = 0; c < shown; ++c) {
    const Json& column = columns[c];
    const bool isNumeric = column["kind"] == "numeric";
    std::cout << fmt::format(
        "    {:<{}}  {}\n", printable(column["name"].get_ref<const std::string&>()), width,
        isNumeric
            ? fmt::format("numeric      mean {:.4g}  std {:.4g}{}", column["mean"].get<double>(),
                          column["std"].get<double>(),
                          column.contains("form") ? "  " + column["form"].get<std::string>() : "")
            : "categorical  " + countText(column["categories"].get<std::uint64_t>(), "value"));
  }
  if (shown < columns.size()) {
    std::cout << fmt::format("    {} more; --json lists all\n", columns.size() - shown);
  }
}

void printSplit(const std::string& name, const Dataset& data, const Json& split) {
  std::cout << fmt::format("{}: {}\n", name, countText(data.size(), "sample"));
  if (split.contains("classes")) printClasses(split);
  if (split.contains("columns")) printColumns(split["columns"]);
  std::cout << fmt::format("  arrays; statistics of {}, preprocessed as in evaluation\n",
                           countText(split["figure_samples"].get<std::uint32_t>(), "sample"));
  const std::vector<SampleArray> arrays = data.arrays();
  std::vector<std::string> texts;
  std::size_t width = 0;
  for (const SampleArray& array : arrays) {
    width = std::max(width, texts.emplace_back(toString(array)).size());
  }
  for (std::size_t a = 0; a < arrays.size(); ++a) {
    const Json& array = split["arrays"][a];
    std::cout << fmt::format("    {:<6}  {:<{}}  min {:.4g}  mean {:.4g}  max {:.4g}  std {:.4g}\n",
                             array["role"].get_ref<const std::string&>(), texts[a], width,
                             array["min"].get<double>(), array["mean"].get<double>(),
                             array["max"].get<double>(), array["std"].get<double>());
    if (const auto count = array["not_finite"].get<std::uint64_t>(); count > 0) {
      std::cout << fmt::format("            not finite: {}\n", countText(count, "value"));
    }
    if (!array.contains("samples")) continue;
    for (std::uint32_t index = 0; index < array["samples"].size(); ++index) {
      const auto ids = array["samples"][index].get<std::vector<std::int64_t>>();
      const bool isCut = std::cmp_less(ids.size(), arrays[a].shape[0]);
      std::cout << fmt::format("            {}: {}{}\n", printable(data.sampleName(index)),
                               fmt::join(ids, " "), isCut ? " …" : "");
    }
  }
  std::cout << "\n";
}

// The label of a sample: the name of its class, or the class number if classes have no names. Empty
// if the target is not a class.
std::string labelText(const Dataset& data, std::uint32_t index) {
  if (data.classes() == 0) return "";
  const std::optional<std::int64_t> label = data.label(index);
  const std::int64_t value =
      label ? *label : readIntegers(data, index, data.arrays().size() - 1).at(0);
  return classNameOf(data.classNames(), static_cast<std::size_t>(value));
}

Json makeSheet(const std::string& path, const DataSettings& settings, const Dataset& train) {
  SheetOptions options;
  const std::vector<KeyText> keys = findDataFormat(settings.format).keys().texts();
  const bool isNormalised = std::any_of(keys.begin(), keys.end(),
                                        [](const KeyText& key) { return key.name == "data.mean"; });
  if (isNormalised) {
    options.mean = settings.keys.image.mean;
    options.stddev = settings.keys.image.stddev;
  }
  const ContactSheet sheet = makeContactSheet(train, options);
  const std::vector<std::byte> png = encodePng(sheet.pixels);
  writeFileDurably(path, {reinterpret_cast<const char*>(png.data()), png.size()});
  Json samples = Json::array();
  for (const std::uint32_t index : sheet.samples) {
    samples.push_back({{"sample", index},
                       {"name", printable(train.sampleName(index))},
                       {"label", labelText(train, index)}});
  }
  return {{"file", path}, {"columns", ContactSheet::kColumns}, {"samples", samples}};
}

void printSheet(const Json& sheet) {
  std::cout << fmt::format(
      "{}: above the white line, samples with the training augmentation of epoch 1; below it, the "
      "same samples, preprocessed as in evaluation\n",
      sheet["file"].get<std::string>());
  std::string row;
  for (std::size_t n = 0; n < sheet["samples"].size(); ++n) {
    if (n % ContactSheet::kColumns == 0) {
      row += fmt::format("{}  row {}: ", n == 0 ? "" : "\n", n / ContactSheet::kColumns + 1);
    } else {
      row += " | ";
    }
    const std::string label = printable(sheet["samples"][n]["label"].get<std::string>());
    row +=
        label.empty() ? std::to_string(sheet["samples"][n]["sample"].get<std::uint32_t>()) : label;
  }
  std::cout << row << "\n";
}

int dataShowCommand(const DataShowOptions& options) {
  startLog("cleave-client", options.common.logLevel);
  Config config = loadConfig(options.common);
  const ClientSettings settings = readClientSettings(config);
  if (!options.sheet.empty()) checkCanWrite(options.sheet);
  const Datasets data = openDatasets(settings.data);
  Json report = {{"format", settings.data.format}, {"splits", Json::object()}};
  const std::pair<const char*, const Dataset*> splits[] = {{"train", data.train.get()},
                                                           {"test", data.test.get()}};
  for (const auto& [name, split] : splits) {
    const Json& described = report["splits"][name] = describeSplit(*split);
    if (!options.json) printSplit(name, *split, described);
  }
  if (!options.sheet.empty()) {
    report["sheet"] = makeSheet(options.sheet, settings.data, *data.train);
    if (!options.json) printSheet(report["sheet"]);
  }
  if (options.json) std::cout << report.dump(2) << "\n";
  std::cout << std::flush;
  return 0;
}

}  // namespace

void addDataCommands(CLI::App& app, std::function<int()>& command) {
  static DataShowOptions options;
  CLI::App* data = app.add_subcommand("data", "Shows and checks the data of a configuration");
  data->require_subcommand(1);
  data->footer(
      "Example:\n  cleave-client data show --config configs/fashion_mnist.yaml\n\n"
      "'cleave-client data COMMAND --help' shows a command's options and more examples.");
  CLI::App* show = data->add_subcommand(
      "show", "Shows samples, classes and values of both splits, and writes an overview of images");
  addCommonOptions(*show, options.common, true);
  show->add_option(
          "--sheet", options.sheet,
          "Writes a PNG of images as the model receives them in training and in evaluation")
      ->type_name("FILE");
  show->add_flag("--json", options.json, "Prints JSON, and nothing else, on stdout");
  show->footer(
      "Example:\n  cleave-client data show --config configs/fashion_mnist.yaml --sheet sheet.png");
  show->callback([&] { command = [&] { return dataShowCommand(options); }; });
  addDataCheckCommand(*data, command);
}

}  // namespace cleave
