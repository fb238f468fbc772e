// The keys of the codecs and the checks of their quality.
#include "client/config/settings_keys.h"

#include <string>
#include <utility>
#include <vector>

#include "common/core/names.h"
#include "common/run/config_errors.h"
#include "compression/registry.h"

namespace cleave::client_keys {
namespace {

constexpr const char* kAuto = "auto";

// `auto` sends the first batches several times, which cohorts and defences do not support.
const char* defaultCodec(Config& config) {
  const bool isMember = !config.text("cohort.id", "").empty();
  return isMember || config.items("privacy.defence") > 0 ? "none" : kAuto;
}

// Like makeCodec(), but its hint also names `auto`, which is not a codec.
std::shared_ptr<const Codec> makeOther(const CodecSpec& spec) {
  try {
    return makeCodec(spec);
  } catch (const UsageError& error) {
    const bool isKnown = std::ranges::any_of(
        codecTable(), [&](const CodecRow& row) { return row.name == spec.name; });
    if (isKnown) throw;
    const bool isAuto = !nearestName(spec.name, {kAuto}).empty();
    throw UsageError(
        error, error.what(),
        (isAuto ? "did you mean auto? " : "") + error.hint() + ", or auto, which measures several");
  }
}

void readCodecs(Config& config, Settings& settings) {
  const bool isMap = config.isMap("codec");
  // There is one more cut than there are bodies.
  Place all;
  all.lastCut = static_cast<int>(settings.bodies());
  std::vector<Flow> flows = all.flows();
  for (int cut = 1; cut < all.lastCut; ++cut) {
    flows.insert(flows.end(), {activationAt(cut), gradientAt(cut)});
  }
  for (const Flow each : flows) {
    const std::string flow = flowName(each);
    const std::string path = isMap ? "codec." + flow : "codec";
    const std::string text = config.text(path, defaultCodec(config));
    checkAt(config, path, [&] {
      const CodecSpec spec = parseCodecSpec(text);
      const auto given = autoCodec(spec);
      settings.codecs[flow] = given ? given->start : ParsedCodec{text, makeOther(spec)};
      if (!given) return;
      settings.autoCodecs[flow] = given->choices;
      settings.autoBudget = settings.autoBudget.stricter(given->budget);
    });
  }
}

void addFlowCodecs(Table& table) {
  table
      .add("codec", "text", "", "`auto`; in a cohort or with defences `none`",
           "codec of all flows, or a map with one codec per flow; see [codecs](#codecs)",
           readCodecs)
      .sent();
  const std::pair<Flow, const char*> flows[] = {{activationAt(0), "head to body"},
                                                {activationAt(1), "body to tail"},
                                                {gradientAt(1), "tail to body"},
                                                {gradientAt(0), "body to head"}};
  for (const auto& [flow, way] : flows) {
    table.add("codec." + flowName(flow), "text", "", "as `codec`", way, nullptr).sent();
  }
}

}  // namespace

void addCodecs(Table& table) {
  table.section("Codec, device, link");
  addFlowCodecs(table);
  table.add(
      "quality.every", "integer", "steps", "100 if a codec is `auto`, else 0",
      "checks every N steps [what lossy codecs cost in quality](codecs.md#quality), and sends "
      "less lossy tensors if it is too much; 0: no checks",
      [](Config& config, Settings& s) {
        constexpr std::int64_t kDefault = 100;
        s.quality.every = static_cast<std::uint64_t>(
            config.integer("quality.every", 0, kMany, s.autoCodecs.empty() ? 0 : kDefault));
      });
  table.number(
      "quality.max_loss_increase", "", 0, 1e6,
      field(&Settings::quality, &QualitySettings::maxLossIncrease),
      "how much higher the loss may be with the codecs than without, relative to the loss");
  table.number("quality.min_snr", "dB", -1000, 1000,
               field(&Settings::quality, &QualitySettings::minSnr),
               "lowest signal-to-noise ratio of a tensor that the client sends or receives");
  table
      .add("non_finite", "`fail`, `raw`", "", "`fail`",
           "if a codec cannot encode NaN or infinity: `fail` ends the run, `raw` sends that "
           "tensor uncompressed",
           [](Config& config, Settings& s) {
             s.rawNonFinite = config.text("non_finite", "fail", {"fail", "raw"}) == "raw";
           })
      .sent();
}

}  // namespace cleave::client_keys
