"""The one definition of the columns."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from pathlib import Path

import pytest

from results import columns
from results.columns import COLUMNS, FILES, GROUPS, QUANTILES, file_columns, min_samples

ROOT = Path(columns.__file__).parent.parent


def test_docs_are_generated_from_the_columns() -> None:
    text = (ROOT / "docs" / "columns.md").read_text(encoding="utf-8")
    assert text == columns.markdown(), "run python -m results.columns"


def test_names_are_unique_and_groups_known() -> None:
    assert [n for n, k in Counter(c.name for c in COLUMNS).items() if k > 1] == []
    assert {c.group for c in COLUMNS} == set(GROUPS)


def test_times_end_in_their_unit() -> None:
    for column in COLUMNS:
        for unit in ("ms", "s"):
            assert column.name.endswith(f"_{unit}") == (column.unit == unit), column.name


def test_every_metric_has_a_unit_and_a_formula() -> None:
    for column in COLUMNS:
        assert column.formula
        if column.direction != "none":
            assert column.unit, column.name


@pytest.mark.parametrize("q", QUANTILES)
def test_a_percentile_needs_one_value_expected_beyond_it(q: int) -> None:
    n = min_samples(q)
    assert n * (1 - Fraction(q, 100)) >= 1 > (n - 1) * (1 - Fraction(q, 100))


def test_group_files_hold_their_groups_and_the_verdict() -> None:
    for name, groups in FILES.items():
        names = [c.name for c in file_columns(name)]
        assert len(names) == len(set(names))
        assert {c.name for c in COLUMNS if c.group in groups} <= set(names)
        assert names[0] == "schema"
        assert {"valid", "invalid_reasons"} <= set(names)
