#include "common/files/record.h"
#include "common/core/durable.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>
#include <thread>

#include "tests/support/files/file_size_limit.h"
#include "tests/support/files/folder.h"

using namespace cleave;
using Catch::Matchers::Contains;
using test::Folder;
namespace fs = std::filesystem;

namespace {

std::string readFile(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

// Returns this process's descriptor of the open file `path`.
int descriptorOf(const std::string& path) {
  for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
    std::error_code error;
    if (fs::read_symlink(entry.path(), error) == path) return std::stoi(entry.path().filename());
  }
  return -1;
}

}  // namespace

TEST_CASE("cells are formatted for RFC 4180 and spreadsheets") {
  CHECK(formatCell({}) == "");
  CHECK(formatCell(std::numeric_limits<std::int64_t>::min()) == "-9223372036854775808");
  CHECK(formatCell(std::numeric_limits<std::uint64_t>::max()) == "18446744073709551615");
  CHECK(formatCell(1.0 / 3) == "0.333333333");
  CHECK(formatCell(-1e-9) == "-1e-09");
  CHECK(formatCell(123456789.0) == "123456789");
  CHECK(formatCell(-std::nan("")) == "nan");
  CHECK(formatCell(-INFINITY) == "-inf");
  CHECK(formatCell("plain text") == "plain text");
  for (const char* number : {"-1", "+1", "-1.5e-3", "-.5", "-12.5%", "-inf"})
    CHECK(formatCell(number) == number);
  CHECK(formatCell("-1,5") == "\"-1,5\"");
  for (const std::string formula :
       {"-1+2", "-a", "-", "+-1", "=1", "@1", "\t1", "-1 2", "-nan(A1)"})
    CHECK(formatCell(formula) == "'" + formula);
  CHECK(formatCell("\r=1") == "\"'\r=1\"");
  CHECK(formatCell("a,b") == "\"a,b\"");
  CHECK(formatCell("say \"a\"") == "\"say \"\"a\"\"\"");
  CHECK(formatCell("a\r\nb") == "\"a\r\nb\"");
  CHECK(formatCell("=1+1") == "'=1+1");
  CHECK(formatCell("-a,b") == "\"'-a,b\"");
  CHECK(formatCell("+a") == "'+a");
  CHECK(formatCell("@a") == "'@a");
}

TEST_CASE("the time is UTC in ISO 8601 with milliseconds") {
  CHECK_THAT(utcNow(), Catch::Matches(R"(20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z)"));
}

TEST_CASE("after flush, the file has the header and the rows in order") {
  const Folder folder;
  Recorder recorder;
  const auto steps = recorder.table(folder.file("steps.csv"), {"step", "loss", "note, if any"});
  CHECK(readFile(folder.file("steps.csv")) == "step,loss,\"note, if any\"\n");
  steps->row({std::uint64_t{1}, 0.5, "a"});
  steps->row({std::uint64_t{2}, {}, {}});
  recorder.flush();
  CHECK(readFile(folder.file("steps.csv")) == "step,loss,\"note, if any\"\n1,0.5,a\n2,,\n");
}

TEST_CASE("rows are written soon without a flush, so that a killed process loses little") {
  const Folder folder;
  Recorder recorder;
  const auto table = recorder.table(folder.file("a.csv"), {"x"});
  table->row({std::int64_t{1}});
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (readFile(folder.file("a.csv")) != "x\n1\n" &&
         std::chrono::steady_clock::now() < deadline) {
    std::this_thread::yield();
  }
  CHECK(readFile(folder.file("a.csv")) == "x\n1\n");
}

TEST_CASE("the destructor writes the remaining rows; later rows are dropped") {
  const Folder folder;
  std::shared_ptr<Recorder::Table> survivor;
  {
    Recorder recorder;
    survivor = recorder.table(folder.file("a.csv"), {"x"});
    const auto gone = recorder.table(folder.file("b.csv"), {"x"});
    survivor->row({std::int64_t{1}});
    gone->row({std::int64_t{2}});
  }
  survivor->row({std::int64_t{3}});
  CHECK(readFile(folder.file("a.csv")) == "x\n1\n");
  CHECK(readFile(folder.file("b.csv")) == "x\n2\n");
}

