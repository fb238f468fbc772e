#include "tools/link/script.h"

#include <algorithm>
#include <sstream>

#include "common/core/error.h"
#include "common/core/names.h"
#include "common/core/yaml.h"

namespace cleave::link {
namespace {

using Kind = Event::Kind;

const std::vector<std::string> kWhats = {"blackhole", "half-open", "reset", "rate", "latency"};

// Reads an event word by word.
class Reader {
 public:
  explicit Reader(const Placed& line) : line_(line) {
    std::istringstream text(line.text);
    for (std::string word; text >> word;) words_.push_back(word);
  }

  bool atEnd() const { return next_ == words_.size(); }

  Placed word(const std::string& expected) {
    if (atEnd() && next_ == 0) refuse("it is empty; it must begin with " + expected);
    if (atEnd()) refuse("'" + words_[next_ - 1] + "' must be followed by " + expected);
    return {line_.place + ": event " + quotedForError(line_.text), words_[next_++]};
  }

  // Reads "up", "down" or "both", if the next word is one of these.
  bool takeWay(Event& event) {
    if (atEnd()) return false;
    const std::string& way = words_[next_];
    if (way != "up" && way != "down" && way != "both") return false;
    event.up = way != "down";
    event.down = way != "up";
    ++next_;
    return true;
  }

  [[noreturn]] void refuse(const std::string& why) const {
    throw UsageError(
        "bad-event", line_.place + ": event " + quotedForError(line_.text) + ": " + why,
        "write a time and one of: blackhole [up|down] for TIME, half-open up|down, reset, "
        "rate [up|down] RATE, latency [up|down] TIME; such as '5s blackhole for 2s'");
  }

 private:
  const Placed& line_;
  std::vector<std::string> words_;
  std::size_t next_ = 0;
};

}  // namespace

std::vector<Event> parseEvent(const Placed& line) {
  Reader reader(line);
  Event event;
  event.text = line.text;
  event.at = parseMoment(reader.word("a time"));
  std::vector<Event> events;
  const std::string what = reader.word("an event").text;
  if (what == "blackhole") {
    reader.takeWay(event);
    if (reader.word("'for' and a time").text != "for") reader.refuse("'for' is missing");
    event.kind = Kind::linkDown;
    Event end = event;
    end.kind = Kind::linkUp;
    end.at += parseMoment(reader.word("a time"));
    end.text.clear();
    events = {event, end};
  } else if (what == "half-open") {
    if (!reader.takeWay(event)) reader.refuse("'half-open' must be followed by up or down");
    if (event.up && event.down) reader.refuse("use 'blackhole' to cut both directions");
    event.kind = Kind::halfOpen;
    events = {event};
  } else if (what == "reset") {
    event.kind = Kind::reset;
    events = {event};
  } else if (what == "rate") {
    reader.takeWay(event);
    event.kind = Kind::rate;
    event.rate = parseRate(reader.word("a rate"));
    events = {event};
  } else if (what == "latency") {
    reader.takeWay(event);
    event.kind = Kind::latency;
    event.latency = parseTime(reader.word("a time"));
    events = {event};
  } else {
    const std::string meant = nearestName(what, kWhats);
    reader.refuse(quotedForError(what) + " is not an event" +
                  (meant.empty() ? "" : "; did you mean " + meant + "?"));
  }
  if (!reader.atEnd()) reader.refuse("there are extra words after its end");
  return events;
}

Script::Script(std::vector<Event> events) : events_(std::move(events)) {
  std::stable_sort(events_.begin(), events_.end(),
                   [](const Event& a, const Event& b) { return a.at < b.at; });
}

std::optional<Time> Script::next() const {
  if (taken_ == events_.size()) return std::nullopt;
  return events_[taken_].at;
}

std::optional<Event> Script::take(Time now) {
  if (taken_ == events_.size() || events_[taken_].at > now) return std::nullopt;
  return events_[taken_++];
}

}  // namespace cleave::link
