#include "client/report/report_data.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <set>

#include "client/report/records/headline.h"
#include "common/files/environment.h"
#include "common/files/record.h"

namespace cleave {
namespace {

using Json = nlohmann::json;

// The number of points per series: enough for a wide screen, but few enough for a page of at most
// about 10 MB.
std::size_t pointsFor(std::size_t runs) {
  constexpr std::size_t kAll = 6000, kMax = 1200, kMin = 200;
  return std::clamp(kAll / std::max<std::size_t>(runs, 1), kMin, kMax);
}

// Rounds to six digits: a chart cannot show more, and shorter numbers make the page smaller.
double rounded(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.6g", value);
  return std::strtod(text.data(), nullptr);
}

// Returns {"grid", "rows", "k": [bucket…], "mean"}, and also "min" and "max" if a bucket has more
// than one row.
Json seriesJson(Series& series, const char* grid) {
  Json k = Json::array(), mean = Json::array(), min = Json::array(), max = Json::array();
  const auto& buckets = series.buckets();
  std::size_t used = 0;
  for (std::size_t i = 0; i < buckets.size(); ++i) {
    if (buckets[i].values == 0) continue;
    ++used;
    k.push_back(i);
    mean.push_back(rounded(buckets[i].mean()));
    min.push_back(rounded(buckets[i].min));
    max.push_back(rounded(buckets[i].max));
  }
  Json json = {{"grid", grid}, {"rows", series.values()}, {"k", k}, {"mean", mean}};
  if (used < series.values()) {
    json["min"] = min;
    json["max"] = max;
  }
  return json;
}

// Bytes per second, averaged over windows of `width` seconds. Minimum and maximum are those of the
// single seconds in a window.
Json bytesJson(const BytesBySecond& bytes, std::size_t width) {
  Json k = Json::array(), mean = Json::array(), min = Json::array(), max = Json::array();
  const auto& seconds = bytes.seconds();
  for (std::size_t begin = 0; begin < seconds.size(); begin += width) {
    const std::size_t end = std::min(begin + width, seconds.size());
    Series::Bucket bucket;
    for (std::size_t i = begin; i < end; ++i) bucket.add({seconds[i], seconds[i], seconds[i], 1});
    k.push_back(begin / width);
    mean.push_back(rounded(bucket.mean()));
    min.push_back(rounded(bucket.min));
    max.push_back(rounded(bucket.max));
  }
  Json json = {{"grid", "second"}, {"rows", seconds.size()}, {"k", k}, {"mean", mean}};
  if (width > 1) {
    json["min"] = min;
    json["max"] = max;
  }
  return json;
}

Json histogramJson(const Histogram& histogram) {
  constexpr int kTogether = 2;  // merges two bins, which gives ten bins per decade
  Json from = Json::array(), count = Json::array();
  const auto classes = histogram.classes(kTogether);
  for (const auto& one : classes) {
    from.push_back(rounded(one.min));
    count.push_back(one.values);
  }
  Json json = {{"rows", histogram.values()}, {"from", from}, {"count", count}};
  if (!classes.empty()) {
    json["until"] = rounded(classes.back().max);
    for (const int percent : {5, 50, 95}) {
      json["p" + std::to_string(percent)] = rounded(histogram.quantile(percent / 100.0));
    }
  }
  return json;
}

Json settingsJson(const Settings& settings) {
  Json json = Json::array();
  for (const auto& [key, text] : settings) json.push_back({key, text});
  return json;
}

void put(Json& json, const std::string& name, Series& series, const char* grid) {
  if (series.values() > 0) json[name] = seriesJson(series, grid);
}

void put(Json& json, const std::string& name, const Histogram& histogram) {
  if (histogram.values() > 0) json[name] = histogramJson(histogram);
}

void putSplit(const std::string& side, StepSplit& split, Json& series) {
  put(series, side + "_compute", split.compute, "step");
  put(series, side + "_codec", split.codec, "step");
  put(series, side + "_wire", split.wire, "step");
  put(series, side + "_waiting", split.waiting, "step");
}

void putSide(const std::string& side, SideFigures& figures, Json& series, Json& histograms) {
  put(series, side + "_delivery", figures.deliveryRate, "time");
  put(series, side + "_round_trip", figures.roundTrip, "time");
  put(series, side + "_retransmits", figures.retransmits, "time");
  for (auto& [flow, snr] : figures.snr) put(series, "snr " + flowName(flow), snr, "step");
  put(histograms, side + "_round_trips", figures.roundTrips);
}

// The prefix of a server's series: "server", "server2", …
std::string serverKey(std::size_t index) {
  return index == 0 ? "server" : "server" + std::to_string(index + 1);
}

// The side whose record of transfers is used: the client, or the server if the client has no such
// record.
SideFigures& recordingSide(RunReader& run) {
  const auto& flows = run.client().flows;
  const bool any = std::any_of(flows.begin(), flows.end(),
                               [](const auto& flow) { return flow.second.transfers > 0; });
  const auto servers = run.servers();
  return any || servers.empty() ? run.client() : servers.front().figures;
}

Json flowsJson(RunReader& run) {
  Json flows = Json::array();
  SideFigures& seen = recordingSide(run);
  for (const auto& [flow, figures] : seen.flows) {
    if (figures.transfers == 0) continue;
    Json json = {{"flow", flowName(flow)},
                 {"direction", figures.up == 0                   ? "down"
                               : figures.up == figures.transfers ? "up"
                                                                 : "both"},
                 {"codec", figures.codec},
                 {"transfers", figures.transfers},
                 {"raw_bytes", figures.rawBytes},
                 {"wire_bytes", figures.wireBytes},
                 {"encode_seconds", rounded(figures.encodeSeconds)},
                 {"decode_seconds", rounded(figures.decodeSeconds)}};
    if (figures.rawBytes > 0) json["ratio"] = rounded(figures.wireBytes / figures.rawBytes);
    std::vector<SideFigures*> sides = {&run.client()};
    for (const RunReader::Server& server : run.servers()) sides.push_back(&server.figures);
    for (SideFigures* side : sides) {
      const FlowFigures sender = side->flows.get(flow);
      if (sender.snrs == 0) continue;
      json["snr_mean"] = rounded(sender.snrSum / static_cast<double>(sender.snrs));
      json["snr_min"] = rounded(sender.snrMin);
      json["snr_tensors"] = sender.snrs;
    }
    flows.push_back(json);
  }
  return flows;
}

Json evaluationsJson(const TrainingFigures& training) {
  Json json = Json::array();
  for (const auto& evaluation : training.evaluations) {
    Json one = {
        {"time", rounded(evaluation.time)}, {"step", evaluation.step}, {"epoch", evaluation.epoch}};
    if (evaluation.loss) one["loss"] = *evaluation.loss;
    if (evaluation.metric) one["metric"] = *evaluation.metric;
    json.push_back(one);
  }
  return json;
}

Json interruptionsJson(const TrainingFigures& training) {
  Json json = Json::array();
  for (const auto& one : training.interruptions) {
    json.push_back({{"kind", one.isResume ? "resume" : "reconnect"},
                    {"since", rounded(one.since)},
                    {"time", rounded(one.time)},
                    {"step", one.step}});
  }
  return json;
}

Json changesJson(const std::vector<ChangedSetting>& changes) {
  Json json = Json::array();
  for (const ChangedSetting& change : changes) {
    json.push_back({{"step", change.step},
                    {"key", change.key},
                    {"before", change.before},
                    {"after", change.after}});
  }
  return json;
}

// Who takes part, by the first step of each attendance: {"id", "members": [{"name", "samples"}],
// "attendance": [{"first_step", "present"}], "waits_for": [names]}; null without a cohort.
Json cohortJson(const CohortFile& cohort) {
  if (cohort.members.empty()) return nullptr;
  Json members = Json::array(), attendance = Json::array();
  for (std::size_t m = 0; m < cohort.members.size(); ++m) {
    members.push_back({{"name", cohort.members[m]}, {"samples", cohort.samples[m]}});
  }
  for (const Attendance& each : cohort.attendance) {
    attendance.push_back({{"first_step", each.firstStep}, {"present", each.present}});
  }
  return {{"id", cohort.id},
          {"members", members},
          {"attendance", attendance},
          {"waits_for", cohort.waitsFor}};
}

// Returns names that distinguish the runs: those of the members, if each is the run of another
// member of one cohort.
std::vector<std::string> namesOf(const std::vector<std::unique_ptr<RunReader>>& runs) {
  std::set<std::string> ids, members;
  for (const auto& run : runs) {
    ids.insert(run->cohort().id);
    members.insert(run->cohort().member);
  }
  const bool areMembers = ids.size() == 1 && !ids.contains("") && members.size() == runs.size();
  std::vector<std::string> names;
  for (const auto& run : runs) {
    std::string name = areMembers && runs.size() > 1 ? run->cohort().member : run->id();
    if (name.empty()) name = std::filesystem::path(run->folder()).filename();
    const std::string base = name;
    for (int i = 2; std::find(names.begin(), names.end(), name) != names.end(); ++i) {
      name = base + " (" + std::to_string(i) + ")";
    }
    names.push_back(name);
  }
  return names;
}

// Returns the settings in which the runs differ: [[key, value in the first run or null, …], …].
Json differences(const std::vector<const Settings*>& all) {
  std::vector<std::string> keys;
  std::vector<std::map<std::string, std::string>> values;
  for (const Settings* settings : all) {
    values.emplace_back(settings->begin(), settings->end());
    for (const auto& [key, text] : *settings) {
      if (std::find(keys.begin(), keys.end(), key) == keys.end()) keys.push_back(key);
    }
  }
  Json json = Json::array();
  for (const std::string& key : keys) {
    std::set<std::string> different;
    Json row = {key};
    for (const auto& of : values) {
      const auto found = of.find(key);
      row.push_back(found == of.end() ? Json() : Json(found->second));
      different.insert(found == of.end() ? "\n" : found->second);
    }
    if (different.size() > 1) json.push_back(row);
  }
  return json;
}

}  // namespace

ReportData::ReportData(const std::vector<RunPlace>& places) : grids_(pointsFor(places.size())) {
  for (const RunPlace& place : places) runs_.push_back(std::make_unique<RunReader>(place, grids_));
}

bool ReportData::read() {
  bool any = false;
  for (const auto& run : runs_) any = run->read() || any;
  return any;
}

Json ReportData::summary() {
  Json runs = Json::array();
  std::vector<const Settings*> configs, environments;
  const auto names = namesOf(runs_);
  for (std::size_t i = 0; i < runs_.size(); ++i) {
    RunReader& run = *runs_[i];
    runs.push_back({{"name", names[i]},
                    {"folder", run.folder()},
                    {"ended", run.training().ended},
                    {"completed", std::filesystem::exists(run.folder() + "/summary.json")},
                    {"headline", headline(run)},
                    {"flows", flowsJson(run)},
                    {"problems", run.problems(false)}});
    configs.push_back(&run.config());
    environments.push_back(&run.environment());
  }
  return {{"runs", runs},
          {"differences",
           {{"config", differences(configs)}, {"environment", differences(environments)}}}};
}

Json ReportData::page(bool live) {
  Json page = summary();
  std::size_t secondWidth = 1;
  for (const auto& run : runs_) {
    for (const BytesBySecond& bytes : recordingSide(*run).bytes) {
      while (bytes.seconds().size() > secondWidth * pointsFor(runs_.size())) secondWidth *= 2;
    }
  }
  for (std::size_t i = 0; i < runs_.size(); ++i) {
    RunReader& run = *runs_[i];
    TrainingFigures& training = run.training();
    SideFigures& seen = recordingSide(run);
    Json series = Json::object(), histograms = Json::object();
    const std::array<std::string, kDirections> directions = {"up", "down"};
    for (std::size_t d = 0; d < kDirections; ++d) {
      if (!seen.bytes[d].seconds().empty()) {
        series["bytes_" + directions[d]] = bytesJson(seen.bytes[d], secondWidth);
      }
      put(series, "transfer_" + directions[d], seen.transferRate[d], "time");
      put(histograms, "transfer_rates_" + directions[d], seen.transferRates[d]);
      put(histograms, "transfer_seconds_" + directions[d], seen.transferSeconds[d]);
    }
    put(series, "step_seconds", training.seconds, "step");
    put(series, "bound_seconds", training.boundSeconds, "step");
    put(series, "latency", training.latency, "step");
    put(series, "loss", training.loss, "step");
    put(series, "metric", training.metric, "step");
    put(series, "learning_rate", training.learningRate, "step");
    put(series, "gradient_norm", training.gradientNorm, "step");
    put(series, "clock", training.clock, "step");
    put(histograms, "latencies", training.latencies);
    putSplit("client", run.client().split, series);
    putSide("client", run.client(), series, histograms);
    const auto splits = run.serverSplits();
    for (std::size_t s = 0; s < splits.size(); ++s) putSplit(serverKey(s), *splits[s], series);
    const auto servers = run.servers();
    Json numbers = Json::array(), environments = Json::array();
    for (std::size_t s = 0; s < servers.size(); ++s) {
      putSide(serverKey(s), servers[s].figures, series, histograms);
      numbers.push_back(servers[s].number);
      environments.push_back(settingsJson(servers[s].environment));
    }
    Json& json = page["runs"][i];
    json["series"] = series;
    json["histograms"] = histograms;
    json["evaluations"] = evaluationsJson(training);
    json["interruptions"] = interruptionsJson(training);
    json["changes"] = changesJson(run.changes());
    json["cohort"] = cohortJson(run.cohort());
    json["evaluation"] = run.evaluation();
    json["server_steps"] = {{"from", run.areServersSeenByClient() ? "client" : "server"},
                            {"servers", run.planned().servers},
                            {"shown", numbers}};
    json["config"] = settingsJson(run.config());
    json["environment"] = settingsJson(run.environment());
    json["server_environments"] = environments;
    json["problems"] = run.problems(live);
    json["logged"] = run.logged();
  }
  page["grids"] = {
      {"time", grids_.time.width()}, {"step", grids_.step.width()}, {"second", secondWidth}};
  page["written"] = utcNow();
  page["software"] = softwareVersion();
  page["live"] = live;
  return page;
}

}  // namespace cleave
