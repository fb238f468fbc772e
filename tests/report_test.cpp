#include "client/report/report.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "client/report/csv_reader.h"
#include "client/report/downsample.h"
#include "client/report/report_data.h"
#include "common/core/random.h"
#include "common/core/sha256.h"
#include "common/predict/bound.h"
#include "common/record/run_files.h"
#include "tests/folder.h"

using namespace cleave;
using Catch::Matchers::Contains;
using test::Folder;
namespace fs = std::filesystem;

namespace {

// Reads the column `x` of t.csv while the file grows.
struct Follower {
  explicit Follower(const Folder& folder) : reader(folder.path, "t", {"x", "text"}) {}

  std::vector<double> more() {
    std::vector<double> values;
    reader.read([&](const CsvRow& row) {
      const auto x = row.number(0);
      if (!row.isGarbled()) values.push_back(x.value_or(-1));
    });
    return values;
  }
  std::string problems(bool following = false) const {
    std::string all;
    for (const std::string& problem : reader.problems(following)) all += problem + "\n";
    return all;
  }

  CsvReader reader;
};

using Values = std::vector<double>;

}  // namespace

TEST_CASE("each line of a growing table is read when it is complete") {
  const Folder folder;
  Follower follower(folder);
  CHECK(follower.more().empty());
  CHECK(follower.problems() == "t.csv is missing\n");
  folder.write("t.csv", "x,text\n1,a\n2,b\n3");
  CHECK(follower.more() == Values{1, 2});
  CHECK(follower.problems(true).empty());
  CHECK_THAT(follower.problems(false), Contains("t.csv ends with an incomplete line"));
  folder.append("t.csv", "4,c\n5,d\n");
  CHECK(follower.more() == Values{34, 5});
  CHECK(follower.problems().empty());
  CHECK(follower.reader.rows() == 4);
}

TEST_CASE("columns are found by name, in any order") {
  const Folder folder;
  folder.write("t.csv", "other,text,x\n\"a \"\"quoted\"\", cell\",plain,7\nb,,\n");
  Follower follower(folder);
  CHECK(follower.more() == Values{7, -1});
  CHECK(follower.problems().empty());

  folder.write("u.csv", "x\n1\n");
  CsvReader lacking(folder.path, "u", {"x", "text"});
  lacking.read([](const CsvRow& row) { CHECK(row.text(1).empty()); });
  CHECK(lacking.problems(false) == std::vector<std::string>{"u.csv lacks columns: text"});
}

TEST_CASE("a quoted cell is returned without its quotes") {
  const Folder folder;
  folder.write("t.csv", "x,text\r\n1,\"sort:q=6,s=2 \"\"x\"\"\"\r\n");
  CsvReader reader(folder.path, "t", {"text"});
  std::string text;
  reader.read([&](const CsvRow& row) { text = row.text(0); });
  CHECK(text == "sort:q=6,s=2 \"x\"");
}

TEST_CASE("rotated parts are read first, in order") {
  const Folder folder;
  folder.write("t.csv", "x,text\n12,\n");
  for (int part = 1; part <= 11; ++part) {
    folder.write("t." + std::to_string(part) + ".csv", "x,text\n" + std::to_string(part) + ",\n");
  }
  Follower follower(folder);
  CHECK(follower.more() == Values{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12});
  CHECK(follower.problems().empty());
}

TEST_CASE("no row is lost if a table is rotated while it is being read") {
  const Folder folder;
  folder.write("t.csv", "x,text\n1,\n");
  Follower follower(folder);
  CHECK(follower.more() == Values{1});
  folder.append("t.csv", "2,\n");
  fs::rename(folder.path / "t.csv", folder.path / "t.1.csv");
  CHECK(follower.more() == Values{2});  // the new file does not exist yet
  folder.write("t.csv", "x,text\n3,\n");
  fs::rename(folder.path / "t.csv", folder.path / "t.2.csv");
  folder.write("t.csv", "x,text\n4,\n");
  CHECK(follower.more() == Values{3, 4});
  folder.append("t.csv", "5,\n");
  CHECK(follower.more() == Values{5});
  CHECK(follower.problems().empty());
}

TEST_CASE("old parts may be missing") {
  const Folder folder;
  folder.write("t.3.csv", "x,text\n3,\n");
  folder.write("t.csv", "x,text\n4,\n");
  Follower follower(folder);
  CHECK(follower.more() == Values{3, 4});
  CHECK_THAT(follower.problems(), Contains("the first parts of t.csv are missing"));
}

TEST_CASE("damaged rows are omitted and counted, and the others are kept") {
  const Folder folder;
  const std::string nothing(1, '\0');
  folder.write("t.csv", "x,text\n1,a\nonly one cell\n2,b\n3,c,more\nx5,d\n" + nothing +
                            ",e\n6,\"f\n" + std::string(200000, 'y') + "\n7,g\n");
  Follower follower(folder);
  CHECK(follower.more() == Values{1, 2, 6, 7});
  CHECK_THAT(follower.problems(),
             Contains("t.csv: 5 of 9 rows cannot be read and are skipped; the first "
                      "is line 3: it has 1 cells instead of 2"));
}