TEST_CASE("a finished table is written and its file closed, while the recorder continues") {
  const Folder folder;
  Recorder recorder;
  recorder.table(folder.file("a.csv"), {"x"})->row({std::int64_t{1}});
  recorder.flush();
  CHECK(readFile(folder.file("a.csv")) == "x\n1\n");
  CHECK(descriptorOf(folder.file("a.csv")) == -1);
}

TEST_CASE("rows from many threads do not mix") {
  const Folder folder;
  constexpr int kThreads = 4;
  constexpr int kRows = 5000;
  Recorder recorder;
  const auto table = recorder.table(folder.file("a.csv"), {"thread", "row", "text"});
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int row = 0; row < kRows; ++row) {
        table->row(
            {std::int64_t{t}, std::int64_t{row}, std::string(20, static_cast<char>('a' + t))});
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  recorder.flush();

  std::vector<int> next(kThreads, 0);
  std::istringstream lines(readFile(folder.file("a.csv")));
  std::string line;
  std::getline(lines, line);
  bool whole = true;
  while (std::getline(lines, line)) {
    const int t = line[0] - '0';
    REQUIRE((t >= 0 && t < kThreads));
    const std::string text(20, static_cast<char>('a' + t));
    whole &= line == std::to_string(t) + "," + std::to_string(next[t]++) + "," + text;
  }
  CHECK(whole);
  CHECK(next == std::vector<int>(kThreads, kRows));
}

TEST_CASE("a full file is renamed, starting with number 1, and a new file starts with the header") {
  const Folder folder;
  Recorder recorder;
  const auto table = recorder.table(folder.file("a.csv"), {"x"}, 10);
  const auto whole = recorder.table(folder.file("b.csv"), {"x"});
  for (std::int64_t row = 1; row <= 7; ++row) {
    table->row({100 + row});
    whole->row({100 + row});
    recorder.flush();
  }
  CHECK(readFile(folder.file("a.1.csv")) == "x\n101\n102\n");
  CHECK(readFile(folder.file("a.2.csv")) == "x\n103\n104\n");
  CHECK(readFile(folder.file("a.3.csv")) == "x\n105\n106\n");
  CHECK(readFile(folder.file("a.csv")) == "x\n107\n");
  CHECK_FALSE(fs::exists(folder.file("a.4.csv")));
  CHECK_FALSE(fs::exists(folder.file("b.1.csv")));
  CHECK(descriptorOf(folder.file("a.3.csv")) == -1);
}

TEST_CASE("rows written together are split over several files, none of which is too large") {
  const Folder folder;
  Recorder recorder;
  const auto table = recorder.table(folder.file("a.csv"), {"n", "text"}, 1000);
  for (int j = 0; j < 500; ++j) table->row({std::int64_t{j}, std::string("two\nlines")});
  recorder.flush();
  int next = 0;
  const auto check = [&](const std::string& name) {
    const std::string text = readFile(folder.file(name));
    CHECK(text.size() <= 1000);
    CHECK(text.starts_with("n,text\n"));
    std::string rows = text.substr(7);
    for (; !rows.empty(); ++next) {
      const std::string row = std::to_string(next) + ",\"two\nlines\"\n";
      REQUIRE(rows.starts_with(row));
      rows.erase(0, row.size());
    }
  };
  for (int j = 1; fs::exists(folder.file("a." + std::to_string(j) + ".csv")); ++j) {
    check("a." + std::to_string(j) + ".csv");
  }
  check("a.csv");
  CHECK(next == 500);
}

TEST_CASE("a row larger than the file limit gets a file of its own") {
  const Folder folder;
  Recorder recorder;
  const auto table = recorder.table(folder.file("a.csv"), {"x"}, 10);
  for (const char* text : {"a row too large", "1"}) {
    table->row({text});
    recorder.flush();
  }
  CHECK(readFile(folder.file("a.1.csv")) == "x\na row too large\n");
  CHECK(readFile(folder.file("a.csv")) == "x\n1\n");
}

TEST_CASE("a file that cannot be renamed accepts no more rows, and flush reports it") {
  const Folder folder;
  Recorder recorder;
  const auto table = recorder.table(folder.file("a.csv"), {"x"}, 10);
  table->row({"12345678"});
  recorder.flush();
  fs::create_directories(folder.file("a.1.csv"));  // blocks the rotation
  table->row({"9"});
  CHECK_THROWS_WITH(recorder.flush(), Contains("a.csv: rows could not be written"));
  CHECK(readFile(folder.file("a.csv")) == "x\n12345678\n");
}

