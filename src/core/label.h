// What was being done when something was refused.
#pragma once

#include <string>
#include <utility>

#include "winnow/error.h"

namespace winnow {

// body(); an Error in it becomes one of `operation` with `label` in front: "[operation] label: ...". Cancelled stays what it is.
template <class Body>
decltype(auto) with_label(const std::string& operation, const std::string& label, Body&& body) {
  try {
    return std::forward<Body>(body)();
  } catch (const Cancelled&) {
    throw;
  } catch (const Error& error) {
    throw Error(operation, label + ": " + error.message());
  }
}

}  // namespace winnow
