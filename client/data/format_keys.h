// What the files of the data formats share to define their keys. Private to client/data.
#pragma once

#include "client/data/formats.h"

namespace cleave {

using DataFormatTable = ConfigTable<DataFormatKeys>;

void addClasses(DataFormatTable& table);    // data.classes
void addImageKeys(DataFormatTable& table);  // the keys of ImageOptions
// A path of the test set, required if the test set is opened.
void addTestPath(DataFormatTable& table, const std::string& name,
                 std::string DataFormatKeys::*field, const std::string& meaning);
ImageOptions imageOf(const DataFormatKeys& keys);

// Builds the table on first use; a value for DataFormatRow::keys.
template <DataFormatTable (*make)()>
const DataFormatTable& made() {
  static const DataFormatTable kTable = make();
  return kTable;
}

}  // namespace cleave
