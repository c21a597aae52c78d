"""Read the files of catalog/ without the loader, and their limits without the resolver, whose plans are compared."""

from __future__ import annotations

import csv
import functools
import re
from pathlib import Path

import yaml

CATALOG = Path(__file__).parents[4] / "catalog"


@functools.cache
def raw(name):
    """Return a catalog file as plain data."""
    return yaml.safe_load((CATALOG / f"{name}.yml").read_text())


@functools.cache
def products():
    """Return the rows of gpu_products.csv by device id."""
    with (CATALOG / "gpu_products.csv").open(newline="") as stream:
        return {row["device"]: row for row in csv.DictReader(stream)}


@functools.cache
def num(text):
    """Return a version as numbers, zero-padded so that 13.2 equals 13.2.0."""
    return tuple([int(n) for n in re.findall(r"\d+", text)] + [0] * 5)[:5]


def _within(version, first, last):
    cut = last.count(".") + 1 if last else 0
    return num(version) >= num(first) and (last is None or num(version)[:cut] <= num(last)[:cut])


def _covered(entries, version, major, capability):
    for entry in entries:
        majors = entry.get("cuda_majors") or [entry["cuda_major"]]
        if major in majors and _within(version, entry["first"], entry["last"]):
            return num(entry["min_compute_capability"]) <= num(capability) <= num(entry["max_compute_capability"])
    return False


def knows(device, version, modules, rules):
    """Return whether a driver version, or a whole branch, knows a GPU. rules: gpu.yml's first_drivers, if any."""
    for rule in (rules or {"gpus": []})["gpus"]:
        if device in rule["devices"] and rule.get("modules") in (None, modules):
            branches = [num(first)[0] for first in rule["drivers"]]
            mine = [first for first in rule["drivers"] if num(first)[0] == num(version)[0]]
            return num(version)[0] > max(branches) or any("." not in f or num(f) <= num(version) for f in mine)
    return True


def builds(version, archive, kernel, bad):
    """Return whether a driver's module builds for a kernel, by known_bad.yml's drivers."""
    return not any(
        row["archive"] == archive
        and num(row["branch"])[0] == num(version)[0]
        and num(version) <= num(row["last"])
        and (re.search(row["named"], kernel) if "named" in row else num(kernel)[:2] >= num(row["kernel"])[:2])
        for row in bad["drivers"]
    )


def fails_on(release, capability, bad):
    """Return whether a TensorFlow release fails on GPUs of a compute capability, by known_bad.yml's tensorflow."""
    return any(
        capability in row["compute_capabilities"] and _within(release, row["first"], row["last"])
        for row in bad["tensorflow"]
    )


def _satisfies(version, specifier):
    tests = {"==": lambda a, b: a == b, "<": lambda a, b: a < b, ">=": lambda a, b: a >= b}
    clauses = [re.fullmatch(r"(==|>=|<)(.+)", c) for c in specifier.split(",")]
    return all(tests[c.group(1)](num(version), num(c.group(2))) for c in clauses)


def _reaches(driver, minimum):
    # Of a driver in the archive only the branch is known.
    return num(driver)[: driver.count(".") + 1] >= num(minimum)[: driver.count(".") + 1]
