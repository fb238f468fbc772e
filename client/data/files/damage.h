// Damage of the data themselves, as opposed to wrong settings and paths. No Torch.
#pragma once

#include <functional>
#include <string>
#include <utility>

#include "common/core/error.h"

namespace cleave {

// Error::key() of SampleDamaged.
inline constexpr const char* kSkipKey = "data.skip";

// Readers throw this for anything that is wrong with the content of a file.
class DataError : public UsageError {
 public:
  using UsageError::UsageError;
};

// A sample that cannot be read. With data.skip, another one replaces it.
class SampleDamaged : public DataError {
 public:
  SampleDamaged(const std::string& sentence, std::string hint)
      : DataError("sample-damaged", sentence, std::move(hint)) {
    key_ = kSkipKey;
  }
};

// A file or folder of the data that cannot be read.
class DataMissing : public UsageError {
 public:
  DataMissing(const std::string& sentence, std::string hint)
      : UsageError("data-missing", sentence, std::move(hint)) {}
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