TEST_CASE("the damaged cell of the first damaged row is named") {
  const Folder folder;
  folder.write("t.csv", "x,text\n1,\nx5,a\n");
  Follower follower(folder);
  CHECK(follower.more() == Values{1});
  CHECK_THAT(follower.problems(), Contains("the first is line 3: its x is invalid"));
  CsvReader strict(folder.path, "t", {"x", "text", "time"});
  strict.read([](const CsvRow& row) { row.garble(1); });
  CHECK_THAT(strict.problems(false).back(), Contains("the first is line 2: its text is empty"));
  CsvReader other(folder.path, "t", {"x", "text", "time"});
  other.read([](const CsvRow& row) { row.time(2); });
  CHECK_THAT(other.problems(false).back(), Contains("the first is line 2: its time is missing"));
}

TEST_CASE("a file with another header is not read") {
  const Folder folder;
  folder.write("t.csv", "a,b\n1,2\n");
  Follower follower(folder);
  CHECK(follower.more().empty());
  CHECK_THAT(follower.problems(), Contains("not this table's header"));
  folder.write("e.csv", "");
  CsvReader empty(folder.path, "e", {"x"});
  empty.read([](const CsvRow&) { FAIL("no row"); });
  CHECK(empty.problems(false) == std::vector<std::string>{"e.csv is empty"});
}

TEST_CASE("cells are parsed as numbers or times, or reported as garbled") {
  const std::vector<std::string_view> cells = {
      "1.5e3", "", "nan", "12x", "2026-01-31T12:34:56.789Z", "2026-02-31T12:34:56.789Z"};
  const CsvRow row(cells);
  CHECK(row.number(0) == 1500);
  CHECK_FALSE(row.number(1));
  CHECK_FALSE(row.number(2));
  CHECK(row.time(4) == Approx(1769862896.789).epsilon(1e-12));
  CHECK_FALSE(row.isGarbled());
  CHECK_FALSE(row.number(3));
  CHECK(row.garbledColumn() == 3);
  const CsvRow noDay(cells);
  noDay.time(5);
  CHECK(noDay.garbledColumn() == 5);
}

TEST_CASE("downsampling keeps minimum, maximum and mean, in bounded memory") {
  constexpr std::size_t kMax = 100, kValues = 100000;
  BucketAxis grid(1, kMax);
  Series series(grid), late(grid);
  std::vector<float> noise(kValues);
  fillNormal(randomKey(1, "report"), noise);
  noise[54321] = 1000;
  noise[54322] = -1000;
  late.add(0, 1);
  double sum = 0;
  for (std::size_t x = 0; x < kValues; ++x) {
    series.add(static_cast<double>(x), noise[x]);
    sum += noise[x];
  }
  late.add(kValues - 1, 3);
  CHECK(grid.width() == 1024);
  REQUIRE(series.buckets().size() <= kMax);
  CHECK(late.buckets().size() == series.buckets().size());  // both have the same bucket boundaries
  double got = 0;
  for (std::size_t k = 0; k < series.buckets().size(); ++k) {
    const Series::Bucket& bucket = series.buckets()[k];
    const auto begin = noise.begin() + static_cast<std::ptrdiff_t>(1024 * k);
    const auto end =
        noise.begin() + static_cast<std::ptrdiff_t>(std::min<std::size_t>(1024 * (k + 1), kValues));
    CHECK(bucket.min == *std::min_element(begin, end));
    CHECK(bucket.max == *std::max_element(begin, end));
    CHECK(bucket.values == static_cast<std::uint64_t>(end - begin));
    got += bucket.sum;
  }
  CHECK(got == Approx(sum));
  CHECK(series.buckets()[54321 / 1024].max == 1000);
  CHECK(late.buckets().front().mean() == 1);
  CHECK(late.buckets().back().mean() == 3);
}

TEST_CASE("quantiles are accurate within six percent, and no value is lost") {
  Histogram histogram;
  for (int i = 1; i <= 10000; ++i) histogram.add(i * 1e-6);
  histogram.add(1e-30);  // a value below the smallest bin
  histogram.add(1e30);
  histogram.add(0);
  CHECK(histogram.values() == 10003);
  for (const double share : {0.05, 0.5, 0.95}) {
    CHECK(histogram.quantile(share) == Approx(share * 1e-2).epsilon(0.06));
  }
  std::uint64_t counted = 0;
  for (const auto& one : histogram.classes(2)) counted += one.values;
  CHECK(counted == 10002);
}

TEST_CASE("a transfer's bytes are spread over its seconds") {
  BytesBySecond bytes;
  bytes.add(3.5, 2, 100);  // a transfer from 1.5 s to 3.5 s
  bytes.add(0.25, 1, 40);  // a transfer that started before the run's first second
  bytes.add(3.9, 0.1, 10);
  REQUIRE(bytes.seconds().size() == 4);
  CHECK(bytes.seconds()[0] == Approx(40));
  CHECK(bytes.seconds()[1] == Approx(25));
  CHECK(bytes.seconds()[2] == Approx(50));
  CHECK(bytes.seconds()[3] == Approx(35));
}

TEST_CASE("a step's parts add up to the step's time, even if they overlapped") {
  BucketAxes grids(10);
  StepSplit split(grids.step);
  split.add(1, false, 1.0, 0.5, 0.2, 0.1);
  split.add(2, false, 1.0, 0.9, 0.8, 0.7);
  split.add(3, false, 1.0, 3.0, 0.1, 0.1);
  const auto of = [](Series& series, std::size_t step) { return series.buckets()[step].mean(); };
  CHECK(of(split.compute, 1) == 0.5);
  CHECK(of(split.waiting, 1) == Approx(0.2));
  CHECK(of(split.codec, 2) == Approx(0.1));
  CHECK(of(split.wire, 2) == 0);
  CHECK(of(split.compute, 3) == 1);
  CHECK(of(split.waiting, 3) == 0);
  CHECK(split.means[0].value() == Approx(2.4 / 3));
}

