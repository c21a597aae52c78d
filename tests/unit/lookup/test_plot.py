"""The plot lookup: files drawn as SVG, and errors that name the file and the reason."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from ansible.errors import AnsibleLookupError
from ansible_collections.gpuhost.stack.plugins.lookup.plot import draw

HEADER = (
    "time,seconds,mark,gpu,uuid,utilization_percent,memory_utilization_percent,memory_used_mib,memory_total_mib,"
    "power_w,temperature_c,sm_clock_mhz,memory_clock_mhz,name\n"
)
ROW = "2026-01-01T00:00:00Z,{},before,0,GPU-a,{},0,4,8192,76.40,30,345,3201,NVIDIA H200\n"


def test_a_recording_whose_last_row_is_cut_off_is_drawn(tmp_path: Path) -> None:
    path = tmp_path / "monitor.csv"
    path.write_text(HEADER + ROW.format("0.000", 5) + ROW.format("5.000", "") + "2026-01-01T00:00:10Z,10.0")
    (svg,) = draw(["monitor", str(path)], "proof-1")
    assert ElementTree.fromstring(svg).tag == "{http://www.w3.org/2000/svg}svg"
    assert "proof-1" in svg
    assert "GPU0 NVIDIA H200" in svg


def test_each_file_is_drawn(tmp_path: Path) -> None:
    entry = {"median_ms": 1.0, "gflops": 2.0}
    for name in ("a.json", "b.json"):
        (tmp_path / name).write_text(
            json.dumps(
                {
                    "sizes": [{"elements": 100, "devices": {"CPU": entry}}],
                    "scaling": [{"replicas": 1, "images_per_second": 10.0, "efficiency": 1.0}],
                }
            )
        )
    files = [str(tmp_path / "a.json"), str(tmp_path / "b.json")]
    assert len(draw(["benchmark", *files])) == 2
    assert "images/s" in draw(["scaling", files[0]])[0]


@pytest.mark.parametrize(
    ("terms", "message"),
    [
        ([], "expected one of monitor, benchmark, scaling and a file"),
        (["pie", "x"], "found \\['pie', 'x'\\]"),
        (["monitor"], "and a file"),
        (["monitor", "/nonexistent/monitor.csv"], "cannot draw /nonexistent/monitor.csv as monitor: .*No such file"),
    ],
)
def test_wrong_terms_are_refused(terms: list[str], message: str) -> None:
    with pytest.raises(AnsibleLookupError, match=message):
        draw(terms)


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        ("monitor", HEADER, "found no value to plot"),
        ("monitor", "a,b\n1,2\n", "KeyError 'seconds'"),
        ("benchmark", "[1]", "result.sizes: expected a list, found 1"),
        ("benchmark", "{", "Expecting"),
        ("scaling", "{}", "KeyError 'scaling'"),
    ],
)
def test_a_file_of_another_kind_is_refused(tmp_path: Path, kind: str, text: str, message: str) -> None:
    path = tmp_path / "file"
    path.write_text(text)
    with pytest.raises(AnsibleLookupError, match=f"cannot draw .* as {kind}: .*{message}"):
        draw([kind, str(path)])
