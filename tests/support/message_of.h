// What an Error says.
#pragma once

#include <functional>
#include <string>

#include "winnow/error.h"

namespace winnow::tests {

// Of the Error that `body` throws, or "no error".
inline std::string message_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace winnow::tests
