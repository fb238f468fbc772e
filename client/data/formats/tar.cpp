// The data format `tar`: WebDataset shards. Consecutive members with the same name up to the first
// dot form a sample: KEY.jpg (.jpeg, .png, .webp) and KEY.cls, a text with the class. Other members
// are ignored, also further images such as KEY.seg.png. Samples with another picture instead of an
// image, such as KEY.tiff, are skipped with a warning. Hard and symbolic links to members of the
// same archive are read as these members. The archives are read once to index their members, twice
// if they have links. Samples are then read at the indexed positions; no archive stays open.
#include <archive.h>
#include <archive_entry.h>
#include <fcntl.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <utility>

#include "client/data/files/cells.h"
#include "client/data/files/unicode.h"
#include "client/data/formats/encoded_images.h"
#include "client/data/formats/image_formats.h"
#include "client/data/pictures/image_file.h"
#include "common/core/open_file.h"
#include "common/core/printable.h"

namespace cleave {
namespace {

constexpr std::uint64_t kMaxMemberBytes = std::uint64_t{1} << 30;

struct Member {
  std::uint32_t shard = 0;
  std::uint64_t offset = 0, size = 0;
};

struct ShardSample {
  std::string key;
  Member image, label;
  std::string imageName;  // the member's name
};

[[noreturn]] void refuseTar(const std::string& path, const std::string& fault,
                            const std::string& hint = "copy or write the file again") {
  throw DataError("data-damaged", path + " " + fault, hint);
}

// Throws if the file is missing, compressed or empty.
void checkIsPlainTar(const std::string& path) {
  const OpenFile file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  char first[262] = {};
  const ssize_t got = file ? ::read(file.get(), first, sizeof first) : -1;
  if (got < 0) {
    throw DataMissing(path + " cannot be read: " + std::strerror(errno),
                      "check the path of the data in the configuration");
  }
  if (got == 0) throw DataError("data-empty", path + " is empty", "copy or write the file again");
  const std::string_view bytes(first, static_cast<std::size_t>(got));
  constexpr std::size_t kMagicAt = 257;
  if (bytes.size() > kMagicAt && bytes.substr(kMagicAt).starts_with("ustar")) return;
  const std::pair<std::string_view, const char*> kCompressions[] = {{"\x1F\x8B", "gunzip"},
                                                                    {"BZh", "bunzip2"},
                                                                    {"\xFD"
                                                                     "7zXZ",
                                                                     "unxz"},
                                                                    {"\x28\xB5\x2F\xFD", "unzstd"},
                                                                    {"\x04\x22\x4D\x18", "unlz4"}};
  for (const auto& [magic, program] : kCompressions) {
    if (!bytes.starts_with(magic)) continue;
    refuseTar(path, "is compressed, but samples are read in random order",
              fmt::format("unpack it first: {} {}", program, path));
  }
}

struct ArchiveCloser {
  void operator()(archive* open) const { archive_read_free(open); }
};

// The name of a member without "." and "..".
std::string normalName(const std::filesystem::path& name) {
  return name.lexically_normal().string();
}

// The member that a hard or symbolic link names; empty if the entry is no link.
std::string linkTarget(archive_entry* entry, const std::string& name) {
  if (const char* target = archive_entry_hardlink(entry)) return normalName(target);
  if (archive_entry_filetype(entry) != AE_IFLNK) return "";
  const char* target = archive_entry_symlink(entry);
  return target == nullptr ? "" : normalName(std::filesystem::path(name).parent_path() / target);
}

// Calls visit(name, member, target) for each regular file in the archive, and for each link, whose
// `member` is empty and whose `target` is not.
template <typename Visit>
void visitMembers(const std::string& path, std::uint32_t shard, Visit visit) {
  constexpr std::size_t kBlock = std::size_t{1} << 16;
  checkIsPlainTar(path);
  const std::unique_ptr<archive, ArchiveCloser> tar(archive_read_new());
  archive_read_support_format_tar(tar.get());
  if (archive_read_open_filename(tar.get(), path.c_str(), kBlock) != ARCHIVE_OK) {
    refuseTar(path, std::string("cannot be read as tar: ") + archive_error_string(tar.get()));
  }
  archive_entry* entry = nullptr;
  for (;;) {
    const int result = archive_read_next_header(tar.get(), &entry);
    if (result == ARCHIVE_EOF) return;
    if (result != ARCHIVE_OK && result != ARCHIVE_WARN) {
      refuseTar(path, std::string("cannot be read as tar: ") + archive_error_string(tar.get()));
    }
    const char* entryName = archive_entry_pathname(entry);
    if (entryName == nullptr) continue;
    const std::string name = entryName;
    const std::string target = linkTarget(entry, name);
    if (!target.empty() && archive_entry_size(entry) == 0) {
      visit(name, Member{}, target);
      continue;
    }
    if (archive_entry_filetype(entry) != AE_IFREG) continue;
    const auto size = static_cast<std::uint64_t>(archive_entry_size(entry));
    if (archive_entry_sparse_count(entry) > 0 || size > kMaxMemberBytes) {
      refuseTar(path, fmt::format("has a member, {}, that is sparse or larger than 1 GiB",
                                  printable(name)));
    }
    // The header has been read, so the member's content begins here.
    visit(name, Member{shard, static_cast<std::uint64_t>(archive_filter_bytes(tar.get(), 0)), size},
          std::string());
  }
}

std::vector<std::byte> readMember(const std::string& path, const Member& member,
                                  const std::string& name) {
  const auto fail = [&](const std::string& why) {
    throwDamagedImage(name, "cannot be read: " + why);
  };
  const OpenFile file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) fail(std::strerror(errno));
  std::vector<std::byte> bytes(member.size);
  std::size_t taken = 0;
  while (taken < bytes.size()) {
    const ssize_t got = ::pread(file.get(), bytes.data() + taken, bytes.size() - taken,
                                static_cast<off_t>(member.offset + taken));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail(std::strerror(errno));
    if (got == 0) fail("the archive has shrunk");
    taken += static_cast<std::size_t>(got);
  }
  return bytes;
}

std::vector<std::string> shardsOf(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_directory(path, error)) return {path};
  std::vector<std::string> shards;
  for (const auto& entry : std::filesystem::directory_iterator(path, error)) {
    const std::string name = entry.path().filename();
    if (!name.starts_with('.') && name.ends_with(".tar")) shards.push_back(entry.path());
  }
  if (shards.empty()) {
    throw DataMissing(
        path + (error ? " cannot be read: " + error.message() : std::string(" has no .tar files")),
        "give a .tar file, or a folder of them");
  }
  std::sort(shards.begin(), shards.end());
  return shards;
}

