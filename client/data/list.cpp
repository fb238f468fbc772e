// The data format `list`: a table of image files with their labels, as CSV or TSV. Its first row
// names the columns; path and label are used, in any order. Cells may be quoted as in RFC 4180, but
// contain no line breaks.
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <utility>

#include "client/data/encoded_images.h"
#include "client/data/image_formats.h"

namespace cleave {
namespace {

[[noreturn]] void refuseList(const std::string& file, std::size_t line, const std::string& fault,
                             const std::string& hint) {
  throw UsageError("data-damaged", fmt::format("{}:{}: {}", file, line, fault), hint);
}

// The cells of a row; false if its quotes are not paired.
bool splitRow(const std::string& row, char separator, std::vector<std::string>& cells) {
  cells.assign(1, "");
  bool isQuoted = false;
  for (std::size_t at = 0; at < row.size(); ++at) {
    const char c = row[at];
    if (isQuoted && c == '"' && at + 1 < row.size() && row[at + 1] == '"') {
      cells.back() += c;
      ++at;
    } else if (c == '"' && (isQuoted || cells.back().empty())) {
      isQuoted = !isQuoted;
    } else if (c == separator && !isQuoted) {
      cells.emplace_back();
    } else {
      cells.back() += c;
    }
  }
  return !isQuoted;
}

// Without the line's end, and without the mark that some programs write first.
bool nextRow(std::istream& file, std::string& row, std::size_t& line) {
  if (!std::getline(file, row)) return false;
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  if (line++ == 0 && row.starts_with(kByteOrderMark)) row.erase(0, kByteOrderMark.size());
  if (row.ends_with('\r')) row.pop_back();
  return true;
}

struct LabelledPath {
  std::string path, label;
};

std::vector<LabelledPath> readLabelledPaths(const std::string& path) {
  std::error_code ignored;
  std::ifstream file(path);
  if (!file || std::filesystem::is_directory(path, ignored)) {
    throw UsageError("data-missing",
                     path + " cannot be read: " +
                         (std::filesystem::exists(path, ignored) ? "it is no readable file"
                                                                 : "there is no such file"),
                     "check the path of the data in the configuration");
  }
  std::string row;
  std::size_t line = 0;
  std::vector<std::string> cells;
  const std::string headerHint = "begin the file with the line path,label";
  if (!nextRow(file, row, line)) {
    throw UsageError("data-empty", path + " is empty", headerHint);
  }
  const char separator = row.find('\t') != std::string::npos ? '\t' : ',';
  splitRow(row, separator, cells);
  const auto column = [&](const std::string& name) {
    const auto found = std::find(cells.begin(), cells.end(), name);
    if (found == cells.end()) {
      refuseList(path, 1, "the first row names no column " + name, headerHint);
    }
    return static_cast<std::size_t>(found - cells.begin());
  };
  const std::size_t pathColumn = column("path"), labelColumn = column("label");
  const std::size_t columns = cells.size();

  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  std::vector<LabelledPath> all;
  while (nextRow(file, row, line)) {
    if (row.empty()) continue;
    if (!splitRow(row, separator, cells)) {
      refuseList(path, line, "a quotation mark is not closed", "write \" in a cell as \"\"");
    }
    if (cells.size() != columns) {
      refuseList(path, line,
                 fmt::format("the row has {} cells, but the first row {}", cells.size(), columns),
                 "put cells that contain the separator into quotation marks");
    }
    if (cells[pathColumn].empty()) {
      refuseList(path, line, "the row has no path", "remove the row, or complete it");
    }
    all.push_back({folder / cells[pathColumn], cells[labelColumn]});
  }
  if (all.empty()) throw UsageError("data-empty", path + " has no samples", "add rows to it");
  return all;
}

}  // namespace

DataFormatTable makeListKeys() {
  DataFormatTable table;
  table.requiredText("data.train.file", "path", &DataFormatKeys::trainFile,
                     "CSV or TSV with a header and the columns path (from the file's folder) and "
                     "label (a name or a number)");
  table.text("data.test.file", "path", &DataFormatKeys::testFile,
             "the same for the test set; not needed with data.holdout");
  addEncodedImageKeys(table);
  return table;
}

std::unique_ptr<Dataset> openList(const DataFormatKeys& keys, DataSplit split) {
  if (split == DataSplit::input) return openInputImages(keys);
  const bool isTraining = split == DataSplit::train;
  const std::string& file = isTraining ? keys.trainFile : keys.testFile;
  if (file.empty()) throwNoTestSet("data.test.file");
  std::vector<LabelledPath> rows = readLabelledPaths(file);
  std::set<std::string> labels;
  for (const LabelledPath& row : rows) labels.insert(row.label);
  DataFormatKeys own = keys;
  if (isTraining) own.learned = nullptr;
  const ClassTable classes = tabulateClasses(labels, own, ClassOrder::byNumber, file);

  EncodedImages images;
  images.classNames = classes.names;
  for (LabelledPath& row : rows) {
    images.names.push_back(std::move(row.path));
    images.labels.push_back(classes.numbers.find(row.label)->second);
  }
  if (isTraining && keys.testFile.empty()) shuffleForHoldout(images);
  return makeEncodedImages(std::move(images), keys);
}

}  // namespace cleave
