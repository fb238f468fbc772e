#include "client/data/samples/check.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "client/data/samples/loader.h"
#include "common/core/units.h"

namespace cleave {
namespace {

// Zeros replace the samples that cannot be read, so that a Loader continues.
class CheckedSet final : public Dataset {
 public:
  explicit CheckedSet(std::shared_ptr<const Dataset> data)
      : data_(std::move(data)), arrays_(data_->arrays()) {}

  std::uint32_t size() const override { return data_->size(); }
  std::vector<SampleArray> arrays() const override { return arrays_; }
  int classes() const override { return data_->classes(); }

  void write(std::uint32_t index, std::optional<std::uint64_t> epoch,
             SampleMemory out) const override {
    try {
      data_->write(index, epoch, out);
      for (std::size_t a = 0; a < arrays_.size(); ++a) {
        const std::size_t values = arrays_[a].dtype == DType::f32 ? notFinite(out[a]) : 0;
        if (values == 0) continue;
        const std::string& name = arrays_[a].name;
        note(index,
             fmt::format("has {} not finite{}",
                         values == 1 ? "a value that is" : countText(values, "value") + " that are",
                         name.empty() ? "" : ", in the array " + name),
             "correct the values, or remove the sample");
      }
    } catch (const UsageError& error) {
      std::string reason = error.what();
      const std::string name = data_->sampleName(index) + " ";
      if (reason.starts_with(name)) reason.erase(0, name.size());
      note(index, reason, error.key() == kSkipKey ? "" : error.hint());
      for (const std::span<std::byte> array : out) std::memset(array.data(), 0, array.size());
    }
  }

  // Removes what is wrong with a sample; empty if nothing is. The name is not set.
  std::optional<DamagedSample> takeDamage(std::uint32_t index) const {
    const std::lock_guard lock(mutex_);
    const auto found = damaged_.extract(index);
    return found ? std::optional(std::move(found.mapped())) : std::nullopt;
  }

 private:
  static std::size_t notFinite(std::span<const std::byte> bytes) {
    std::size_t count = 0;
    for (std::size_t at = 0; at + sizeof(float) <= bytes.size(); at += sizeof(float)) {
      float value;
      std::memcpy(&value, bytes.data() + at, sizeof value);
      count += std::isfinite(value) ? 0 : 1;
    }
    return count;
  }

  void note(std::uint32_t index, const std::string& reason, const std::string& hint) const {
    const std::lock_guard lock(mutex_);
    damaged_.emplace(index, DamagedSample{index, "", reason, hint});
  }

  const std::shared_ptr<const Dataset> data_;
  const std::vector<SampleArray> arrays_;
  mutable std::mutex mutex_;  // guards damaged_
  mutable std::map<std::uint32_t, DamagedSample> damaged_;
};

// Batches are small enough for all threads to have work, and limited in bytes.
Loader::Options loaderOptions(const Dataset& data, std::uint32_t threads) {
  constexpr std::size_t kBatchBytes = std::size_t{64} << 20;
  constexpr std::size_t kMaxBatch = 256;
  std::size_t bytes = 1;
  for (const SampleArray& array : data.arrays()) bytes += specOf(array, 1).bytes();
  Loader::Options options;
  options.threads = threads;
  options.batch =
      static_cast<std::uint32_t>(std::clamp<std::size_t>(kBatchBytes / bytes, 1, kMaxBatch));
  options.ahead = 1 + threads / options.batch;
  return options;
}

}  // namespace

std::uint32_t checkSamples(std::shared_ptr<const Dataset> data, const CheckOptions& options) {
  const auto checked = std::make_shared<const CheckedSet>(data);
  Loader loader(checked, std::make_shared<BufferPool>(), loaderOptions(*data, options.threads));
  std::uint32_t damaged = 0, done = 0;
  while (const auto batch = loader.next()) {
    for (const std::uint32_t index : batch->numbers) {
      std::optional<DamagedSample> sample = checked->takeDamage(index);
      if (!sample) continue;
      ++damaged;
      sample->name = data->sampleName(index);
      if (options.found) options.found(*sample);
    }
    done += batch->samples();
    if (options.progress) options.progress(done);
  }
  return damaged;
}

}  // namespace cleave
