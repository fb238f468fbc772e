// Pictures that Cleave does not read, such as TIFF: recognises them, and says how to convert them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>

namespace cleave {

// The name of the format of a file with this content, such as "TIFF"; empty if it is none of those
// that can be converted.
std::string_view otherPictureFormat(std::span<const std::byte> content);
// Whether the extension is of one of these formats, in upper or lower case.
bool isOtherPicture(std::string_view path);
// How to convert a file of a format that otherPictureFormat() has returned.
std::string conversionHint(std::string_view format);

// Counts files by their extensions.
class SkippedFiles {
 public:
  void add(std::string_view path);
  bool isEmpty() const { return counts_.empty(); }
  // Whether pictures that can be converted are among them.
  bool hasPictures() const;
  // "2 .tiff, 1 .bmp, 3 without extension": the most frequent ones first.
  std::string text() const;
  // How to convert the pictures among them. `folder`: contains all files; empty: they are in
  // archives.
  std::string hint(const std::string& folder) const;

 private:
  std::map<std::string, std::uint64_t, std::less<>> counts_;  // by extension, such as ".tiff"
};

}  // namespace cleave
