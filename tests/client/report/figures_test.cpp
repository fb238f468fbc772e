// Learning curves, spreads, and the figures for papers, from files of runs and of a sweep.
#include "client/report/figures.h"

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

#include "client/report/records/learning_curve.h"
#include "client/report/records/spread.h"
#include "client/report/report_data.h"
#include "client/report/svg_chart.h"
#include "client/sweep/figure_groups.h"
#include "client/sweep/results.h"
#include "tests/support/files/folder.h"
#include "tests/support/refused.h"

namespace cleave {
namespace {

using Catch::Matchers::Contains;
using test::Folder;
using test::refusal;
namespace fs = std::filesystem;

const std::string kSteps =
    "time,run,generation,phase,step,epoch,samples,seconds,head_forward_seconds,"
    "body_forward_seconds,encode_seconds,wire_up_bytes,wire_down_bytes,control_up_bytes,"
    "control_down_bytes,rate_up,rate_down,loss,top1\n";
const std::string kEpochs =
    "time,epoch,steps,samples,train_seconds,eval_seconds,train_loss,train_top1,eval_loss,"
    "eval_top1\n";

std::string time(int second) { return "2026-01-31T12:00:0" + std::to_string(second) + ".000Z,"; }

std::string step(int second, int number, int epoch) {
  return time(second) + "tiny,1,train," + std::to_string(number) + "," + std::to_string(epoch) +
         ",10,1,0.25,0.5,0.125,1000,500,10,5,1e5,1e5,2,0.5\n";
}

// Two epochs of one step. `top1` is the accuracy of the second evaluation.
void writeRun(const Folder& folder, const std::string& name, const std::string& top1) {
  folder.write(name + "/steps.csv", kSteps + time(0) + "tiny,1,handshake,,,,,,,,,,300,100,,,,\n" +
                                        step(1, 1, 1) + step(2, 2, 2) + time(3) +
                                        "tiny,1,bye,,,,,,,,,,100,100,,,,\n");
  folder.write(name + "/epochs.csv", kEpochs + time(1) + "1,1,10,1,0.5,2,0.5,1.5,0.25\n" + time(2) +
                                         "2,1,10,1,0.5,1,0.75,1.25," + top1 + "\n");
  folder.write(name + "/transfers.csv",
               "time,run,role,phase,step,flow,codec,raw_bytes,wire_bytes,encode_seconds,"
               "queue_seconds,wire_seconds,decode_seconds\n" +
                   time(1) + "tiny,send,train,1,activation/0,none,1000,1000,0,0,0.5,0\n" + time(2) +
                   "tiny,recv,train,1,activation/1,none,1000,500,0,0,0.5,0\n");
  folder.write(name + "/config.yaml", "train:\n  batch: 10\n");
}

FigureGroup groupOf(const Folder& folder, const std::string& label,
                    const std::vector<std::string>& runs) {
  FigureGroup group{label, {{"run", label}}, {}};
  for (const std::string& run : runs) group.runs.push_back(findRun(folder.path / run, {}));
  return group;
}

const Figure* find(const std::vector<Figure>& figures, const std::string& name) {
  for (const Figure& figure : figures) {
    if (figure.name == name) return &figure;
  }
  return nullptr;
}

// The text elements of an SVG document.
std::vector<std::string> textsOf(const std::string& svg) {
  std::vector<std::string> texts;
  for (std::size_t at = svg.find("<text"); at != std::string::npos; at = svg.find("<text", at)) {
    at = svg.find('>', at) + 1;
    texts.push_back(svg.substr(at, svg.find('<', at) - at));
  }
  return texts;
}

bool has(const std::vector<std::string>& texts, const std::string& text) {
  return std::find(texts.begin(), texts.end(), text) != texts.end();
}

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
    ++found;
  }
  return found;
}

}  // namespace

TEST_CASE("spreads have the mean and the sample std") {
  const Spread spread = spreadOf({2, 4, 4, 4, 5, 5, 7, 9});
  CHECK(spread.mean == Approx(5));
  CHECK(*spread.stddev == Approx(2.13808994));
  CHECK(spreadOf({3}).mean == 3);
  CHECK_FALSE(spreadOf({3}).stddev);
}