TEST_CASE("the mean of the steps leaves out warm-ups, unless there are no other steps") {
  StepMean mean;
  CHECK(mean.isEmpty());
  CHECK(mean.value() == 0);
  mean.add(9, true);
  CHECK(mean.value() == 9);
  mean.add(2, false);
  mean.add(7, true);
  mean.add(4, false);
  CHECK(mean.value() == 3);
}

namespace {

std::string joined(const std::vector<std::string>& cells) {
  std::string line;
  for (const std::string& cell : cells) line += (line.empty() ? "" : ",") + cell;
  return line + "\n";
}

// Builds rows in the programs' format from cells by column.
std::string rowOf(const std::vector<std::string>& columns,
                  const std::map<std::string, std::string>& cells) {
  std::string line;
  for (std::size_t i = 0; i < columns.size(); ++i) {
    const auto found = cells.find(columns[i]);
    line += (i == 0 ? "" : ",") + (found == cells.end() ? "" : found->second);
  }
  return line + "\n";
}

const std::vector<std::string> kMetrics = {"loss", "top1", "top5"};

// The page's data of the run in this folder, and its headline.
nlohmann::json runOf(const Folder& folder) {
  ReportData report({findRun(folder.path, {})});
  report.read();
  return report.page(false).at("runs").at(0);
}
nlohmann::json headlineOf(const Folder& folder) { return runOf(folder).at("headline"); }

// A run of two steps. The second step took twice as long as the first.
void writeRun(const Folder& folder) {
  const auto steps = RunFiles::stepColumns(kMetrics);
  const auto step = [&](const std::string& second, const std::string& phase,
                        std::map<std::string, std::string> cells) {
    cells["time"] = "2026-01-31T12:00:0" + second + "Z";
    cells["run"] = "tiny";
    cells["phase"] = phase;
    return rowOf(steps, cells);
  };
  folder.write("steps.csv", joined(steps) +
                                step("0.000", "handshake", {{"control_up_bytes", "300"}}) +
                                step("1.000", "train",
                                     {{"step", "1"},
                                      {"epoch", "1"},
                                      {"samples", "10"},
                                      {"seconds", "1"},
                                      {"head_forward_seconds", "0.25"},
                                      {"raw_up_bytes", "1000"},
                                      {"wire_up_bytes", "500"},
                                      {"rate_up", "1000"},
                                      {"rate_down", "1000"},
                                      {"bound_seconds", "0.5"},
                                      {"bottleneck", "uplink"},
                                      {"latency_seconds", "0.01"},
                                      {"learning_rate", "0.1"},
                                      {"gradient_norm", "3"},
                                      {"loss", "2"},
                                      {"top1", "0.5"}}) +
                                step("3.000", "train",
                                     {{"step", "2"},
                                      {"epoch", "1"},
                                      {"samples", "10"},
                                      {"seconds", "2"},
                                      {"head_forward_seconds", "0.25"},
                                      {"raw_up_bytes", "1000"},
                                      {"wire_up_bytes", "500"},
                                      {"bound_seconds", "1"},
                                      {"bottleneck", "latency"},
                                      {"loss", "1"},
                                      {"top1", "0.75"}}) +
                                step("4.000", "bye", {{"control_up_bytes", "100"}}));
  const auto epochs = RunFiles::epochColumns(kMetrics);
  folder.write("epochs.csv", joined(epochs) + rowOf(epochs, {{"time", "2026-01-31T12:00:03.500Z"},
                                                             {"run", "tiny"},
                                                             {"epoch", "1"},
                                                             {"steps", "2"},
                                                             {"samples", "20"},
                                                             {"train_seconds", "4"},
                                                             {"eval_loss", "0.5"},
                                                             {"eval_top1", "0.8"}}));
  const auto transfers = RunFiles::transferColumns();
  folder.write("transfers.csv",
               joined(transfers) + rowOf(transfers, {{"time", "2026-01-31T12:00:01.000Z"},
                                                     {"run", "tiny"},
                                                     {"role", "send"},
                                                     {"phase", "train"},
                                                     {"step", "1"},
                                                     {"flow", "activation/0"},
                                                     {"codec", "\"sort:q=6,s=2\""},
                                                     {"raw_bytes", "2000"},
                                                     {"wire_bytes", "1000"},
                                                     {"encode_seconds", "0.1"},
                                                     {"queue_seconds", "0.1"},
                                                     {"wire_seconds", "0.5"},
                                                     {"decode_seconds", "0.1"},
                                                     {"snr_db", "20"}}));
  folder.write("config.yaml",
               "train:\n  batch: 10\nmodel:\n  cuts: [4, 13]\n"
               "insert:\n  - cut: 0\n    kind: conv\n");
  folder.write("environment.json", "{\"cpu\": {\"cores\": 2}}");
  folder.write("run.json", R"({"run": "tiny", "steps": 8, "epochs": 4})");
}

}  // namespace

