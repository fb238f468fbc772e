// What the runs of a server share.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <memory>

#include "common/device/compute_device.h"
#include "common/replicas/gradient_reducer.h"
#include "common/resources/buffer.h"
#include "common/resources/codec_executor.h"
#include "common/resources/executor.h"
#include "common/resources/fork_join_pair.h"
#include "server/access/server_certificates.h"
#include "server/config/settings.h"
#include "server/run/session_lines.h"
#include "server/store/run_store.h"
#include "stage/remote_body.h"

namespace cleave {

// They outlive the runs.
struct RunResources {
  const ServerSettings& settings;
  ComputeDevice& compute;
  DeviceExecutor& device;
  boost::asio::any_io_executor io;
  std::shared_ptr<BufferPool> pool;
  CodecExecutor& codecs;
  ForkJoinPair* helper;  // shared by all codec threads; null: none
  RunStore& store;
  SessionLines& lines;
  const ServerCertificates& certificates;
  const ReplicaGroup* replicas;      // null: this server is not configured with replicas
  StageProcesses* stages = nullptr;  // null: stages compute in this process, as on a GPU
};

}  // namespace cleave