// Reads the class from a .cls member. `name`: the member's, for messages.
std::string readLabel(const std::string& shard, const Member& label, const std::string& name) {
  constexpr std::size_t kMaxBytes = 1024;
  if (label.size > kMaxBytes) refuseTar(name, "has more than 1024 bytes, too many for a label");
  const std::vector<std::byte> bytes = readMember(shard, label, name);
  std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);  // the byte order mark
  while (!text.empty() && text.back() == '\n') text = trimmed(text.substr(0, text.size() - 1));
  while (!text.empty() && text.front() == '\n') text = trimmed(text.substr(1));
  if (const std::size_t at = findInvalidUtf8(text); at != std::string_view::npos) {
    throw DataError("data-damaged",
                    fmt::format("{}: byte {} of the label '{}', 0x{:02X}, is not UTF-8", name,
                                at + 1, printable(text, 60), static_cast<unsigned char>(text[at])),
                    "write the archive again, with labels converted for example by: iconv -f "
                    "WINDOWS-1252 -t UTF-8 KEY.cls");
  }
  return std::string(text);
}

struct TarIndex {
  std::vector<ShardSample> samples;
  SkippedFiles skipped;  // pictures that cannot be read
};

// Adds the samples of one archive to an index.
class ShardIndexer {
 public:
  ShardIndexer(std::string path, std::uint32_t shard, TarIndex& index, const DamageReport& report)
      : path_(std::move(path)), shard_(shard), index_(index), report_(report) {}