TEST_CASE("a report's figures match the files") {
  const Folder folder;
  writeRun(folder);
  ReportData report({findRun(folder.path, {})});
  CHECK(report.read());
  CHECK_FALSE(report.read());
  const auto page = report.page(false);
  const auto& run = page.at("runs").at(0);
  const auto& headline = run.at("headline");
  CHECK(run.at("name") == "tiny");
  CHECK(run.at("ended") == true);
  CHECK(run.at("completed") == false);  // there is no summary.json
  CHECK(headline.at("steps") == 2);
  CHECK(headline.at("seconds") == 4);
  CHECK(headline.at("images_per_second") == 5);
  CHECK(headline.at("metric") == 0.8);
  CHECK(headline.at("best_metric") == 0.8);
  CHECK(headline.at("best_epoch") == 1);
  CHECK(headline.at("total_steps") == 8);
  CHECK(headline.at("total_epochs") == 4);
  CHECK_FALSE(headline.contains("seconds_left"));  // the run has ended
  CHECK(headline.at("ratio") == 0.5);
  CHECK(headline.at("bytes_up") == 1400);  // tensors and control, as in steps.csv
  CHECK(headline.at("mean_up_bytes_per_second") == 350);
  CHECK(headline.at("seconds_per_step") == 2);  // the first step is a warm-up
  CHECK(headline.at("over_bound") == 2);
  CHECK(headline.at("bottleneck") == "latency");
  CHECK(headline.at("bottleneck_share").get<double>() == Approx(2.0 / 3));
  const auto& flow = run.at("flows").at(0);
  CHECK(flow.at("flow") == "activation/0");
  CHECK(flow.at("codec") == "sort:q=6,s=2");
  CHECK(flow.at("ratio") == 0.5);
  CHECK(flow.at("snr_mean") == 20);
  const auto& series = run.at("series");
  CHECK(series.at("loss").at("mean") == nlohmann::json({2, 1}));
  CHECK(series.at("loss").at("k") == nlohmann::json({1, 2}));
  CHECK(series.at("learning_rate").at("mean") == nlohmann::json({0.1}));
  CHECK(series.at("gradient_norm").at("mean") == nlohmann::json({3}));
  CHECK(series.at("transfer_up").at("mean") == nlohmann::json({2000}));
  CHECK(series.at("client_wire").at("mean").at(0) == 0.5);
  CHECK(series.at("client_waiting").at("mean").at(0) == 0.25);
  CHECK(run.at("histograms").at("transfer_seconds_up").at("p50").get<double>() ==
        Approx(0.8).epsilon(0.06));
  CHECK(run.at("config") == nlohmann::json::parse(R"([["train.batch", "10"],
            ["model.cuts", "[4, 13]"], ["insert", "[{cut: 0, kind: conv}]"]])"));
  CHECK(run.at("environment") == nlohmann::json::parse(R"([["cpu.cores", "2"]])"));
  CHECK(run.at("problems").empty());  // all required columns exist
}

TEST_CASE("without the server's folder, its step is split by the client's rows") {
  const Folder folder;
  const auto steps = RunFiles::stepColumns(kMetrics);
  const auto transfers = RunFiles::transferColumns();
  const auto step = [&](const std::string& number) {
    return rowOf(steps, {{"time", "2026-01-31T12:00:0" + number + ".000Z"},
                         {"run", "tiny"},
                         {"phase", "train"},
                         {"step", number},
                         {"seconds", "1"},
                         {"head_forward_seconds", "0.3"},
                         {"body_forward_seconds", "0.1"},
                         {"body_backward_seconds", "0.2"},
                         {"wire_up_bytes", "100"},
                         {"wire_down_bytes", "50"},
                         {"rate_up", "1000"},
                         {"rate_down", "1000"}});
  };
  const auto transfer = [&](const std::string& flow, const std::string& role) {
    return rowOf(transfers, {{"time", "2026-01-31T12:00:01.000Z"},
                             {"run", "tiny"},
                             {"role", role},
                             {"phase", "train"},
                             {"step", "1"},
                             {"flow", flow},
                             {"raw_bytes", "100"},
                             {"wire_bytes", "100"},
                             {"encode_seconds", "0.02"},
                             {"decode_seconds", "0.04"}});
  };
  folder.write("steps.csv", joined(steps) + step("1") + step("2"));
  folder.write("transfers.csv", joined(transfers) + transfer("activation/0", "send") +
                                    transfer("activation/1", "recv"));
  ReportData report({findRun(folder.path, {})});
  const auto shares = [&](std::size_t at) {
    report.read();
    const auto series = report.page(true).at("runs").at(0).at("series");
    std::vector<double> parts;
    for (const char* part : {"compute", "codec", "wire", "waiting"}) {
      parts.push_back(series.at(std::string("server_") + part).at("mean").at(at));
    }
    return parts;
  };
  // The server decodes what the client sends and encodes what the client receives.
  CHECK(shares(0) == std::vector<double>{0.3, 0.06, 0.1, 0.54});
  CHECK(shares(1) == std::vector<double>{0.3, 0, 0.1, 0.6});
  const auto source = [&] { return report.page(true).at("runs").at(0).at("server_steps"); };
  CHECK(source() ==
        nlohmann::json{{"from", "client"}, {"servers", 1}, {"shown", nlohmann::json::array()}});

  folder.write("run.json", R"({"run": "tiny", "server": "a:1,b:2", "steps": 8, "epochs": 4})");
  folder.append("steps.csv", step("3"));
  CHECK(shares(2) == std::vector<double>{0.15, 0, 0.1, 0.75});
  CHECK(source().at("servers") == 2);

  // The server's own rows are preferred.
  folder.write("server/local/tiny/steps.csv",
               joined(steps) + rowOf(steps, {{"time", "2026-01-31T12:00:01.000Z"},
                                             {"run", "tiny"},
                                             {"phase", "train"},
                                             {"step", "1"},
                                             {"seconds", "1"},
                                             {"body_forward_seconds", "0.1"},
                                             {"update_seconds", "0.4"}}));
  CHECK(shares(0).front() == 0.5);
  CHECK(source().at("from") == "server");
  CHECK(source().at("shown") == nlohmann::json{1});
}