TEST_CASE("a std has two significant digits, and the mean ends at the same place") {
  CHECK(spreadText({81.8633, 0.2845}, 2) == "81.86 ± 0.28");
  CHECK(spreadText({81.8633, std::nullopt}, 2) == "81.86");
  CHECK(spreadText({0.2661, 0.00000025}, 4) == "0.2661 ± 0");
  CHECK(spreadText({0.2661, 0}, 4) == "0.2661 ± 0");
  CHECK(spreadText({123456, 1234}, 0) == "123500 ± 1200");
  CHECK(spreadText({12345.6, 0.01}, 1) == "12345.6 ± 0");
  CHECK(spreadText({0.5, 0.0998}, 2) == "0.50 ± 0.10");
  CHECK(spreadText({-1.5, 0.996}, 2) == "-1.5 ± 1.0");
  CHECK(spreadText({0, 0.05}, 2) == "0.000 ± 0.050");
}

TEST_CASE("a learning curve has what was spent until the end of each epoch") {
  const Folder folder;
  writeRun(folder, "run", "0.75");
  const LearningCurve curve = readLearningCurve(folder.path / "run");
  CHECK(curve.metric == "top1");
  REQUIRE(curve.points.size() == 2);
  CHECK(curve.points[0].bytesUp == 1310);  // including those of the handshake
  CHECK(curve.points[0].bytesDown == 605);
  CHECK(curve.points[0].seconds == 1.5);
  CHECK(curve.points[1].bytesUp == 2320);
  CHECK(curve.points[1].bytes() == 2320 + 1110);
  CHECK(curve.points[1].seconds == 3);
  CHECK(curve.points[1].trainLoss == 1);
  CHECK(curve.points[1].trainMetric == 0.75);
  CHECK(curve.points[1].evalLoss == 1.25);
  CHECK(curve.points[1].evalMetric == 0.75);
  CHECK(readLearningCurve(folder.path / "nowhere").points.empty());
}

TEST_CASE("a learning curve of an interrupted run has the bytes of steps that were redone") {
  const Folder folder;
  folder.write("run/steps.csv",
               kSteps + step(1, 1, 1) + step(2, 2, 2) + step(3, 2, 2) + step(4, 3, 3));
  folder.write("run/epochs.csv", kEpochs + time(1) + "1,1,10,1,,2,0.5,,\n" + time(2) +
                                     "2,1,10,9,,2,0.5,,\n" + time(3) + "2,1,10,2,,2,0.5,,\n" +
                                     time(4) + "3,1,10,1,,2,0.5,1,0.5\n");
  const LearningCurve curve = readLearningCurve(folder.path / "run");
  REQUIRE(curve.points.size() == 3);
  CHECK(curve.points[1].bytesUp == 3 * 1010);
  CHECK(curve.points[2].bytesUp == 4 * 1010);
  CHECK(curve.points[1].seconds == 3);  // the last row of an epoch counts
  CHECK_FALSE(curve.points[1].evalMetric);
  CHECK(curve.points[2].evalMetric == 0.5);
}

TEST_CASE("a run without a metric has a curve of the loss alone") {
  const Folder folder;
  folder.write("run/epochs.csv",
               "epoch,train_seconds,eval_seconds,train_loss,eval_loss\n1,1,1,2,3\n");
  const LearningCurve curve = readLearningCurve(folder.path / "run");
  CHECK(curve.metric.empty());
  REQUIRE(curve.points.size() == 1);
  CHECK_FALSE(curve.points[0].trainMetric);
  CHECK_FALSE(curve.points[0].evalMetric);
  const std::vector<Figure> figures = makeFigures({groupOf(folder, "a", {"run"})});
  REQUIRE(figures.size() == 1);
  CHECK(figures[0].name == "loss_epochs");
}

TEST_CASE("curves of several runs are averaged by epoch") {
  LearningCurve one{"top1", {{1, 10, 100, 0, {}, {}, {}, 0.5}, {2, 20, 200, 0, {}, {}, {}, 0.6}}};
  LearningCurve two{"top1", {{1, 12, 100, 0, {}, {}, {}, 0.7}}};
  const auto mean = meanCurve({&one, &two});
  REQUIRE(mean.size() == 2);
  CHECK(mean[0].runs == 2);
  CHECK(mean[0].seconds.mean == 11);
  CHECK(mean[0].evalMetric->mean == Approx(0.6));
  CHECK(*mean[0].evalMetric->stddev == Approx(0.141421356));
  CHECK_FALSE(mean[0].evalLoss);
  CHECK(mean[1].runs == 1);
  CHECK_FALSE(mean[1].evalMetric->stddev);
}

