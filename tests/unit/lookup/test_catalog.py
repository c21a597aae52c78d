"""The catalog lookup: facts and errors."""

from __future__ import annotations

import json
import shutil

import pytest
from ansible.errors import AnsibleLookupError
from ansible.parsing.dataloader import DataLoader
from ansible_collections.gpuhost.stack.plugins.lookup import catalog
from ansible_collections.gpuhost.stack.plugins.lookup.catalog import look_up
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog import lock_texts
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.loader import read_catalog

from tests.unit.frozen_catalog import FROZEN_FOLDER


def test_facts_are_plain_data():
    facts = look_up(["cuda", "13.2"], architecture="x86_64")
    assert json.loads(json.dumps(facts))[0]["max_gcc"] == 15
    assert (
        look_up(["repository", "debian-13"], architecture="x86_64")[0]["key_fingerprint"]
        == "02182E60104FCDC26EAE1B8597A5D4CB8793F200"
    )
    assert look_up(["gpu", "10de:2335"])[0]["compute_capability"] == "9.0"
    (releases,) = look_up(["tensorflow"], architecture="x86_64")
    assert releases.index("2.21.0") < releases.index("2.20.0") < releases.index("1.15.0")


@pytest.mark.parametrize(
    ("terms", "message"),
    [
        ([], "expected one of"),
        (["colour"], "found 'colour'"),
        (["cuda", "12.7"], "no cuda '12.7'.*12.8"),
        (["cuda", "13.2", "x"], "a topic and a key"),
        (["distro", "fedora-42"], "debian-12"),
    ],
)
def test_errors(terms, message):
    with pytest.raises(AnsibleLookupError, match=message):
        look_up(terms, architecture="x86_64")


def test_driver_packages_close_the_repository_for_every_driver_package_but_no_toolkit():
    """The names are those that NVIDIA's repository really has; the double lists them."""
    import fnmatch

    (patterns,) = look_up(["driver_packages"])
    driver = ["nvidia-driver-cuda", "nvidia-kernel-open-dkms", "libcuda1", "libnvidia-ml1", "cuda-drivers-580"]
    other = ["cuda-toolkit-13-2", "cuda-nvcc-13-2", "libcudnn9-cuda-13", "libnccl2", "libnvvm-13-2"]
    matched = [name for name in driver + other if any(fnmatch.fnmatch(name, pattern) for pattern in patterns)]
    assert matched == driver


def test_what_the_patterns_of_driver_packages_do_not_mean():
    (patterns,) = look_up(["driver_exceptions"])
    assert "nvidia-container-*" in patterns
    assert not {"libcuda1", "nvidia-*"} & set(patterns)


def served(folder, monkeypatch):
    """Have the lookup read a catalog in which one distribution release and one TensorFlow serve two architectures."""
    shutil.copytree(FROZEN_FOLDER, folder)
    for name, old, new in (
        ("repository", '{x86_64: "x86_64"}', '{x86_64: "x86_64", aarch64: "sbsa"}'),
        ("distro/ubuntu-22.04", '{x86_64: "generic"}', '{x86_64: "generic", aarch64: "generic"}'),
        ("distro/ubuntu-22.04", 'cpu_architectures: ["x86_64"]', 'cpu_architectures: ["x86_64", "aarch64"]'),
        ("driver", 'cpu_architectures: ["x86_64"]', 'cpu_architectures: ["x86_64", "aarch64"]'),
        ("cuda", 'cpu_architectures: ["x86_64"]', 'cpu_architectures: ["x86_64", "aarch64"]'),
        ("cudnn", 'cpu_architectures: ["x86_64"]', 'cpu_architectures: ["x86_64", "aarch64"]'),
        ("tensorflow", '  - version: "2.21.0"', '  - version: "2.21.0"\n    cpu_architectures: ["x86_64", "aarch64"]'),
    ):
        path = folder / f"{name}.yml"
        text = path.read_text(encoding="utf-8")
        assert old in text
        path.write_text(text.replace(old, new, 1), encoding="utf-8")
    found = read_catalog(folder)
    monkeypatch.setattr(catalog, "load_catalog", lambda: found)


def run(*terms, facts=None, **options):
    """Return what the lookup finds for a host with these facts, its options being set as Ansible sets them."""
    lookup, given = catalog.LookupModule(), {"base_url": "auto", "architecture": "auto", **options}
    lookup.set_options, lookup.get_option = lambda **_options: None, given.__getitem__
    return lookup.run(list(terms), {"ansible_facts": facts or {}})


LOCK = ("lock", "tensorflow", "2.21.0", "3.12")


