// cleave-client codec: lists the codecs with their ratios, and runs them on the tensors of a
// safetensors file.

#include <spdlog/fmt/fmt.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cmath>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>

#include "client/commands/commands.h"
#include "client/commands/listing.h"
#include "client/commands/output_file.h"
#include "client/diagnose/codec_trial.h"
#include "common/codec/safetensors.h"
#include "common/core/durable.h"
#include "common/resources/buffer.h"
#include "compression/registry.h"

namespace cleave {
namespace {

// Options of the commands `codec list`, `codec run` and `codec compare`.
struct CodecOptions {
  std::vector<std::string> specs;
  std::string input;
  std::string output;
  bool overwrite = false;
  bool json = false;
};

using Json = nlohmann::ordered_json;
using Row = std::vector<std::string>;

std::string dumped(const Json& json, int indent) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace);
}

// A safetensors file in memory.
struct File {
  std::string bytes;
  std::vector<SafetensorsEntry> entries;  // views into `bytes`

  std::size_t offsetOf(const SafetensorsEntry& entry) const {
    return static_cast<std::size_t>(entry.bytes.data() -
                                    reinterpret_cast<const std::byte*>(bytes.data()));
  }
};

void readFile(const std::string& path, File& file) {
  const std::string hint = "set --input to a safetensors file, such as a run's model.safetensors";
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) {
    throw UsageError("no-input", "cannot read " + path + ": there is no such file", hint);
  }
  if (!std::filesystem::is_regular_file(path, ignored)) {
    throw UsageError("no-input", "cannot read " + path + ": it is not a regular file", hint);
  }
  std::ifstream stream(path, std::ios::binary);
  if (stream.is_open()) {
    file.bytes.resize(std::filesystem::file_size(path));
    stream.read(file.bytes.data(), static_cast<std::streamsize>(file.bytes.size()));
  }
  if (!stream) {
    throw UsageError("no-input", "cannot read " + path,
                     "check that you have permission to read it; " + hint);
  }
  file.entries =
      readSafetensors(std::as_bytes(std::span(file.bytes.data(), file.bytes.size())), path);
}

std::vector<const SafetensorsEntry*> copiedOf(const File& file) {
  std::vector<const SafetensorsEntry*> copied;
  for (const SafetensorsEntry& entry : file.entries) {
    if (!floatOf(entry)) copied.push_back(&entry);
  }
  return copied;
}

Json jsonOf(std::optional<double> number) {
  if (!number || !std::isfinite(*number)) return nullptr;
  return *number;
}

void addFigures(Json& json, const CodecFigures& figures) {
  json["raw_bytes"] = figures.rawBytes;
  json["wire_bytes"] = figures.wireBytes;
  json["ratio"] = jsonOf(figures.ratio());
  json["encode_seconds"] = figures.encodeSeconds;
  json["decode_seconds"] = figures.decodeSeconds;
  json["encode_gb_s"] = jsonOf(figures.rate(figures.encodeSeconds));
  json["decode_gb_s"] = jsonOf(figures.rate(figures.decodeSeconds));
  json["snr_db"] = jsonOf(figures.snr());
  json["largest_error"] = jsonOf(figures.largestError);
  json["exact"] = figures.exact;
}

Json copiedJson(const File& file) {
  Json copied = Json::array();
  for (const SafetensorsEntry* entry : copiedOf(file)) {
    copied.push_back({{"name", entry->name},
                      {"dtype", entry->dtype},
                      {"shape", entry->shape},
                      {"bytes", entry->bytes.size()}});
  }
  return copied;
}

std::string shown(std::optional<double> number, const char* format) {
  return number ? fmt::format(fmt::runtime(format), *number) : "-";
}

const Row kFigureTitles = {"raw bytes",   "wire bytes", "ratio",        "encode GB/s",
                           "decode GB/s", "SNR dB",     "largest error"};

Row cellsOf(const CodecFigures& figures) {
  return {std::to_string(figures.rawBytes),
          std::to_string(figures.wireBytes),
          shown(figures.ratio(), "{:.4f}"),
          shown(figures.rate(figures.encodeSeconds), "{:.2f}"),
          shown(figures.rate(figures.decodeSeconds), "{:.2f}"),
          figures.exact ? "exact" : fmt::format("{:.2f}", figures.snr()),
          fmt::format("{:.3g}", figures.largestError)};
}

