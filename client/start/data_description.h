// Describes the data that a first configuration uses, for people. No Torch.
#pragma once

#include <string>

#include "client/data/samples/dataset.h"
#include "client/start/found_data.h"

namespace cleave {

// "Data: a folder of images per class; 24 samples, 2 classes: bright, dark." `classes`: their
// number; 0: what the training set says.
std::string describeData(const FoundData& found, const Dataset& train, int classes);

// Lines that say how each column of a table is used; empty for other data. `label`: the column of
// the target; `isNumber`: whether the target is a number.
std::string describeColumns(const FoundData& found, const Dataset& train, const std::string& label,
                            bool isNumber);

// How large a target is that is a number, and how to scale it; empty if it need not be scaled.
std::string describeTarget(const Dataset& train);

}  // namespace cleave
