#include "client/report/report.h"

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <map>

#include "common/files/sha256.h"
#include "tests/support/files/report_runs.h"

namespace cleave::test {
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;

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
  CHECK(headline.at("tensor_bytes_up") == 1000);
  CHECK(headline.at("mean_up_bytes_per_second") == 250);
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

TEST_CASE("the transfer of the model is not part of the tensors' bandwidth") {
  const Folder folder;
  writeRun(folder);
  const nlohmann::json before = runOf(folder);
  const auto transfers = RunFiles::transferColumns();
  for (const std::string role : {"send", "recv"}) {
    folder.append("transfers.csv", rowOf(transfers, {{"time", "2026-01-31T12:00:03.000Z"},
                                                     {"run", "tiny"},
                                                     {"role", role},
                                                     {"phase", "train"},
                                                     {"step", "0"},
                                                     {"flow", "weights/body"},
                                                     {"codec", "none"},
                                                     {"raw_bytes", "70000"},
                                                     {"wire_bytes", "70000"},
                                                     {"wire_seconds", "0.001"}}));
  }
  const nlohmann::json run = runOf(folder);
  const nlohmann::json& headline = run.at("headline");
  CHECK(headline.at("model_bytes_up") == 70000);
  CHECK(headline.at("model_bytes_down") == 70000);
  CHECK(headline.at("bytes_up") == 71400);
  for (const char* key : {"tensor_bytes_up", "mean_up_bytes_per_second", "busiest_second_up"})
    CHECK(headline.at(key) == before.at("headline").at(key));
  CHECK(run.at("series").at("bytes_up") == before.at("series").at("bytes_up"));
  CHECK(run.at("series").at("transfer_up") == before.at("series").at("transfer_up"));
  CHECK(run.at("histograms") == before.at("histograms"));
  CHECK(run.at("flows").back().at("flow") == "weights/body");
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

TEST_CASE("the members of a cohort are listed, and their runs have their names") {
  const auto cohortOf = [](const std::string& member) {
    return R"({"id": "lungs", "members": ["north", "south"], "train_samples": [30, 40],
               "evaluation_samples": [0, 0], "attendance": [
                 {"first_step": 1, "evaluated": 0, "present": [0, 1]},
                 {"first_step": 7, "evaluated": 2, "present": [1]}], "member": ")" +
           member + "\"}";
  };
  const Folder folder, other;
  for (const Folder* const each : {&folder, &other}) writeRun(*each);
  CHECK(runOf(folder).at("cohort").is_null());
  folder.write("cohort.json", cohortOf("north"));
  other.write("cohort.json", cohortOf("south"));
  CHECK(runOf(folder).at("name") == "tiny");
  CHECK(runOf(folder).at("cohort") == nlohmann::json::parse(R"({
      "id": "lungs",
      "members": [{"name": "north", "samples": 30}, {"name": "south", "samples": 40}],
      "attendance": [{"first_step": 1, "present": [0, 1]}, {"first_step": 7, "present": [1]}],
      "waits_for": []})"));
  // While the members wait for one, there are no rows.
  ReportData live({findRun(folder.path, {})});
  CHECK(live.read());
  CHECK_FALSE(live.read());
  std::string waiting = cohortOf("north");
  waiting.insert(1, R"("waits_for": ["south"], )");
  folder.write("cohort.json", waiting);
  CHECK(live.read());
  CHECK(live.page(true).at("runs").at(0).at("cohort").at("waits_for") == nlohmann::json{"south"});
  ReportData both({findRun(folder.path, {}), findRun(other.path, {})});
  both.read();
  const auto runs = both.page(false).at("runs");
  CHECK(runs.at(0).at("name") == "north");
  CHECK(runs.at(1).at("name") == "south");
  const std::string whole = cohortOf("north");
  for (const auto& [from, to] : std::map<std::string, std::string>{
           {"[1]", "[2]"}, {"\"first_step\": 7", "\"first_step\": 1"}, {", 40]", "]"}, {"}", ""}}) {
    std::string damaged = whole;
    damaged.replace(damaged.find(from), from.size(), to);
    folder.write("cohort.json", damaged);
    INFO(damaged);
    CHECK(runOf(folder).at("cohort").is_null());
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

}  // namespace
}  // namespace cleave::test
