// Helpers with which the data formats define their keys. Private to client/data.
#pragma once

#include "client/data/formats/formats.h"

namespace cleave {

using DataFormatTable = ConfigTable<DataFormatKeys>;

void addClasses(DataFormatTable& table);    // data.classes
void addImageKeys(DataFormatTable& table);  // the keys of ImageOptions
// Adds a key for a path of the test set. The key is required if the test set is opened.
void addTestPath(DataFormatTable& table, const std::string& name,
                 std::string DataFormatKeys::*field, const std::string& meaning);
ImageOptions imageOf(const DataFormatKeys& keys);
void addFiles(DataFormatTable& table);   // data.train.file, data.test.file
void addTarget(DataFormatTable& table);  // data.label, data.target_type
// The file of `split`, which is train or test. Throws UsageError "config-missing".
const std::string& fileOf(const DataFormatKeys& keys, DataSplit split);
// The inputs of the split `input`. Throws UsageError "no-predict" for a folder.
std::vector<std::string> inputFilesOf(const DataFormatKeys& keys);

// Formats that are defined in their own source files.
DataFormatTable makeTextKeys();
std::unique_ptr<Dataset> openTextSplit(const DataFormatKeys& keys, DataSplit split);
DataFormatTable makeCsvKeys();
std::unique_ptr<Dataset> openCsvSplit(const DataFormatKeys& keys, DataSplit split);

// Builds the table on first use. For DataFormatRow::keys.
template <DataFormatTable (*make)()>
const DataFormatTable& made() {
  static const DataFormatTable kTable = make();
  return kTable;
}

}  // namespace cleave
