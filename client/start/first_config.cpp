#include "client/start/first_config.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <map>

#include "common/core/config.h"
#include "common/core/printable.h"

namespace cleave {
namespace {

constexpr std::int64_t kSmallImage = 64;  // pixels; below it, a small model suffices

std::int64_t shorterSide(const ImageHeader& image) { return std::min(image.height, image.width); }

bool areEqual(const std::vector<ImageHeader>& sizes) {
  return std::all_of(sizes.begin(), sizes.end(), [&](const ImageHeader& each) {
    return each.height == sizes[0].height && each.width == sizes[0].width;
  });
}

std::string sizesText(const std::vector<ImageHeader>& sizes) {
  const auto textOf = [](const ImageHeader& image) {
    return fmt::format("{} x {}", image.width, image.height);
  };
  if (areEqual(sizes)) return textOf(sizes[0]);
  const auto [min, max] = std::minmax_element(
      sizes.begin(), sizes.end(),
      [](const auto& a, const auto& b) { return a.width * a.height < b.width * b.height; });
  return textOf(*min) + " to " + textOf(*max);
}

std::int64_t medianSide(const std::vector<ImageHeader>& sizes) {
  std::vector<std::int64_t> sides;
  for (const ImageHeader& image : sizes) sides.push_back(shorterSide(image));
  const auto middle = sides.begin() + static_cast<std::ptrdiff_t>(sides.size() / 2);
  std::nth_element(sides.begin(), middle, sides.end());
  return *middle;
}

// For squares of `side` pixels. Large ones are cropped from a slightly larger image, as is usual
// for ImageNet's models: 256 to 224.
void resizeTo(std::int64_t side, ImageChoice& choice) {
  constexpr std::int64_t kCropped = 160;
  choice.crop = side;
  choice.resize = side < kCropped ? side : (side * 8 + 6) / 7;
  choice.reason += fmt::format(
      "; the shorter side becomes {}, and the {} x {} pixels at the centre "
      "are used",
      choice.resize, side, side);
}

// Whether YAML reads the text as the same text without quotes, also within [ ] and { }.
bool isPlain(const std::string& text) {
  const bool hasLetter = std::any_of(text.begin(), text.end(), [](unsigned char c) {
    return std::isalpha(c) != 0 && std::tolower(c) != 'e' && std::tolower(c) != 'x';
  });
  const bool isSafe = std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '/' || c == '.' || c == '_' || c == '-';
  });
  std::string lower = text;
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  for (const char* word :
       {"true", "false", "yes", "no", "on", "off", "null", "y", "n", ".inf", ".nan"}) {
    if (lower == word) return false;
  }
  return hasLetter && isSafe && !text.starts_with('-');
}

std::string comment(const std::string& text) {
  constexpr std::size_t kWidth = 110;
  std::string lines, line = "#";
  std::size_t at = 0;
  while (at < text.size()) {
    const std::size_t end = std::min(text.find(' ', at), text.size());
    if (line.size() > 1 && line.size() + 1 + (end - at) > kWidth) {
      lines += line + "\n";
      line = "#";
    }
    line += " " + text.substr(at, end - at);
    at = end + 1;
  }
  return lines + line + "\n";
}

// "  train: {folder: photos/train}\n" for the keys of one split, "  folder: x\n" for others.
std::string dataKeys(const FoundData& data) {
  std::string text;
  std::map<std::string, std::string> splits;
  std::vector<std::string> order;
  for (const auto& [key, value] : data.keys) {
    const std::size_t dot = key.find('.');
    if (dot == std::string::npos) {
      text += fmt::format("  {}: {}\n", key, yamlScalar(value));
      continue;
    }
    const std::string split = key.substr(0, dot);
    if (!splits.contains(split)) order.push_back(split);
    std::string& inner = splits[split];
    inner +=
        fmt::format("{}{}: {}", inner.empty() ? "" : ", ", key.substr(dot + 1), yamlScalar(value));
  }
  std::string before;
  for (const std::string& split : order)
    before += fmt::format("  {}: {{{}}}\n", split, splits[split]);
  return before + text;
}

std::string imageKeys(const FirstConfig& config) {
  const ImageChoice& images = *config.images;
  std::string text;
  if (images.resize > 0)
    text += fmt::format("  resize: {}\n  crop: {}\n", images.resize, images.crop);
  if (!config.hasColours) {
    text += "  mean: 0.5\n  std: 0.5\n";
  } else {
    text +=
        "  mean: imagenet           # the usual statistics of photos; use those with which your "
        "weights were trained\n  std: imagenet\n";
  }
  return text +
         "  augment: {flip: true}    # remove this if left and right have a meaning, as in text\n";
}

