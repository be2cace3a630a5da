// The files of one run: none may be written twice, or be written over an input.
#pragma once

#include <map>
#include <string>

#include <nlohmann/json_fwd.hpp>

namespace winnow::cli {

class FileNames {
 public:
  // `operation` appears in errors. The cost profile that attention goes by is an input of every run.
  explicit FileNames(std::string operation);

  // An empty path stands for no file. `flag` says where the path comes from. Throws Error if the name is not UTF-8.
  void read(const std::string& path, const std::string& flag);
  // Every file in it, and where its links lead: nothing may be written there.
  void read_folder(const std::string& path, const std::string& flag);
  // The same, if the folder is a model at all: else loading it fails before anything is written.
  void read_model(const std::string& path, const std::string& flag);
  // A method's name, JSON text or a JSON file; and the files that the JSON names. What is wrong with it is its parser's to say.
  void read_setting(const std::string& text, const std::string& flag);
  // Throws Error if the same file is read or written by another flag, or lies in a folder that is read, or in a model's. `own_place` is
  // the one file that this may be there. "-" is refused: nothing here writes files to standard output.
  void write(const std::string& path, const std::string& flag, const std::string& own_place = {});
  // A folder for files that do not lie there yet.
  void write_folder(const std::string& path, const std::string& flag) const;

 private:
  struct Use {
    std::string flag;
    bool written = false;
  };
  void read_named(const nlohmann::json& json, const std::string& flag);
  void check_folders(std::string folder, const std::string& path, const std::string& flag) const;

  std::string operation_;
  std::map<std::string, Use> uses_;             // by absolute path, links resolved
  std::map<std::string, std::string> folders_;  // flags of those that are read
};

}  // namespace winnow::cli
