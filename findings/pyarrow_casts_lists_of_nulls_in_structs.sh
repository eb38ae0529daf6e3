#!/usr/bin/env bash
# pyarrow 26.0.1: a struct that is cast for the sake of one field makes another field broken, where that is a list of nulls
# (type null) with more items than the struct has rows: validate() refuses the result, and to_pylist() raises
# ArrowIndexError. The same list outside of a struct, and a list of typed nulls in it, are cast right.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -r "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check pyarrow==26.0.1
"$folder/venv/bin/python" - <<'END'
import sys
import pyarrow as pa


def cast(values, before, after):
    made = pa.array(values, before).cast(after)
    try:
        made.validate(full=True)
        return made.to_pylist() == values
    except (pa.ArrowInvalid, pa.ArrowIndexError) as error:
        return type(error).__name__


def struct(day, item):
    return pa.struct([("day", day), ("none", pa.list_(item))])


values = [{"day": None, "none": [None, None]}]
seen = {
    "list of nulls in a struct": cast(values, struct(pa.date32(), pa.null()), struct(pa.int32(), pa.null())),
    "list of typed nulls in a struct": cast(values, struct(pa.date32(), pa.int8()), struct(pa.int32(), pa.int8())),
    "list of nulls": cast([[None, None]], pa.list_(pa.null()), pa.large_list(pa.null())),
}
print("pyarrow", pa.__version__)
for what, found in seen.items():
    print(f"{what}: {'right' if found is True else found}")
sys.exit(list(seen.values()) != ["ArrowInvalid", True, True])
END
