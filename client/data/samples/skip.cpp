#include "client/data/samples/skip.h"

#include <spdlog/fmt/fmt.h>

#include <mutex>
#include <set>
#include <utility>

#include "common/core/log.h"

namespace cleave {
namespace {

class SkipDamaged final : public Dataset {
 public:
  SkipDamaged(std::shared_ptr<const Dataset> data, std::uint32_t limit)
      : data_(std::move(data)), limit_(limit) {}

  std::uint32_t size() const override { return data_->size(); }
  std::vector<SampleArray> arrays() const override { return data_->arrays(); }
  int classes() const override { return data_->classes(); }
  std::vector<std::string> classNames() const override { return data_->classNames(); }
  std::optional<std::int64_t> label(std::uint32_t index) const override {
    return data_->label(index);
  }
  std::string sampleName(std::uint32_t index) const override { return data_->sampleName(index); }
  void identify(std::uint32_t index, Sha256& digest) const override {
    data_->identify(index, digest);
  }
  void identifyContent(std::uint32_t index, Sha256& digest) const override {
    data_->identifyContent(index, digest);
  }
  nlohmann::json learned() const override { return data_->learned(); }
  std::set<std::uint32_t> replaced() const {
    const std::lock_guard lock(mutex_);
    return damaged_;
  }

  void write(std::uint32_t index, std::optional<std::uint64_t> epoch,
             SampleMemory out) const override {
    // Terminates, because note() throws once more than `limit_` samples are damaged.
    for (std::uint32_t from = index;; from = (from + 1) % size()) {
      if (isKnown(from)) continue;
      try {
        data_->write(from, epoch, out);
        return;
      } catch (const SampleDamaged& error) {
        note(from, error);
      }
    }
  }

 private:
  bool isKnown(std::uint32_t index) const {
    const std::lock_guard lock(mutex_);
    return damaged_.contains(index);
  }

  void note(std::uint32_t index, const SampleDamaged& error) const {
    const std::lock_guard lock(mutex_);
    if (damaged_.contains(index)) return;
    if (damaged_.size() + 1 >= size()) {
      throw SampleDamaged(
          fmt::format("{}; at most one of {} samples can be read", error.what(), size()),
          "check the folder and the format of the data: data.format");
    }
    if (damaged_.size() >= limit_) {
      throw SampleDamaged(
          fmt::format("{}; damaged samples so far: {}, but data.skip allows {}", error.what(),
                      damaged_.size() + 1, limit_),
          "replace or remove the files that the warnings name, or set data.skip to a "
          "larger number; to list all: cleave-client data check --config FILE");
    }
    damaged_.insert(index);
    processLog()->warn("{}; another sample replaces it (damaged samples: {}; data.skip allows {})",
                       error.what(), damaged_.size(), limit_);
  }

  const std::shared_ptr<const Dataset> data_;
  const std::uint32_t limit_;
  mutable std::mutex mutex_;  // guards damaged_
  mutable std::set<std::uint32_t> damaged_;
};

}  // namespace

std::shared_ptr<const Dataset> skipDamaged(std::shared_ptr<const Dataset> data,
                                           std::uint32_t limit) {
  if (limit == 0) return data;
  return std::make_shared<SkipDamaged>(std::move(data), limit);
}

std::set<std::uint32_t> replacedSamples(const Dataset& data) {
  const auto* const skipping = dynamic_cast<const SkipDamaged*>(&data);
  return skipping == nullptr ? std::set<std::uint32_t>() : skipping->replaced();
}

}  // namespace cleave
