// The data format `list`: a CSV or TSV table of image files and their labels. The first row names
// the columns; only `path` and `label` are used.
#include <filesystem>
#include <utility>

#include "client/data/files/csv_file.h"
#include "client/data/formats/encoded_images.h"
#include "client/data/formats/image_formats.h"
#include "common/core/log.h"

namespace cleave {
namespace {

// Adds the paths to `images` and the labels to `labels`.
void readRows(const CsvFile& file, EncodedImages& images, Labels& labels) {
  const std::string& path = file.path();
  const std::string hint = "begin the file with the line path,label";
  const std::size_t pathColumn = file.column("path", hint),
                    labelColumn = file.column("label", hint);
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  images.folder = folder;
  file.forEachRow([&](std::uint64_t line, std::span<const std::string_view> cells) {
    if (cells[pathColumn].empty()) {
      throw DataError("data-damaged", lineOf(path, line) + ": the row has no path",
                      "remove the row, or complete it");
    }
    labels.add(cells[labelColumn], path, line);
    images.names.push_back(folder / cells[pathColumn]);
  });
  if (images.names.empty())
    throw DataError("data-empty", path + " has no samples", "add rows to it");
}

// Files with other extensions are read too, but those of other picture formats are rarely readable.
void warnOfOtherPictures(const std::string& file, const std::vector<std::string>& paths) {
  SkippedFiles others;
  for (const std::string& path : paths) {
    if (!hasImageExtension(path)) others.add(path);
  }
  if (!others.hasPictures()) return;
  const std::string folder = std::filesystem::path(file).parent_path();
  processLog()->warn("{} lists {}, but only JPEG, PNG and WebP files can be read; {}", file,
                     others.text(), others.hint(folder.empty() ? "." : folder));
}

}  // namespace

DataFormatTable makeListKeys() {
  DataFormatTable table;
  table.requiredText("data.train.file", "path", &DataFormatKeys::trainFile,
                     "CSV or TSV with a header and the columns path (relative to the file's "
                     "folder) and label (a name or a number)");
  table.text("data.test.file", "path", &DataFormatKeys::testFile,
             "the same for the test set; not needed with `data.holdout`");
  addEncodedImageKeys(table);
  return table;
}

std::unique_ptr<Dataset> openList(const DataFormatKeys& keys, DataSplit split) {
  if (split == DataSplit::input) return openInputImages(keys);
  const bool isTraining = split == DataSplit::train;
  const std::string& file = isTraining ? keys.trainFile : keys.testFile;
  if (file.empty()) throwNoTestSet("data.test.file");
  EncodedImages images;
  Labels labels = labelsOf(keys, split);
  readRows(CsvFile(file, damageOf(keys, split)), images, labels);
  warnOfOtherPictures(file, images.names);
  useLabels(images, labels, file);
  if (isTraining && keys.isShuffled) shuffleForHoldout(images);
  return makeEncodedImages(std::move(images), keys);
}

}  // namespace cleave