TEST_CASE("the figures of a run have its figures and units") {
  const Folder folder;
  writeRun(folder, "run", "0.75");
  const std::vector<FigureGroup> groups = {groupOf(folder, "a<b", {"run"})};
  const std::vector<Figure> figures = makeFigures(groups);
  std::vector<std::string> names;
  for (const Figure& figure : figures) names.push_back(figure.name);
  CHECK(names == std::vector<std::string>{"accuracy_bytes", "accuracy_seconds", "accuracy_epochs",
                                          "loss_epochs", "step_time", "bandwidth"});

  const Figure& bytes = *find(figures, "accuracy_bytes");
  CHECK(bytes.csv ==
        "run,runs,epoch,up_bytes,up_bytes_std,down_bytes,down_bytes_std,total_bytes,"
        "total_bytes_std,eval_top1_percent,eval_top1_percent_std\n"
        "a<b,1,1,1310,,605,,1915,,25,\n"
        "a<b,1,2,2320,,1110,,3430,,75,\n");
  CHECK(has(textsOf(bytes.svg), "Transferred bytes, both directions (kB)"));
  CHECK(has(textsOf(bytes.svg), "Accuracy of the evaluation (%)"));
  CHECK(find(figures, "loss_epochs")->csv ==
        "run,runs,epoch,train_loss,train_loss_std,eval_loss,eval_loss_std\n"
        "a<b,1,1,2,,1.5,\na<b,1,2,1,,1.25,\n");
  const auto losses = textsOf(find(figures, "loss_epochs")->svg);
  CHECK(has(losses, "training"));
  CHECK(has(losses, "evaluation"));
  CHECK(find(figures, "step_time")->csv ==
        "run,runs,side,computing_seconds,computing_seconds_std,codec_seconds,codec_seconds_std,"
        "wire_seconds,wire_seconds_std,waiting_seconds,waiting_seconds_std,step_seconds,"
        "step_seconds_std\n"
        "a<b,1,client,0.25,,0.125,,0.01,,0.615,,1,\n"
        "a<b,1,server,0.5,,0,,0.01,,0.49,,1,\n");
  CHECK_THAT(find(figures, "bandwidth")->csv,
             Contains("run,runs,seconds,up_bytes_per_second,down_bytes_per_second\n"));

  const std::vector<Figure> again = makeFigures(groups);
  for (std::size_t f = 0; f < figures.size(); ++f) CHECK(again[f].svg == figures[f].svg);
}

TEST_CASE("the bandwidth over time has no line across the pause before a resume") {
  const Folder folder;
  writeRun(folder, "run", "0.75");
  const auto bandwidth = [&] {
    return *find(makeFigures({groupOf(folder, "a", {"run"})}), "bandwidth");
  };
  CHECK(count(bandwidth().svg, "<polyline") == 2);
  CHECK_FALSE(has(textsOf(bandwidth().svg), "resume"));
  // The last row is at 3 s, and the next process continues at 8 s.
  folder.append("run/steps.csv",
                time(7) + "tiny,2,handshake,,,,,,,,,,300,100,,,,\n" + time(8) +
                    "tiny,2,resume,2,,,,,,,,,10,10,,,,\n" + time(9) +
                    "tiny,2,train,3,2,10,1,0.25,0.5,0,1000,500,10,5,1e5,1e5,2,0.5\n");
  std::string transfers;
  for (const int second : {3, 9}) {
    for (const char* more : {"send,train,1,activation/0", "recv,train,1,activation/1"})
      transfers += time(second) + "tiny," + more + ",none,1000,1000,0,0,1,0\n";
  }
  folder.append("run/transfers.csv", transfers);
  const Figure figure = bandwidth();
  CHECK(count(figure.svg, "<polyline") == 4);
  CHECK(has(textsOf(figure.svg), "resume"));
  CHECK_THAT(figure.csv, Contains("a,1,1.5,") && Contains("a,1,2.5,") && Contains("a,1,8.5,"));
  CHECK_THAT(figure.csv, !Contains("a,1,3.5,") && !Contains("a,1,7.5,"));
}

TEST_CASE("groups of runs are lines with error bars that differ without colour") {
  const Folder folder;
  writeRun(folder, "a1", "0.70");
  writeRun(folder, "a2", "0.80");
  writeRun(folder, "b", "0.60");
  const std::vector<Figure> figures =
      makeFigures({groupOf(folder, "a<b & \"c\"", {"a1", "a2"}), groupOf(folder, "b", {"b"})});
  const Figure& bytes = *find(figures, "accuracy_bytes");
  CHECK_THAT(bytes.csv, Contains(",2,2,2320,0,1110,0,3430,0,75,7.07106781\n") &&
                            Contains("\nb,1,2,2320,,1110,,3430,,60,\n"));
  CHECK(has(textsOf(bytes.svg), "a&lt;b &amp; \"c\""));
  CHECK(count(bytes.svg, "<polyline") == 2);
  CHECK(count(bytes.svg, "stroke-dasharray=\"6 3\"") == 2);  // the second line and its legend
  CHECK(count(bytes.svg, "stroke-width=\"1\"/>") >= 3);      // an error bar and its caps
  const Figure& bandwidth = *find(figures, "bandwidth");
  CHECK_THAT(bandwidth.csv, Contains("run,runs,mean_up_bytes_per_second,"));
  CHECK(count(find(figures, "step_time")->svg, "url(#stripes)") >= 4);
}

