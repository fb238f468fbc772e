// The formats of encoded images, for the table in formats.cpp. Private to client/data.
#pragma once

#include <memory>

#include "client/data/formats/format_keys.h"

namespace cleave {

DataFormatTable makeFolderKeys();
std::unique_ptr<Dataset> openFolder(const DataFormatKeys& keys, DataSplit split);

DataFormatTable makeListKeys();
std::unique_ptr<Dataset> openList(const DataFormatKeys& keys, DataSplit split);

DataFormatTable makeTarKeys();
std::unique_ptr<Dataset> openTar(const DataFormatKeys& keys, DataSplit split);

}  // namespace cleave
