#!/usr/bin/env python3
"""Enforces which folder may include which, and the size of files. Prints each violation as file:line: text; exit status 1 if any.

    python3 tools/check_layers.py [ROOT]

The table below is the architecture: select and exec never include each other, plan knows neither, only run joins them.
"""
import os
import re
import sys

# Folders under src/ (and front doors) -> folders whose internal headers they may include. Each may include itself.
ALL_STAGES = {"core", "device", "plan", "prep", "select", "exec", "steps", "calib", "metrics", "comm", "run"}
MAY_INCLUDE = {
    "core": set(),
    "device": {"core"},
    "plan": {"core"},
    "prep": {"core", "device"},
    "select": {"core", "device", "plan", "prep"},
    "exec": {"core", "device", "plan", "prep"},
    "steps": {"core"},
    "metrics": {"core"},
    "media": {"core"},
    "calib": {"core", "device", "plan", "prep", "select", "exec", "steps", "metrics"},
    "comm": {"core", "exec"},
    "run": {"core", "plan", "prep", "select", "exec", "steps", "calib"},
    "dit": ALL_STAGES | {"media"},
    "report": ALL_STAGES | {"media", "dit"},
    # Front doors reach the stages through the public headers.
    "cli": {"core", "device", "media", "report"},
    "python": set(),
    "examples": set(),
    "tests/support": set(),
}
UNRESTRICTED = {"tests", "fuzz", "bench"}  # they cross stages on purpose
TEST_SUPPORT = "tests/support"  # what any test may use, beside the code too; so it may include no stage itself

# Public headers that belong to one stage; the others are plain data for everybody.
PUBLIC_OWNER = {
    "select.h": "select",
    "attend.h": "exec",
    "cuda.h": "exec",
    "metrics.h": "metrics",
    "session.h": "run",
    "engine.h": "dit",
    "winnow.h": "the users: it is the umbrella",
}

STANDARD = set("""
algorithm any array atomic barrier bit bitset cassert cctype cerrno cfenv cfloat charconv chrono cinttypes climits clocale cmath
compare complex concepts condition_variable coroutine csetjmp csignal cstdarg cstddef cstdint cstdio cstdlib cstring ctime cuchar
cwchar cwctype deque exception execution filesystem format forward_list fstream functional future initializer_list iomanip ios
iosfwd iostream istream iterator latch limits list locale map memory memory_resource mutex new numbers numeric optional ostream
queue random ranges ratio regex scoped_allocator semaphore set shared_mutex source_location span sstream stack stdexcept
stop_token streambuf string string_view syncstream system_error thread tuple type_traits typeindex typeinfo unordered_map
unordered_set utility valarray variant vector version
""".split())
PUBLIC_EXCEPTIONS = {"dlpack.h": {"dlpack/dlpack.h"}}  # its user brings DLPack

MAX_LINES = 800
LONG_FILES = {}  # path -> reason
MAX_INSTANTIATIONS = 24  # files of kernel instantiations, src/*/*/inst/*.cu: each costs nvcc a minute

SOURCE = re.compile(r"\.(h|cc|cu|cuh|py|sh|cmake)$")
CXX = re.compile(r"\.(h|cc|cu|cuh)$")
INCLUDE = re.compile(r'^\s*#\s*include(?:_next)?\s*(?:"([^"]*)"|<([^>]*)>|(\S.*))')
COMMENT = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.S)
TOP = ("include", "src", "cli", "python", "examples", "bench", "tests", "fuzz", "tools", "cmake")


def sources(root):
    for top in TOP:
        for folder, folders, files in os.walk(os.path.join(root, top)):
            folders[:] = sorted(f for f in folders if not f.startswith((".", "build", "__")))
            for name in sorted(files):
                if SOURCE.search(name):
                    yield os.path.relpath(os.path.join(folder, name), root).replace(os.sep, "/")


def includes(text):
    """(line number, header, is it quoted) of every include outside comments; header is None for a macro."""
    blank = lambda m: m.group(0) if m.group(0)[0] == '"' else re.sub(r"[^\n]", " ", m.group(0))
    for number, line in enumerate(COMMENT.sub(blank, text).split("\n"), 1):
        found = INCLUDE.match(line)
        if found:
            quoted, angled, other = found.groups()
            yield number, None if other else (quoted if quoted is not None else angled), quoted is not None


def folder_of(path):
    parts = path.split("/")
    if path.startswith(TEST_SUPPORT + "/"):
        return TEST_SUPPORT
    return parts[1] if parts[0] == "src" and len(parts) > 2 else parts[0]


