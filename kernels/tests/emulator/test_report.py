"""Code objects, residency, and the resource report; a build that starts to spill fails here."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from assemble import assemble
from dsv41_kernels import report
from dsv41_kernels.emulator import CodeObject, CodeObjectError, Kernel

# Builds that may spill, with the registers they spill. Empty, and meant to stay so.
KNOWN_SPILLS: dict[str, int] = {}


def kernel(**changes: int) -> Kernel:
    base = assemble("s_endpgm").code.kernels["kernel"]
    return replace(base, **{"vgpr": 64, "sgpr": 32, "lds": 0, "max_workgroup": 256, **changes})


def test_reads_a_code_object() -> None:
    found = assemble("s_endpgm", lds=4096, scratch=16).code.kernels["kernel"]
    assert (found.vgpr, found.agpr, found.sgpr) == (256, 128, 100)
    assert (found.lds, found.scratch, found.kernarg_size) == (4096, 16, 16)


@pytest.mark.parametrize(
    ("changes", "waves", "groups", "limiter"),
    [
        ({}, 8, 8, "waves"),
        ({"vgpr": 65}, 7, 7, "vgpr"),  # 72 registers: 512 // 72
        ({"vgpr": 128}, 4, 4, "vgpr"),
        ({"vgpr": 512}, 1, 1, "vgpr"),
        ({"lds": 65536}, 2, 2, "lds"),
        ({"lds": 163840}, 1, 1, "lds"),
        ({"lds": 54613}, 2, 2, "lds"),  # 43 blocks of 1280: 55040 bytes, of 163840
        ({"max_workgroup": 64}, 8, 32, "waves"),
        ({"max_workgroup": 512, "vgpr": 128}, 4, 2, "vgpr"),
    ],
)
def test_residency(changes: dict[str, int], waves: int, groups: int, limiter: str) -> None:
    got = kernel(**changes).residency()
    assert (got.waves_per_simd, got.workgroups_per_cu, got.limiter) == (waves, groups, limiter)


def test_a_workgroup_that_fits_nowhere_is_an_error() -> None:
    with pytest.raises(ValueError, match="does not fit a CU"):
        kernel(lds=200_000).residency()


@pytest.mark.parametrize(
    ("data", "pattern"),
    [(b"", "not an ELF"), (b"\x7fELF" + bytes(8), "unreadable ELF"), (None, "EM_AMDGPU")],
)
def test_bad_files_are_one_clear_error(data: bytes | None, pattern: str) -> None:
    content = Path("/proc/self/exe").read_bytes() if data is None else data
    with pytest.raises(CodeObjectError, match=pattern):
        CodeObject(content)


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, out = tmp_path / "k.hsaco", tmp_path / "r.csv"
    file.write_bytes(assemble("s_endpgm").code.data)
    assert report.main([str(file), "--csv", str(out)]) == 0
    rows = list(csv.DictReader(out.open()))
    assert [r["build"] for r in rows] == ["k.hsaco:kernel"] and rows[0]["vgpr"] == "256"
    assert "workgroups_per_cu" in capsys.readouterr().out
    assert [p.name for p in tmp_path.iterdir() if p.suffix == ".tmp"] == []
    assert report.main([str(tmp_path / "none"), "--csv", str(out)]) == 2
    assert capsys.readouterr().err.startswith("report: ")


def test_spills_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spilled = report.row("x", kernel(vgpr_spills=3))
    monkeypatch.setattr(report, "package_builds", lambda: iter([spilled]))
    assert report.main(["--csv", str(tmp_path / "r.csv")]) == 1


@pytest.mark.slow
def test_no_build_of_the_package_spills() -> None:
    rows = list(report.package_builds())
    assert rows
    spilling = {r.build: r.vgpr_spills for r in rows if r.vgpr_spills or r.scratch_bytes}
    assert spilling == KNOWN_SPILLS