TEST_CASE("each server's folder of a run has its own series, environment and problems") {
  const Folder folder;
  writeRun(folder);
  folder.write("run.json", R"({"run": "tiny", "server": "a:1,b:2", "steps": 8, "epochs": 4})");
  const auto steps = RunFiles::stepColumns(kMetrics);
  const auto write = [&](const std::string& place, const std::string& id,
                         const std::string& forward) {
    folder.write(place + "/steps.csv",
                 joined(steps) + rowOf(steps, {{"time", "2026-01-31T12:00:01.000Z"},
                                               {"run", id},
                                               {"phase", "train"},
                                               {"step", "1"},
                                               {"seconds", "1"},
                                               {"body_forward_seconds", forward}}));
    folder.write(place + "/environment.json", R"({"host": ")" + id + "\"}");
  };
  write("b", "tiny-2", "0.25");
  write("a", "tiny", "0.5");
  write("other", "another", "1");
  const auto read = [&](const std::vector<std::string>& servers) {
    std::vector<std::string> paths;
    for (const std::string& server : servers) paths.push_back(folder.path / server);
    ReportData report({findRun(folder.path, paths)});
    report.read();
    return report.page(false).at("runs").at(0);
  };
  // In the order of the servers, not of the options. Folders of other runs are ignored.
  const auto both = read({"b", "other", "a"});
  CHECK(both.at("series").at("server_compute").at("mean") == nlohmann::json{0.5});
  CHECK(both.at("series").at("server2_compute").at("mean") == nlohmann::json{0.25});
  CHECK(both.at("server_steps") ==
        nlohmann::json{{"from", "server"}, {"servers", 2}, {"shown", {1, 2}}});
  CHECK(both.at("server_environments") ==
        nlohmann::json::parse(R"([[["host", "tiny"]], [["host", "tiny-2"]]])"));
  CHECK_THAT(both.at("problems").dump(), Contains("server 2: transfers.csv is missing"));
  const auto second = read({"b", "other"});
  CHECK(second.at("series").at("server_compute").at("mean") == nlohmann::json{0.25});
  CHECK(second.at("server_steps").at("shown") == nlohmann::json{2});

  // A client that starts its servers keeps their stores in the run's folder.
  write("server/local/tiny", "tiny", "0.5");
  write("server-2/local/tiny-2", "tiny-2", "0.25");
  CHECK(read({}).at("server_steps").at("shown") == nlohmann::json{1, 2});
}

TEST_CASE("a bound is at most the step's duration, also in files of earlier versions") {
  const Folder folder;
  const auto columns = RunFiles::stepColumns(kMetrics);
  const auto step = [&](const std::string& number, const std::string& bound) {
    return rowOf(columns, {{"time", "2026-01-31T12:00:0" + number + ".000Z"},
                           {"phase", "train"},
                           {"step", number},
                           {"seconds", "1"},
                           {"bound_seconds", bound},
                           {"bottleneck", "uplink"}});
  };
  folder.write("steps.csv", joined(columns) + step("1", "1.25") + step("2", "0.5"));
  ReportData report({findRun(folder.path, {})});
  report.read();
  const auto run = report.page(false).at("runs").at(0);
  CHECK(run.at("series").at("bound_seconds").at("mean") == nlohmann::json({1, 0.5}));
  CHECK(run.at("headline").at("over_bound").get<double>() == Approx(2 / 1.5));
}

TEST_CASE("an evaluation is shown as that of the weights that it used") {
  const Folder folder;
  writeRun(folder);
  ReportData report({findRun(folder.path, {})});
  const auto evaluated = [&](const std::string& model, const nlohmann::json& weights) {
    folder.write("evaluation.json", nlohmann::json{{"model", "elsewhere/" + model},
                                                   {"weights_sha256", weights},
                                                   {"steps", 2},
                                                   {"samples", 10},
                                                   {"metrics", {{"loss", 0.5}}}}
                                        .dump());
    fs::last_write_time(folder.path / "evaluation.json", fs::file_time_type::clock::now());
  };
  const auto shown = [&] {
    report.read();
    return report.page(false).at("runs").at(0).at("evaluation");
  };
  const auto problems = [&] { return report.summary().at("runs").at(0).at("problems"); };
  const std::string digest = hexOf(sha256Of("weights"));
  CHECK(shown().is_null());

  folder.write("model.safetensors", "weights");
  evaluated("model.safetensors", digest);
  CHECK(shown().at("weights") == "current");
  CHECK(shown().at("of") == "model.safetensors");
  CHECK(shown().at("steps") == 2);
  CHECK(problems().empty());

  // A later epoch replaces the last model. If the evaluated one was the best, it is still there.
  folder.write("model.safetensors", "later weights");
  CHECK(shown().at("weights") == "older");
  CHECK_THAT(shown().at("note").get<std::string>(), Contains("cleave-client eval "));
  REQUIRE(problems().size() == 1);
  CHECK_THAT(problems().at(0).get<std::string>(), Contains("of an older model"));
  folder.write("model.best.safetensors", "weights");
  evaluated("model.safetensors", digest);
  CHECK(shown().at("weights") == "current");
  CHECK(shown().at("of") == "model.best.safetensors");
  CHECK_FALSE(shown().contains("note"));

  folder.write("model.best.safetensors", "better weights");
  evaluated("model.best.safetensors", digest);
  CHECK(shown().at("weights") == "older");
  CHECK_THAT(shown().at("note").get<std::string>(), Contains(" --best"));

  // Earlier versions did not record the weights.
  evaluated("model.safetensors", nullptr);
  CHECK(shown().at("weights") == "unknown");
  CHECK(problems().empty());
  evaluated("model.safetensors", digest);
  fs::remove(folder.path / "model.safetensors");
  fs::remove(folder.path / "model.best.safetensors");
  CHECK(shown().at("weights") == "unknown");
  CHECK_THAT(shown().at("note").get<std::string>(), Contains("no longer has the weights"));
}

