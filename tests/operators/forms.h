// Legal arguments of the operators that random arguments seldom fit.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace cleave::test {

// "input=T:N,C,L weight=T:K,C,3 groups=I:1": see Maker::fromForm(). Arguments that a form does not
// name are random.
struct OperatorForm {
  std::string_view op;
  std::string_view arguments;

  std::optional<std::string> argument(std::string_view name) const;
};

std::span<const OperatorForm> formsOf(std::string_view op);

}  // namespace cleave::test
