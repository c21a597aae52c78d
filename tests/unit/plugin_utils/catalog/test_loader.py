"""The loader: every mistake in the catalog's files is reported with file and key."""

from __future__ import annotations

import shutil

import pytest
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog import loader

from tests.unit.frozen_catalog import FROZEN_FOLDER


@pytest.mark.parametrize(
    ("file", "old", "new", "expected"),
    [
        (
            "cuda.yml",
            '- version: "13.2"',
            "- version: 13.2",
            r"cuda.yml.toolkits\[13.2\].version: expected a string, found 13.2 \(quote it\)",
        ),
        ("cuda.yml", "    max_gcc: 16", "    max_gc: 16", r"cuda.yml.toolkits\[13.5\].max_gcc: missing"),
        ("driver.yml", 'type: "PB"', 'type: "XB"', r"driver.yml.branches\[595\].type: expected one of LTSB, PB, NFB"),
        (
            "driver.yml",
            '"595.99.02"',
            '"594.99.02"',
            r"driver.yml.branches\[595\].versions\[594.99.02\]: not of this branch",
        ),
        ("gpu_products.csv", "1b80,", "1B80,", r"gpu_products.csv\[1B80\].device"),
        ("gpu_products.csv", "2.0,proprietary,,supported-gpus.json", "2.0,proprietary", r"csv\[06c0\].source: empty"),
        ("gpu_products.csv", "GP104,Pascal,6.1", "GP104,Pascal,6.3", r"Pascal 6.3 is not in gpu.yml"),
        ("gpu_names.csv", "17fd,", "17ff,", r"gpu_names.csv\[Tesla M40 24GB\]: device 17ff is not in gpu_products.csv"),
        ("vgpus.csv", "1eb8,", "1eff,", r"vgpus.csv\[1eff 130e\]: device 1eff is not in gpu_products.csv"),
        ("vgpus.csv", ",1310", ",130d", r"vgpus.csv\[1eb8 130e\]: expected .* the last one not before the first"),
        ("vgpus.csv", ",1310", ",131", r"vgpus.csv\[1eb8 130e\]: expected four"),
        ("xids.csv", "79,fail", "79,fatal", r"xids.csv\[79\].outcome: expected one of fail, warn, pass, decode"),
        ("xids.csv", "79,fail", "x79,fail", r"xids.csv\[x79\].number: expected a number"),
        ("xids.csv", "48,fail,hardware", "48,fail,gpu", r"xids.csv\[48\].blame: expected hardware or nothing"),
        ("xids.csv", "78,warn,", "78,warn,hardware", r"xids.csv\[78\].blame: expected hardware or nothing"),
        ("xids.csv", "78,warn", "79,warn", r"xids.csv\[79\]: duplicate entry"),
        ("xid_nvlink.csv", "144,SAW_MVB", "79,SAW_MVB", r"xid_nvlink.csv\[79 SAW_MVB 0x00000001\]: xids.csv"),
        ("nccl.yml", "schema: 1", "schema: [", r"nccl.yml: cannot be read"),
        ("gpu_thresholds.yml", '["233b"]', '["233f"]', r"models\[H200 NVL\]: device 233f is not in gpu_products.csv"),
        ("gpu_thresholds.yml", '["233b"]', '["2335"]', r"gpu_thresholds.yml.models\[2335\]: duplicate entry"),
        ("gpu_thresholds.yml", "memory: 3350", "memory: 3.35", r"H100 SXM\].memory: expected an integer, found 3.35"),
        ("gpu_thresholds.yml", "total: warn, grows: fail,", "total: fail, grows: fail,", r"\].total: .*found fail"),
        ("gpu_thresholds.yml", 'unit: "per second", over: fail', 'unit: "per hour", over: pass', r"over: .*found pass"),
        ("gpu_thresholds.yml", 'unit: "per second"', 'unit: "per hour"', r"\[CRC Errors\].unit: .*per hour"),
        ("user_settings.csv", "dropped,all,KERAS_*", "drop,all,KERAS_*", r"user_settings.csv\[KERAS_\*\].use: "),
        ("user_settings.csv", "set,all,LC_ALL,C.UTF-8", "set,all,LC_ALL,", r"user_settings.csv\[LC_ALL\].value: "),
        ("user_settings.csv", "use,programs", "use,program", r"user_settings.csv: expected the columns use, programs"),
        ("distro/debian-12.yml", 'id: "debian-12"', 'id: "debian-11"', r"debian-12.yml.id: expected debian-12"),
    ],
    ids=[
        "unquoted", "key", "choice", "branch", "csv", "truncated", "architecture", "no such name",
        "no such card", "backwards", "three digits", "outcome", "number", "blame",
        "blame of a warning", "same number", "not decoded", "yaml", "no such GPU", "twice",
        "no GB/s", "total fails", "over passes", "unit", "use", "value", "columns",
        "id",
    ],
)  # fmt: skip
def test_schema(tmp_path, file, old, new, expected):
    folder = tmp_path / "catalog"
    shutil.copytree(FROZEN_FOLDER, folder)
    text = (folder / file).read_text()
    assert old in text
    (folder / file).write_text(text.replace(old, new, 1))
    with pytest.raises(loader.CatalogError, match=expected):
        loader.read_catalog(folder)


def test_every_problem_is_reported(tmp_path):
    folder = tmp_path / "catalog"
    shutil.copytree(FROZEN_FOLDER, folder)
    (folder / "cudnn.yml").unlink()
    (folder / "pytorch.yml").write_text("schema: one\n")
    (folder / "xids.csv").write_text("")
    with pytest.raises(loader.CatalogError) as caught:
        loader.read_catalog(folder)
    assert {p.split(":")[0] for p in caught.value.problems} == {
        "cudnn.yml",
        "pytorch.yml.cpu_architectures",
        "pytorch.yml.own_index",
        "pytorch.yml.releases",
        "pytorch.yml.schema",
        "xids.csv",
    }
