"""CSVs: round trip, locale, schema, atomicity."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from results.columns import COLUMNS, FILES, SCHEMA, Row, file_columns
from results.tables import read_csv, to_csv, write_tables
from samenode.errors import UserError

TEXT = 'a,b "quoted"\nsecond line\r\nüñïcode → 漢字; =1+1'


def row(**cells: object) -> Row:
    return {"schema": SCHEMA, "kind": "agentx", "valid": True, **cells}  # type: ignore[dict-item]


cells = {
    "str": st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1),
    "int": st.integers(-(10**18), 10**18),
    "float": st.floats(allow_nan=False, allow_infinity=False),
    "bool": st.booleans(),
}


@given(
    st.fixed_dictionaries(
        {}, optional={c.name: cells[c.kind] for c in COLUMNS[::9] if c.name != "schema"}
    )
)
def test_every_value_of_every_kind_round_trips(values: Row) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "points.csv"
        text = to_csv([{"schema": SCHEMA, **values}], COLUMNS)
        path.write_bytes(text.encode())
        found = read_csv(path)[0]
    assert {k: v for k, v in found.items() if v is not None} == {"schema": SCHEMA, **values}


def test_non_ascii_text_in_a_c_locale_is_utf8(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib; from results.tables import *;"
        "folder, note = pathlib.Path(sys.argv[1]), chr(0x6F22) + chr(0x2192) + chr(0xFC);"
        "write_tables(folder, [{'schema': 1, 'kind': 'agentx', 'valid': True, 'note': note}]);"
        "assert read_csv(folder / 'points.csv')[0]['note'] == note"
    )
    env = os.environ | {"LC_ALL": "C", "LANG": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], env=env, check=True)
    assert "漢→ü".encode() in (tmp_path / "points.csv").read_bytes()


def test_a_newer_schema_is_refused_and_nothing_is_overwritten(tmp_path: Path) -> None:
    write_tables(tmp_path, [row(note="old")])
    path = tmp_path / "throughput.csv"
    newer = path.read_text(encoding="utf-8").replace(f"\n{SCHEMA},", f"\n{SCHEMA + 1},")
    path.write_text(newer, encoding="utf-8")
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    with pytest.raises(UserError, match=rf"schema {SCHEMA + 1} .* update samenode"):
        write_tables(tmp_path, [row(note="new")])
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a,b\n1,2\n", "no column 'schema'"),
        ("schema,valid\n1\n", "line 2: cells are missing"),
        ("schema,valid\n1,true,3\n", "line 2: cells are missing or too many"),
        ("schema,nonsense\n1,2\n", "unknown column 'nonsense'"),
        ("schema,conc\n1,two\n", "'two' in column conc is no int"),
        ("schema,total_throughput\n1,nan\n", "'nan' in column total_throughput is no float"),
        ("schema,valid\n1,yes\n", "'yes' in column valid is no bool"),
        ('schema,note\n1,"open\n', "no valid CSV"),
        ("schema,note\nx,y\n", "no schema version"),
        ("", "no column 'schema'"),
    ],
)
def test_a_foreign_or_damaged_csv_is_one_sentence(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "points.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=words) as error:
        read_csv(path)
    assert error.value.exit_code == 2
    assert "\n" not in str(error.value)


def test_bytes_that_are_no_utf8_are_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "points.csv"
    path.write_bytes(b"schema\n\xff\n")
    with pytest.raises(UserError, match="not UTF-8"):
        read_csv(path)


def test_a_missing_csv_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        read_csv(tmp_path / "points.csv")


def test_all_csvs_are_written_with_their_headers_and_kinds(tmp_path: Path) -> None:
    write_tables(tmp_path, [row(point="a"), row(point="b", kind="gsm8k")])
    for name in ("points.csv", *FILES, "comparison.csv"):
        header = (tmp_path / name).read_text(encoding="utf-8").splitlines()[0].split(",")
        assert header == [c.name for c in file_columns(name)]
    assert [r["point"] for r in read_csv(tmp_path / "points.csv")] == ["a", "b"]
    assert [r["point"] for r in read_csv(tmp_path / "interactivity.csv")] == ["a"]
    assert [r["point"] for r in read_csv(tmp_path / "accuracy.csv")] == ["b"]
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".")]
