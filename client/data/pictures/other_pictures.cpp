#include "client/data/pictures/other_pictures.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cctype>
#include <utility>
#include <vector>

#include "common/core/printable.h"

namespace cleave {
namespace {

using namespace std::string_view_literals;

struct Magic {
  std::size_t at = 0;
  std::string_view bytes = {};  // empty: unused
};

struct OtherFormat {
  std::string_view name;
  bool isMedical;  // volumes and 16-bit values, which need more than another file format
  std::array<std::string_view, 4> extensions;
  std::array<Magic, 4> magics;
};

// In the order in which files of equal number are listed.
constexpr OtherFormat kOtherFormats[] = {
    {"TIFF", false, {".tiff", ".tif"}, {{{0, "II*\0"sv}, {0, "MM\0*"sv}, {0, "II+\0"sv}}}},
    {"BMP", false, {".bmp", ".dib"}, {{{0, "BM"}}}},
    {"HEIC",
     false,
     {".heic", ".heif", ".hif"},
     {{{4, "ftyphei"}, {4, "ftypmif1"}, {4, "ftyphev"}}}},
    {"AVIF", false, {".avif"}, {{{4, "ftypavi"}}}},
    {"GIF", false, {".gif"}, {{{0, "GIF8"}}}},
    {"JPEG 2000", false, {".jp2", ".j2k"}, {{{4, "jP  "}, {0, "\xFF\x4F\xFF\x51"}}}},
    {"JPEG XL", false, {".jxl"}, {{{0, "\xFF\x0A"}, {4, "JXL "}}}},
    {"PNM", false, {".ppm", ".pgm", ".pbm", ".pnm"}, {{{0, "P4\n"}, {0, "P5\n"}, {0, "P6\n"}}}},
    {"DICOM", true, {".dcm", ".dicom"}, {{{128, "DICM"}}}},
    {"NIfTI", true, {".nii.gz", ".nii"}, {{{344, "n+1\0"sv}, {344, "ni1\0"sv}}}},
};

constexpr const char* kMedicalHint =
    "convert {} to .npy for data.format: tensors, as docs/data.md#dicom-and-nifti shows";

// The position in kOtherFormats; their number if the extension belongs to none.
std::size_t rankOf(std::string_view extension) {
  if (extension.empty()) return std::size(kOtherFormats);
  const auto* found =
      std::find_if(std::begin(kOtherFormats), std::end(kOtherFormats), [&](const auto& row) {
        return std::find(row.extensions.begin(), row.extensions.end(), extension) !=
               row.extensions.end();
      });
  return static_cast<std::size_t>(found - std::begin(kOtherFormats));
}

bool isPicture(std::string_view extension) { return rankOf(extension) < std::size(kOtherFormats); }

// In lower case, with the dot; empty: none, or no usual one.
std::string extensionOf(std::string_view path) {
  constexpr std::size_t kMaxBytes = 12;
  std::string name(path.substr(path.rfind('/') + 1));  // the whole path if there is no slash
  for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  if (name.ends_with(".nii.gz")) return ".nii.gz";
  const std::size_t dot = name.rfind('.');
  if (dot == std::string::npos || dot == 0 || dot + 1 == name.size()) return "";
  const std::string extension = name.substr(dot);
  return extension.size() <= kMaxBytes && printable(extension) == extension ? extension : "";
}

}  // namespace

std::string_view otherPictureFormat(std::span<const std::byte> content) {
  const std::string_view bytes(reinterpret_cast<const char*>(content.data()), content.size());
  for (const OtherFormat& row : kOtherFormats) {
    for (const Magic& magic : row.magics) {
      if (magic.bytes.empty() || bytes.size() < magic.at) continue;
      if (bytes.substr(magic.at).starts_with(magic.bytes)) return row.name;
    }
  }
  return {};
}

bool isOtherPicture(std::string_view path) { return isPicture(extensionOf(path)); }

std::string conversionHint(std::string_view format) {
  const bool isMedical =
      std::any_of(std::begin(kOtherFormats), std::end(kOtherFormats),
                  [&](const OtherFormat& row) { return row.name == format && row.isMedical; });
  if (isMedical) return fmt::format(fmt::runtime(kMedicalHint), "such files");
  return "convert it to PNG, as ImageMagick's 'mogrify -format png FILE' does, and use the new "
         "file";
}

void SkippedFiles::add(std::string_view path) {
  constexpr std::size_t kMaxExtensions = 1000;
  std::string extension = extensionOf(path);
  if (counts_.size() >= kMaxExtensions && !counts_.contains(extension)) extension.clear();
  ++counts_[extension];
}

bool SkippedFiles::hasPictures() const {
  return std::any_of(counts_.begin(), counts_.end(),
                     [](const auto& each) { return isPicture(each.first); });
}

std::string SkippedFiles::text() const {
  constexpr std::size_t kShown = 8;
  std::vector<std::pair<std::string, std::uint64_t>> sorted(counts_.begin(), counts_.end());
  std::stable_sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) {
    return a.second != b.second ? a.second > b.second : rankOf(a.first) < rankOf(b.first);
  });
  std::string text;
  std::uint64_t others = 0;
  for (std::size_t n = 0; n < sorted.size(); ++n) {
    const auto& [extension, count] = sorted[n];
    if (n >= kShown) {
      others += count;
      continue;
    }
    text += fmt::format("{}{} {}", n == 0 ? "" : ", ", count,
                        extension.empty() ? "without extension" : extension);
  }
  if (others > 0) text += fmt::format(", {} others", others);
  return text;
}

std::string SkippedFiles::hint(const std::string& folder) const {
  std::string names;
  bool isMedical = false;
  for (const auto& [extension, count] : counts_) {
    if (!isPicture(extension)) continue;
    if (kOtherFormats[rankOf(extension)].isMedical) {
      isMedical = true;
    } else {
      names += fmt::format("{}-iname '*{}'", names.empty() ? "" : " -o ", extension);
    }
  }
  std::string hint;
  if (!names.empty() && folder.empty()) {
    hint = "convert the pictures to PNG, and write the archive again";
  } else if (!names.empty()) {
    const bool isOne = names.find(" -o ") == std::string::npos;
    hint = fmt::format(
        "convert the pictures with ImageMagick: find {} {} -exec mogrify -format png "
        "{{}} +",
        shellQuoted(folder), isOne ? names : "\\( " + names + " \\)");
  }
  if (isMedical) {
    hint += (hint.empty() ? "" : "; ") +
            fmt::format(fmt::runtime(kMedicalHint), "DICOM and NIfTI files");
  }
  return hint;
}

}  // namespace cleave
