// Runs the built command line as a user would: arguments in, exit code and both outputs back.
#pragma once

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

namespace winnow::tests {

struct Finished {
  int code = -1;  // exit code, or 128 + signal
  std::string out, err;
};

inline std::string read_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// A child process whose outputs go to files in `folder`.
class Program {
 public:
  Program(const std::vector<std::string>& words, const std::filesystem::path& folder) : out_(folder / ".stdout"), err_(folder / ".stderr") {
    child_ = fork();
    if (child_ != 0) return;
    if (freopen(out_.c_str(), "w", stdout) == nullptr || freopen(err_.c_str(), "w", stderr) == nullptr) _exit(126);
    std::vector<char*> argv;
    for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
    argv.push_back(nullptr);
    execv(argv[0], argv.data());
    _exit(127);
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  ~Program() {
    if (child_ <= 0) return;
    kill(child_, SIGKILL);
    waitpid(child_, nullptr, 0);
  }

  // Waits until its standard error holds `text`; false if it has not after a minute.
  bool wait_for(const std::string& text) const {
    for (int i = 0; i < 6000; ++i) {
      if (read_file(err_).find(text) != std::string::npos) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  }
  void send(int signal) const { kill(child_, signal); }

  Finished finish() {
    int status = 0;
    waitpid(child_, &status, 0);
    child_ = -1;
    Finished result;
    result.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    result.out = read_file(out_);
    result.err = read_file(err_);
    std::filesystem::remove(out_);
    std::filesystem::remove(err_);
    return result;
  }

 private:
  std::filesystem::path out_, err_;
  pid_t child_ = -1;
};

}  // namespace winnow::tests