class Checker:
    def __init__(self, root):
        self.root = root
        self.violations = []
        self.edges = {}  # (from folder, to folder) -> first place
        self.stages = set(os.listdir(os.path.join(root, "src"))) | set(MAY_INCLUDE)

    def report(self, path, line, text):
        self.violations.append(f"{path}:{line}: {text}")

    def run(self):
        strangers = set()
        instantiations = 0
        for path in sources(self.root):
            if path.startswith("src/") and "/inst/" in path:
                instantiations += 1
                if instantiations == MAX_INSTANTIATIONS + 1:
                    self.report(path, 1, f"more than {MAX_INSTANTIATIONS} files of kernel instantiations")
            folder = folder_of(path)
            if path.startswith("src/") and folder not in MAY_INCLUDE and folder not in strangers:
                strangers.add(folder)
                self.report(path, 1, f"src/{folder} is not in the table of tools/check_layers.py")
            with open(os.path.join(self.root, path), encoding="utf-8") as file:
                text = file.read()
            lines = text.count("\n")
            if lines > MAX_LINES and path not in LONG_FILES:
                self.report(path, MAX_LINES + 1, f"{lines} lines; the limit is {MAX_LINES}")
            if CXX.search(path):
                for line, header, quoted in includes(text):
                    self.check(path, line, header, quoted)
        self.check_cycles()
        return self.violations

    def check(self, path, line, header, quoted):
        if header is None:
            return self.report(path, line, "includes a macro: write the header's name")
        if ".." in header.split("/"):
            return self.report(path, line, f"includes {header}: write the path from src/ or include/")
        if path.startswith("include/"):
            return self.check_public(path, line, header)
        top = header.split("/")[0]
        folder = folder_of(path)
        if top == "winnow":
            return self.check_public_use(path, line, header, folder)
        if header.startswith(TEST_SUPPORT + "/") and (path.endswith("_test.cc") or folder == TEST_SUPPORT):
            return None
        if top in self.stages and "/" in header:
            return self.check_edge(path, line, header, folder, top)
        if quoted and folder not in UNRESTRICTED:
            self.report(path, line, f'includes "{header}": quoted headers start with a folder of src/ or with winnow/')

    def check_public(self, path, line, header):
        name = path.split("/")[-1]
        if header.startswith("winnow/"):
            if not os.path.exists(os.path.join(self.root, "include", header)):
                self.report(path, line, f"includes {header}, which does not exist")
        elif header not in STANDARD and header not in PUBLIC_EXCEPTIONS.get(name, ()):
            self.report(path, line, f"includes {header}: public headers need the standard library only")

    def check_public_use(self, path, line, header, folder):
        owner = PUBLIC_OWNER.get(header.split("/", 1)[1])
        allowed = MAY_INCLUDE.get(folder)
        if owner is None or allowed is None or not path.startswith("src/"):
            return  # plain data, or a front door
        if owner != folder and owner not in allowed:
            self.report(path, line, f"src/{folder} must not include {header}, which belongs to {owner}")

    def check_edge(self, path, line, header, folder, top):
        if not any(os.path.exists(os.path.join(self.root, base, header)) for base in ("src", ".")):
            return self.report(path, line, f"includes {header}, which does not exist")
        if folder in UNRESTRICTED or folder == top:
            return
        self.edges.setdefault((folder, top), f"{path}:{line}")
        if top not in MAY_INCLUDE.get(folder, set()):
            allowed = ", ".join(sorted(MAY_INCLUDE.get(folder, set()))) or "nothing"
            self.report(path, line, f"{folder} must not include {header}: beside itself it may include {allowed}")

    def check_cycles(self):
        """Reports each edge that closes a cycle of folders, found by a depth-first walk."""
        below = {}
        for a, b in sorted(self.edges):
            below.setdefault(a, []).append(b)
        done = set()

        def walk(folder, trail):
            if folder in trail:
                cycle = trail[trail.index(folder):] + [folder]
                place = self.edges[(cycle[-2], cycle[-1])]
                self.violations.append(f"{place}: closes the cycle {' -> '.join(cycle)}")
                return
            if folder in done:
                return
            for other in below.get(folder, []):
                walk(other, trail + [folder])
            done.add(folder)

        for folder in sorted(below):
            walk(folder, [])


def main():
    root = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
    if not os.path.isdir(os.path.join(root, "src")):
        print(f"{root}: expected the repository's root", file=sys.stderr)
        return 2
    violations = Checker(root).run()
    for violation in violations:
        print(violation)
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