TEST_CASE("the time left is computed from the latest steps") {
  const Folder folder;
  const auto columns = RunFiles::stepColumns(kMetrics);
  const auto step = [&](const std::string& second, const std::string& number) {
    return rowOf(columns, {{"time", "2026-01-31T12:00:" + second + ".000Z"},
                           {"phase", "train"},
                           {"step", number},
                           {"seconds", "1"}});
  };
  folder.write("steps.csv", joined(columns) + step("00", "1") + step("02", "2") + step("04", "3"));
  const auto headline = [&] { return headlineOf(folder); };
  CHECK_FALSE(headline().contains("total_steps"));
  folder.write("run.json", R"({"run": "tiny", "steps": 10, "epochs": 1})");
  CHECK(headline().at("seconds_left") == 14);
  folder.write("run.json", R"({"run": "tiny", "steps": 3, "epochs": 1})");
  CHECK_FALSE(headline().contains("seconds_left"));
  for (const char* damaged : {"{", "[]", R"({"steps": "many"})", R"({"steps": -3})"}) {
    folder.write("run.json", damaged);
    CHECK_FALSE(headline().contains("total_steps"));
  }
}

TEST_CASE("the report's kept model equals the one in the run's summary") {
  const Folder folder;
  writeRun(folder);
  const auto headline = [&] { return headlineOf(folder); };
  folder.write("summary.json", R"({"kept": {"metric": "top1", "value": 0.75, "epoch": 3}})");
  CHECK(headline().at("kept").at("title") == "Accuracy");
  CHECK(headline().at("kept").at("unit") == "share");
  CHECK(headline().at("kept").at("epoch") == 3);
  for (const char* damaged : {"{", R"({"kept": 1})", R"({"kept": {"metric": 3}})"}) {
    folder.write("summary.json", damaged);
    CHECK_FALSE(headline().contains("kept"));
  }
}

namespace {

// Writes rows of steps.csv in order. Each row is a second after the previous one.
class Steps {
 public:
  explicit Steps(const Folder& folder) : folder_(folder) {
    folder_.write("steps.csv", joined(columns_));
  }
  void row(const std::string& phase, const std::string& generation, const std::string& step = "",
           bool hasCheckpoint = false) {
    const auto twoDigits = [](int number) { return std::to_string(100 + number).substr(1); };
    std::map<std::string, std::string> cells = {
        {"time",
         "2026-01-31T12:" + twoDigits(seconds_ / 60) + ":" + twoDigits(seconds_ % 60) + ".000Z"},
        {"generation", generation},
        {"phase", phase},
        {"step", step},
        {"control_up_bytes", "1"}};
    ++seconds_;
    if (phase == "train") {
      cells["seconds"] = "1";
      cells["samples"] = "5";
      cells["wire_up_bytes"] = "10";
      cells["raw_up_bytes"] = "20";
    }
    if (hasCheckpoint) cells["checkpoint_seconds"] = "0.1";
    folder_.append("steps.csv", rowOf(columns_, cells));
  }
  void pause(int seconds) { seconds_ += seconds; }

 private:
  const Folder& folder_;
  const std::vector<std::string> columns_ = RunFiles::stepColumns(kMetrics);
  int seconds_ = 0;
};

}  // namespace

TEST_CASE("resumes, reconnects and steps redone are counted and placed") {
  const Folder folder;
  Steps steps(folder);
  const auto run = [&] { return runOf(folder); };
  steps.row("handshake", "1");
  steps.row("train", "1", "1");
  CHECK(run().at("headline").at("resumes") == 0);
  CHECK(run().at("headline").at("reconnects") == 0);
  CHECK(run().at("interruptions").empty());
  steps.row("train", "3", "2");  // two attempts to connect
  steps.row("train", "3", "3");
  steps.row("eval", "4", "1");
  steps.row("handshake", "5");  // its process ended before it resumed
  steps.row("handshake", "6");
  steps.row("resume", "6", "1");
  steps.row("train", "6", "2");
  steps.row("train", "6", "3");
  steps.row("handshake", "7");  // --from-start
  steps.row("train", "7", "1");
  steps.row("train", "7", "2");
  steps.row("bye", "7");
  const auto headline = run().at("headline");
  CHECK(headline.at("resumes") == 2);
  CHECK(headline.at("reconnects") == 2);
  CHECK(headline.at("steps_redone") == 4);
  CHECK(headline.at("steps") == 3);
  CHECK_FALSE(headline.contains("offline_seconds"));
  CHECK(run().at("interruptions") == nlohmann::json::parse(R"([
      {"kind": "reconnect", "time": 2.0, "step": 2.0},
      {"kind": "reconnect", "time": 4.0, "step": 3.0},
      {"kind": "resume", "time": 7.0, "step": 1.0},
      {"kind": "resume", "time": 11.0, "step": 0.0}])"));
  // The times of redone steps are those of their first rows.
  CHECK(run().at("series").at("clock").at("mean") == nlohmann::json({1, 2, 3}));
  // The figures of an ended run are those of its summary.
  folder.write("summary.json", R"({"reconnects": 3, "offline_seconds": 0.5, "resumes": 4,
                                   "steps_redone": 5})");
  const auto ended = run().at("headline");
  CHECK(ended.at("resumes") == 4);
  CHECK(ended.at("reconnects") == 3);
  CHECK(ended.at("steps_redone") == 5);
  CHECK(ended.at("offline_seconds") == 0.5);
  for (const char* damaged : {"{", R"({"reconnects": 3})", R"({"reconnects": "three"})"}) {
    folder.write("summary.json", damaged);
    CHECK(run().at("headline").at("resumes") == 2);
  }
}

