#!/usr/bin/env python3
"""Copies tables between pages: what stands between <!-- compare:NAME --> and <!-- /compare:NAME --> in SOURCE replaces what stands
between the same marks in each PAGE.

    python3 tools/splice_tables.py SOURCE PAGE...
    python3 tools/splice_tables.py --check SOURCE PAGE...     changes nothing; exit status 1 if a page differs from SOURCE

Every mark of a page needs a table of that name in SOURCE.
"""
import os
import re
import sys

BLOCK = re.compile(r"<!-- compare:(\w+) -->\n(.*?)<!-- /compare:\1 -->\n", re.S)


def spliced(page, tables):
    """The text with every block replaced. Raises KeyError with the name of a table that there is not."""
    return BLOCK.sub(lambda m: f"<!-- compare:{m[1]} -->\n{tables[m[1]]}<!-- /compare:{m[1]} -->\n", page)


def main(arguments):
    check = arguments[:1] == ["--check"]
    paths = arguments[1:] if check else arguments
    if len(paths) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    with open(paths[0], encoding="utf-8") as file:
        tables = dict(BLOCK.findall(file.read()))
    status = 0
    for path in paths[1:]:
        with open(path, encoding="utf-8") as file:
            old = file.read()
        try:
            new = spliced(old, tables)
        except KeyError as missing:
            print(f"{path}: {paths[0]} has no table {missing}", file=sys.stderr)
            return 1
        if new == old:
            continue
        if check:
            print(f"{path}: its tables are not those of {paths[0]}: run tools/splice_tables.py {paths[0]} {path}")
            status = 1
            continue
        with open(path + ".partial", "w", encoding="utf-8") as file:
            file.write(new)
        os.replace(path + ".partial", path)
        print(f"wrote {path}")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
