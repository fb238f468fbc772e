// The keys of checkpoints, measurements and metrics.
#include "client/config/settings_keys.h"

#include <string>

#include "common/run/config_errors.h"
#include "common/run/metrics.h"
#include "common/run/run_folder.h"

namespace cleave::client_keys {

void addRecords(Table& table) {
  table
      .number("checkpoint.every_seconds", "s", 0, 1e6,
              field(&Settings::checkpoint, &CheckpointSettings::everySeconds),
              "time between two checkpoints, from which a run continues after a crash; 0: no "
              "time-based "
              "checkpoints")
      .mayChange();
  table
      .integer("checkpoint.every_steps", "", 0, kMany,
               field(&Settings::checkpoint, &CheckpointSettings::everySteps),
               "also makes a checkpoint every N steps; 0: no step-based checkpoints")
      .mayChange();
  table
      .integer(
          "checkpoint.keep", "", 1, 8, field(&Settings::checkpoint, &CheckpointSettings::keep),
          "number of checkpoints that each side keeps; if one is damaged, the run continues from "
          "an "
          "older one")
      .mayChange();
  table
      .add("checkpoint.on_failure", "`warn`, `stop`", "", "`warn`",
           "if a checkpoint cannot be made, for example on a full disk: `warn` continues the run, "
           "`stop` ends it",
           [](Config& config, Settings& s) {
             s.checkpoint.mustSucceed =
                 config.text("checkpoint.on_failure", "warn", {"warn", "stop"}) == "stop";
           })
      .mayChange();
  table
      .boolean(
          "kept_samples.on_disk", &Settings::samplesOnDisk,
          "whether the samples that `delta` keeps are in a file in the run's folder instead of "
          "memory; the server decides for itself")
      .mayChange();
  table.boolean("probe.first", &Settings::probeFirst,
                "measures the link before training, as `--probe` does");
  table.number("probe.seconds", "s", 0.1, 300, &Settings::probeSeconds,
               "approximate time limit of that measurement");
  table
      .integer("metrics.error_every", "tensors", 0, kMany, &Settings::errorEvery,
               "measures the codec's error on one tensor in N; 0: never")
      .mayChange();
  table
      .add("metrics.rotate", "`off`, or 64kB … 1GB", "", "`off`",
           "size at which a CSV file is rotated; its rows then continue in a new file",
           [](Config& config, Settings& s) { s.rotateBytes = readRotateBytes(config); })
      .mayChange();
  table
      .boolean("metrics.tensorboard", &Settings::tensorBoard,
               "also writes the [figures for TensorBoard](tracking.md#tensorboard) into the run's "
               "folder `tensorboard`")
      .mayChange();
  table
      .add("metrics.listen", "`ADDRESS:PORT`", "", "none",
           "serves metrics to [Prometheus](metrics.md#prometheus), such as `127.0.0.1:9465`",
           [](Config& config, Settings& s) { s.metrics = readMetricsSettings(config); })
      .mayChange();
  table
      .add("metrics.anywhere", "boolean", "", "`false`",
           "allows `metrics.listen` to be an address other than loopback, without TLS", nullptr)
      .mayChange();
}

}  // namespace cleave::client_keys
