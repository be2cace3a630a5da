#include "media/child_program.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

#include "core/env.h"
#include "winnow/error.h"

extern char** environ;

namespace winnow::media {

namespace {

std::string reason(int error_number) { return std::generic_category().message(error_number); }

// Spawn attributes and file actions, freed on every way out.
struct SpawnSetup {
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;

  SpawnSetup() {
    posix_spawn_file_actions_init(&actions);
    posix_spawnattr_init(&attributes);
  }
  SpawnSetup(const SpawnSetup&) = delete;
  SpawnSetup& operator=(const SpawnSetup&) = delete;
  ~SpawnSetup() {
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
  }
};

pid_t spawn(const std::string& operation, const std::vector<std::string>& words, int input, int errors) {
  SpawnSetup setup;
  posix_spawn_file_actions_adddup2(&setup.actions, input, STDIN_FILENO);
  posix_spawn_file_actions_addopen(&setup.actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  posix_spawn_file_actions_adddup2(&setup.actions, errors, STDERR_FILENO);
  // Its own process group: Ctrl-C in a terminal reaches us only, and we decide whether the file is finished or removed.
  posix_spawnattr_setflags(&setup.attributes, POSIX_SPAWN_SETPGROUP);
  posix_spawnattr_setpgroup(&setup.attributes, 0);
  std::vector<char*> argv;
  argv.reserve(words.size() + 1);
  for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  pid_t child = -1;
  const int error_number = posix_spawn(&child, words[0].c_str(), &setup.actions, &setup.attributes, argv.data(), environ);
  if (error_number != 0) throw Error(operation, words[0] + ": " + reason(error_number));
  return child;
}

void close_and_forget(int& fd) {
  if (fd >= 0) ::close(std::exchange(fd, -1));
}

}  // namespace

std::string find_program(const std::string& name) {
  const std::string folders = env::search_path();
  std::string_view rest = folders;
  while (!rest.empty()) {
    const std::string_view folder = rest.substr(0, rest.find(':'));
    rest.remove_prefix(std::min(folder.size() + 1, rest.size()));
    if (folder.empty()) continue;  // would mean the current folder
    std::string program = std::string(folder) + "/" + name;
    if (::access(program.c_str(), X_OK) == 0) return program;
  }
  return {};
}

ChildProgram::ChildProgram(std::string operation, const std::vector<std::string>& words)
    : operation_(std::move(operation)), name_(std::filesystem::path(words[0]).filename().string()) {
  // A socket rather than a pipe: send() can be told not to raise SIGPIPE when the child is gone.
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) throw Error(operation_, "socketpair: " + reason(errno));
  input_ = ends[0];
  // A memory file rather than a pipe: the child can never block on it, so nobody has to drain it.
  errors_ = ::memfd_create("child-errors", MFD_CLOEXEC);
  try {
    if (errors_ < 0) throw Error(operation_, "memfd_create: " + reason(errno));
    child_ = spawn(operation_, words, ends[1], errors_);
  } catch (...) {
    ::close(ends[1]);
    close_and_forget(input_);
    close_and_forget(errors_);
    throw;
  }
  ::close(ends[1]);
}

ChildProgram::~ChildProgram() {
  if (child_ > 0) {
    ::kill(child_, SIGKILL);
    wait();
  }
  close_and_forget(input_);
  close_and_forget(errors_);
}

int ChildProgram::wait() {
  int status = 0;
  while (::waitpid(child_, &status, 0) < 0 && errno == EINTR) {
  }
  child_ = -1;
  return status;
}

std::string ChildProgram::last_words() const {
  std::array<char, 2000> text{};
  const off_t size = ::lseek(errors_, 0, SEEK_END);
  const off_t from = std::max<off_t>(0, size - static_cast<off_t>(text.size()));
  const ssize_t n = ::pread(errors_, text.data(), text.size(), from);
  std::string words(text.data(), n > 0 ? static_cast<std::size_t>(n) : 0);
  while (!words.empty() && words.back() == '\n') words.pop_back();
  for (char& c : words) {
    if (c == '\n') c = ';';  // errors are one line
  }
  return words.empty() ? "it gave no reason" : words;
}

void ChildProgram::fail(int status) const {
  const std::string how = WIFSIGNALED(status) ? "was ended by signal " + std::to_string(WTERMSIG(status))
                                              : "ended with code " + std::to_string(WEXITSTATUS(status));
  throw Error(operation_, name_ + " " + how + ": " + last_words());
}

void ChildProgram::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::send(input_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n < 0) {
      if (errno == EINTR) continue;
      close_and_forget(input_);
      fail(wait());
    }
    bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
}

void ChildProgram::finish() {
  close_and_forget(input_);
  const int status = wait();
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) fail(status);
}

}  // namespace winnow::media