TEST_CASE("figures, the report and a sweep's table give the same step and bandwidth") {
  const Folder folder;
  writeRun(folder, "run", "0.75");
  std::string steps = folder.read("run/steps.csv");
  steps += time(4) + "tiny,2,handshake,,,,,,,,,,300,100,,,,\n" + step(5, 3, 3) + time(6) +
           "tiny,2,train,4,4,10,3,0.75,0.25,0.5,4000,500,10,5,1e5,1e5,2,0.5\n";
  folder.write("run/steps.csv", steps);
  const Measured cell = measureRun(nlohmann::ordered_json::object(), folder.path / "run");
  CHECK(cell.metrics.at("step_seconds") == 2);  // without the first step of each process
  CHECK(cell.metrics.at("client_seconds") == 0.5);
  CHECK(cell.metrics.at("step_up_bytes") == 2500);
  const std::vector<Figure> figures =
      makeFigures({groupOf(folder, "a", {"run"}), groupOf(folder, "b", {"run", "run"})});
  CHECK_THAT(find(figures, "step_time")->csv,
             Contains("a,1,client,0.5,,0.3125,,0.025,,1.1625,,2,\n") &&
                 Contains("b,2,client,0.5,0,0.3125,0,0.025,0,1.1625,0,2,0\n"));
  ReportData report({findRun(folder.path / "run", {})});
  report.read();
  const auto headline = report.summary().at("runs").at(0).at("headline");
  CHECK(headline.at("seconds_per_step") == 2);
  CHECK_THAT(find(figures, "bandwidth")->csv,
             Contains("a,1," + std::to_string(headline.at("mean_up_bytes_per_second").get<int>())));
}

TEST_CASE("the bars of a step show the std of the whole step") {
  BarChart chart{
      "x", {"a", "b"}, true, {{"one", {{1, {}}, {1, {}}}}, {"two", {{2, {}}, {2, {}}}}}, {}};
  chart.stddevs = {0.5, std::nullopt};
  const std::string with = svgOf(chart);
  chart.stddevs = {std::nullopt, std::nullopt};
  const std::string without = svgOf(chart);
  CHECK(count(with, "<line") == count(without, "<line") + 3);  // the bar and its caps
}

TEST_CASE("the parts of the mean step add up to it on both sides, also after an evaluation") {
  const Folder folder;
  writeRun(folder, "run", "0.75");
  folder.write("run/run.json", R"({"run": "tiny", "server": "a:1", "steps": 2, "epochs": 2})");
  const auto server = [](int second, const std::string& step, const std::string& seconds) {
    return time(second) + "tiny,1,train," + step + ",1,10," + seconds +
           ",,0.5,0.125,1000,500,10,5,,,,\n";
  };
  // Since the previous row: with the evaluation and the answer to a Fetch before step 2.
  folder.write("run/server/local/tiny/steps.csv",
               kSteps + server(1, "1", "1") + server(2, "2", "61"));
  const std::string csv = find(makeFigures({groupOf(folder, "a", {"run"})}), "step_time")->csv;
  CHECK_THAT(csv, Contains("a,1,client,0.25,,0.125,,0.01,,0.615,,1,\n") &&
                      Contains("a,1,server,0.5,,0.125,,0.01,,0.365,,1,\n"));
}

TEST_CASE("runs with different main metrics have no figure of them") {
  const Folder folder;
  writeRun(folder, "a", "0.70");
  writeRun(folder, "b", "0.60");
  std::string epochs = folder.read("b/epochs.csv");
  for (std::size_t at; (at = epochs.find("top1")) != std::string::npos;)
    epochs.replace(at, 4, "f1");
  folder.write("b/epochs.csv", epochs);
  const auto figures = makeFigures({groupOf(folder, "a", {"a"}), groupOf(folder, "b", {"b"})});
  CHECK(find(figures, "accuracy_bytes") == nullptr);
  CHECK(find(figures, "loss_epochs") != nullptr);
  const auto alone = makeFigures({groupOf(folder, "b", {"b"})});
  CHECK(find(alone, "f1_bytes") != nullptr);
}