def test_the_facts_of_a_host_choose_its_architectures_entries(tmp_path, monkeypatch):
    served(tmp_path / "catalog", monkeypatch)
    arm = {"architecture": "aarch64"}
    assert run(*LOCK, facts=arm) == ["tensorflow-2.21.0-py3.12-aarch64.txt"]
    assert run(*LOCK, facts={"architecture": "x86_64"}) == ["tensorflow-2.21.0-py3.12.txt"]
    assert run(*LOCK, architecture="aarch64") == ["tensorflow-2.21.0-py3.12-aarch64.txt"]
    assert run("tensorflow", facts=arm) == [["2.21.0"]]
    assert run("repository", "ubuntu-22.04", facts=arm)[0]["url"].endswith("/ubuntu2204/sbsa/")
    assert run("repositories", facts=arm) == [{"ubuntu-22.04": run("repository", "ubuntu-22.04", facts=arm)[0]["url"]}]
    (urls,) = run("repositories_by_architecture")
    assert list(urls["debian-12"]) == ["x86_64"]
    assert urls["ubuntu-22.04"]["aarch64"].endswith("/ubuntu2204/sbsa/")


@pytest.mark.parametrize(
    ("terms", "facts", "message"),
    [
        (
            ("lock", "tensorflow", "2.20.0", "3.12"),
            "aarch64",
            "catalog/tensorflow.yml has no wheel of 2.20.0 for aarch64",
        ),
        (("lock", "pytorch", "2.10.0", "3.12"), "aarch64", "catalog/pytorch.yml has no wheel of 2.10.0 for aarch64"),
        (("tensorflow", "2.20.0"), "aarch64", "no tensorflow '2.20.0' for aarch64; it has, for example, 2.21.0"),
        (("repository", "debian-12"), "aarch64", "no repository 'debian-12' for aarch64"),
        (LOCK, "", "serves x86_64, aarch64; gather the host's facts, or set architecture"),
        (("repository", "ubuntu-22.04"), "", "serves x86_64, aarch64; gather the host's facts, or set architecture"),
    ],
)
def test_what_an_architecture_lacks_is_an_error(tmp_path, monkeypatch, terms, facts, message):
    served(tmp_path / "catalog", monkeypatch)
    with pytest.raises(AnsibleLookupError, match=message):
        run(*terms, facts={"architecture": facts})


def test_what_is_the_same_for_every_architecture_needs_no_facts(tmp_path, monkeypatch):
    served(tmp_path / "catalog", monkeypatch)
    assert run("packages", "distro_cuda") == ["nvidia-cuda-toolkit"]
    assert run("gpu", "10de:2335")[0]["compute_capability"] == "9.0"
    assert run("distro", "ubuntu-22.04")[0]["cpu_architectures"] == ["x86_64", "aarch64"]


def test_the_lock_of_another_architecture_is_never_taken_from_todays_catalog():
    with pytest.raises(AnsibleLookupError, match=r"no wheel of 2\.21\.0 for aarch64"):
        run(*LOCK, facts={"architecture": "aarch64"})


# What a lock has for a Python -----------------------------------------------------------------------------------------

OWN = "pytorch-2.10.0-cu128-py3.txt"


def text(folder, *terms):
    """Return what the lookup reads, with a role's files in the folder."""
    (folder / "files").mkdir(exist_ok=True)
    (folder / "files" / OWN).write_text(lock_texts.merge({"3.10": "a==1\n", "3.12": "a==2\n"}))
    lookup = catalog.LookupModule(loader=DataLoader())
    lookup.set_options = lambda **_options: None
    return lookup.run(["lock_text", *terms], {"ansible_search_path": [str(folder)]})


@pytest.mark.parametrize(
    ("file", "python", "expected"),
    [
        ("pytorch-2.10.0-cu128-py3.12.txt", "3.12", "a==2\n"),
        ("pytorch-2.10.0-cu128-py3.12.txt", "3.10", "a==2\n"),  # who asks for another Python's gets it, as ever
        (OWN, "3.10", "a==1\n"),
    ],
)
def test_a_lock_is_read_for_its_python(tmp_path, file, python, expected):
    assert text(tmp_path, file, python) == [expected]
    assert text(tmp_path, str(tmp_path / "files" / file), python) == [expected]


def test_a_file_of_ones_own_is_read_as_it_is(tmp_path):
    own = "# ours\na==1 ; python_version < '3.12'  # as ever\n\n"
    (tmp_path / "pytorch-2.10.0-cu128-py3.10.txt").write_text(own)
    (tmp_path / "own.txt").write_text(own)
    for name in ("own.txt", "pytorch-2.10.0-cu128-py3.10.txt"):
        assert text(tmp_path, str(tmp_path / name), "3.12") == [own]


@pytest.mark.parametrize(
    ("file", "python", "message"),
    [
        (OWN, "3.13", rf"files/{OWN} has locks for Python 3\.10, 3\.12, expected one for 3\.13"),
        ("pytorch-2.10.0-cu128-py3.13.txt", "3.12", "has locks for Python 3.10, 3.12, expected one for 3.13"),
        ("pytorch-2.9.1-cu128-py3.12.txt", "3.12", r"no lock file pytorch-2\.9\.1-cu128-py3\.12\.txt nor pytorch-2\.9"),
        ("own.txt", "3.12", r"found no lock file own\.txt$"),
    ],
)
def test_a_lock_that_is_not_there_is_an_error(tmp_path, file, python, message):
    with pytest.raises(AnsibleLookupError, match=message):
        text(tmp_path, file, python)
