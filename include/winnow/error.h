// The one exception type of Winnow.
#pragma once

#include <stdexcept>
#include <string>

namespace winnow {

// Thrown for every refused input and every failed operation. what() reads
//   [attend] k: expected [2,37760,40,128] bf16, got [2,37760,40,64] bf16
// that is: the operation in brackets, the argument or key, what was expected and what was found.
class Error : public std::runtime_error {
 public:
  Error(const std::string& operation, const std::string& message) : std::runtime_error("[" + operation + "] " + message) {}
};

// Thrown when a Progress callback asked to stop. Everything written so far has been removed.
class Cancelled : public Error {
 public:
  explicit Cancelled(const std::string& operation) : Error(operation, "cancelled by the caller") {}
};

}  // namespace winnow
