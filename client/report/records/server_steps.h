// The servers' steps in a report. Each has the duration of the client's step with this number, and
// is divided by what the server did meanwhile. So the parts add up to the step that the client
// measured, and neither evaluations nor the answers to a Fetch between two steps count.
#pragma once

#include <cstddef>
#include <map>
#include <vector>

#include "client/report/records/downsample.h"
#include "client/report/records/run_figures.h"

namespace cleave {

class ServerSteps {
 public:
  explicit ServerSteps(BucketAxis& axis) : axis_(axis), seen_(axis) {}

  // A training step in the client's rows.
  struct Step {
    double step = 0;
    bool isWarmUp = false;
    double seconds = 0;
    double computed = 0;  // by all servers, as they report it to the client: without their Update
    double wire = 0;      // seconds of the busier direction
  };
  void add(const Step& step);
  // Codec seconds of all servers in a step, which the client has from its transfers.
  void addCodec(double step, double seconds);

  // A server whose folder was found, and a training step in its own rows.
  void addServer(std::size_t number);
  void addRow(std::size_t number, double step, double computed, double coded);

  // Divides the steps that have been added. A step whose row a server has not written yet waits for
  // the next call, unless the run has ended; if the row was lost, the client's figures replace it.
  // `servers`: their number in the run.
  void divide(std::size_t servers, bool hasEnded);

  // Whether no server's own rows are known, but the client has seen their steps.
  bool areSeenByClient() const;
  // Of each server, by number; or if there are no rows of them, the mean of all as the client sees
  // them: their Update counts as waiting.
  std::vector<StepSplit*> splits();

 private:
  struct Work {
    float computed = -1, coded = 0;  // negative: not recorded
  };
  struct Server {
    explicit Server(BucketAxis& axis) : split(axis) {}
    std::vector<Work> rows;  // by step; of a step that was redone, the last row
    double last = -1;        // the highest step
    std::size_t divided = 0;
    StepSplit split;
  };
  const Work* workOf(const Server& server, double step) const;

  BucketAxis& axis_;
  std::vector<Step> steps_;          // in the order of the client's rows
  std::vector<double> coded_;        // per step in steps_ that is in seen_: the mean of the servers
  std::vector<float> codecSeconds_;  // by step
  StepSplit seen_;
  std::map<std::size_t, Server> servers_;  // by number
};

}  // namespace cleave
