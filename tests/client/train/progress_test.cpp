// The progress bar: its text, and its output on a terminal.
#include "client/train/progress.h"

#include <fcntl.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <array>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <sstream>
#include <thread>

#include "common/core/terminal.h"
#include "common/core/units.h"

namespace cleave {
namespace {

using Catch::Matchers::Contains;

BarState halfDone() {
  BarState state;
  state.phase = "train";
  state.step = 150;
  state.steps = 300;
  state.epoch = 2;
  state.epochs = 3;
  state.loss = 0.43117;
  state.samplesPerSecond = 6485.3;
  state.up = 12.3e6;
  state.down = 4.5e6;
  state.secondsLeft = 42;
  return state;
}

TEST_CASE("the line about samples has one row, and drops fields that do not fit") {
  const SamplesState state = {"check test", 50, 200, 25};
  CHECK(samplesBarLine(state, 100, false) ==
        "check test  25% [==========>                             ]  50/200  25 samples/s  0:06 "
        "left");
  CHECK(samplesBarLine(state, 40, false) == "check test  25% [==>       ]  0:06 left");
  CHECK(plainSamplesLine(state) == "check test  50/200  25 samples/s  0:06 left");
  CHECK(plainSamplesLine({"check test", 0, 200, 0}) == "check test  0/200  0 samples/s  ? left");
}

TEST_CASE("a wide terminal shows all figures and a narrow one the key figures, always in one row") {
  CHECK(barLine(halfDone(), 160, false) ==
        "train  50% [====================>                   ] 150/300  epoch 2/3  6485 samples/s  "
        "loss 0.4312  0:42 left  up 12.3 MB/s  down 4.50 MB/s");
  CHECK(barLine(halfDone(), 80, false) ==
        "train  50% [===========>           ] 150/300  epoch 2/3  loss 0.4312  0:42 left");
  CHECK(barLine(halfDone(), 40, false) == "train  50% [=======>       ]  0:42 left");
  for (std::size_t columns = 0; columns < 200; ++columns) {
    INFO(columns);
    CHECK(barLine(halfDone(), columns, false).size() <= (columns == 0 ? 0 : columns - 1));
  }
}

TEST_CASE("text that exceeds a row continues in the next, broken between words") {
  CHECK(wrapped("one two three\n", 80, 2) == "one two three\n");
  CHECK(wrapped("one two three\n", 0, 2) == "one two three\n");
  CHECK(wrapped("one two three\n", 13, 2) == "one two three\n");
  CHECK(wrapped("one two three\n", 12, 2) == "one two\n  three\n");
  CHECK(wrapped("one two three\nfour five\n", 8, 2) == "one two\n  three\nfour\n  five\n");
  // Lines are not broken in the indentation or within a word.
  CHECK(wrapped("    abcdefghij k\n", 8, 2) == "    abcdefghij\n  k\n");
  // The width is counted in characters, not bytes, and colours take no columns.
  CHECK(wrapped("…… ……\n", 5, 1) == "…… ……\n");
  CHECK(wrapped("\x1b[1;32mab\x1b[0m cd\n", 5, 1) == "\x1b[1;32mab\x1b[0m cd\n");
  CHECK(wrapped("a    b c", 6, 1) == "a    b\n c");
  const std::string words = "some words that are wrapped in terminals of every width there is";
  for (std::size_t columns = 14; columns < 90; ++columns) {
    INFO(columns);
    std::istringstream rows(wrapped(words, columns, 4));
    std::string together;
    for (std::string row; std::getline(rows, row);) {
      CHECK(row.size() <= columns);
      together += (together.empty() ? "" : " ") + row.substr(row.find_first_not_of(' '));
    }
    CHECK(together == words);
  }
}

TEST_CASE("the bar is empty at the start and full at the end, and an unknown time is shown as ?") {
  BarState state = halfDone();
  state.step = 0;
  state.secondsLeft.reset();
  CHECK_THAT(barLine(state, 60, false), Contains("train   0% [>  ") && Contains("? left"));
  state.step = state.steps;
  state.secondsLeft = 0;
  CHECK_THAT(barLine(state, 60, false), Contains("train 100% [====") && Contains("=] 300/300"));
  state.steps = 0;
  CHECK_THAT(barLine(state, 60, false), Contains("100%"));
}

TEST_CASE("colour changes nothing but the colour") {
  const std::string colored = barLine(halfDone(), 80, true);
  const std::string plain = barLine(halfDone(), 80, false);
  CHECK(colored == "\x1b[1;32mtrain\x1b[0m" + plain.substr(5));
}

TEST_CASE("a plain progress line has all figures") {
  CHECK(
      plainLine(halfDone()) ==
      "train  step 150/300  epoch 2/3  6485 samples/s  loss 0.4312  up 12.3 MB/s  down 4.50 MB/s  "
      "0:42 left");
}

TEST_CASE("before the first training step, progress has no loss") {
  BarState state = halfDone();
  state.loss.reset();
  CHECK(plainLine(state) ==
        "train  step 150/300  epoch 2/3  6485 samples/s  up 12.3 MB/s  down 4.50 MB/s  0:42 left");
  CHECK(barLine(state, 120, false).find("loss") == std::string::npos);
}

TEST_CASE("times are formatted as on a clock") {
  CHECK(clockText(0) == "0:00");
  CHECK(clockText(-3) == "0:00");
  CHECK(clockText(59.6) == "1:00");
  CHECK(clockText(3599) == "59:59");
  CHECK(clockText(3723) == "1:02:03");
  CHECK(durationText(1.834) == "1.83 s");
  CHECK(durationText(9.996) == "10.0 s");
  CHECK(durationText(59.96) == "1:00");
}

// The two ends of a terminal.
class Pty {
 public:
  Pty() { REQUIRE(::openpty(&outside_, &inside_, nullptr, nullptr, nullptr) == 0); }
  ~Pty() {
    ::close(inside_);
    ::close(outside_);
  }
  int inside() const { return inside_; }
  void resize(std::uint16_t columns) const {
    const winsize size{24, columns, 0, 0};
    ::ioctl(outside_, TIOCSWINSZ, &size);
  }
  // Reads the output of one write.
  std::string read() const {
    std::array<char, 4096> bytes;
    const ssize_t got = ::read(outside_, bytes.data(), bytes.size());
    return {bytes.data(), static_cast<std::size_t>(std::max<ssize_t>(got, 0))};
  }

