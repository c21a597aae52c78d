"""Captured answers of the live sources, for the tests of script/catalog-check."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from ansible_collections.gpuhost.stack.plugins.module_utils.packages.apt import apt_output

from tests.unit.frozen_catalog import frozen_catalog
from tools.catalog import live_sources

FIXTURES = Path(__file__).resolve().parents[3] / "fixtures" / "catalog_check"
UBUNTU_KEY = "EB693B3035CD5710E231E123A4B469963BF863CC"


def text(name):
    return (FIXTURES / name).read_text()


def release(version):
    return next(r for r in frozen_catalog().tensorflow.releases if r.version == version)


def metadata(version):
    return live_sources.parse_report(json.loads(text(f"report-tensorflow-{version}.json")))


WHEELS = {python: tuple(found) for python, found in json.loads(text("wheels-tensorflow.json")).items()}


INDEX = {name: tuple(found) for name, found in json.loads(text("index.json")).items()}


def short(findings):
    return [(f.kind, f.where, f.catalog, f.observed) for f in findings]


def replace_entries(catalog, file, field, entries):
    part = dataclasses.replace(getattr(catalog, file), **{field: tuple(entries)})
    return dataclasses.replace(catalog, **{file: part})


def offered(distro):
    return {name: tuple(found) for name, found in apt_output.parse_madison(text(f"madison-{distro}.txt")).items()}