TEST_CASE("an axis with bytes that differ a lot is logarithmic, and axes have round ticks") {
  LineChart chart{"Bytes (MB)", "Accuracy (%)", true, false, {{"a", {{1, 90, {}}, {300, 91, {}}}}}};
  const auto texts = textsOf(svgOf(chart));
  for (const char* tick : {"1", "2", "5", "10", "100", "200", "90.0", "90.2", "91.0"}) {
    INFO(tick);
    CHECK(has(texts, tick));
  }
  chart.isLogX = false;
  CHECK(has(textsOf(svgOf(chart)), "0"));
  // A single point, and equal values, have axes too.
  const std::string one = svgOf(LineChart{"x", "y", false, false, {{"a", {{0, 0, {}}}}}});
  CHECK_THAT(one, !Contains("nan") && !Contains("inf"));
}

TEST_CASE("a line of many points has a band instead of error bars, and few markers") {
  ChartLine line{"a", {}};
  for (int x = 1; x <= 100; ++x) line.points.push_back({1.0 * x, 0.5, 0.1});
  const std::string svg = svgOf(LineChart{"x", "y", false, false, {line}});
  CHECK(count(svg, "<polygon") == 1);
  CHECK(count(svg, "<path") <= 12);
}

TEST_CASE("figures replace only files that are figures") {
  const Folder folder;
  const std::string into = folder.path / "figures";
  const std::string drawn = svgOf(LineChart{"x", "y", false, false, {{"a", {{1, 1, {}}}}}});
  CHECK(writeFigures(into, {{"one", drawn, "x\n1\n"}, {"two", drawn, "x\n2\n"}}) ==
        std::vector<std::string>{into + "/one.svg", into + "/one.csv", into + "/two.svg",
                                 into + "/two.csv"});
  // The figures of an earlier call that are not written again are removed.
  folder.write("figures/notes.csv", "mine");
  writeFigures(into, {{"one", drawn, "x\n3\n"}});
  CHECK(folder.read("figures/one.csv") == "x\n3\n");
  CHECK_FALSE(fs::exists(folder.path / "figures/two.svg"));
  CHECK_FALSE(fs::exists(folder.path / "figures/two.csv"));
  CHECK(folder.read("figures/notes.csv") == "mine");

  folder.write("figures/two.svg", "<svg/>");
  CHECK_THAT(refusal([&] {
               writeFigures(into, {{"one", drawn, ""}, {"two", drawn, ""}});
             }),
             Contains("two.svg was not written by --figures"));
  CHECK_THAT(refusal([&] {
               writeFigures(into, {{"notes", drawn, ""}});
             }),
             Contains("notes.csv was not written by --figures"));
  CHECK(folder.read("figures/one.csv") == "x\n3\n");  // nothing was changed
  CHECK(folder.read("figures/two.svg") == "<svg/>");
}

TEST_CASE("a sweep's figures have a line per group, in the order of results.csv") {
  const Folder folder;
  folder.write("sweep.json", "{}");
  CHECK(isSweep(folder.path));
  CHECK_THAT(refusal([&] { sweepFigureGroups(folder.path); }),
             Contains("without a finished point"));
  std::string results = "point,status,codec,link.rate,run.seed\n";
  const auto point = [&](const std::string& name, const std::string& codec, const std::string& seed,
                         const std::string& status) {
    results += name + "," + status + "," + codec + ",1Gbit/s," + seed + "\n";
    if (status != "done") return;
    writeRun(folder, name, "0.75");
    folder.write(name + "/result.json", R"({"values": {"codec": ")" + codec +
                                            R"(", "link.rate": "1Gbit/s", "run.seed": ")" + seed +
                                            "\"}}");
  };
  point("z", "none", "1", "done");
  point("y", "none", "2", "done");
  point("a", "bf16", "1", "done");
  point("b", "bf16", "2", "failed");
  folder.write("results.csv", results);
  const auto groups = sweepFigureGroups(folder.path);
  REQUIRE(groups.size() == 2);
  CHECK(groups[0].label == "none");  // the rate is the same in all groups
  CHECK(groups[0].runs.size() == 2);
  CHECK(groups[1].label == "bf16");
  CHECK(groups[1].runs.size() == 1);
  CHECK_THAT(find(makeFigures(groups), "accuracy_seconds")->csv,
             Contains("codec,link.rate,runs,epoch,seconds,seconds_std,") &&
                 Contains("\nnone,1Gbit/s,2,1,1.5,0,25,0\n"));
  folder.write("a/result.json", "{");
  CHECK_THAT(refusal([&] { sweepFigureGroups(folder.path); }),
             Contains("was not written by a sweep"));
}

}  // namespace cleave