Row joined(Row first, const Row& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

// Each column is as wide as its widest cell. The first `texts` columns are left-aligned, the others
// right-aligned. If a row has fewer cells than the table has columns, its last cell may be wider
// than its column.
void printTable(const std::vector<Row>& rows, std::size_t texts) {
  std::vector<std::size_t> widths(rows.front().size());
  for (const Row& row : rows) {
    for (std::size_t column = 0; column < row.size(); ++column) {
      if (row.size() < widths.size() && column + 1 == row.size()) continue;
      widths[column] = std::max(widths[column], row[column].size());
    }
  }
  for (const Row& row : rows) {
    std::string line;
    for (std::size_t column = 0; column < row.size(); ++column) {
      if (column > 0) line += "  ";
      const bool isLast = column + 1 == row.size();
      if (column >= texts && row.size() == widths.size()) {
        line += fmt::format("{:>{}}", row[column], widths[column]);
      } else {
        line += isLast ? row[column] : fmt::format("{:<{}}", row[column], widths[column]);
      }
    }
    std::cout << line << "\n";
  }
}

void printCopied(const File& file) {
  std::size_t bytes = 0;
  std::string names;
  for (const SafetensorsEntry* entry : copiedOf(file)) {
    bytes += entry->bytes.size();
    names += fmt::format("  {} ({})\n", inAscii(entry->name), inAscii(entry->dtype));
  }
  if (names.empty()) return;
  std::cout << fmt::format("\nOther dtypes, copied unchanged and not counted: {} bytes\n", bytes)
            << names;
}

int runCodec(const CodecOptions& options) {
  const std::unique_ptr<Codec> codec = makeCodec(options.specs.front());
  checkOutputFile(options.output, options.overwrite, "decoded.safetensors");
  File file;
  readFile(options.input, file);
  // The output has the names, shapes and dtypes of the input; only the values change.
  std::string output = file.bytes;

  BufferPool pool;
  CodecFigures total;
  std::vector<Row> rows = {joined({"tensor", "dtype"}, kFigureTitles)};
  Json tensors = Json::array();
  for (const SafetensorsEntry& entry : file.entries) {
    if (!floatOf(entry)) {
      rows.push_back({inAscii(entry.name), inAscii(entry.dtype), "copied unchanged"});
      continue;
    }
    std::byte* out = reinterpret_cast<std::byte*>(output.data()) + file.offsetOf(entry);
    const CodecFigures figures = tryCodec(
        *codec, pool, entry, static_cast<std::uint32_t>(total.tensors), options.input, out);
    total.add(figures);
    rows.push_back(joined({inAscii(entry.name), entry.dtype}, cellsOf(figures)));
    Json tensor = {{"name", entry.name}, {"dtype", entry.dtype}, {"shape", entry.shape}};
    addFigures(tensor, figures);
    tensors.push_back(std::move(tensor));
  }
  rows.push_back(joined({"total", ""}, cellsOf(total)));
  writeFileDurably(options.output, output);

  if (options.json) {
    Json sum = {{"tensors", total.tensors}};
    addFigures(sum, total);
    const Json json = {{"codec", codec->spec()},     {"input", options.input},
                       {"output", options.output},   {"tensors", std::move(tensors)},
                       {"copied", copiedJson(file)}, {"total", std::move(sum)}};
    std::cout << dumped(json, 2) << std::endl;
    return 0;
  }
  std::cout << fmt::format("{} through {}; floating-point tensors: {}\n\n", options.input,
                           codec->spec(), total.tensors);
  printTable(rows, 2);
  printCopied(file);
  std::cout << "\nwritten to " << options.output << std::endl;
  return 0;
}

int compareCodecs(const CodecOptions& options) {
  std::vector<std::unique_ptr<Codec>> codecs;
  for (const std::string& spec : options.specs) codecs.push_back(makeCodec(spec));
  File file;
  readFile(options.input, file);

  BufferPool pool;
  std::vector<Row> rows = {joined({"codec"}, kFigureTitles)};
  Json list = Json::array();
  std::exception_ptr failure;  // the error of the first codec that cannot encode a tensor
  std::size_t tensors = 0;
  for (const std::unique_ptr<Codec>& codec : codecs) {
    CodecFigures total;
    Json json = {{"codec", codec->spec()}};
    try {
      for (const SafetensorsEntry& entry : file.entries) {
        if (!floatOf(entry)) continue;
        total.add(tryCodec(*codec, pool, entry, static_cast<std::uint32_t>(total.tensors),
                           options.input, nullptr));
      }
      tensors = total.tensors;
      addFigures(json, total);
      rows.push_back(joined({codec->spec()}, cellsOf(total)));
    } catch (const RunError& error) {
      if (!failure) failure = std::current_exception();
      json["error"] = error.what();
      rows.push_back({codec->spec(), "cannot encode a tensor; see the error below"});
    }
    list.push_back(std::move(json));
  }

  if (options.json) {
    const Json json = {
        {"input", options.input}, {"codecs", std::move(list)}, {"copied", copiedJson(file)}};
    std::cout << dumped(json, 2) << std::endl;
  } else {
    std::cout << options.input;
    if (tensors > 0) std::cout << fmt::format("; floating-point tensors: {}", tensors);
    std::cout << "\n\n";
    printTable(rows, 1);
    printCopied(file);
    std::cout << std::flush;
  }
  if (failure) std::rethrow_exception(failure);
  return 0;
}

// The codecs that `cleave-client codecs` lists, with their ratios.
std::vector<ListedItem> codecsWithRatio() {
  const std::span<const ListingRow> listings = listingTable();
  const auto codecs = std::find_if(listings.begin(), listings.end(),
                                   [](const ListingRow& row) { return row.command == "codecs"; });
  const TensorSpec example{DType::f32, {8, 32, 56, 56}};
  std::vector<ListedItem> items = codecs->items();
  for (ListedItem& item : items) {
    for (const CodecRow& row : codecTable()) {
      if (row.name != item.name) continue;
      const std::unique_ptr<Codec> codec = makeCodec(row.example);
      item.ratio = static_cast<double>(codec->maxEncodedBytes(example)) /
                   static_cast<double>(example.bytes());
      item.ratioIsExact = sizeIsFixed(*codec);
    }
  }
  return items;
}

constexpr ListingRow kCodecsWithRatio = {
    "codecs", "Lists the codecs with their parameters and ratios",
    "Codecs. The ratio is encoded bytes / raw bytes of f32[8, 32, 56, 56], for each example.",
    codecsWithRatio};

constexpr const char* kExitCodes =
    "Exit codes: 0 done, 1 a codec cannot encode a tensor or the disk is full, 2 usage error.";

constexpr const char* kHow =
    "Each floating-point tensor (F32, F16, BF16) is encoded and decoded separately, on one\n"
    "thread, in the file's memory order (contiguous, never channels-last), like an activation in\n"
    "the first training step. Tensors of other dtypes are not encoded.\n\n"
    "  wire bytes     the payload, without frame headers\n"
    "  ratio          wire bytes / raw bytes\n"
    "  GB/s           1e9 raw bytes per second, in the fastest of several calls\n"
    "  SNR dB         signal-to-noise ratio; exact: bit-identical\n"
    "  largest error  largest absolute error of a value\n"
    "  null (JSON)    the value is infinite, or there are no bytes";

void addInput(CLI::App& command, CodecOptions& options) {
  command.add_option("--input", options.input, "The safetensors file with the tensors")
      ->type_name("FILE")
      ->required();
}

void addJson(CLI::App& command, CodecOptions& options) {
  command.add_flag("--json", options.json, "Prints JSON");
}

}  // namespace

