#include "client/data/dataset.h"

#include <cassert>
#include <utility>

namespace cleave {
namespace {

class Slice final : public Dataset {
 public:
  Slice(std::shared_ptr<const Dataset> whole, std::uint32_t first, std::uint32_t count)
      : whole_(std::move(whole)), first_(first), count_(count) {}

  std::uint32_t size() const override { return count_; }
  std::vector<std::int64_t> sampleShape() const override { return whole_->sampleShape(); }
  int classes() const override { return whole_->classes(); }

  std::int64_t read(std::uint32_t index, std::span<float> out) const override {
    assert(index < count_);
    return whole_->read(first_ + index, out);
  }

  std::int64_t readForTraining(std::uint32_t index, std::uint64_t epoch,
                               std::span<float> out) const override {
    assert(index < count_);
    return whole_->readForTraining(first_ + index, epoch, out);
  }

 private:
  std::shared_ptr<const Dataset> whole_;
  std::uint32_t first_;
  std::uint32_t count_;
};

}  // namespace

std::unique_ptr<Dataset> sliceDataset(std::shared_ptr<const Dataset> whole, std::uint32_t first,
                                      std::uint32_t count) {
  if (std::uint64_t{first} + count > whole->size()) {
    throw UsageError(
        "data-range",
        "samples " + std::to_string(first) + " to " + std::to_string(std::uint64_t{first} + count) +
            " are requested from data with " + std::to_string(whole->size()) + " samples",
        "ask for fewer samples in the configuration");
  }
  return std::make_unique<Slice>(std::move(whole), first, count);
}

}  // namespace cleave
