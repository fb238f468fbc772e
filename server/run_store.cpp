#include "server/run_store.h"

#include <google/protobuf/util/json_util.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "common/core/log.h"
#include "common/run/run_folder.h"

namespace cleave {
namespace {

// Otherwise every client would get the error, and the operator none.
void checkStore(const std::string& store) {
  std::error_code error;
  std::filesystem::create_directories(store, error);
  if (!error && ::access(store.c_str(), W_OK) != 0) {
    error = {errno, std::generic_category()};
  }
  if (!error) return;
  throw UsageError("not-writable", "the store " + store + " cannot be written: " + error.message(),
                   "use a writable folder: --set store=DIR");
}

// JSON is also valid YAML.
std::string jsonOf(const wire::RunSpec& spec) {
  std::string json;
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  const auto status = google::protobuf::util::MessageToJsonString(spec, &json, options);
  if (!status.ok()) throw RunError("internal-error", "cannot write the run spec as JSON");
  return json;
}

}  // namespace

RunStore::RunStore(const ServerSettings& settings, const Access& access,
                   const ComputeDevice& compute, std::shared_ptr<Metrics> metrics)
    : settings_(settings),
      access_(access),
      compute_(compute),
      metrics_(std::move(metrics)),
      disk_(settings.store, settings.diskReserveBytes) {
  checkStore(settings.store);
}

StoredRun RunStore::open(const std::string& identity, const wire::Hello& hello,
                         std::uint64_t session, int threads) {
  StoredRun run;
  run.disk =
      disk_.open(identity, access_.of(identity).diskBytes.value_or(settings_.share.diskBytes));
  const std::string folder = settings_.store + "/" + identity + "/" + hello.run_id();
  makeRunFolder(folder, "use another run.name, or try again: each run gets its own id");
  run.disk->take(DiskShare::kRunBytes);
  writeRunDescription(folder, settings_.resolved + "run_spec: " + jsonOf(hello.run_spec()) + "\n",
                      threads, compute_.description());
  run.log = fileLog(folder + "/log.txt");
  run.files =
      std::make_shared<RunFiles>(recorder_, folder, RunIdentity{hello.run_id(), session},
                                 std::vector<std::string>{}, settings_.rotateBytes, run.disk);
  run.files->observe(metrics_);
  return run;
}

}  // namespace cleave