void addCodecCommands(CLI::App& app, std::function<int()>& command) {
  static CodecOptions options;
  CLI::App* codec = app.add_subcommand("codec",
                                       "Lists the codecs with their ratios, and measures their "
                                       "quality and speed on a file's tensors");
  codec->require_subcommand(1);
  codec->footer(
      "Example:\n  cleave-client codec compare --input runs/RUN/model.safetensors block:bits=8 "
      "uniform:bits=8\n\n'cleave-client codec COMMAND --help' shows a command's options and an "
      "example.");

  CLI::App* list = codec->add_subcommand("list", std::string(kCodecsWithRatio.summary));
  addJson(*list, options);
  list->footer("Example:\n  cleave-client codec list --json");
  list->callback([&] { command = [&] { return listCommand(kCodecsWithRatio, options.json); }; });

  CLI::App* run = codec->add_subcommand(
      "run", "Encodes and decodes a file's tensors with a codec, and writes the resulting file");
  run->add_option("SPEC", options.specs, "The codec, such as block:bits=8")
      ->type_name("")
      ->expected(1)
      ->required();
  addInput(*run, options);
  run->add_option("--output", options.output,
                  "The file to write; must not exist unless --overwrite is given")
      ->type_name("FILE")
      ->required();
  run->add_flag("--overwrite", options.overwrite, "Replaces an existing output file");
  addJson(*run, options);
  run->footer(std::string("Example:\n  cleave-client codec run block:bits=8 --input "
                          "runs/RUN/model.safetensors --output out.safetensors\n\n") +
              kHow + "\n\n" + kExitCodes);
  run->callback([&] { command = [&] { return runCodec(options); }; });

  CLI::App* compare = codec->add_subcommand("compare",
                                            "Encodes and decodes a file's tensors with several "
                                            "codecs, and compares the results in a table");
  compare->add_option("SPEC", options.specs, "The codecs, such as none block:bits=8 'sort:q=6,s=2'")
      ->type_name("")
      ->expected(-1)
      ->required();
  addInput(*compare, options);
  addJson(*compare, options);
  compare->footer(std::string("Example:\n  cleave-client codec compare --input "
                              "runs/RUN/model.safetensors none block:bits=8 "
                              "sort:q=6,s=2,select=sampled\n\n") +
                  kHow + "\n\n" + kExitCodes);
  compare->callback([&] { command = [&] { return compareCodecs(options); }; });
}

}  // namespace cleave
