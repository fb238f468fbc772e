// Compares optimizers with PyTorch's formulas for a single number, and tests the checks of their
// parameters.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "common/model/optimizer.h"
#include "tests/support/error_code.h"

namespace cleave::test {
namespace {

using Parameters = std::map<std::string, double>;

StepDecision decision(double learningRate, double clipFactor = 1) {
  StepDecision step;
  step.learningRates = {learningRate};
  step.clipFactor = clipFactor;
  return step;
}

// Trains one parameter with three equal values.
struct Trained {
  explicit Trained(const Parameters& parameters, float value = 1, const std::string& name = "sgd")
      : tensor(at::full({3}, value).set_requires_grad(true)),
        optimizer(makeOptimizer({name, parameters}, {{"w", tensor}})) {}

  void step(float gradient, const StepDecision& decided) {
    tensor.mutable_grad() = at::full({3}, gradient);
    optimizer->update(decided);
  }
  double value() const { return tensor[2].item<double>(); }

  at::Tensor tensor;
  std::unique_ptr<Optimizer> optimizer;
};

TEST_CASE("groups have learning rates and weight decays of their own, and the first match counts") {
  OptimizerSpec spec{"sgd", {{"weight_decay", 0.5}}, {{"*.bias", 0.0}, {"head.*", std::nullopt}}};
  std::vector<NamedTensor> parameters;
  for (const char* name : {"body.weight", "head.weight", "head.bias"}) {
    parameters.push_back({name, at::full({1}, 1.0).set_requires_grad(true)});
    parameters.back().tensor.mutable_grad() = at::full({1}, 1.0);
  }
  const auto optimizer = makeOptimizer(spec, parameters);
  StepDecision step = decision(0.5);
  CHECK(errorCode([&] { optimizer->update(step); }) == "bad-metadata");
  step.learningRates = {0.5, 0.25, 0};
  optimizer->update(step);
  CHECK(parameters[0].tensor.item<double>() == 0.25);  // 1 - 0.5 x (1 + 0.5)
  CHECK(parameters[1].tensor.item<double>() == 1);     // learning rate 0
  CHECK(parameters[2].tensor.item<double>() == 0.75);  // 1 - 0.25 x 1
  spec.groups = {{"*", 11.0}};
  CHECK(errorCode([&] { checkOptimizer(spec); }) == "bad-optimizer-parameter");
}

TEST_CASE("plain SGD follows the gradient") {
  Trained trained({});
  trained.step(0.5f, decision(0.25));
  CHECK(trained.value() == 0.875);
  trained.step(-2.0f, decision(0.5));
  CHECK(trained.value() == 1.875);
}

// The parameter starts at 1, and the learning rate is 0.5. All numbers are exact in binary.
TEST_CASE("momentum begins with the first gradient") {
  Trained trained({{"momentum", 0.5}});
  trained.step(1, decision(0.5));  // buffer 1
  CHECK(trained.value() == 0.5);
  trained.step(1, decision(0.5));  // buffer 0.5 + 1
  CHECK(trained.value() == -0.25);
  trained.step(-1, decision(0.5));  // buffer 0.75 - 1
  CHECK(trained.value() == -0.125);
}

TEST_CASE("dampening applies to all gradients except the first") {
  Trained trained({{"momentum", 0.5}, {"dampening", 0.25}});
  trained.step(1, decision(0.5));  // buffer 1
  CHECK(trained.value() == 0.5);
  trained.step(1, decision(0.5));  // buffer 0.5 + 0.75
  CHECK(trained.value() == -0.125);
}

TEST_CASE("Nesterov looks one step ahead") {
  Trained trained({{"momentum", 0.5}, {"nesterov", 1}});
  trained.step(1, decision(0.5));  // buffer 1, direction 1 + 0.5
  CHECK(trained.value() == 0.25);
  trained.step(1, decision(0.5));  // buffer 1.5, direction 1 + 0.75
  CHECK(trained.value() == -0.625);
}

TEST_CASE("weight decay is added to the clipped gradient") {
  Trained trained({{"weight_decay", 0.5}});
  trained.step(4, decision(0.5, 0.25));  // 4 * 0.25 + 0.5 * 1
  CHECK(trained.value() == 0.25);
}

TEST_CASE("many steps agree with the formula in fp64") {
  const double momentum = 0.9, decay = 5e-4;
  Trained trained({{"momentum", momentum}, {"weight_decay", decay}, {"nesterov", 1}}, 0.7f);
  double p = 0.7f, buffer = 0;
  for (int n = 0; n < 50; ++n) {
    const float gradient = 0.1f * static_cast<float>(n % 7) - 0.25f;
    const double learningRate = 0.1 / (1 + n), clip = n % 3 == 0 ? 0.5 : 1;
    const double g = gradient * clip + decay * p;
    buffer = n == 0 ? g : momentum * buffer + g;
    p -= learningRate * (g + momentum * buffer);
    trained.step(gradient, decision(learningRate, clip));
    CHECK(trained.value() == Approx(p).epsilon(1e-5));
  }
}

TEST_CASE("adam and adamw agree with their formulas in fp64") {
  const double beta1 = 0.8, beta2 = 0.95, epsilon = 1e-3, decay = 0.1;
  for (const std::string name : {"adam", "adamw"}) {
    CAPTURE(name);
    const bool decoupled = name == "adamw";
    Trained trained({{"beta1", beta1}, {"beta2", beta2}, {"eps", epsilon}, {"weight_decay", decay}},
                    0.7f, name);
    double p = 0.7f, m = 0, v = 0;
    for (int t = 1; t <= 50; ++t) {
      const float gradient = 0.1f * static_cast<float>(t % 7) - 0.25f;
      const double learningRate = 0.1 / t, clip = t % 3 == 0 ? 0.5 : 1;
      if (decoupled) p -= learningRate * decay * p;
      const double g = gradient * clip + (decoupled ? 0 : decay * p);
      m = beta1 * m + (1 - beta1) * g;
      v = beta2 * v + (1 - beta2) * g * g;
      const double m1 = m / (1 - std::pow(beta1, t)), v1 = v / (1 - std::pow(beta2, t));
      p -= learningRate * m1 / (std::sqrt(v1) + epsilon);
      trained.step(gradient, decision(learningRate, clip));
      CHECK(trained.value() == Approx(p).epsilon(1e-5));
    }
  }
}

TEST_CASE("the size of adam's first step is the learning rate, for any gradient") {
  for (const float gradient : {1e-3f, 1.0f, 1e3f}) {
    Trained trained({}, 1, "adam");
    trained.step(gradient, decision(0.25));
    CHECK(trained.value() == Approx(0.75).epsilon(1e-4));
  }
}

TEST_CASE("adamw decays by 0.01 by default, and adam does not decay") {
  Trained adamw({}, 1, "adamw"), adam({}, 1, "adam");
  adamw.step(0, decision(0.5));
  adam.step(0, decision(0.5));
  CHECK(adamw.value() == Approx(0.995));
  CHECK(adam.value() == 1);
}

TEST_CASE("a skipped step changes neither weights nor momentum") {
  Trained trained({{"momentum", 0.5}});
  trained.step(1, decision(0.5));
  StepDecision skip = decision(0.5);
  skip.apply = false;
  trained.step(std::numeric_limits<float>::quiet_NaN(), skip);
  CHECK(trained.value() == 0.5);
  trained.step(1, decision(0.5));
  CHECK(trained.value() == -0.25);
}

TEST_CASE("a parameter without a gradient is unchanged, and its first gradient is its first step") {
  Trained trained({{"momentum", 0.5}, {"dampening", 0.5}});
  trained.optimizer->update(decision(0.5));
  CHECK(trained.value() == 1);
  trained.step(1, decision(0.5));
  CHECK(trained.value() == 0.5);
}

TEST_CASE("updates are not recorded by autograd") {
  Trained trained({{"momentum", 0.9}, {"weight_decay", 0.1}});
  trained.step(1, decision(0.1));
  CHECK(trained.tensor.is_leaf());
  CHECK(trained.tensor.requires_grad());
}

struct Refused {
  OptimizerSpec spec;
  std::string code;
  std::string sentence;
};

TEST_CASE("optimizers with invalid parameters are refused") {
  const Refused cases[] = {
      {{"sdg", {}}, "unknown-optimizer", "there is no optimizer 'sdg'"},
      {{"sgd", {{"momentun", 0.9}}},
       "bad-optimizer-parameter",
       "optimizer sgd has no parameter 'momentun'"},
      {{"sgd", {{"momentum", 1}}},
       "bad-optimizer-parameter",
       "optimizer sgd: momentum=1 is not at least 0 and below 1"},
      {{"sgd", {{"momentum", -0.1}}},
       "bad-optimizer-parameter",
       "optimizer sgd: momentum=-0.1 is not at least 0 and below 1"},
      {{"sgd", {{"momentum", std::numeric_limits<double>::quiet_NaN()}}},
       "bad-optimizer-parameter",
       "optimizer sgd: momentum=nan is not at least 0 and below 1"},
      {{"sgd", {{"dampening", 1.5}}},
       "bad-optimizer-parameter",
       "optimizer sgd: dampening=1.5 is not from 0 to 1"},
      {{"sgd", {{"weight_decay", 11}}},
       "bad-optimizer-parameter",
       "optimizer sgd: weight_decay=11 is not from 0 to 10"},
      {{"sgd", {{"momentum", 0.9}, {"nesterov", 0.5}}},
       "bad-optimizer-parameter",
       "optimizer sgd: nesterov=0.5 is not 0 or 1"},
      {{"sgd", {{"nesterov", 1}}},
       "bad-optimizer-parameter",
       "optimizer sgd: nesterov needs a momentum above 0 and a dampening of 0"},
      {{"sgd", {{"nesterov", 1}, {"momentum", 0.9}, {"dampening", 0.1}}},
       "bad-optimizer-parameter",
       "optimizer sgd: nesterov needs a momentum above 0 and a dampening of 0"},
      {{"adam", {{"eps", 0}}},
       "bad-optimizer-parameter",
       "optimizer adam: eps=0 is not above 0 and at most 1"},
      {{"adamw", {{"beta2", 1}}},
       "bad-optimizer-parameter",
       "optimizer adamw: beta2=1 is not at least 0 and below 1"},
      {{"adamw", {{"momentum", 0.9}}},
       "bad-optimizer-parameter",
       "optimizer adamw has no parameter 'momentum'"},
  };
  for (const Refused& refused : cases) {
    INFO(refused.sentence);
    try {
      checkOptimizer(refused.spec);
      FAIL_CHECK("was accepted");
    } catch (const UsageError& error) {
      CHECK(error.code() == refused.code);
      CHECK(error.what() == refused.sentence);
    }
    CHECK_THROWS_AS(makeOptimizer(refused.spec, {}), UsageError);
    CHECK_THROWS_AS(optimizerStateBytes(refused.spec), UsageError);
  }
  CHECK_NOTHROW(checkOptimizer({"sgd", {{"momentum", 0}, {"dampening", 1}, {"weight_decay", 10}}}));
}

TEST_CASE("an unknown optimizer is refused with the nearest known one") {
  try {
    checkOptimizer({"sgd", {{"momentun", 0.9}}});
    FAIL("was accepted");
  } catch (const UsageError& error) {
    CHECK(error.hint() ==
          "did you mean momentum? use one of momentum, dampening, weight_decay, nesterov");
  }
}

TEST_CASE("only momentum and adam require state") {
  CHECK(optimizerStateBytes({"adam", {}}) == 8);
  CHECK(optimizerStateBytes({"adamw", {}}) == 8);
  CHECK(optimizerStateBytes({"sgd", {}}) == 0);
  CHECK(optimizerStateBytes({"sgd", {{"weight_decay", 0.1}}}) == 0);
  CHECK(optimizerStateBytes({"sgd", {{"momentum", 0.9}}}) == 4);
}

// Two parameters; the second one has a gradient in odd steps only.
struct Pair {
  explicit Pair(const OptimizerSpec& spec)
      : a(at::full({2, 3}, 0.5f).set_requires_grad(true)),
        b(at::full({4}, -1.25f).set_requires_grad(true)),
        optimizer(makeOptimizer(spec, {{"a", a}, {"b", b}})) {}

