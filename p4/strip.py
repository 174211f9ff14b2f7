"""Takes out of a compiled program what nobody reads of it, which is most of it: where each statement of an action stands in the source.

    python3 p4/strip.py p4/bifrost.json
"""
import json
import sys


def strip(x):
    if isinstance(x, dict):
        x.pop("source_info", None)
        x = x.values()
    elif not isinstance(x, list):
        return
    for v in x:
        strip(v)


with open(sys.argv[1], encoding="utf-8") as f:
    program = json.load(f)
for action in program["actions"]:
    strip(action["primitives"])
with open(sys.argv[1], "w", encoding="utf-8") as f:
    json.dump(program, f, separators=(",", ":"))