  void read() {
    visitMembers(path_, shard_, [&](const std::string& name, Member member, const std::string& to) {
      if (!to.empty()) {  // a link: until resolveLinks(), its size is its position in links_
        member = {shard_, kLinkOffset, links_.size()};
        links_.push_back({normalName(name), to});
      }
      take(name, member);
    });
    finishSample();
    if (!links_.empty()) resolveLinks();
  }

 private:
  static constexpr std::uint64_t kLinkOffset = UINT64_MAX;
  struct Link {
    std::string name, target;
  };
  struct Image {
    std::string name, field;  // "a/0001.seg.png", "seg.png"
    Member member;
  };

  void take(const std::string& name, const Member& member) {
    const std::size_t file = name.rfind('/') + 1;          // 0 if there is no slash
    if (file == name.size() || name[file] == '.') return;  // hidden
    const std::size_t dot = std::min(name.find('.', file), name.size());
    const std::string key = name.substr(0, dot);
    if (key != key_) finishSample();
    key_ = key;
    if (dot == name.size()) return;
    const std::string field = name.substr(dot + 1);
    if (hasImageExtension(name)) {
      const bool isPlain = field.find('.') == std::string::npos;
      (isPlain ? images_ : furtherImages_).push_back({name, field, member});
    } else if (field == "cls") {
      labels_.push_back(member);
    } else if (isOtherPicture(name)) {
      otherPictures_.push_back(name);
    }
  }

  // Adds the sample of the last members, unless all of them are ignored.
  void finishSample() {
    orReport(report_, path_ + ": " + printable(key_), [&] { addSample(); });
    key_.clear();
    images_.clear();
    furtherImages_.clear();
    otherPictures_.clear();
    labels_.clear();
  }

  void addSample() {
    if (labels_.size() > 1) refuseTar(path_, "has two labels for " + printable(key_), kUniqueHint);
    if (images_.size() > 1) refuseImages(images_, "several images");
    if (images_.empty() && furtherImages_.size() > 1)
      refuseImages(furtherImages_, "no image with a single extension, but several others");
    // A further field is allowed if it is the only image.
    if (images_.empty()) images_.swap(furtherImages_);
    if (images_.empty() && !otherPictures_.empty()) {
      for (const std::string& name : otherPictures_) index_.skipped.add(name);
      return;
    }
    if (images_.empty() != labels_.empty()) {
      refuseTar(path_,
                fmt::format("has a sample, {}, without {}", printable(key_),
                            images_.empty() ? "an image" : "a .cls member"),
                "write the members of a sample one after another: KEY.jpg and KEY.cls");
    }
    if (images_.empty()) return;
    index_.samples.push_back({key_, images_[0].member, labels_[0], images_[0].name});
  }

  [[noreturn]] void refuseImages(const std::vector<Image>& images, const std::string& what) const {
    std::string fields;
    for (const Image& image : images)
      fields += (fields.empty() ? "" : ", ") + printable(image.field);
    refuseTar(path_, fmt::format("has {} for {}: {}", what, printable(key_), fields), kUniqueHint);
  }

  void resolveLinks() {
    std::map<std::string, Member> found;  // the members to which links point
    std::map<std::string, std::string> targets;
    for (const Link& link : links_) {
      found[link.target];
      targets[link.name] = link.target;
    }
    visitMembers(path_, shard_,
                 [&](const std::string& name, const Member& member, const std::string& to) {
                   const auto wanted = found.find(normalName(name));
                   if (to.empty() && wanted != found.end()) wanted->second = member;
                 });
    const auto resolve = [&](Member& member) {
      if (member.offset != kLinkOffset) return;
      const Link& link = links_[member.size];
      std::string target = link.target;
      constexpr int kMaxLinks = 8;
      for (int n = 0; n < kMaxLinks && targets.contains(target); ++n) target = targets[target];
      const auto at = found.find(target);
      if (at == found.end() || at->second.offset == 0) {
        refuseTar(path_,
                  fmt::format("has a link, {}, to {}, which is not a file in the archive",
                              printable(link.name), printable(link.target)),
                  "write the archive again with the file itself instead of the link");
      }
      member = at->second;
    };
    for (ShardSample& sample : index_.samples) {
      if (sample.image.shard != shard_) continue;
      resolve(sample.image);
      resolve(sample.label);
    }
  }

