// The mistakes that a user can make before a run starts. Each test makes them with a real program,
// and checks that the error states what is wrong, where, and how to fix it.
#include <catch2/catch.hpp>
#include <cstdlib>
#include <fstream>

#include "tests/daemon/mistakes.h"

namespace cleave::test {
namespace {

void write(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

Mistake set(const std::string& name, const std::string& value, std::vector<std::string> says) {
  says.push_back("--set " + value);  // the location
  return {name, {"--set", value}, kWrongUse, std::move(says)};
}

TEST_CASE("mistakes in command lines are reported with a hint") {
  checkMistakes(
      {clientProgram()},
      {
          {"no command",
           {},
           kWrongUse,
           {"a command is missing", "give one of: train, new, verify, models"}},
          {"unknown command",
           {"trian"},
           kWrongUse,
           {"there is no command 'trian'; did you mean train?",
            "give one of: train, new, verify, models"}},
          {"a longer form of a command",
           {"evaluate"},
           kWrongUse,
           {"there is no command 'evaluate'; did you mean eval?"}},
          {"what a command is about",
           {"quality"},
           kWrongUse,
           {"there is no command 'quality'; did you mean codec?"}},
          {"a beginning of an option",
           {"train", "--dry"},
           kWrongUse,
           {"no option '--dry'; did you mean --dry-run?"}},
          {"unknown flag",
           {"train", "--confg", "x.yaml"},
           kWrongUse,
           {"cleave-client train has no option '--confg'; did you mean --config?",
            "'cleave-client train --help'"}},
          {"a value of the configuration",
           {"train", "--epochs", "3"},
           kWrongUse,
           {"cleave-client train has no option '--epochs'", "with --set KEY=VALUE"}},
          {"one argument too many",
           {"train", "now", "--config", "x.yaml"},
           kWrongUse,
           {"cleave-client train takes no argument 'now'", "'cleave-client train --help'"}},
          {"a configuration without its option",
           {"train", "base.yaml"},
           kWrongUse,
           {"takes no argument 'base.yaml'; did you mean --config base.yaml?"}},
          {"no configuration",
           {"train"},
           kWrongUse,
           {"[wrong-use]", "neither --config nor --resume", "'cleave-client train --help'"}},
          {"options before the command",
           {"--config", "x.yaml", "train"},
           kWrongUse,
           {"'--config' is before the command", "'cleave-client train --config …'"}},
          {"certificates without a server",
           {"train", "--config", configFile("synthetic.yaml"), "--tls", "certs"},
           kWrongUse,
           {"[wrong-use]", "--tls is given without a server's address", "add --server HOST:PORT"}},
          {"a dashboard on all addresses",
           {"train", "--config", configFile("synthetic.yaml"), "--dashboard", "0.0.0.0:8900"},
           kWrongUse,
           {"[unsafe-bind]", "--dashboard", "0.0.0.0", "without TLS", "add --anywhere"}},
          {"a dashboard with only a port",
           {"train", "--config", configFile("synthetic.yaml"), "--dashboard", "8900"},
           kWrongUse,
           {"[bad-address]", "--dashboard", "8900", "127.0.0.1:8900"}},
          {"a dashboard without a port",
           {"train", "--config", configFile("synthetic.yaml"), "--dashboard", "localhost"},
           kWrongUse,
           {"[bad-address]", "--dashboard", "localhost", "127.0.0.1"}},
          {"a report of a missing run",
           {"report", "runs/nothing"},
           kWrongUse,
           {"[no-run]", "there is no run 'runs/nothing'", "runs/<run id>"}},
          {"a report without a run", {"report"}, kWrongUse, {"RUN is required", "report --help'"}},
          {"a report of a folder that is not a run",
           {"report", "/proc", "--output", "/nowhere/page.html"},
           kWrongUse,
           {"[no-run]", "'/proc' contains no run files"}},
          {"steps out of range",
           {"verify", "--config", "x.yaml", "--steps", "0"},
           kWrongUse,
           {"--steps", "0", "'cleave-client verify --help'"}},
      });
  checkMistakes(
      {serverProgram()},
      {
          {"no command", {}, kWrongUse, {"a command is missing", "give one of: serve"}},
          {"unknown command",
           {"sreve"},
           kWrongUse,
           {"there is no command 'sreve'; did you mean serve?", "give one of: serve"}},
          {"unknown flag",
           {"serve", "--insecure"},
           kWrongUse,
           {"cleave-server serve has no option '--insecure'", "'cleave-server serve --help'"}},
          {"a flag of a command that is missing",
           {"--config", "x.yaml"},
           kWrongUse,
           {"a command is missing before '--config'", "'cleave-server serve --config'"}},
          {"a client's configuration",
           {"serve", "--config", configFile("synthetic.yaml")},
           kWrongUse,
           {"[bad-config]", "synthetic.yaml:", "is a key of cleave-client train"}},
      });
}

TEST_CASE("mistakes in the configuration of a run are reported with location and hint") {
  const TemporaryFolder folder;
  const std::string runFolder = folder.path("run");
  checkMistakes(
      {clientProgram(), "train", "--config", configFile("synthetic.yaml"), "--run-dir", runFolder},
      {
          {"--set without =",
           {"--set", "train.batch"},
           kWrongUse,
           {"[config-override]", "--set train.batch is not KEY=VALUE",
            "such as --set train.batch=64"}},
          {"--set alone", {"--set"}, kWrongUse, {"--set", "KEY=VALUE", "--help"}},
          set("mistyped key", "train.batchs=16", {"did you mean train.batch?", "rename it"}),
          set("unknown section", "tarin.batch=16", {"tarin.batch", "train.batch"}),
          set("a word too many", "eval.every_epochs=2", {"did you mean eval.every?"}),
          set("another word", "connect.timeout_seconds=2",
              {"is not a known key\n", "the known keys in connect are connect.direct, "}),
          set("initials", "train.lr=0.1", {"did you mean train.learning_rate?"}),
          set("a key that the model does not have", "model.cut=[1, 2]",
              {"did you mean model.cuts?"}),
          set("wrong type", "train.batch=many",
              {"train.batch is 'many'", "an integer in 1…1048576"}),
          set("out of range", "train.batch=0", {"train.batch is '0'", "an integer in 1…1048576"}),
          set("a map where a value belongs", "train.epochs={a: 1}",
              {"train.epochs is a map", "set train.epochs to an integer"}),
          set("more micro-batches than samples", "train.micro_batches=33",
              {"a batch of 32 samples cannot be split into 33 micro-batches", "in 1…32"}),
          set("unknown schedule", "train.schedule=1f2b",
              {"'1f2b' is not a schedule", "did you mean 1f1b?"}),
          set("too many in flight", "train.in_flight=99",
              {"99 micro-batches in flight", "give a number in 1…4"}),
          set("unknown optimizer", "train.optimizer={name: sdg}",
              {"there is no optimizer 'sdg'", "sgd"}),
          set("unknown optimizer's parameter", "train.optimizer.momentun=0.5",
              {"train.optimizer.momentun", "did you mean momentum?"}),
          set("optimizer's parameter out of range", "train.optimizer.momentum=2",
              {"momentum=2 is not at least 0 and below 1", "[bad-optimizer-parameter]",
               "momentum=2"}),
          set("adam's parameter out of range", "train.optimizer={name: adam, eps: 0}",
              {"eps=0 is not above 0 and at most 1", "[bad-optimizer-parameter]", "eps=0"}),
          set("a power for a schedule without one",
              "train.learning_rate={schedule: linear, power: 2}",
              {"config-unknown-key", "train.learning_rate.power has no effect", "polynomial"}),
          set("a learning rate that is not a number", "train.learning_rate=fast",
              {"train.learning_rate.peak", "fast"}),
          set("an unknown short form of an optimizer", "train.optimizer=adm", {"'adm'", "adam"}),
          set("a switch that is neither true nor false", "train.optimizer.nesterov=2",
              {"train.optimizer.nesterov", "true", "0"}),
          set("weights without a file", "weights={}", {"weights", "weights.file=FILE"}),
          set("a value for a whole section", "train=3", {"--set train.KEY=VALUE"}),
          set("a clipping norm below 0", "train.clip_norm=-1", {"train.clip_norm is '-1'", "0…"}),
          set("unknown device", "device=gpu", {"there is no device 'gpu'", "use cpu, cuda"}),
          set("unknown learning rate", "train.learning_rate.schedule=cosin",
              {"'cosin' is not a learning rate schedule", "did you mean cosine?"}),
          set("unknown model", "model.name=mpl", {"'mpl' is not a model", "did you mean mlp?"}),
          set("unknown model's parameter", "model.widht=8",
              {"model mlp has no parameter 'widht'", "did you mean width?"}),
          set("model's parameter out of range", "model.width=0",
              {"width=0 is not an integer from 1 to 65536", "[bad-model-parameter]", "width=0"}),
          set("a cut beyond the model", "model.cuts=[3, 90]",
              {"cuts 3 and 90", "the 6 blocks: 0 flatten, 1 fc1", "first < second < 6"}),
          set("cuts in the wrong order", "model.cuts=[5, 3]",
              {"cuts 5 and 3", "1 <= first < second < 6"}),
          set("one cut", "model.cuts=[3]", {"model.cuts has 1 value", "two block positions"}),
          set("unknown codec", "codec=unifrom:bits=8",
              {"'unifrom' is not a codec", "did you mean uniform?"}),
          set("codec's parameter out of range", "codec=uniform:bits=17",
              {"bits=17 is not an integer from 1 to 16", "set bits"}),
          set("codec without its parameter", "codec=uniform",
              {"codec uniform needs bits", "write uniform:bits=16"}),
          set("codec with an unknown parameter", "codec=none:bits=8",
              {"codec none has no parameter 'bits'", "this codec has no parameters"}),
          set("delta for gradients", "codec={gradient/0: 'delta(block:bits=4)'}",
              {"cannot encode gradient/0", "use it for activations only"}),
          set("codec's grammar", "codec=uniform:bits=",
              {"character 14 (the end): expected a value", "name:key=value"}),
          set("codec of an unknown flow", "codec={activation/2: none}",
              {"codec.activation/2 is not a known key", "did you mean codec.activation/0?"}),
          set("a file size without a unit", "metrics.rotate=100",
              {"metrics.rotate: '100' is not a size", "its unit is missing"}),
          set("a file size that is too small", "metrics.rotate=1kB",
              {"metrics.rotate is '1kB', which is too small", "set it to 64kB to 1GB, or off"}),
          set("unknown data format", "data.format=idz",
              {"data.format is 'idz'", "did you mean idx?"}),
          set("too many held out", "data.holdout=5000",
              {"data.holdout: 5000 samples cannot be held out of 2048", "smaller"}),
          {"vectors for an image model",
           {"--set", "model={name: small_cnn}", "--set", "data.shape=[4]"},
           kWrongUse,
           {"[bad-sample-shape]",
            "--set model={name: small_cnn}: model.name: block conv1 requires images", "gets [4]",
            "choose another model"}},
          {"batch norm with one value per channel",
           {"--set", "model={name: small_cnn}", "--set", "train.micro_batches=32"},
           kWrongUse,
           {"[batch-norm-too-few]", "--set train.micro_batches=32", "would see 1 value per channel",
            "micro-batch, of 1 sample", "use a larger batch or fewer micro-batches"}},
          {"log level",
           {"--log-level", "loud"},
           kWrongUse,
           {"[bad-log-level]", "'loud' is not a log level", "use one of"}},
          {"no HOST:PORT",
           {"--server", "nowhere"},
           kWrongUse,
           {"[bad-address]", "--server: 'nowhere' has no port", "write HOST:PORT"}},
          {"port out of range",
           {"--server", "here:70000"},
           kWrongUse,
           {"[bad-address]", "--server: 'here:70000' does not end in a port", "1…65535"}},
          {"a URL",
           {"--server", "http://localhost:4800"},
           kWrongUse,
           {"[bad-address]", "is a URL, not an address", "without http://: localhost:4800"}},
          {"a URL with a path, without a port",
           {"--server", "https://here/train/"},
           kWrongUse,
           {"[bad-address]", "is a URL, not an address", "without https://: here:4800"}},
          {"a trailing slash",
           {"--server", "[::1]:4800/"},
           kWrongUse,
           {"[bad-address]", "is a URL, not an address", "without /: [::1]:4800"}},
          set("a misspelt auto", "codec=atuo",
              {"[unknown-codec]", "did you mean auto?", "or auto"}),
          set("a misspelt pattern", "train.freeze=['*', '!fcc1.*']",
              {"no parameter of the model matches 'fcc1.*'; did you mean fc1.*?"}),
      });
  CHECK_FALSE(std::filesystem::exists(runFolder));
}

TEST_CASE("mistakes in configuration files are reported with location and hint") {
  const TemporaryFolder folder;
  const auto file = [&](const std::string& name, const std::string& text) {
    write(folder.path(name), text);
    return folder.path(name);
  };
  const std::string max = "model: {name: mlp}\ndata: {format: synthetic, shape: [4]}\n";
  const std::string typed = file("typed.yaml", max + "train:\n  batchs: 16\n");
  const std::string typeless = file("type.yaml", max + "train:\n  epochs: 1.5\n");
  const std::string broken = file("broken.yaml", "model: {name: mlp\ndata: 3\n");
  const std::string tabs = file("tabs.yaml", "model:\n\tname: mlp\n");
  const std::string twice = file("twice.yaml", max + "model: {name: mlp}\n");
  const std::string list = file("list.yaml", "- 1\n- 2\n");
  const std::string empty = file("empty.yaml", "");
  const std::string partial = file("partial.yaml", "model: {name: mlp}\n");
  const std::string missing = folder.path("missing.yaml");
  const std::vector<Mistake> table = {
      {"mistyped key",
       {typed},
       kWrongUse,
       {"[config-unknown-key]", typed + ":4",
        "train.batchs is not a known key; did you mean train.batch?", "rename it"}},
      {"wrong type",
       {typeless},
       kWrongUse,
       {"[config-value]", typeless + ":4", "train.epochs is '1.5'",
        "set train.epochs to an integer"}},
      {"missing file",
       {missing},
       kWrongUse,
       {"[config-file]", missing, "No such file or directory", "check the path"}},
      {"a folder",
       {folder.path("")},
       kWrongUse,
       {"[config-file]", folder.path(""), "Is a directory", "check the path"}},
      {"not YAML",
       {broken},
       kWrongUse,
       {"[config-syntax]", broken + ":2", "not valid YAML", "close quotes and brackets"}},
      {"tabs",
       {tabs},
       kWrongUse,
       {"[config-syntax]", tabs + ":2: the line is indented with a tab, which YAML does not allow",
        "indent with spaces"}},
      {"a key twice",
       {twice},
       kWrongUse,
       {"[config-syntax]", twice + ":3", "appears twice", "remove one of the two"}},
      {"a list",
       {list},
       kWrongUse,
       {"[config-syntax]", list + ":1", "the file is a list", "key: value"}},
      {"a server's",
       {configFile("server.yaml")},
       kWrongUse,
       {"[bad-config]", "server.yaml:", "'listen' is a key of cleave-server serve"}},
      {"empty",
       {empty},
       kWrongUse,
       {"[config-missing]", empty, "model.name is missing", "add model.name"}},
      {"missing required key",
       {partial},
       kWrongUse,
       {"[config-missing]", partial, "data.format is missing", "add data.format"}},
  };
  checkMistakes({clientProgram(), "train", "--run-dir", folder.path("run"), "--config"}, table);
  CHECK_FALSE(std::filesystem::exists(folder.path("run")));
}

// The convention: 0 done, 1 a run failed, 2 wrong use.
TEST_CASE("the same fault has the same exit code in every command") {
  const TemporaryFolder folder;
  const std::string run = folder.path("run"), nowhere = folder.path("none/file");
  REQUIRE(runClient("train", run, {}).code == 0);
  const std::string synthetic = configFile("synthetic.yaml");
  const std::string missing = folder.path("missing");
  const std::string damaged = folder.path("damaged.yaml");
  std::filesystem::create_directories(folder.path("photos/a"));
  std::filesystem::create_directories(folder.path("photos/b"));
  for (const char* name : {"a/1.png", "a/2.png", "b/1.png", "b/2.png"}) {
    write(folder.path("photos/") + name, "not an image");
  }
  write(damaged,
        "model: {name: mlp}\ndata: {format: folder, train: {folder: " + folder.path("photos") +
            "}, holdout: 2}\ntrain: {batch: 2, micro_batches: 2}\n" + "codec: none\n");
  const auto fault = [](const std::string& name, const std::string& says,
                        const std::vector<Arguments>& commands) {
    std::vector<Mistake> rows;
    for (const Arguments& command : commands) {
      rows.push_back({name + ": " + command.front(), command, kWrongUse, {says}});
    }
    checkMistakes({clientProgram()}, rows);
  };
  fault("a missing configuration", "[config-file]",
        {{"train", "--config", missing},
         {"verify", "--config", missing},
         {"data", "show", "--config", missing},
         {"sweep", "--config", missing, "--grid", "train.batch=8"},
         {"profile", "--config", missing, "--output", folder.path("profile.json")}});
  fault("a missing run or model", "[no-",
        {{"train", "--resume", missing},
         {"report", missing},
         {"checkpoints", missing},
         {"eval", missing},
         {"predict", missing},
         {"export", missing}});
  fault("damaged images", "[sample-damaged]",
        {{"train", "--config", damaged, "--run-dir", folder.path("t")},
         {"verify", "--config", damaged, "--run-dir", folder.path("v")},
         {"data", "show", "--config", damaged}});
  fault("a folder that does not exist", "[not-writable]",
        {{"report", run, "--output", nowhere},
         {"export", run, "--output", nowhere},
         {"predict", run, "--output", nowhere},
         {"data", "show", "--config", synthetic, "--sheet", nowhere},
         {"profile", "--config", synthetic, "--output", nowhere},
         {"train", "--config", synthetic, "--trace", nowhere},
         {"train", "--config", synthetic, "--run-dir", "/proc/none/run"},
         {"verify", "--config", synthetic, "--run-dir", "/proc/none/run"}});
}

TEST_CASE("mistakes in data files are reported with location and hint") {
  const TemporaryFolder folder;
  const auto file = [&](const std::string& name, const std::string& text) {
    write(folder.path(name), text);
    return folder.path(name);
  };
  using namespace std::string_literals;
  const std::string missing = folder.path("missing.gz");
  const std::string empty = file("empty", "");
  const std::string foreign = file("foreign", "this is no IDX file");
  // The header declares two images of 2 x 2 pixels.
  const std::string header = "\0\0\x08\x03\0\0\0\x02\0\0\0\x02\0\0\0\x02"s;
  const std::string whole = file("images", header + "12345678");
  const std::string truncated = file("truncated", header + "12345");
  const std::string labels = file("labels", "\0\0\x08\x01\0\0\0\x02\x01\x02"s);
  const std::string three = file("three", "\0\0\x08\x01\0\0\0\x03\x01\x02\x03"s);
  const std::string wrong = file("wrong", "\0\0\x08\x01\0\0\0\x02\x01\x63"s);
  const std::string flat = file("flat", "\0\0\x08\x02\0\0\0\x02\0\0\0\x04"s + "12345678");
  const std::string last = file("last", "\0\0\x08\x04\0\0\0\x02\0\0\0\x05\0\0\0\x05\0\0\0\x03"s +
                                            std::string(2 * 5 * 5 * 3, 'x'));
  const std::string gzip = file("cut.gz", "\x1f\x8b\x08\0\0\0\0\0\0\x03\x63"s);
  const auto row = [&](const std::string& name, const std::string& images,
                       const std::string& labelsFile, std::vector<std::string> says) {
    const std::string data = "data={format: idx, train: {images: " + images +
                             ", labels: " + labelsFile + "}, test: {images: " + whole +
                             ", labels: " + labels + "}}";
    return Mistake{name, {"--set", data}, kWrongUse, std::move(says)};
  };
  checkMistakes(
      {clientProgram(), "train", "--config", configFile("synthetic.yaml"), "--run-dir",
       folder.path("run")},
      {
          row("missing", missing, labels,
              {missing, "there is no such file", "check the path", "data.train.images"}),
          row("missing labels", whole, missing,
              {missing, "there is no such file", "check the path", "data.train.labels"}),
          row("a folder", folder.path(""), labels, {"not a regular file", "check the path"}),
          row("empty", empty, labels, {empty, "is empty", "download the file again"}),
          row("another format", foreign, labels,
              {foreign, "is not an IDX file", "give an IDX file"}),
          row("truncated", truncated, labels,
              {truncated, "is truncated", "2 images of 2x2", "download the file again"}),
          row("truncated gzip", gzip, labels, {gzip, "is truncated", "download the file again"}),
          row("swapped", labels, whole, {labels, "rank 1", "are not swapped"}),
          row("rows of pixels", flat, labels, {"[data-damaged]", "a training sample has f32[4]"}),
          row("labels with several values per sample", whole, flat, {flat, "rank 2", "per sample"}),
          row("channels last", last, labels, {last, "channels", "transpose(0, 3, 1, 2)"}),
          row("more labels than images", whole, three, {three, "3", "2"}),
          row("a label that is not a class", whole, wrong, {wrong, "99", "10"}),
      });
  CHECK_FALSE(std::filesystem::exists(folder.path("run")));
}

TEST_CASE("mistakes with initial weights are reported with a hint") {
  const TemporaryFolder folder;
  const auto weightsOf = [&](const std::string& name, const Arguments& arguments) {
    REQUIRE(runClient("train", folder.path(name), arguments).code == 0);
    return folder.path(name) + "/model.safetensors";
  };
  const std::string wide = weightsOf("wide", {"--set", "model.width=24"});
  const std::string whole = weightsOf("whole", {});
  const std::string cut = folder.path("cut.safetensors");
  write(cut, readFile(whole).substr(0, 1000));
  const std::string foreign = folder.path("foreign.safetensors");
  write(foreign, "this is no safetensors file");
  const std::string zip = folder.path("model.pth");
  write(zip, "PK\x03\x04" + std::string(100, 'x'));
  const std::string pickle = folder.path("old.pth");
  write(pickle, "\x80\x02\x8a\x0al\xfc" + std::string(100, 'x'));
  const std::string empty = folder.path("empty.safetensors");
  write(empty, "");
  const auto row = [](const std::string& name, const std::string& file, const std::string& except,
                      std::vector<std::string> says) {
    says.insert(says.end(), {"weights", file});
    return Mistake{name,
                   {"--set", "weights={file: " + file + ", except: [" + except + "]}"},
                   kWrongUse,
                   std::move(says)};
  };
  checkMistakes(
      {clientProgram(), "train", "--config", configFile("synthetic.yaml"), "--run-dir",
       folder.path("run")},
      {
          row("of another model", wide, "",
              {"does not fit the model: fc1.weight is [24, 64] there, but [32, 64] in the model",
               "4 more of its tensors", "use weights of this model"}),
          row("missing", folder.path("missing"), "", {"cannot read", "give a safetensors file"}),
          row("truncated", cut, "", {cut, "not a safetensors file"}),
          row("of another format", foreign, "", {foreign, "not a safetensors file"}),
          row("PyTorch's archive", zip, "", {zip, "PyTorch", "cleave_split.convert"}),
          row("PyTorch's older pickle", pickle, "", {pickle, "PyTorch", "cleave_split.convert"}),
          row("empty", empty, "", {empty, "not a safetensors file"}),
          row("unknown block", whole, "fc9", {"no block 'fc9'", "did you mean fc1?"}),
      });
  CHECK_FALSE(std::filesystem::exists(folder.path("run")));
}

TEST_CASE("a missing GPU and a missing GPU library are reported with a hint") {
  const TemporaryFolder folder;
  // The GPU library is missing, as in a build without a CUDA toolkit.
  const std::string alone = folder.path("cleave-server");
  std::filesystem::copy(serverProgram(), alone);
  checkMistakes({alone, "serve", "--set", "listen.port=0", "--set", "store=" + folder.path("s")},
                {{"no library",
                  {"--set", "device=cuda"},
                  kWrongUse,
                  {"[bad-device]", "this build has no libcleave_cuda.so", "-DCLEAVE_CUDA=ON",
                   "device: cpu"}}});
  const bool hasLibrary = std::filesystem::exists(
      std::filesystem::path(serverProgram()).parent_path() / "../lib/cleave/libcleave_cuda.so");
  const bool hasDriver = std::system("ldconfig -p | grep -q libcuda.so.1") == 0;
  if (!hasLibrary || hasDriver) {
    WARN("skipped: this machine has a GPU driver, or the build has no libcleave_cuda");
    return;
  }
  const std::vector<Mistake> table = {
      {"no driver",
       {"--set", "device=cuda"},
       kWrongUse,
       {"[bad-device]", "there is no NVIDIA driver", "nvidia-smi", "device: cpu"}}};
  checkMistakes({serverProgram(), "serve", "--set", "listen.port=0", "--set",
                 "store=" + folder.path("store")},
                table);
  checkMistakes({clientProgram(), "train", "--config", configFile("synthetic.yaml"), "--run-dir",
                 folder.path("run")},
                table);
  CHECK_FALSE(std::filesystem::exists(folder.path("run")));
}

TEST_CASE("mistakes with run folders are reported with a hint") {
  const TemporaryFolder folder;
  const std::string full = folder.path("full");
  std::filesystem::create_directories(full);
  write(full + "/precious", "keep");
  const std::string below = full + "/precious/run";
  checkMistakes(
      {clientProgram(), "train", "--config", configFile("synthetic.yaml"), "--run-dir"},
      {
          {"one that exists",
           {full},
           kWrongUse,
           {"[run-exists]", full + " already exists", "another folder with --run-dir, or remove"}},
          {"below a file",
           {below},
           kWrongUse,
           {"[not-writable]", below, "Not a directory", "another folder with --run-dir"}},
          {"below a folder that cannot be written",
           {"/proc/run"},
           kWrongUse,
           {"[not-writable]", "/proc/run", "another folder with --run-dir"}},
      });
  CHECK(readFile(full + "/precious") == "keep");
}

TEST_CASE("mistakes in the server's configuration are reported with location and hint") {
  const TemporaryFolder folder;
  const TestServer other(folder);
  const std::string used = std::to_string(other.port());
  write(folder.path("file"), "");
  const std::string store = folder.path("file") + "/store";
  checkMistakes(
      {serverProgram(), "serve", "--config", configFile("server.yaml"), "--set", "listen.port=0",
       "--set", "store=" + folder.path("unused")},
      {
          set("unknown key", "listen.prot=1", {"did you mean listen.port?", "rename it"}),
          set("no IP address", "listen.address=localhost",
              {"listen.address is 'localhost', which is not an IP address", "use 127.0.0.1"}),
          {"beyond loopback",
           {"--set", "listen.address=0.0.0.0"},
           kWrongUse,
           {"[unsafe-bind]", "listening on 0.0.0.0 without TLS would let anyone",
            "cleave-server certs init"}},
          {"all IPv6 addresses, as people write them",
           {"--set", "listen.address=[::]"},
           kWrongUse,
           {"[unsafe-bind]", "listening on :: without TLS"}},
          set("a port in the address", "listen.address=[::1]:4801",
              {"which is not an IP address alone",
               "--set listen.address=[::1] --set listen.port=4801"}),
          set("labels of identities without an access file", "metrics.identity_label=true",
              {"metrics.identity_label needs access.file"}),
          set("port out of range", "listen.port=70000", {"listen.port is '70000'", "in 0…65535"}),
          {"port in use",
           {"--set", "listen.port=" + used},
           kWrongUse,
           {"[port-in-use]",
            "cannot listen on 127.0.0.1:" + used + ": another program already uses the port",
            "--set listen.port=" + std::to_string(other.port() + 1)}},
          set("unknown model allowed", "models.allow=[mpl]", {"models.allow", "did you mean mlp?"}),
          {"a client's graph on a GPU, where nothing confines it",
           {"--set", "device=cuda", "--set", "models.allow=[mlp, graph]"},
           kWrongUse,
           {"[unconfined-graphs]", "on a GPU, this process computes all runs",
            "remove graph from models.allow"}},
          set("unknown device", "device=gpu", {"there is no device 'gpu'", "use cpu, cuda"}),
          {"a store that cannot be created",
           {"--set", "store=" + store},
           kWrongUse,
           {"[not-writable]", "the store " + store + " cannot be written: Not a directory",
            "--set store=DIR"}},
      });
}

TEST_CASE("with --json or --json-lines, the error that ends a program is also JSON on stdout") {
  const Ended refused = ask({"train", "--json", "--config", configFile("synthetic.yaml"), "--set",
                             "train.batchs=16", "--dry-run"});
  checkError(refused, kWrongUse, {"[config-unknown-key]", "did you mean train.batch?"});
  const auto error = nlohmann::json::parse(refused.output).at("error");
  CHECK(error.at("code") == "config-unknown-key");
  CHECK_THAT(error.at("sentence").get<std::string>(),
             Catch::Matchers::Contains("did you mean train.batch?"));
  CHECK(error.at("hint") == "rename it to train.batch, or remove it");
  CHECK(error.at("key") == "train.batchs");
  CHECK(error.at("location") == "--set train.batchs=16");
  CHECK(error.at("exit_code") == kWrongUse);

  const Ended mistyped = ask({"train", "--json-lines", "--confg", "x.yaml"});
  checkError(mistyped, kWrongUse, {"did you mean --config?"});
  const auto event = nlohmann::json::parse(mistyped.output);
  CHECK(event.at("event") == "failed");
  CHECK_FALSE(event.at("time").get<std::string>().empty());
  CHECK(event.at("code") == "wrong-use");
  CHECK(event.at("exit_code") == kWrongUse);

  const Ended server =
      finish(Process::start({serverProgram(), "status", "--json", "--set", "status.socket=off"}));
  checkError(server, kWrongUse, {"[status-off]"});
  CHECK(nlohmann::json::parse(server.output).at("error").at("code") == "status-off");
  // Without these options, nothing is written to stdout.
  CHECK(ask({"data", "show", "--config", "none.yaml"}).output.empty());
}

}  // namespace
}  // namespace cleave::test
