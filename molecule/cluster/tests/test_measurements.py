"""monitor.yml and benchmark.yml on both hosts: files, plots, and messages without a GPU."""

import csv
import json
import xml.etree.ElementTree as ElementTree

HOSTS = ("cluster-1", "cluster-2")


def newest(reports, name):
    """Return the directory of the last run that has this file for the first host."""
    return max(reports.glob(f"*/cluster-1/{name}"), key=lambda path: path.stat().st_mtime).parents[1]


def test_gpus_of_all_hosts_are_recorded_and_plotted(playbook, reports):
    done = playbook("monitor", "-e", "gpu_monitor_seconds=4", "-e", "gpu_monitor_interval=1")
    assert "The GPUs of this host are simulated." in done.stdout
    directory = newest(reports, "monitor.csv")
    for host in HOSTS:
        with (directory / host / "monitor.csv").open(newline="") as stream:
            rows = list(csv.DictReader(stream))
        assert {row["gpu"] for row in rows} == {"0", "1"}
        assert len(rows) >= 4
        assert ElementTree.parse(directory / host / "monitor.svg").getroot().tag.endswith("svg")


def test_without_a_gpu_the_cpu_and_virtual_replicas_are_measured(playbook, reports):
    virtual = ("-e", "gpu_benchmark_virtual_gpus=2", "-e", "gpu_benchmark_blocks=1", "-e", "gpu_benchmark_steps=4")
    playbook("benchmark", "-e", "gpu_benchmark_largest=5", *virtual, "-e", "gpu_benchmark_training=fit")
    directory = newest(reports, "benchmark.json")
    for host in HOSTS:
        result = json.loads((directory / host / "benchmark.json").read_text())
        assert result["status"] == "pass"
        (compared,) = [check for check in result["checks"] if check["id"] == "gpu-compared"]
        assert compared["status"] == "skip"
        assert "CPU only" in compared["found"] + compared.get("reason", "")
        scaling = json.loads((directory / host / "scaling.json").read_text())
        assert (scaling["status"], scaling["training"], scaling["virtual"]) == ("pass", "fit", True)
        assert [point["replicas"] for point in scaling["scaling"]] == [1, 2]
        for name in ("benchmark", "scaling"):
            assert ElementTree.parse(directory / host / f"{name}.svg").getroot().tag.endswith("svg")
