// An environment variable that has another value, or none, until the end of the scope.
#pragma once

#include <cstdlib>
#include <optional>
#include <string>

namespace winnow::tests {

class Variable {
 public:
  // Null takes the variable away.
  Variable(const char* name, const char* value) : name_(name) {
    if (const char* old = std::getenv(name)) old_ = old;
    set(value);
  }
  ~Variable() { set(old_ ? old_->c_str() : nullptr); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  void set(const char* value) const { value == nullptr ? ::unsetenv(name_) : ::setenv(name_, value, 1); }

  const char* name_;
  std::optional<std::string> old_;
};

}  // namespace winnow::tests
