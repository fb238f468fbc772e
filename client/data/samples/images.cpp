#include "client/data/samples/images.h"

#include <algorithm>
#include <cassert>
#include <string>
#include <utility>

#include "client/data/samples/data_digest.h"
#include "client/data/samples/transforms.h"

namespace cleave {
namespace {

class Images final : public LabeledDataset {
 public:
  Images(ImageStore store, const ImageOptions& options)
      : store_(std::move(store)), transforms_(options, store_.shape.at(0)) {
    const std::int64_t height = store_.shape.at(1);
    const std::int64_t width = store_.shape.at(2);
    if (options.cropPadding > std::min(height, width)) {
      throw UsageError("bad-image-transform",
                       "the padding of " + std::to_string(options.cropPadding) +
                           " pixels is larger than the images' " + std::to_string(height) + " x " +
                           std::to_string(width),
                       "pad with fewer pixels, such as 4")
          .about("data.augment.crop_padding");
    }
    shape_ = transforms_.outputShape(height, width);
  }

  std::uint32_t size() const override { return static_cast<std::uint32_t>(store_.labels.size()); }
  std::vector<std::int64_t> sampleShape() const override { return shape_; }
  int classes() const override { return store_.classes; }
  std::optional<std::int64_t> label(std::uint32_t index) const override {
    return store_.labels[index];
  }
  void identifyContent(std::uint32_t index, Sha256& digest) const override {
    const auto bytes =
        static_cast<std::size_t>(store_.shape[0] * store_.shape[1] * store_.shape[2]);
    addPart(digest,
            std::as_bytes(
                std::span(store_.bytes).subspan(store_.first + index * store_.stride, bytes)));
  }

  std::int64_t read(std::uint32_t index, std::span<float> out) const override {
    return transform(index, std::nullopt, out);
  }
  std::int64_t readForTraining(std::uint32_t index, std::uint64_t epoch,
                               std::span<float> out) const override {
    return transform(index, epoch, out);
  }

 private:
  std::int64_t transform(std::uint32_t index, std::optional<std::uint64_t> epoch,
                         std::span<float> out) const {
    assert(index < size());
    const std::int64_t height = store_.shape[1];
    const std::int64_t width = store_.shape[2];
    const std::uint8_t* bytes = store_.bytes.data() + store_.first + index * store_.stride;
    transforms_.apply(ImageView{bytes, height, width, height * width, width, 1}, index, epoch, out);
    return store_.labels[index];
  }

  ImageStore store_;
  ImageTransforms transforms_;
  std::vector<std::int64_t> shape_;  // of a sample
};

}  // namespace

std::unique_ptr<LabeledDataset> makeImages(ImageStore store, const ImageOptions& options) {
  return std::make_unique<Images>(std::move(store), options);
}

}  // namespace cleave
