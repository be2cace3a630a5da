// The files of one run: none may be written twice, or be written over an input.
#pragma once

#include <map>
#include <string>

namespace winnow::cli {

class FileNames {
 public:
  // `operation` appears in errors.
  explicit FileNames(std::string operation) : operation_(std::move(operation)) {}

  // An empty path stands for no file. `flag` says where the path comes from.
  void read(const std::string& path, const std::string& flag);
  // The value of a flag that takes a file among other things: a name, or JSON text.
  void read_if_file(const std::string& value, const std::string& flag);
  // Throws Error if the same file is read or written by another flag.
  void write(const std::string& path, const std::string& flag);

 private:
  struct Use {
    std::string flag;
    bool written = false;
  };
  std::string operation_;
  std::map<std::string, Use> uses_;  // by absolute path, links resolved
};

}  // namespace winnow::cli
