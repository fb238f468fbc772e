// The steps of a run in its report: their parts, bounds and interruptions, and what the run has
// spent.
#include <catch2/catch.hpp>

#include "client/report/records/run_figures.h"
#include "common/predict/bound.h"
#include "tests/support/files/report_runs.h"

namespace cleave::test {
namespace {

using Catch::Matchers::Contains;

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

// The parts of each step in the report, with the names of their series.
std::vector<std::vector<double>> partsOf(const nlohmann::json& run, const std::string& side) {
  std::vector<std::vector<double>> parts;
  for (const char* part : {"compute", "codec", "wire", "waiting"})
    parts.push_back(run.at("series").at(side + "_" + part).at("mean").get<std::vector<double>>());
  return parts;
}

std::vector<double> sumsOf(const nlohmann::json& run, const std::string& side) {
  std::vector<double> sums;
  for (const std::vector<double>& part : partsOf(run, side)) {
    sums.resize(part.size());
    for (std::size_t step = 0; step < part.size(); ++step) sums[step] += part[step];
  }
  return sums;
}

// The servers' own seconds include evaluations and answers to a Fetch, which are between the steps.
TEST_CASE("the parts of each server's step add up to the client's step") {
  const Folder folder;
  const auto columns = RunFiles::stepColumns(kMetrics);
  const auto row = [&](const std::string& phase, const std::string& step,
                       std::map<std::string, std::string> cells) {
    cells.insert({{"time", "2026-01-31T12:00:01.000Z"}, {"run", "tiny"}, {"phase", phase}});
    cells["step"] = step;
    return rowOf(columns, cells);
  };
  const auto client = [&](const std::string& step, const std::string& seconds) {
    return row("train", step,
               {{"seconds", seconds},
                {"head_forward_seconds", "0.25"},
                {"body_forward_seconds", "0.5"},
                {"wire_up_bytes", "100"},
                {"rate_up", "1000"},
                {"rate_down", "1000"}});
  };
  const auto server = [&](const std::string& step, const std::string& seconds,
                          const std::string& computed) {
    return row("train", step,
               {{"seconds", seconds},
                {"body_forward_seconds", computed},
                {"update_seconds", "0.125"},
                {"encode_seconds", "0.125"}});
  };
  folder.write("run.json", R"({"run": "tiny", "server": "a:1,b:2", "steps": 8, "epochs": 4})");
  folder.write("steps.csv", joined(columns) + row("handshake", "", {}) + client("1", "1") +
                                client("2", "2") + row("eval", "1", {{"seconds", "7"}}) +
                                client("3", "1"));
  // The second server computes longer than a step of the client, as with overlapping steps.
  folder.write("server/local/tiny/steps.csv",
               joined(columns) + server("1", "30", "0.25") + server("2", "2.5", "0.25") +
                   row("eval", "1", {{"seconds", "6"}}) + server("3", "40", "0.5"));
  folder.write("server-2/local/tiny-2/steps.csv",
               joined(columns) + server("1", "30", "9") + server("3", "40", "9"));
  ReportData report({findRun(folder.path, {})});
  const auto read = [&] {
    report.read();
    return report.page(true).at("runs").at(0);
  };
  auto run = read();
  using Values = std::vector<double>;
  CHECK(sumsOf(run, "client") == Values{1, 2, 1});
  CHECK(sumsOf(run, "server") == Values{1, 2, 1});
  CHECK(sumsOf(run, "server2") == Values{1, 2, 1});
  const auto parts = partsOf(run, "server");
  CHECK(parts[0] == Values{0.375, 0.375, 0.625});
  CHECK(parts[1] == Values{0.125, 0.125, 0.125});
  CHECK(parts[3] == Values{0.4, 1.4, 0.15});
  // The row of step 2 of the second server was lost: what the client knows about it.
  CHECK(partsOf(run, "server2")[0] == Values{1, 0.25, 1});

  // A server's row may be written after the client's.
  folder.append("steps.csv", client("4", "4"));
  run = read();
  CHECK(sumsOf(run, "client") == Values{1, 2, 1, 4});
  CHECK(sumsOf(run, "server") == Values{1, 2, 1});
  folder.append("server/local/tiny/steps.csv", server("4", "4", "1"));
  CHECK(sumsOf(read(), "server") == Values{1, 2, 1, 4});
  folder.append("steps.csv", row("bye", "", {}));
  CHECK(sumsOf(read(), "server2") == Values{1, 2, 1, 4});
}

TEST_CASE("each server's folder of a run has its own series, environment and problems") {
  const Folder folder;
  writeRun(folder);
  folder.write("run.json", R"({"run": "tiny", "server": "a:1,b:2", "steps": 8, "epochs": 4})");
  const auto steps = RunFiles::stepColumns(kMetrics);
  const auto write = [&](const std::string& place, const std::string& id,
                         const std::string& forward) {
    folder.write(place + "/steps.csv", joined(steps) +
                                           rowOf(steps, {{"time", "2026-01-31T12:00:01.000Z"},
                                                         {"run", id},
                                                         {"phase", "train"},
                                                         {"step", "1"},
                                                         {"seconds", "1"},
                                                         {"body_forward_seconds", forward}}) +
                                           rowOf(steps, {{"time", "2026-01-31T12:00:02.000Z"},
                                                         {"phase", "train"},
                                                         {"step", "2"},
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
  CHECK(both.at("series").at("server_compute").at("mean") == nlohmann::json{0.5, 0.5});
  CHECK(both.at("series").at("server2_compute").at("mean") == nlohmann::json{0.25, 0.25});
  CHECK(both.at("server_steps") ==
        nlohmann::json{{"from", "server"}, {"servers", 2}, {"shown", {1, 2}}});
  CHECK(both.at("server_environments") ==
        nlohmann::json::parse(R"([[["host", "tiny"]], [["host", "tiny-2"]]])"));
  CHECK_THAT(both.at("problems").dump(), Contains("server 2: transfers.csv is missing"));
  const auto second = read({"b", "other"});
  CHECK(second.at("series").at("server_compute").at("mean") == nlohmann::json{0.25, 0.25});
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
      {"kind": "reconnect", "since": 2.0, "time": 2.0, "step": 2.0},
      {"kind": "reconnect", "since": 4.0, "time": 4.0, "step": 3.0},
      {"kind": "resume", "since": 4.0, "time": 7.0, "step": 1.0},
      {"kind": "resume", "since": 9.0, "time": 11.0, "step": 0.0}])"));
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
          Approx(h.at("tensor_bytes_up").get<double>() / h.at("seconds").get<double>()));
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
      "tensor_bytes_up": 3000, "tensor_bytes_down": 1000, "model_bytes_up": 900,
      "model_bytes_down": 800, "ratio": 0.25, "images_per_second": 7,
      "bound": {"seconds_per_step": 0.5, "over_bound": 3, "bottleneck": "uplink"}})");
  const nlohmann::json ended = headline();
  CHECK(ended.at("seconds") == 8);
  CHECK(ended.at("bytes_up") == 4000);
  CHECK(ended.at("bytes_down") == 2000);
  CHECK(ended.at("ratio") == 0.25);
  CHECK(ended.at("images_per_second") == 7);
  CHECK(ended.at("tensor_bytes_up") == 3000);
  CHECK(ended.at("model_bytes_down") == 800);
  CHECK(ended.at("mean_up_bytes_per_second") == 375);
  CHECK(ended.at("mean_down_bytes_per_second") == 125);
  CHECK_FALSE(ended.contains("over_bound"));  // no step has a bound
  // The parts are those of the rows if the summary, of an earlier version, does not have them.
  folder.write("summary.json", R"({"seconds": 8, "bytes_up": 4000, "bytes_down": 2000,
      "ratio": 0.25, "images_per_second": 7})");
  CHECK(headline().at("bytes_up") == 4000);
  CHECK(headline().at("tensor_bytes_up") == before.at("tensor_bytes_up"));
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

}  // namespace
}  // namespace cleave::test
