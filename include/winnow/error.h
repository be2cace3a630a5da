// The one exception type of Winnow.
#pragma once

#include <cstddef>
#include <stdexcept>
#include <string>

namespace winnow {

// Thrown for every refused input and every failed operation. what() reads
//   [attend] k: expected [2,37760,40,128] bf16, got [2,37760,40,64] bf16
// that is: the operation in brackets, the argument or key, what was expected and what was found.
class Error : public std::runtime_error {
 public:
  Error(const std::string& operation, const std::string& message)
      : std::runtime_error("[" + operation + "] " + message), message_begins_(operation.size() + 3) {}
  // what() without the operation.
  const char* message() const noexcept { return what() + message_begins_; }

 private:
  std::size_t message_begins_;
};

// Thrown when a Progress callback asked to stop. Everything written so far has been removed.
class Cancelled : public Error {
 public:
  explicit Cancelled(const std::string& operation) : Error(operation, "cancelled by the caller") {}
};

}  // namespace winnow