TEST_CASE("rows are appended to the file of a killed process") {
  const Folder folder;
  const std::string path = folder.file("rows.csv");
  const std::vector<std::string> columns = {"a", "b"};
  {
    Recorder recorder;
    recorder.table(path, columns)->row({std::int64_t{1}, "x"});
  }
  for (const std::string incomplete : {"", "2", "2,", "2,yy"}) {
    INFO(incomplete);
    std::ofstream(path, std::ios::binary | std::ios::trunc) << "a,b\n1,x\n" << incomplete;
    {
      Recorder recorder;
      recorder.table(path, columns, 0, nullptr, true)->row({std::int64_t{3}, "z"});
      recorder.sync();
    }
    CHECK(readFile(path) == "a,b\n1,x\n3,z\n");
  }
  // The process was killed before or while it wrote the header.
  for (const std::string start : {"", "a", "a,b"}) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << start;
    {
      Recorder recorder;
      recorder.table(path, columns, 0, nullptr, true)->row({std::int64_t{3}, "z"});
    }
    CHECK(readFile(path) == "a,b\n3,z\n");
  }
  fs::remove(path);
  {
    Recorder recorder;
    recorder.table(path, columns, 0, nullptr, true);
  }
  CHECK(readFile(path) == "a,b\n");
}

TEST_CASE("rows are not appended to a file with other columns") {
  const Folder folder;
  const std::string path = folder.file("rows.csv");
  std::ofstream(path) << "a,c\n1,x\n";
  Recorder recorder;
  CHECK_THROWS_WITH(recorder.table(path, {"a", "b"}, 0, nullptr, true),
                    Contains("the columns of the file differ"));
  CHECK(readFile(path) == "a,c\n1,x\n");
}

TEST_CASE("an appended file continues its rotation") {
  const Folder folder;
  const std::string path = folder.file("rows.csv");
  const auto add = [&](const std::string& text) {
    Recorder recorder;
    recorder.table(path, {"a"}, 12, nullptr, true)->row({text});
  };
  for (const char* const text : {"11111111", "22222222", "33333333"}) add(text);
  CHECK(readFile(folder.file("rows.1.csv")) == "a\n11111111\n");
  CHECK(readFile(folder.file("rows.2.csv")) == "a\n22222222\n");
  CHECK(readFile(path) == "a\n33333333\n");
}

TEST_CASE("an existing file or a missing folder is an error") {
  const Folder folder;
  Recorder recorder;
  std::ofstream(folder.file("a.csv")) << "precious";
  CHECK_THROWS_WITH(recorder.table(folder.file("a.csv"), {"x"}),
                    Contains("a.csv") && Contains("File exists"));
  CHECK(readFile(folder.file("a.csv")) == "precious");
  CHECK_THROWS_AS(recorder.table(folder.file("none/a.csv"), {"x"}), RunError);
}

TEST_CASE("a table drops the first row that exceeds its budget and all later ones") {
  struct Budget : RowBudget {
    bool take(std::size_t bytes) override {
      const bool fits = bytes <= left;
      if (fits) left -= bytes;
      return fits;
    }
    std::size_t left = 9;
  };
  const Folder folder;
  const auto budget = std::make_shared<Budget>();
  Recorder recorder;
  const auto bounded = recorder.table(folder.file("a.csv"), {"a"}, 0, budget);
  const auto other = recorder.table(folder.file("b.csv"), {"b"});
  bounded->row({std::string("four")});
  CHECK(budget->left == 4);
  CHECK_FALSE(bounded->isOverBudget());
  bounded->row({std::string("more")});
  CHECK(bounded->isOverBudget());
  bounded->row({std::string("x")});  // would fit, but would hide the missing row
  other->row({std::string("on")});
  recorder.flush();  // a reached budget is not a write error
  CHECK(bounded->error() == 0);
  CHECK(readFile(folder.file("a.csv")) == "a\nfour\n");
  CHECK(readFile(folder.file("b.csv")) == "b\non\n");
}