std::string dataSection(const FirstConfig& config) {
  std::string text = comment(config.dataComment);
  if (config.images) text += comment("Images: " + config.images->reason + ".");
  text += "data:\n  format: " + config.data.format + "\n" + dataKeys(config.data);
  if (config.holdout > 0) {
    text += fmt::format(
        "  holdout: {}             # there is no test set, so these samples are "
        "used to evaluate, not to train\n",
        config.holdout);
  }
  if (config.classes > 0) text += fmt::format("  classes: {}\n", config.classes);
  if (config.length > 0)
    text += fmt::format("  length: {}              # tokens per text\n", config.length);
  if (config.images) {
    if (config.images->channels == 1 && config.data.format != "idx") text += "  channels: 1\n";
    text += imageKeys(config);
  }
  return text;
}

}  // namespace

ImageChoice chooseImages(const std::vector<ImageHeader>& sizes,
                         const std::optional<ImageInput>& model) {
  ImageChoice choice;
  choice.reason = sizesText(sizes) + " pixels";
  if (model) {
    choice.channels = model->channels;
    const bool fits =
        areEqual(sizes) && sizes[0].height == model->height && sizes[0].width == model->width;
    choice.reason += fmt::format("; the model takes {} x {}", model->width, model->height);
    if (fits) return choice;
    if (model->height != model->width) {
      throw UsageError("bad-input",
                       fmt::format("the model takes images of {} x {} pixels, but the data has {}, "
                                   "and images can only be resized to squares",
                                   model->width, model->height, sizesText(sizes)),
                       "export the model with square images, or resize the images before training");
    }
    resizeTo(model->height, choice);
    return choice;
  }
  const std::int64_t side = medianSide(sizes);
  choice.builtIn = side < kSmallImage ? "small_cnn" : "mobilenet_v2";
  if (side < kSmallImage && areEqual(sizes)) return choice;
  if (side < kSmallImage) {
    resizeTo(32, choice);
  } else {
    constexpr std::int64_t kImageNet = 224, kStep = 32;
    resizeTo(std::min(kImageNet, side / kStep * kStep), choice);
  }
  return choice;
}

BatchChoice chooseBatch(std::uint32_t trainingSamples) {
  constexpr std::uint32_t kMax = 32, kMin = 4, kPerMicroBatch = 8, kMaxMicroBatches = 4;
  std::uint32_t batch = kMax;
  while (batch > kMin && batch * 4 > trainingSamples) batch /= 2;
  batch = std::clamp(trainingSamples, 1u, batch);
  // The last batch of an epoch should not be tiny either.
  for (std::uint32_t tried = batch; tried > batch / 2; --tried) {
    const std::uint32_t rest = trainingSamples % tried;
    if (rest != 0 && rest < std::min(kPerMicroBatch, tried / 2)) continue;
    batch = tried;
    break;
  }
  return {batch, std::clamp(batch / kPerMicroBatch, 1u, kMaxMicroBatches)};
}

std::string yamlScalar(const std::string& text) { return isPlain(text) ? text : quotedYaml(text); }

std::string yamlOf(const FirstConfig& config) {
  std::string text = comment("Written by: " + config.madeFor) +
                     "# All keys: cleave-client keys, or docs/configuration.md\n\n";
  text += fmt::format("run: {{name: {}}}\n\n", yamlScalar(config.name));
  for (const std::string& each : config.modelComments) text += comment(each);
  text += "model: " + config.model + "\n\n" + dataSection(config) + "\n";
  text += "train:\n";
  if (!config.loss.empty()) text += "  loss: " + config.loss + "\n";
  text += fmt::format(
      "  epochs: 10\n"
      "  batch: {}\n"
      "  # Parts of a batch, so that both machines and the link work at the same time. Batch norm "
      "needs about 8\n  # samples in each.\n"
      "  micro_batches: {}\n"
      "  optimizer: adamw\n"
      "  learning_rate: {{schedule: cosine, peak: {}}}\n",
      config.batch.batch, config.batch.microBatches, config.learningRate);
  if (!config.bestMetric.empty()) {
    text += fmt::format("\nkeep: {{best: {}}}         # also keeps the model of the best epoch\n",
                        config.bestMetric);
  }
  return text;
}

}  // namespace cleave
