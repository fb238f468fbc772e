// Notes which operator of a graph this process is computing, for the message if the process
// crashes.
#pragma once

#include <span>
#include <string_view>

namespace cleave {

inline constexpr std::size_t kOperatorNoteBytes = 64;

// From now on, noteOperator() writes to `place`: the name, cut to fit, with a 0 after it. Requires
// kOperatorNoteBytes bytes that outlive the process's computing. Without a place, it does nothing.
void noteOperatorsIn(std::span<char> place);
// One thread at a time.
void noteOperator(std::string_view name) noexcept;
// What has been noted last; empty: nothing.
std::string_view lastNotedOperator();

}  // namespace cleave
