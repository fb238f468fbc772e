// Damage of the data themselves, as opposed to wrong settings and paths. No Torch.
#pragma once

#include <functional>
#include <string>

#include "common/core/error.h"

namespace cleave {

// Readers throw this for anything that is wrong with the content of a file.
class DataError : public UsageError {
 public:
  using UsageError::UsageError;
};

// Receives a damaged part of a data set, such as a row, which is then left out. `name`:
// "FILE:LINE", or the file. Null: damage is thrown.
using DamageReport = std::function<void(const std::string& name, const DataError& error)>;

// Calls work(). If it throws a DataError and `report` is set, reports the error and returns false.
template <typename Work>
bool orReport(const DamageReport& report, const std::string& name, const Work& work) {
  try {
    work();
    return true;
  } catch (const DataError& error) {
    if (!report) throw;
    report(name, error);
    return false;
  }
}

}  // namespace cleave