TEST_CASE("what an unfinished run has spent excludes pauses between processes, and lost steps") {
  const Folder folder;
  Steps steps(folder);
  const auto headline = [&] { return headlineOf(folder); };
  const auto spent = [&] {
    const auto h = headline();
    CHECK(h.at("mean_up_bytes_per_second").get<double>() ==
          Approx(h.at("bytes_up").get<double>() / h.at("seconds").get<double>()));
    return std::pair(h.at("seconds").get<double>(), h.at("bytes_up").get<double>());
  };
  using Spent = std::pair<double, double>;
  steps.row("handshake", "1");
  steps.row("train", "1", "1");
  steps.row("train", "1", "2", true);
  steps.row("train", "1", "3");
  CHECK(spent() == Spent{3, 34});
  steps.pause(1000);
  steps.row("handshake", "2");
  CHECK(spent() == Spent{3, 35});  // it is not known yet where the process continues
  steps.row("resume", "2", "2");
  CHECK(spent() == Spent{3, 25});  // 2 s until the checkpoint, 1 s since the handshake
  steps.row("train", "2", "3");
  CHECK(spent() == Spent{4, 36});
  CHECK(headline().at("ratio") == 0.5);
  CHECK(headline().at("images_per_second") == 5);
  steps.row("train", "3", "4", true);  // a new connection of the same process
  CHECK(spent() == Spent{5, 47});
  steps.pause(1000);
  steps.row("handshake", "4");
  steps.row("resume", "4", "4");
  CHECK(spent() == Spent{6, 49});
  steps.row("handshake", "5");  // continues from an unknown checkpoint
  steps.row("resume", "5", "3");
  CHECK(spent() == Spent{7, 51});
  steps.row("handshake", "6");  // from the start
  steps.row("train", "6", "1");
  CHECK(spent() == Spent{1, 12});
}

TEST_CASE("the totals of an ended run are those of its summary, which train printed") {
  const Folder folder;
  Steps steps(folder);
  const auto headline = [&] { return headlineOf(folder); };
  steps.row("handshake", "1");
  steps.row("train", "1", "1", true);
  steps.pause(1000);
  steps.row("handshake", "2");
  steps.row("resume", "2", "1");
  steps.row("train", "2", "2");
  steps.row("bye", "2");
  const nlohmann::json before = headline();
  CHECK(before.at("seconds") == 4);
  folder.write("summary.json", R"({"seconds": 8, "bytes_up": 4000, "bytes_down": 2000,
      "ratio": 0.25, "images_per_second": 7, "mean_up_bytes_per_second": 500,
      "mean_down_bytes_per_second": 250,
      "bound": {"seconds_per_step": 0.5, "over_bound": 3, "bottleneck": "uplink"}})");
  const nlohmann::json ended = headline();
  CHECK(ended.at("seconds") == 8);
  CHECK(ended.at("bytes_up") == 4000);
  CHECK(ended.at("bytes_down") == 2000);
  CHECK(ended.at("ratio") == 0.25);
  CHECK(ended.at("images_per_second") == 7);
  CHECK(ended.at("mean_up_bytes_per_second") == 500);
  CHECK(ended.at("mean_down_bytes_per_second") == 250);
  CHECK_FALSE(ended.contains("over_bound"));  // no step has a bound
  for (const char* damaged : {"{", R"({"seconds": 8})", R"({"seconds": "eight"})"}) {
    folder.write("summary.json", damaged);
    CHECK(headline().at("seconds") == before.at("seconds"));
    CHECK(headline().at("bytes_up") == before.at("bytes_up"));
  }
}

TEST_CASE("the bound of an ended run is that of its summary") {
  const Folder folder;
  writeRun(folder);
  folder.write("summary.json",
               R"({"bound": {"seconds_per_step": 0.5, "over_bound": 3, "bottleneck": "uplink"}})");
  ReportData report({findRun(folder.path, {})});
  report.read();
  const auto headline = report.summary().at("runs").at(0).at("headline");
  CHECK(headline.at("over_bound") == 3);
  CHECK(headline.at("bound_seconds_per_step") == 0.5);
  CHECK(headline.at("bounded_seconds_per_step") == 1.5);
  CHECK(headline.at("bottleneck") == "uplink");
  CHECK(headline.at("bottleneck_share").get<double>() == Approx(1.0 / 3));
}

