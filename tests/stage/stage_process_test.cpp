// A body in a process of its own: it computes the same bits, and whatever the process does, only
// its own run ends.
#include <catch2/catch.hpp>
#include <csignal>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "common/model/stage/stage.h"
#include "tests/support/models/playing_stage.h"

namespace cleave {
namespace {

using namespace cleave::test;
using wire::StageReply;
using wire::StageRequest;

std::vector<std::byte> bytesOf(const TensorBundle& bundle) {
  std::vector<std::byte> bytes;
  for (const Payload& payload : bundle) {
    const TensorView& view = payload.view();
    bytes.insert(bytes.end(), view.data, view.data + view.spec.bytes());
  }
  return bytes;
}

// All that a body returns in a few steps.
std::vector<std::vector<std::byte>> train(Body& body, const RunPlan& plan) {
  std::vector<std::vector<std::byte>> results;
  for (std::uint64_t step = 1; step <= 3; ++step) {
    for (std::uint32_t i = 0; i < 2; ++i) {
      const MicroBatch at{Phase::train, step, i, {2, 8}};
      const TensorSpec in = flowSpec(plan.blocks, plan.stage.cuts, activationAt(0), 4);
      const TensorSpec out = flowSpec(plan.blocks, plan.stage.cuts, gradientAt(1), 4);
      results.push_back(bytesOf(body.forward(at, bundleOf(randomTensor(in, 10 * step + i)))));
      results.push_back(bytesOf(body.backward(at, bundleOf(randomTensor(out, 100 * step + i)))));
      if (plan.stage.splitsBackward) body.backwardWeights(at);
    }
    const GradientReport report = body.report(0);
    CHECK(report.finite);
    const auto squares = std::as_bytes(std::span(&report.squareSum, 1));
    results.emplace_back(squares.begin(), squares.end());
    results.push_back(body.exportGradients());
    StepDecision decision;
    decision.step = step;
    decision.learningRates = {0.1};
    body.update(decision);
    results.push_back(body.saveFile());
    results.push_back(body.exportWeights());
  }
  return results;
}

TEST_CASE("a body in a process of its own computes the same bits") {
  const std::string schedule = GENERATE("priority", "zb");
  const RunPlan plan = planRun(specWith(schedule));
  RemoteBody there = remote(plan);
  BodyStage here(plan.stage);
  CHECK(train(there, plan) == train(here, plan));
  CHECK(there.weightsDigest() == here.weightsDigest());

  // A restored state, and weights from elsewhere.
  RemoteBody restored = remote(plan);
  restored.restoreFile(here.saveFile());
  CHECK(restored.saveFile() == here.saveFile());
  RemoteBody loaded = remote(plan);
  loaded.importWeights(here.exportWeights());
  CHECK(loaded.exportWeights() == here.exportWeights());
}

TEST_CASE("errors of a body arrive with their codes") {
  const RunPlan plan = planRun(specWith());
  RemoteBody body = remote(plan);
  CHECK(errorCode([&] { body.importWeights({}); }) == "bad-safetensors");
  RunSpec wider = specWith();
  wider.model.parameters["width"] = "24";
  const RunPlan other = planRun(wider);
  CHECK(errorCode([&] { body.restoreFile(BodyStage(other.stage).saveFile()); }) ==
        "bad-checkpoint");
  CHECK(errorCode([&] { body.backwardWeights({Phase::train, 1, 0, {2, 8}}); }) == "internal-error");
  CHECK_FALSE(body.exportWeights().empty());  // it still answers
}

TEST_CASE("an action that takes too long is ended") {
  RunSpec spec = specWith();
  spec.model.name = "sleep";
  spec.model.parameters = {{"of", "mlp"}, {"F2", "60000"}};
  spec.cut0 = 1;
  spec.cut1 = 2;
  const RunPlan plan = planRun(spec);
  RemoteBody body = remote(plan, 2);
  CHECK(errorCode([&] { forward(body, plan); }) == "action-too-long");
  CHECK(errorCode([&] { forward(body, plan); }) == "body-crashed");
}

// ---- Processes that do what they want ----

TEST_CASE("a process that releases what it was not given ends the run") {
  const RunPlan plan = planRun(specWith());
  const auto releasing = [&](std::vector<std::uint64_t> offsets) {
    return codeOfForward(plan, answering(replyWith([&](StageReply& reply) {
                           for (const std::uint64_t offset : offsets) reply.add_released(offset);
                         })));
  };
  CHECK(releasing({}) == "");
  CHECK(releasing({~std::uint64_t{0}}) == "bad-stage");
  CHECK(releasing(std::vector<std::uint64_t>(1000, 0)) == "bad-stage");
}

TEST_CASE("results that are larger than the state can be end the run") {
  const RunPlan plan = planRun(specWith());
  const std::uint64_t size = GENERATE(std::uint64_t{1} << 40, ~std::uint64_t{0}, 5'000'000U);
  const Play play = answering(replyWith([&](StageReply& reply) { reply.set_bytes(size); }));
  RemoteBody body = bodyOf(plan, play);
  CHECK(errorCode([&] { body.saveFile(); }) == "bad-stage");
}

TEST_CASE("pieces that are empty or too large end the run") {
  const RunPlan plan = planRun(specWith());
  const std::uint64_t piece = GENERATE(std::uint64_t{0}, std::uint64_t{1001}, ~std::uint64_t{0});
  const Play play = [&](int socket, std::span<std::byte>) {
    StageRequest request;
    while (readStageMessage(socket, request) == StageRead::message) {
      const bool isPiece = request.kind() == StageRequest::TAKE;
      sendStageMessage(
          socket, replyWith([&](StageReply& reply) { reply.set_bytes(isPiece ? piece : 1000); }));
    }
  };
  RemoteBody body = bodyOf(plan, play);
  CHECK(errorCode([&] { body.exportWeights(); }) == "bad-stage");
}

TEST_CASE("failures have printable texts and codes") {
  const RunPlan plan = planRun(specWith());
  const auto failure = [&](const std::string& code) {
    return codeOfForward(plan, answering(replyWith([&](StageReply& reply) {
                           reply.set_done(false);
                           reply.mutable_failure()->set_code(code);
                           reply.mutable_failure()->set_sentence("\x1b[2J");
                         })));
  };
  CHECK(failure("memory-exceeded") == "memory-exceeded");
  for (const std::string& code : {std::string(), std::string("\x1b[2J"), std::string(1000, 'a')}) {
    CHECK(failure(code) == "internal-error");
  }
}

TEST_CASE("a process that ends, stops or answers nonsense ends its run") {
  const RunPlan plan = planRun(specWith());
  CHECK(codeOfForward(plan, [](int, std::span<std::byte>) {}) == "body-crashed");
  CHECK(codeOfForward(plan, whenForward([](int) { ::raise(SIGKILL); })) == "body-crashed");
  CHECK(codeOfForward(plan, whenForward([](int) { ::_exit(0); })) == "body-crashed");
  CHECK(codeOfForward(plan, whenForward([](int socket) { ::close(socket); })) == "body-crashed");
  CHECK(codeOfForward(plan, whenForward([](int) { ::pause(); }), 1) == "action-too-long");
  CHECK(codeOfForward(plan, whenForward([](int socket) {
                        const std::string garbage(1000, '\xff');
                        [[maybe_unused]] const auto sent =
                            ::write(socket, garbage.data(), garbage.size());
                      })) == "body-crashed");
}

TEST_CASE("what a process writes to its standard error is limited and printable") {
  const RunPlan plan = planRun(specWith());
  std::string text;
  {
    const StageMemory memory(plan);
    RemoteBody body(
        playing(memory,
                [](int socket, std::span<std::byte> output) {
                  const std::string line(4096, '\x1b');
                  for (int j = 0; j < 1000; ++j) {
                    [[maybe_unused]] const auto n = ::write(2, line.data(), line.size());
                  }
                  answering({})(socket, output);
                }),
        plan, 1, 60, memory, nullptr, [&](const std::string& written) { text = written; });
  }
  CHECK_FALSE(text.empty());
  CHECK(text.size() < 2000);
  CHECK(text.find('\x1b') == std::string::npos);
}

}  // namespace
}  // namespace cleave
