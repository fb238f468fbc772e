// Detects the format of a user's data, for a first configuration. No Torch.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace cleave {

struct FoundData {
  std::string format;  // a value of data.format
  // The other keys below `data` and their values, such as {"train.folder", "photos/train"}.
  std::vector<std::pair<std::string, std::string>> keys = {};
  std::string explanation;  // why this format: "a folder of images per class"
  bool hasTest = false;     // whether `keys` name a test set
  // The value of a key; empty if it is not in `keys`.
  std::string value(const std::string& key) const;

  // The columns of a table that are no inputs, such as IDs, and why. The target is not one of them.
  std::vector<std::pair<std::string, std::string>> ignored = {};
  bool hasInputs = true;  // whether a table has a column that is neither ignored nor the target
  // A further set of samples that the configuration does not use, such as photos/test beside
  // photos/val; empty: none.
  std::string unusedTest = {};
};

// Detects the format from names and contents of files. `label`: the column of a table's target;
// empty: it is detected too. Throws UsageError: "data-missing"; "no-column" if there is no such
// column; "unknown-data" with what the data would need, if it is in no known format.
FoundData findData(const std::string& path, const std::string& label = "");

}  // namespace cleave