TEST_CASE("changed settings are listed, and shown with their earlier values") {
  const Folder folder;
  writeRun(folder);
  folder.write("config.yaml", "train:\n  epochs: 6\n  clip_norm: 1\n");
  const auto run = [&] { return runOf(folder); };
  CHECK(run().at("changes").empty());
  const std::string changes = R"([
      {"step": 16, "key": "train.epochs", "before": "2", "after": "4"},
      {"step": 32, "key": "train.epochs", "before": "4", "after": "6"},
      {"step": 32, "key": "eval.batch", "before": "", "after": "100"}])";
  folder.write("changes.json", changes);
  CHECK(run().at("changes") == nlohmann::json::parse(changes));
  CHECK(run().at("config").at(0).at(1) == "6 (2 until step 16, 4 until step 32)");
  CHECK(run().at("config").at(1).at(1) == "1");
  for (const char* damaged : {"{", "[1]", R"([{"step": -1, "key": "", "before": "", "after": ""}])",
                              R"([{"step": 16, "key": "train.epochs", "before": 2}])"}) {
    folder.write("changes.json", damaged);
    INFO(damaged);
    CHECK(run().at("changes").empty());
    CHECK(run().at("config").at(0).at(1) == "6");
  }
}

TEST_CASE("a run that reconnects all the time has a bounded number of marks") {
  const Folder folder;
  Steps steps(folder);
  for (int i = 1; i <= 1500; ++i) {
    steps.row("train", std::to_string(i), std::to_string(i));
  }
  ReportData report({findRun(folder.path, {})});
  report.read();
  const auto run = report.page(false).at("runs").at(0);
  CHECK(run.at("headline").at("reconnects") == 1499);
  CHECK(run.at("interruptions").size() == TrainingFigures::kMaxInterruptions);
}

TEST_CASE("each bottleneck is named, with its share of the time") {
  for (std::size_t i = 0; i < kBottlenecks; ++i) {
    const std::string name(bottleneckName(static_cast<Bottleneck>(i)));
    const Folder folder;
    const auto columns = RunFiles::stepColumns(kMetrics);
    folder.write("steps.csv",
                 joined(columns) + rowOf(columns, {{"time", "2026-01-31T12:00:00.000Z"},
                                                   {"phase", "train"},
                                                   {"step", "1"},
                                                   {"seconds", "1"},
                                                   {"bound_seconds", "1"},
                                                   {"bottleneck", name}}));
    ReportData report({findRun(folder.path, {})});
    report.read();
    INFO(name);
    const auto headline = report.summary()["runs"][0]["headline"];
    CHECK(headline.at("bottleneck") == name);
    CHECK_THAT(headline.at("words").get<std::string>(), Contains("100 %"));
    CHECK_FALSE(
        headline.contains("advice"));  // all advice is from summary.json, which has none here
  }
}

TEST_CASE("the report's advice equals the advice in the run's summary") {
  const Folder folder;
  writeRun(folder);
  ReportData report({findRun(folder.path, {})});
  CHECK(report.read());
  const auto advice = [&] { return report.summary()["runs"][0]["headline"].value("advice", ""); };
  CHECK(advice().empty());
  // A live page gets the summary after the last row. A damaged summary gives no advice.
  for (const char* damaged : {"{", "[]", "{\"bound\": {\"advice\": {\"sentence\": 3}}}"}) {
    folder.write("summary.json", damaged);
    CHECK_FALSE(report.read());
    CHECK(advice().empty());
  }
  folder.write("summary.json", "{\"bound\": {\"advice\": {\"sentence\": \"use <b>less\"}}}");
  CHECK(report.read());
  CHECK(advice() == "use <b>less");
}

TEST_CASE("a page is one valid document, whatever a run's files contain") {
  const Folder folder;
  writeRun(folder);
  folder.write("config.yaml", "run:\n  name: \"</script><b>\\u2028\"\n");
  const std::string file = folder.path / "page.html";
  const auto summary = writeReport({findRun(folder.path, {})}, file);
  CHECK(summary.at("runs").at(0).at("headline").at("steps") == 2);
  std::ifstream stream(file);
  const std::string page((std::istreambuf_iterator<char>(stream)), {});
  CHECK_THAT(page, Contains("\\u003c/script>"));
  CHECK_THAT(page, !Contains("</script><b>"));
  for (const char* mark : {"@DATA@", "@STYLE@", "@SCRIPT@", "@DYGRAPHS"})
    CHECK_THAT(page, !Contains(mark));
  CHECK(page.find("Dygraph") != std::string::npos);
}

TEST_CASE("a run and its server's folder are found by the run's folder or its parent") {
  const Folder folder;
  writeRun(folder);
  CHECK_THROWS_AS(findRun(folder.path / "nothing", {}), UsageError);
  CHECK_THROWS_AS(findRun(folder.path.parent_path(), {}), UsageError);
  fs::create_directories(folder.path / "demo");
  fs::create_directories(folder.path / "elsewhere");
  for (const char* file : {"steps.csv", "transfers.csv"}) {
    fs::create_directories(folder.path / "demo/client");
    fs::copy(folder.path / file, folder.path / "demo/client" / file);
    fs::copy(folder.path / file, folder.path / "elsewhere" / file);
  }
  const RunPlace place = findRun(folder.path / "demo", {folder.path / "elsewhere"});
  CHECK(place.folder == (folder.path / "demo/client").string());
  using Servers = std::map<std::size_t, std::string>;
  CHECK(place.servers == Servers{{1, (folder.path / "elsewhere").string()}});
  CHECK(findRun((folder.path / "demo/client/").string(), {}).folder == place.folder);
  CHECK_THROWS_AS(findRun(folder.path, {folder.path / "demo"}), UsageError);
  CHECK(findServerRuns(place.folder, "tiny").empty());
  const fs::path first = folder.path / "demo/server/local/tiny";
  const fs::path second = folder.path / "demo/server/bob/tiny-2";
  fs::create_directories(first);
  fs::create_directories(second);
  CHECK(findServerRuns(place.folder, "tiny") == Servers{{1, first}, {2, second}});
}
