// A sweep's grid, statistics, tables and published figures, without running anything.
#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>

#include "client/sweep/grid.h"
#include "client/sweep/point_store.h"
#include "client/sweep/published.h"
#include "client/sweep/report.h"
#include "common/core/durable.h"
#include "compression/registry.h"
#include "tests/support/files/folder.h"
#include "tests/support/refused.h"
#include "tools/link/settings.h"

namespace cleave {
namespace {

using Catch::Matchers::Contains;
using test::Folder;
using test::refusal;
using Json = nlohmann::ordered_json;

std::string textOf(const std::string& path) {
  std::ifstream file(path);
  REQUIRE(file);
  return {std::istreambuf_iterator<char>(file), {}};
}

// ---- Grid ----

TEST_CASE(
    "a grid is every combination with the last key varying fastest, and values may have commas") {
  const auto axes = parseGrid({"codec=none", "link.rate=100Mbit/s", "codec=sort:q=6,s=2",
                               "link.rate=1Gbit/s", "run.seed=1"});
  REQUIRE(axes.size() == 3);
  CHECK(axes[0].key == "codec");
  CHECK(axes[0].values == std::vector<std::string>{"none", "sort:q=6,s=2"});
  const auto points = expandGrid(axes);
  REQUIRE(points.size() == 4);
  CHECK(points[0].text() == "codec=none link.rate=100Mbit/s run.seed=1");
  CHECK(points[1].text() == "codec=none link.rate=1Gbit/s run.seed=1");
  CHECK(points[2].text() == "codec=sort:q=6,s=2 link.rate=100Mbit/s run.seed=1");
  CHECK(points[3].configOverrides() ==
        std::vector<std::string>{"codec=sort:q=6,s=2", "run.seed=1"});
  CHECK(points[3].linkOverrides() == std::vector<std::string>{"rate=1Gbit/s"});
}

TEST_CASE("a point's name is a valid folder name, independent of order, and unique per value") {
  const auto name = [](const std::vector<std::string>& options) {
    return expandGrid(parseGrid(options)).at(0).name();
  };
  const std::string one = name({"codec=block:bits=4", "link.rate=1Gbit/s"});
  CHECK(one == name({"link.rate=1Gbit/s", "codec=block:bits=4"}));
  CHECK_THAT(one, Contains("codec-block-bits-4-rate-1Gbit-s-"));
  CHECK(one != name({"codec=block:bits=4", "link.up.rate=1Gbit/s"}));
  // Both names have the same readable part.
  CHECK(name({"codec=a:b=1"}) != name({"codec=a=b:1"}));
  const std::string hostile = name({"data.folder=../../" + std::string(300, 'x')});
  CHECK(hostile.find('/') == std::string::npos);
  CHECK(hostile.size() < 100);
}

TEST_CASE("an invalid grid is refused with an example") {
  CHECK_THAT(refusal([] { parseGrid({"codec"}); }), Contains("--grid codec is not KEY=VALUE"));
  CHECK_THAT(refusal([] { parseGrid({"=none"}); }), Contains("is not KEY=VALUE"));
  CHECK_THAT(refusal([] { parseGrid({"codec=none", "codec=none"}); }), Contains("given twice"));
  CHECK_THAT(refusal([] { parseGrid({"link.rat=1Gbit/s"}); }), Contains("did you mean link.rate?"));
  CHECK_THAT(refusal([] { parseGrid({"link.rate=1"}); }),
             Contains("--grid link.rate=1") && Contains("unit"));
  std::vector<std::string> many;
  for (int i = 0; i < 101; ++i) {
    many.push_back("a=" + std::to_string(i));
    many.push_back("b=" + std::to_string(i));
  }
  CHECK_THAT(refusal([&] { expandGrid(parseGrid(many)); }), Contains("more than 10000 points"));
}

TEST_CASE("the link's keys are those of cleave-link") {
  std::set<std::string> known;
  for (const link::Flag& flag : link::flagTable()) known.insert("link." + flag.path);
  for (const std::string& key : linkKeys()) {
    INFO(key);
    CHECK(known.contains(key));
  }
  CHECK(linkKeys().size() == 18);
}

// ---- Statistics ----

PointResult done(const std::vector<std::string>& values, MetricValues metrics) {
  PointResult result;
  result.point = expandGrid(parseGrid(values)).at(0);
  result.status = PointResult::Status::done;
  result.measured.metrics = std::move(metrics);
  return result;
}

TEST_CASE("the folds of a cross-validation form a group") {
  const std::vector<PointResult> results = {
      done({"codec=none", "data.fold=1"}, {{"top1", 0.5}}),
      done({"codec=none", "data.fold=2"}, {{"top1", 0.7}}),
  };
  const auto groups = groupBySeed(results);
  REQUIRE(groups.size() == 1);
  CHECK(groups[0].point.text() == "codec=none");
  CHECK(groups[0].metrics.at("top1").mean == Approx(0.6));
}

TEST_CASE("the seeds of a point form a group, which excludes failed runs") {
  std::vector<PointResult> results = {done({"codec=none", "run.seed=1"}, {{"top1", 0.5}}),
                                      done({"codec=none", "run.seed=2"}, {{"top1", 0.7}}),
                                      done({"codec=bf16", "run.seed=1"}, {{"top1", 0.4}}),
                                      done({"codec=bf16", "run.seed=2"}, {})};
  results[3].status = PointResult::Status::failed;
  const auto groups = groupBySeed(results);
  REQUIRE(groups.size() == 2);
  CHECK(groups[0].point.text() == "codec=none");
  CHECK(groups[0].members.size() == 2);
  CHECK(groups[0].metrics.at("top1").mean == Approx(0.6));
  CHECK(*groups[0].metrics.at("top1").stddev == Approx(std::sqrt(0.02)));
  CHECK(groups[1].members.size() == 1);
  CHECK_FALSE(groups[1].metrics.at("top1").stddev);
}

TEST_CASE("a speed-up is relative to the point that differs only in the keys of the reference") {
  std::vector<std::string> options = {"codec=none", "codec=bf16", "link.rate=1Gbit/s",
                                      "link.rate=10Mbit/s"};
  const auto axes = parseGrid(options);
  std::vector<PointResult> results;
  const double speeds[] = {100, 10, 110, 20};
  for (const SweepPoint& point : expandGrid(axes)) {
    results.push_back(done({}, {{"images_per_second", speeds[results.size()]}}));
    results.back().point = point;
  }
  setSpeedUps(results, axes, {"codec=none"});
  CHECK(*results[0].speedUp == Approx(1));
  CHECK(*results[2].speedUp == Approx(1.1));
  CHECK(*results[3].speedUp == Approx(2));
  setSpeedUps(results, axes, {"codec=none", "link.rate=1Gbit/s"});
  CHECK(*results[3].speedUp == Approx(0.2));

  results[1].status = PointResult::Status::failed;
  results[3].speedUp.reset();
  setSpeedUps(results, axes, {"codec=none"});
  CHECK_FALSE(results[3].speedUp);
  CHECK_THAT(refusal([&] { setSpeedUps(results, axes, {"codec=fp16"}); }),
             Contains("the grid has no such value"));
}

// ---- Measuring ----

TEST_CASE("a run is measured from its summary and its tables, including rotated files") {
  const Folder folder;
  const std::string steps =
      "time,phase,step,seconds,head_forward_seconds,tail_step_seconds,head_backward_seconds,"
      "body_forward_seconds,body_backward_seconds,body_weights_seconds,update_seconds,"
      "encode_seconds,decode_seconds,wire_up_bytes,wire_down_bytes\n";
  const std::string time = "2026-01-31T12:00:00.000Z,";
  folder.write("steps.csv",
               steps + time + "handshake,,,,,,,,,,,,,\n" + time +
                   "train,1,9,9,9,9,9,9,9,9,9,9,9,9\n" +  // warm-up
                   time + "train,2,2,0.1,0.2,0.3,0.4,0.5,0.6,0.1,0.01,0.02,1000,2000\n" + time +
                   "eval,1,7,7,7,7,7,7,7,7,7,7,7,7\n" + time +
                   "train,3,4,0.1,0.2,0.3,0.4,0.5,0.6,0.3,0.03,0.04,5000,4000\n" + time +
                   "handshake,,,,,,,,,,,,,\n" + time +
                   "train,4,9,9,9,9,9,9,9,9,9,9,9,9\n" +  // of the next process
                   time + "bye,,,,,,,,,,,,,\n");
  const std::string header = "phase,flow,wire_bytes,wire_seconds,role\n";
  folder.write("epochs.csv",
               "epoch,train_seconds,eval_seconds,eval_loss,eval_top1\n1,6,1,2,0.25\n");
  folder.write("transfers.1.csv", header + "train,activation/0,1000,0.5,send\n");
  folder.write("transfers.csv", header +
                                    "train,activation/0,1010,0.25,send\n"
                                    "train,activation/0,64,0.25,send\n"
                                    "train,activation/1,1000,0.1,recv\n"
                                    "train,activation/1,1000,,recv\n"  // was never acknowledged
                                    "train,weights/body,1000,0.001,send\n"
                                    "eval,activation/0,1000,0.001,send\n");
  const Json summary = {
      {"images_per_second", 50},  {"seconds", 20},
      {"bytes_up", 7000},         {"bytes_down", 8000},
      {"model_bytes_up", 300},    {"model_bytes_down", 200},
      {"eval", {{"top1", 0.25}}}, {"bound", {{"over_bound", 1.5}, {"bottleneck", "uplink"}}}};
  const Measured measured = measureRun(summary, folder.path.string());
  const MetricValues& metrics = measured.metrics;
  CHECK(metrics.at("top1") == 0.25);
  CHECK(metrics.at("over_bound") == 1.5);
  CHECK(measured.bottleneck == "uplink");
  CHECK(metrics.at("step_seconds") == Approx(3));
  CHECK(metrics.at("client_seconds") == Approx(0.8));
  CHECK(metrics.at("server_seconds") == Approx(1.5));
  CHECK(metrics.at("codec_seconds") == Approx(0.05));
  CHECK(metrics.at("average_up") == Approx(1000));
  CHECK(metrics.at("average_down") == Approx(1000));
  CHECK(metrics.at("tensor_peak_up") == Approx(4040));
  CHECK(metrics.at("tensor_peak_down") == Approx(10000));
  CHECK_FALSE(metrics.contains("loss"));
  REQUIRE(measured.classes.size() == 3);
  CHECK(measured.classes[0].transfers == 1);
  CHECK(measured.classes[1].flow == "activation/0");
  CHECK(measured.classes[1].transfers == 2);
  CHECK(measured.classes[1].bytes == Approx(1005));
  CHECK(measured.classes[1].bandwidth == Approx(2010 / 0.75));

  CHECK(metrics.at("total_up_bytes") == 7000);
  CHECK(metrics.at("total_bytes") == 15000);
  CHECK(metrics.at("model_bytes") == 500);
  CHECK(measured.curve.metric == "top1");
  REQUIRE(measured.curve.points.size() == 1);
  CHECK(measured.curve.points[0].seconds == 7);

  const Measured again = measuredFromJson(toJson(measured));
  CHECK(again.metrics == metrics);
  REQUIRE(again.curve.points.size() == 1);
  CHECK(again.curve.metric == "top1");
  CHECK(again.curve.points[0].evalMetric == 0.25);
  CHECK(again.curve.points[0].evalLoss == 2);
  CHECK_FALSE(again.curve.points[0].trainLoss);
  CHECK(again.classes.size() == 3);
  CHECK(measureRun(Json::object(), folder.path.string() + "/nowhere").metrics.empty());
}

// ---- The folder ----

std::string unchanged(const std::string& config) { return config; }

TEST_CASE("a finished point is found again, and a different plan for it is refused") {
  const Folder folder;
  PlannedPoint planned;
  planned.point = expandGrid(parseGrid({"codec=none"})).at(0);
  planned.config = "train:\n  epochs: 1\n";
  CHECK_FALSE(loadPoint(folder.path.string(), planned, unchanged));
  const std::string run = folder.path.string() + "/" + planned.point.name();
  std::filesystem::create_directories(run);
  CHECK_FALSE(
      loadPoint(folder.path.string(), planned, unchanged));  // the point's folder is incomplete

  StoredPoint stored;
  stored.result = done({"codec=none"}, {{"top1", 0.5}});
  stored.seconds = 7;
  storePoint(folder.path.string(), planned, stored);
  const auto found = loadPoint(folder.path.string(), planned, unchanged);
  REQUIRE(found);
  CHECK(found->seconds == 7);
  CHECK(found->result.measured.metrics.at("top1") == 0.5);

  // Earlier versions stored no curve and no total bytes; the point's run still has both.
  const std::string result = textOf(run + "/result.json");
  const auto withoutCurve = [&] {
    Json json = Json::parse(result);
    json["measured"].erase("curve");
    std::ofstream(run + "/result.json") << json.dump();
    return loadPoint(folder.path.string(), planned, unchanged)->result.measured;
  };
  CHECK(withoutCurve().metrics.at("top1") == 0.5);
  std::ofstream(run + "/summary.json")
      << R"({"bytes_up": 1, "bytes_down": 2, "eval": {"top1": 0.5}})";
  CHECK(withoutCurve().metrics.at("total_bytes") == 3);
  std::ofstream(run + "/result.json") << result;

  PlannedPoint changed = planned;
  changed.config = "train:\n  epochs: 2\n";
  CHECK_THAT(refusal([&] { loadPoint(folder.path.string(), changed, unchanged); }),
             Contains("a different configuration: 'epochs: 1' stored, 'epochs: 2' now"));
  changed = planned;
  changed.link = {"rate=1Gbit/s"};
  CHECK_THAT(refusal([&] { loadPoint(folder.path.string(), changed, unchanged); }),
             Contains("a different link: none stored, rate=1Gbit/s now"));
  changed = planned;
  changed.server = "10.0.0.5:4800";
  CHECK_THAT(refusal([&] { loadPoint(folder.path.string(), changed, unchanged); }),
             Contains("a different server: none stored, 10.0.0.5:4800 now"));
  std::ofstream(run + "/result.json") << "{";
  CHECK_THAT(refusal([&] { loadPoint(folder.path.string(), planned, unchanged); }),
             Contains("was not written by a sweep"));
}

TEST_CASE("a sweep refuses a folder that has other files or is in use by another sweep") {
  const Folder folder;
  {
    const SweepFolder first(folder.path.string() + "/sweeps/a");
    CHECK_THAT(refusal([&] { SweepFolder(folder.path.string() + "/sweeps/a"); }),
               Contains("another sweep is running in"));
  }
  const SweepFolder again(folder.path.string() + "/sweeps/a");
  CHECK_THAT(refusal([&] { SweepFolder(folder.path.string()); }),
             Contains("contains files other than those of a sweep"));
}

// ---- Published figures ----

const std::string kReference = CLEAVE_SOURCE_DIR "/configs/experiments/reference.csv";

TEST_CASE("the published figures have unique ids and valid codec specs") {
  const auto rows = readPublished(kReference);
  CHECK(rows.size() > 100);
  std::set<std::string> ids;
  std::size_t contradictory = 0;
  for (const PublishedRow& row : rows) {
    INFO(row.id);
    CHECK(ids.insert(row.id).second);
    CHECK_FALSE(row.source.empty());
    CHECK_FALSE(row.figures.empty());
    contradictory += row.contradiction.empty() ? 0 : 1;
    for (const char* key : {"codec_cut0", "codec_cut1"}) {
      if (!row.keys.contains(key)) continue;
      CHECK(makeCodec(row.keys.at(key))->spec() == row.keys.at(key));
    }
  }
  CHECK(contradictory == 8);
}

TEST_CASE("published figures are compared with points that match all their keys") {
  const auto rows = readPublished(kReference);
  std::vector<PointResult> results = {
      done({"train.micro_batches=4"},
           {{"best_top1", 0.95}, {"step_seconds", 3}, {"average_up", 1048576}, {"ratio", 1}})};
  results[0].facts = {{"data", "cifar10"},    {"model", "mobilenet_v2"}, {"start", "pretrained"},
                      {"cuts", "default"},    {"batch", "64"},           {"micro_batches", "4"},
                      {"codec_cut0", "none"}, {"codec_cut1", "none"}};
  const auto idsOf = [&] {
    const auto groups = groupBySeed(results);
    std::set<std::string> ids;
    for (const ComparedFigure& one : compareFigures(groups, rows)) ids.insert(one.row->id);
    return ids;
  };
  CHECK(idsOf() == std::set<std::string>{"cifar10-none", "cifar10-finetune-none",
                                         "two-machines-none-4", "throughput-cifar10-pipeline-2",
                                         "throughput-cifar10-pipeline-4-chunks-4"});
  const auto groups = groupBySeed(results);
  for (const ComparedFigure& one : compareFigures(groups, rows)) {
    if (one.row->id != "two-machines-none-4") continue;
    if (one.quantity == "best top-1") {
      CHECK(one.ours.mean == Approx(95));
      CHECK(one.theirs == Approx(96.04));
    } else if (one.quantity == "average up") {
      CHECK(one.ours.mean == Approx(1));
      CHECK(one.theirs == Approx(343.37));
      CHECK_THAT(one.note, Contains("per second of computing"));
    }
  }
  // A run with inserts is compared with rows of the same inserts only.
  results[0].facts["insert"] = "0 conv channels=32 kernel=4 1 conv channels=320 kernel=1";
  CHECK(idsOf() == std::set<std::string>{"two-machines-conv-32-4"});
  results[0].facts.erase("insert");
  results[0].facts["batch"] = "256";
  CHECK_FALSE(idsOf().contains("two-machines-none-4"));
  results[0].facts["start"] = "scratch";
  CHECK(idsOf() == std::set<std::string>{"cifar10-scratch-none"});
  results[0].facts["model"] = "small_cnn";
  CHECK(idsOf().empty());
}

TEST_CASE("an invalid file of figures is refused") {
  const Folder folder;
  CHECK_THAT(refusal([&] { readPublished(folder.path.string() + "/none.csv"); }),
             Contains("none.csv is missing"));
  folder.write("short.csv", "id,source\na,b\n");
  CHECK_THAT(refusal([&] { readPublished(folder.path.string() + "/short.csv"); }),
             Contains("lacks columns: "));
  std::string text = textOf(kReference);
  text.replace(text.find("95.87"), 5, "95,87");
  folder.write("garbled.csv", text);
  CHECK_THAT(refusal([&] { readPublished(folder.path.string() + "/garbled.csv"); }),
             Contains("1 of ") && Contains("rows cannot be read"));
  CHECK_THAT(refusal([&] { readPublished("figures.txt"); }), Contains("is not a .csv file"));
}

// ---- Tables ----

SweepReport exampleReport() {
  SweepReport report;
  report.axes = parseGrid({"codec=none", "run.seed=1", "run.seed=2"});
  for (const SweepPoint& point : expandGrid(report.axes)) {
    const double seed = std::stod(point.value(kSeedKey));
    report.results.push_back(done({}, {{"top1", 0.4 + seed / 10}, {"images_per_second", 100}}));
    report.results.back().point = point;
    report.results.back().facts["micro_batches"] = "4";
    report.results.back().measured.classes = {{"activation/0", 3, 100, 2000}};
  }
  setSpeedUps(report.results, report.axes, {"run.seed=1"});
  report.groups = groupBySeed(report.results);
  return report;
}

TEST_CASE("each table has one row per point, and a failed point's row has the reason") {
  SweepReport report = exampleReport();
  CHECK_THAT(tableText(report), Contains("55.0 ± 7.1") && Contains("speed-up"));
  CHECK_THAT(resultsCsv(report), Contains(",done,none,1,0.5,") && Contains(",done,none,2,0.6,"));
  CHECK_THAT(groupsCsv(report), Contains("\nnone,2,0.55,0.0707106781,"));
  CHECK_THAT(transferSizesCsv(report), Contains(",none,2,activation/0,3,100,2000\n"));
  CHECK(toJson(report).at("groups").at(0).at("metrics").at("top1").at("mean") == Approx(0.55));

  CHECK(toJson(report).at("groups").at(0).at("micro_batches") == 4);
  CHECK_THAT(sweepPage(report, "sweeps/a"), Contains("\"sweep\":{") && !Contains("@DATA@"));

  report.results[1].status = PointResult::Status::failed;
  report.results[1].failure = "the disk is full";
  report.results[1].measured = {};
  report.groups = groupBySeed(report.results);
  CHECK_THAT(tableText(report), Contains("failed: codec=none run.seed=2: the disk is full"));
  CHECK_THAT(resultsCsv(report), Contains(",failed,none,2,,") && Contains(",the disk is full\n"));
}

// The names in the first column of a table between markers in docs/sweep.md.
std::vector<std::string> documented(const std::string& name) {
  const std::string text = textOf(CLEAVE_SOURCE_DIR "/docs/sweep.md");
  const auto start = text.find("<!-- begin:" + name + " -->");
  const auto end = text.find("<!-- end:" + name + " -->");
  REQUIRE(start != std::string::npos);
  REQUIRE(end != std::string::npos);
  std::istringstream lines(text.substr(start, end - start));
  std::vector<std::string> columns;
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("| `")) continue;
    columns.push_back(line.substr(3, line.find('`', 3) - 3));
  }
  return columns;
}

