// A program of the system as a child process that reads what it is given from a pipe. Winnow links to none of their libraries.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace winnow::media {

// Full path of a program in PATH; empty if there is none.
std::string find_program(const std::string& name);

class ChildProgram {
 public:
  // words[0] is the full path of the program. Its standard output is thrown away. `operation` appears in errors. Throws Error.
  ChildProgram(std::string operation, const std::vector<std::string>& words);
  ChildProgram(const ChildProgram&) = delete;
  ChildProgram& operator=(const ChildProgram&) = delete;
  ~ChildProgram();  // kills the child if finish() was not reached

  // To its standard input. Throws Error with the program's own words if it gave up.
  void write(std::span<const std::byte> bytes);
  // Ends the input, waits for the child. Throws Error if it failed.
  void finish();
  // The end of what it wrote to its standard error, on one line.
  std::string last_words() const;

 private:
  int wait();
  [[noreturn]] void fail(int status) const;
  std::string operation_;
  std::string name_;  // of the program, for messages
  int input_ = -1;    // our end of the child's standard input
  int errors_ = -1;   // file that takes its standard error
  pid_t child_ = -1;
};

}  // namespace winnow::media