  void step(int number) {
    a.mutable_grad() = at::full({2, 3}, 0.1f * static_cast<float>(number));
    b.mutable_grad() = number % 2 == 1 ? at::full({4}, 0.7f) : at::Tensor();
    optimizer->update(decision(0.1, 0.9));
  }

  at::Tensor a, b;
  std::unique_ptr<Optimizer> optimizer;
};

TEST_CASE("a restored optimizer continues bit-identically") {
  const OptimizerSpec specs[] = {{"sgd", {}},
                                 {"sgd", {{"momentum", 0.9}, {"nesterov", 1}}},
                                 {"adam", {{"weight_decay", 0.01}}},
                                 {"adamw", {}}};
  for (const OptimizerSpec& spec : specs) {
    for (const int saved : {0, 1, 4}) {
      CAPTURE(spec.name, saved);
      Pair whole(spec);
      for (int n = 1; n <= saved; ++n) whole.step(n);
      Pair resumed(spec);
      const auto state = whole.optimizer->state();
      {
        const at::NoGradGuard noGrad;
        resumed.a.copy_(whole.a);
        resumed.b.copy_(whole.b);
      }
      resumed.optimizer->restore(state);
      for (int n = saved + 1; n <= saved + 5; ++n) {
        whole.step(n);
        resumed.step(n);
      }
      CHECK(at::equal(whole.a, resumed.a));
      CHECK(at::equal(whole.b, resumed.b));
    }
  }
}

TEST_CASE("a state that does not match is refused, and changes nothing") {
  const auto codeOf = [](Optimizer& optimizer, const std::vector<NamedTensor>& state) {
    return errorCode([&] { optimizer.restore(state); });
  };
  Pair adam({"adam", {}});
  adam.step(1);
  const auto good = adam.optimizer->state();
  REQUIRE(good.size() == 6);
  const auto without = [&](std::size_t left) {
    auto state = good;
    state.erase(state.begin() + static_cast<std::ptrdiff_t>(left));
    return state;
  };
  for (std::size_t k = 0; k < good.size(); ++k)
    CHECK(codeOf(*adam.optimizer, without(k)) == "bad-checkpoint");
  for (std::size_t k = 0; k < good.size(); ++k) {
    auto state = good;
    state[k].tensor = at::full({7}, 1.0f);
    CHECK(codeOf(*adam.optimizer, state) == "bad-checkpoint");
    state = good;
    state[k].name = "c:first";
    CHECK(codeOf(*adam.optimizer, state) == "bad-checkpoint");
    state[k].name = "first";
    CHECK(codeOf(*adam.optimizer, state) == "bad-checkpoint");
  }
  Pair sgd({"sgd", {{"momentum", 0.9}}});
  CHECK(codeOf(*sgd.optimizer, good) == "bad-checkpoint");
  const auto after = adam.optimizer->state();
  REQUIRE(after.size() == good.size());
  for (std::size_t k = 0; k < good.size(); ++k) {
    CHECK(after[k].name == good[k].name);
    CHECK(at::equal(after[k].tensor, good[k].tensor));
  }
}

}  // namespace
}  // namespace cleave::test
