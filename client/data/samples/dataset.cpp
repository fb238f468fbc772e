#include "client/data/samples/dataset.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <utility>

#include "client/data/samples/data_digest.h"

namespace cleave {
namespace {

class Slice final : public Dataset {
 public:
  Slice(std::shared_ptr<const Dataset> whole, std::uint32_t first, std::uint32_t count)
      : whole_(std::move(whole)), first_(first), count_(count) {}

  std::uint32_t size() const override { return count_; }
  std::vector<SampleArray> arrays() const override { return whole_->arrays(); }
  int classes() const override { return whole_->classes(); }
  std::vector<std::string> classNames() const override { return whole_->classNames(); }
  std::string sampleName(std::uint32_t index) const override {
    return whole_->sampleName(first_ + index);
  }
  void identify(std::uint32_t index, Sha256& digest) const override {
    whole_->identify(first_ + index, digest);
  }
  void identifyContent(std::uint32_t index, Sha256& digest) const override {
    whole_->identifyContent(first_ + index, digest);
  }
  nlohmann::json learned() const override { return whole_->learned(); }
  std::optional<std::int64_t> label(std::uint32_t index) const override {
    return whole_->label(first_ + index);
  }

  void write(std::uint32_t index, std::optional<std::uint64_t> epoch,
             SampleMemory out) const override {
    assert(index < count_);
    whole_->write(first_ + index, epoch, out);
  }

 private:
  std::shared_ptr<const Dataset> whole_;
  std::uint32_t first_;
  std::uint32_t count_;
};

class Joined final : public Dataset {
 public:
  explicit Joined(std::vector<std::shared_ptr<const Dataset>> parts) : parts_(std::move(parts)) {
    for (const auto& part : parts_) {
      first_.push_back(size_);
      size_ += part->size();
    }
  }

  std::uint32_t size() const override { return size_; }
  std::vector<SampleArray> arrays() const override { return parts_.front()->arrays(); }
  int classes() const override { return parts_.front()->classes(); }
  std::vector<std::string> classNames() const override { return parts_.front()->classNames(); }
  nlohmann::json learned() const override { return parts_.front()->learned(); }
  std::string sampleName(std::uint32_t index) const override {
    const auto [part, own] = find(index);
    return part->sampleName(own);
  }
  void identify(std::uint32_t index, Sha256& digest) const override {
    const auto [part, own] = find(index);
    part->identify(own, digest);
  }
  void identifyContent(std::uint32_t index, Sha256& digest) const override {
    const auto [part, own] = find(index);
    part->identifyContent(own, digest);
  }
  std::optional<std::int64_t> label(std::uint32_t index) const override {
    const auto [part, own] = find(index);
    return part->label(own);
  }
  void write(std::uint32_t index, std::optional<std::uint64_t> epoch,
             SampleMemory out) const override {
    const auto [part, own] = find(index);
    part->write(own, epoch, out);
  }

 private:
  std::pair<const Dataset*, std::uint32_t> find(std::uint32_t index) const {
    assert(index < size_);
    const auto part = std::upper_bound(first_.begin(), first_.end(), index) - first_.begin() - 1;
    const auto n = static_cast<std::size_t>(part);
    return {parts_[n].get(), index - first_[n]};
  }

  const std::vector<std::shared_ptr<const Dataset>> parts_;
  std::vector<std::uint32_t> first_;  // of each part
  std::uint32_t size_ = 0;
};

}  // namespace

TensorSpec specOf(const SampleArray& array, std::uint32_t samples) {
  TensorSpec spec{array.dtype, {samples}, MemoryOrder::contiguous};
  spec.shape.insert(spec.shape.end(), array.shape.begin(), array.shape.end());
  return spec;
}

std::string toString(const SampleArray& array) {
  const std::string spec = toString(TensorSpec{array.dtype, array.shape, MemoryOrder::contiguous});
  return array.name.empty() ? spec : array.name + " " + spec;
}

std::optional<std::int64_t> Dataset::label(std::uint32_t) const { return std::nullopt; }

void Dataset::identify(std::uint32_t index, Sha256& digest) const {
  if (const std::optional<std::int64_t> known = label(index)) addValue(digest, *known);
}

void Dataset::identifyContent(std::uint32_t, Sha256&) const {}

std::string Dataset::sampleName(std::uint32_t index) const {
  return "sample " + std::to_string(index);
}

std::vector<SampleArray> LabeledDataset::arrays() const {
  return {{"", DType::f32, sampleShape()}, {"", DType::i64}};
}

void LabeledDataset::write(std::uint32_t index, std::optional<std::uint64_t> epoch,
                           SampleMemory out) const {
  const std::span<float> values(reinterpret_cast<float*>(out[0].data()),
                                out[0].size() / sizeof(float));
  const std::int64_t label = epoch ? readForTraining(index, *epoch, values) : read(index, values);
  std::memcpy(out[1].data(), &label, sizeof label);
}

std::unique_ptr<Dataset> sliceDataset(std::shared_ptr<const Dataset> whole, std::uint32_t first,
                                      std::uint32_t count) {
  if (std::uint64_t{first} + count > whole->size()) {
    throw UsageError("data-range",
                     std::to_string(count) + " samples from sample " + std::to_string(first) +
                         " on are requested from data with " + std::to_string(whole->size()) +
                         " samples",
                     "ask for fewer samples in the configuration");
  }
  return std::make_unique<Slice>(std::move(whole), first, count);
}

bool isSameLearned(const nlohmann::json& recorded, nlohmann::json now) {
  const auto isUnrecorded = [](const nlohmann::json& before, const nlohmann::json& column) {
    return !before.contains("form") && column.contains("form") &&
           column.at("form").at("unit").get<std::string>().empty();
  };
  if (recorded.is_object() && now.is_object() && now.contains("columns")) {
    const nlohmann::json before = recorded.value("columns", nlohmann::json::array());
    nlohmann::json& columns = now.at("columns");
    for (std::size_t n = 0; n < std::min(before.size(), columns.size()); ++n) {
      if (isUnrecorded(before[n], columns[n])) columns[n].erase("form");
    }
  }
  if (recorded.is_object() && recorded.contains("target") && now.contains("target") &&
      isUnrecorded(recorded.at("target"), now.at("target"))) {
    now.at("target").erase("form");
  }
  return recorded == now;
}

std::string classNameOf(const std::vector<std::string>& names, std::size_t index) {
  return index < names.size() ? names[index] : std::to_string(index);
}

void throwDifferentSizes(const std::string& sentence) {
  throw UsageError("sample-size", sentence + ", and the model needs one size",
                   "set data.resize to the height and width for the model, such as 224")
      .about(kResizeKey);
}

bool isAugmented(const ImageOptions& options) {
  return options.flip || options.cropPadding > 0 || !options.cropScale.empty() ||
         options.brightness > 0 || options.contrast > 0 || options.saturation > 0 ||
         options.hue > 0 || options.erasing > 0;
}

bool changesPixels(const ImageOptions& options) {
  return isAugmented(options) || options.resize > 0 || options.crop > 0;
}

std::unique_ptr<Dataset> joinDatasets(std::vector<std::shared_ptr<const Dataset>> parts) {
  assert(!parts.empty());
  const Dataset& first = *parts.front();
  for (const auto& part : parts) {
    if (part->arrays() == first.arrays() && part->classes() == first.classes()) continue;
    throw UsageError("other-data", "the parts of the data have different shapes or classes",
                     "give parts of one kind of data");
  }
  return std::make_unique<Joined>(std::move(parts));
}

}  // namespace cleave