 private:
  int outside_ = -1, inside_ = -1;
};

// Sets or removes an environment variable, and restores it in the destructor.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) {
    if (const char* before = std::getenv(name)) before_ = before;
    value == nullptr ? ::unsetenv(name) : ::setenv(name, value, 1);
  }
  ~Variable() { before_ ? ::setenv(name_, before_->c_str(), 1) : ::unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* const name_;
  std::optional<std::string> before_;
};

TEST_CASE("the terminal and its width are queried each time") {
  const Pty pty;
  const Variable colors("NO_COLOR", nullptr);
  const Variable kind("TERM", "xterm");
  CHECK(isLiveTerminal(pty.inside()));
  CHECK(wantsColor(pty.inside()));
  pty.resize(47);
  CHECK(terminalColumns(pty.inside()) == 47);
  pty.resize(120);
  CHECK(terminalColumns(pty.inside()) == 120);
  pty.resize(0);
  CHECK(terminalColumns(pty.inside()) == 80);
  {
    const Variable refused("NO_COLOR", "1");
    CHECK(isLiveTerminal(pty.inside()));
    CHECK_FALSE(wantsColor(pty.inside()));
  }
  {
    const Variable dumb("TERM", "dumb");
    CHECK_FALSE(isLiveTerminal(pty.inside()));
  }
  const int null = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
  CHECK_FALSE(isLiveTerminal(null));
  CHECK(terminalColumns(null) == 80);
  ::close(null);
}

TEST_CASE("lines are printed above the bar, and each change is one write") {
  const Pty pty;
  const Variable kind("TERM", "xterm");
  StatusLine& status = StatusLine::instance();
  status.writeAbove(pty.inside(), "before\n");
  CHECK(pty.read() == "before\r\n");
  status.show(pty.inside(), "10%");
  CHECK(pty.read() == "\r\x1b[K10%");
  status.show(pty.inside(), "20%");
  CHECK(pty.read() == "\r\x1b[K20%");
  status.writeAbove(pty.inside(), "a log line\n");
  CHECK(pty.read() == "\r\x1b[Ka log line\r\n20%");
  status.clear();
  CHECK(pty.read() == "\r\x1b[K");
  status.writeAbove(pty.inside(), "after\n");
  CHECK(pty.read() == "after\r\n");
}

TEST_CASE("the speed and remaining time of a resumed run exclude its earlier steps") {
  const Pty pty;
  pty.resize(200);
  const Variable kind("TERM", "xterm");
  ProgressOptions options;
  options.people = pty.inside();
  options.totalSteps = 1000;
  Progress progress(options);
  progress.resume(900, 900 * 64);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  Progress::State state;
  state.step = 901;
  state.samples = 901 * 64;
  progress.batch(state, {});
  const std::string line = pty.read();
  const std::size_t rate = line.find(" samples/s");
  REQUIRE(rate != std::string::npos);
  CHECK(std::stod(line.substr(line.rfind(' ', rate - 1))) <= 640);
  CHECK_THAT(line, !Contains("0:00 left"));  // 99 steps of at least 0.1 s are left
}

}  // namespace
}  // namespace cleave