// The columns except those for keys of the grid.
std::vector<std::string> columnsOf(const std::string& csv, const std::set<std::string>& keys) {
  std::vector<std::string> columns;
  std::istringstream header(csv.substr(0, csv.find('\n')));
  for (std::string column; std::getline(header, column, ',');) {
    if (!keys.contains(column)) columns.push_back(column);
  }
  return columns;
}

TEST_CASE("the columns equal those in docs/sweep.md, in the same order") {
  const SweepReport report = exampleReport();
  const std::set<std::string> keys = {"codec", "run.seed"};
  CHECK(columnsOf(resultsCsv(report), keys) == documented("results"));
  CHECK(columnsOf(transferSizesCsv(report), keys) == documented("transfer_sizes"));
  CHECK(columnsOf(comparisonCsv(report), keys) == documented("comparison"));
  CHECK(publishedColumns() == documented("reference"));
  // A group's row has the number of seeds, and then each metric with its std.
  std::vector<std::string> expected = {"seeds"};
  for (const SweepMetric& metric : sweepMetrics()) {
    expected.emplace_back(metric.name);
    expected.push_back(std::string(metric.name) + "_std");
  }
  expected.insert(expected.end(), {"speed_up", "speed_up_std"});
  CHECK(columnsOf(groupsCsv(report), keys) == expected);
}

}  // namespace
}  // namespace cleave
