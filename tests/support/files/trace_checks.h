// Checks that apply to every trace file.
#pragma once

#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace cleave::test {

using TraceTrackKey = std::pair<int, int>;  // pid, tid

inline std::map<int, std::string> processesOf(const nlohmann::json& trace) {
  std::map<int, std::string> names;
  for (const nlohmann::json& event : trace.at("traceEvents")) {
    if (event.at("name") == "process_name") {
      names[event.at("pid").get<int>()] = event.at("args").at("name").get<std::string>();
    }
  }
  return names;
}

// Slices as pairs of start and end, in microseconds.
using TraceSlices = std::map<TraceTrackKey, std::vector<std::pair<double, double>>>;
inline TraceSlices slicesByTrack(const nlohmann::json& trace) {
  TraceSlices tracks;
  for (const nlohmann::json& event : trace.at("traceEvents")) {
    if (event.at("ph") != "X") continue;
    const double begin = event.at("ts").get<double>();
    tracks[{event.at("pid").get<int>(), event.at("tid").get<int>()}].push_back(
        {begin, begin + event.at("dur").get<double>()});
  }
  for (auto& [track, slices] : tracks) std::sort(slices.begin(), slices.end());
  return tracks;
}

inline void checkTracksDoNotOverlap(const nlohmann::json& trace) {
  for (const auto& [track, slices] : slicesByTrack(trace)) {
    for (std::size_t n = 1; n < slices.size(); ++n) {
      if (slices[n].first < slices[n - 1].second) {
        FAIL_CHECK("track " << track.first << ", " << track.second << ": a slice starts at "
                            << slices[n].first << " before the last one ends at "
                            << slices[n - 1].second);
      }
    }
  }
}

struct TraceArrow {
  std::string name, fromProcess, toProcess;
  double begin = 0, end = 0;  // microseconds
};
// Fails the test unless each arrow has two ends, each at the start of a slice on its track.
inline std::vector<TraceArrow> arrowsOf(const nlohmann::json& trace) {
  const auto processes = processesOf(trace);
  const TraceSlices tracks = slicesByTrack(trace);
  std::map<int, TraceArrow> arrows;
  std::map<int, int> ends;
  for (const nlohmann::json& event : trace.at("traceEvents")) {
    if (event.at("ph") != "s" && event.at("ph") != "f") continue;
    const int id = event.at("id").get<int>();
    const TraceTrackKey track{event.at("pid").get<int>(), event.at("tid").get<int>()};
    const double time = event.at("ts").get<double>();
    const auto& slices = tracks.at(track);
    const auto slice = std::lower_bound(slices.begin(), slices.end(), std::pair(time, 0.0));
    CHECK((slice != slices.end() && slice->first == time));
    TraceArrow& arrow = arrows[id];
    const std::string name = event.at("name").get<std::string>();
    CHECK((arrow.name.empty() || arrow.name == name));
    arrow.name = name;
    const bool begins = event.at("ph") == "s";
    (begins ? arrow.begin : arrow.end) = time;
    (begins ? arrow.fromProcess : arrow.toProcess) = processes.at(track.first);
    if (!begins) CHECK(event.at("bp") == "e");
    ends[id] += begins ? 1 : 10;
  }
  std::vector<TraceArrow> all;
  for (const auto& [id, arrow] : arrows) {
    CHECK(ends.at(id) == 11);
    all.push_back(arrow);
  }
  return all;
}

}  // namespace cleave::test