  static constexpr const char* kUniqueHint =
      "give each sample a unique key and one image; further images need a further field, such as "
      "KEY.seg.png beside KEY.jpg";

  const std::string path_;
  const std::uint32_t shard_;
  TarIndex& index_;
  const DamageReport& report_;
  std::vector<Link> links_;
  // The members of the current sample.
  std::string key_;
  std::vector<Image> images_, furtherImages_;
  std::vector<std::string> otherPictures_;  // their names
  std::vector<Member> labels_;
};

// `path`: the archive or the folder of archives, for messages.
std::vector<ShardSample> readIndex(const std::string& path, const std::vector<std::string>& shards,
                                   const DamageReport& report) {
  TarIndex index;
  for (std::uint32_t s = 0; s < shards.size(); ++s)
    orReport(report, shards[s], [&] { ShardIndexer(shards[s], s, index, report).read(); });
  const SkippedFiles& skipped = index.skipped;
  if (index.samples.empty()) {
    throw DataError(
        "data-empty",
        path + " has no samples" +
            (skipped.isEmpty() ? "" : ", only other pictures: " + skipped.text()),
        skipped.isEmpty() ? "write members KEY.jpg and KEY.cls for each sample" : skipped.hint(""));
  }
  warnOfSkipped(path, skipped, "");
  return std::move(index.samples);
}

}  // namespace

DataFormatTable makeTarKeys() {
  DataFormatTable table;
  table.requiredText("data.train.file", "path", &DataFormatKeys::trainFile,
                     "a WebDataset .tar file, or a folder of them: members KEY.jpg and KEY.cls");
  table.text("data.test.file", "path", &DataFormatKeys::testFile,
             "the same for the test set; not needed with `data.holdout`");
  addEncodedImageKeys(table);
  return table;
}

std::unique_ptr<Dataset> openTar(const DataFormatKeys& keys, DataSplit split) {
  if (split == DataSplit::input) return openInputImages(keys);
  const bool isTraining = split == DataSplit::train;
  const std::string& path = isTraining ? keys.trainFile : keys.testFile;
  if (path.empty()) throwNoTestSet("data.test.file");
  const std::vector<std::string> shards = shardsOf(path);
  const DamageReport report = damageOf(keys, split);
  const std::vector<ShardSample> samples = readIndex(path, shards, report);
  EncodedImages images;
  Labels labels = labelsOf(keys, split);
  std::vector<Member> members;
  for (const ShardSample& sample : samples) {
    const std::string& shard = shards[sample.image.shard];
    const std::string name = shard + ": " + printable(sample.key) + ".cls";
    orReport(report, name, [&] {
      labels.add(readLabel(shard, sample.label, name), name, 0);
      images.names.push_back(shard + ": " + sample.imageName);
      members.push_back(sample.image);
    });
  }
  useLabels(images, labels, path);
  images.read = [shards, members, names = images.names](std::uint32_t index) {
    const Member& member = members[index];
    return readMember(shards[member.shard], member, names[index]);
  };
  images.size = [members](std::uint32_t index) { return members[index].size; };
  images.readPart = [shards, members](std::uint32_t index, ContentPart part) {
    const Member& member = members[index];
    return readFilePart(shards[member.shard], {member.offset + part.offset, part.bytes});
  };
  images.folder = path;
  if (isTraining && keys.isShuffled) shuffleForHoldout(images);
  return makeEncodedImages(std::move(images), keys);
}

}  // namespace cleave