TEST_CASE("a full disk is reported by flush, and the file ends at a whole row") {
  const Folder folder;
  Recorder recorder;
  const auto full = recorder.table(folder.file("full.csv"), {"x"});
  const auto good = recorder.table(folder.file("good.csv"), {"x"});
  full->row({"fits"});
  recorder.flush();
  {
    const test::FileSizeLimit limit(20);
    full->row({"this does not fit within 20 bytes"});
    CHECK_THROWS_WITH(recorder.flush(),
                      Contains("full.csv: rows could not be written: File too large"));
  }
  CHECK(readFile(folder.file("full.csv")) == "x\nfits\n");

  // When there is room again, other tables continue. The table with the failed write takes no more
  // rows, so that it has no gap, and the error remains.
  full->row({"later"});
  good->row({"row"});
  CHECK_THROWS_AS(recorder.flush(), RunError);
  CHECK(readFile(folder.file("full.csv")) == "x\nfits\n");
  CHECK(readFile(folder.file("good.csv")) == "x\nrow\n");
}

TEST_CASE("a table whose header cannot be written leaves no file") {
  const Folder folder;
  Recorder recorder;
  const test::FileSizeLimit limit(1);
  CHECK_THROWS_AS(recorder.table(folder.file("a.csv"), {"column"}), RunError);
  CHECK_FALSE(fs::exists(folder.file("a.csv")));
}

TEST_CASE("while a disk hangs, recording a row returns immediately, and excess rows are dropped") {
  const Folder folder;
  int pipe[2];
  REQUIRE(::pipe2(pipe, O_CLOEXEC) == 0);
  Recorder recorder;
  const auto table = recorder.table(folder.file("a.csv"), {"x"});
  // A pipe without a reader simulates the hanging disk.
  const int descriptor = descriptorOf(folder.file("a.csv"));
  REQUIRE(descriptor >= 0);
  REQUIRE(::dup2(pipe[1], descriptor) == descriptor);
  ::close(pipe[1]);

  constexpr int kRows = (1 << 18) + 100'000;
  for (int row = 0; row < kRows; ++row) table->row({std::int64_t{row}});

  // The disk recovers: the waiting rows are written.
  std::int64_t written = 0;
  std::thread reader([&] {
    std::vector<char> bytes(1 << 16);
    for (ssize_t size; (size = ::read(pipe[0], bytes.data(), bytes.size())) > 0;) {
      written += std::count(bytes.begin(), bytes.begin() + size, '\n');
    }
  });
  CHECK_THROWS_WITH(recorder.flush(), Contains("rows were dropped"));
  const int null = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
  ::dup2(null, descriptor);  // closes the last write end of the pipe, so the reader sees the end
  ::close(null);
  reader.join();
  ::close(pipe[0]);
  CHECK(written >= (1 << 18));
  CHECK(written < kRows);
}

TEST_CASE("a durable write replaces the file and leaves no other") {
  const Folder folder;
  const std::string path = folder.file("config.yaml");
  writeFileDurably(path, "old and longer");
  writeFileDurably(path, "new");
  CHECK(readFile(path) == "new");
  CHECK(std::distance(fs::directory_iterator(folder.path), {}) == 1);
}

TEST_CASE("a durable write to a pipe does not replace it") {
  const Folder folder;
  const std::string path = folder.file("pipe");
  REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
  const int reader = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  REQUIRE(reader >= 0);
  writeFileDurably(path, "text");
  char read[8] = {};
  CHECK(::read(reader, read, sizeof read) == 4);
  ::close(reader);
  CHECK(std::string(read) == "text");
  CHECK(fs::is_fifo(path));
  CHECK(std::distance(fs::directory_iterator(folder.path), {}) == 1);
}

TEST_CASE("a durable write that fails keeps the old file and leaves no other") {
  const Folder folder;
  const std::string path = folder.file("config.yaml");
  writeFileDurably(path, "old");
  {
    const test::FileSizeLimit limit(4);
    CHECK_THROWS_WITH(writeFileDurably(path, "too long"),
                      Contains(path + ": cannot be written: File too large"));
  }
  CHECK(readFile(path) == "old");
  CHECK(std::distance(fs::directory_iterator(folder.path), {}) == 1);

  CHECK_THROWS_WITH(writeFileDurably(folder.file("none/a"), "x"), Contains("No such file"));
  fs::create_directories(folder.file("taken/by/a/folder"));
  CHECK_THROWS_WITH(writeFileDurably(folder.file("taken"), "x"), Contains("Is a directory"));
  CHECK(std::distance(fs::directory_iterator(folder.path), {}) == 2);
}
