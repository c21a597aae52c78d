"""The NVIDIA-shaped repository and its later state, checked with dpkg, dpkg-deb, gpg and gpgv."""

import gzip
import hashlib
import itertools
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.apt import apt_output
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.catalogs import load_catalog

from tests.doubles.nvidia_repository import archive, build, contents, deb
from tests.doubles.nvidia_repository.package import Package
from tests.unit.module_utils.real_apt import RealApt, needs_apt

NEEDED = [name for name in ("gpg", "gpgv", "dpkg-deb", "dpkg", "apt-ftparchive") if shutil.which(name) is None]
pytestmark = pytest.mark.skipif(bool(NEEDED), reason=f"not on this machine: {', '.join(NEEDED)}")
# What PyPI's `cuda-toolkit` metapackage 13.0.2, 13.2.1 and 13.3.1 pins.
TOOLKIT_COMPONENTS = {
    "13.0": {"nvcc": "13.0.88", "nvvm": "13.0.88", "crt": "13.0.88", "cudart": "13.0.96", "cccl": "13.0.85"},
    "13.2": {"nvcc": "13.2.78", "nvvm": "13.2.78", "crt": "13.2.78", "cudart": "13.2.75", "cccl": "13.2.75"},
    "13.3": {"nvcc": "13.3.73", "nvvm": "13.3.73", "crt": "13.3.73", "cudart": "13.3.29", "cccl": "13.3.3.4.1"},
}
SLUGS = sorted(contents.contents()["slugs"])
OF_THE_CATALOG = {distro.nvidia_repository.slug for distro in load_catalog().distros.values()}
OF_THE_DISTRIBUTION = ("python3", "libgl1", "xserver-xorg-core")
PIN = "etc/apt/preferences.d/nvidia-driver-pin"


@pytest.fixture(scope="module", params=["debian12", "ubuntu2404"])
def repository(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("repository")
    slug = contents.slug(request.param, "http://repository.lab")
    return build.build(out, slug, out / "no-wheels", simulated_only=True)


@pytest.fixture(params=["now", "later"])
def published(request: pytest.FixtureRequest, repository: Path) -> Path:
    return repository if request.param == "now" else later_than(repository)


def slug_of(repository: Path) -> contents.Slug:
    return contents.slug(repository.parent.name, "")


@pytest.mark.parametrize("name", sorted(OF_THE_CATALOG & set(SLUGS)))
def test_repository_offers_only_what_nvidias_repository_for_the_distribution_has(name: str) -> None:
    slug = contents.slug(name, "")
    distro = next(d for d in load_catalog().distros.values() if d.nvidia_repository.slug == name)
    assert (slug.key_file, slug.family) == (distro.nvidia_repository.key_file, distro.family)
    first = distro.nvidia_branches.first if distro.nvidia_branches else None
    assert all(int(branch) >= int(first or 0) for branch in slug.drivers)
    oldest = tuple(map(int, distro.nvidia_repository.first_cuda.split(".")))
    assert all(tuple(map(int, series.split("."))) >= oldest for series in slug.cuda)


def later_than(repository: Path) -> Path:
    out = repository.parents[4]
    return out / "later" / repository.relative_to(out)


def stanzas(folder: Path) -> Iterator[dict[str, str]]:
    for block in (folder / "Packages").read_text().strip().split("\n\n"):
        yield dict(line.split(": ", 1) for line in block.splitlines())


def dpkg_fields(path: Path) -> dict[str, str]:
    shown = subprocess.run(["dpkg-deb", "-f", str(path)], capture_output=True, text=True, check=True).stdout
    return dict(line.split(": ", 1) for line in shown.splitlines())


def extract(folder: Path, pattern: str, target: Path) -> Path:
    for path in folder.glob(pattern):
        subprocess.run(["dpkg-deb", "-x", str(path), str(target)], check=True)
    return target


@pytest.mark.parametrize("arguments", [["InRelease"], ["Release.gpg", "Release"]], ids=["inline", "detached"])
def test_signatures_verify_with_the_published_key(
    repository: Path, published: Path, tmp_path: Path, arguments: list[str]
) -> None:
    keyring = extract(repository, "cuda-keyring_*.deb", tmp_path) / "usr/share/keyrings/cuda-archive-keyring.gpg"
    command = ["gpgv", "--keyring", str(keyring), *[str(published / name) for name in arguments]]
    assert subprocess.run(command, capture_output=True).returncode == 0
    changed = tmp_path / arguments[-1]
    changed.write_bytes((published / arguments[-1]).read_bytes().replace(b"NVIDIA CUDA", b"NVIDIA cuda"))
    assert subprocess.run([*command[:-1], str(changed)], capture_output=True).returncode != 0


def test_published_key_has_the_announced_fingerprint(repository: Path, published: Path) -> None:
    name = {"debian12": "3bf863cc.pub", "ubuntu2404": "3bf863cc.pub"}[published.parent.name]
    shown = subprocess.run(
        ["gpg", "--show-keys", "--with-colons", str(published / name)], capture_output=True, text=True
    )
    fingerprint = next(line.split(":")[9] for line in shown.stdout.splitlines() if line.startswith("fpr:"))
    out = repository.parents[4]
    assert fingerprint == (out / "key-fingerprint").read_text().strip()
    assert (out / ".build/signing-key.asc").stat().st_mode & 0o077 == 0


def test_release_has_the_digests_of_the_indexes(published: Path) -> None:
    release = (published / "Release").read_text()
    assert {"Origin: NVIDIA", "Label: NVIDIA CUDA", "Architectures: amd64"} <= set(release.splitlines())
    for name in ("Packages", "Packages.gz"):
        data = (published / name).read_bytes()
        assert [hashlib.sha256(data).hexdigest(), str(len(data)), name] in [
            line.split() for line in release.splitlines()
        ]
    assert gzip.decompress((published / "Packages.gz").read_bytes()) == (published / "Packages").read_bytes()


def test_index_has_the_fields_of_the_packages(published: Path) -> None:
    listed = list(stanzas(published))
    assert {stanza["Filename"] for stanza in listed} == {f"./{path.name}" for path in published.glob("*.deb")}
    for stanza in listed:
        path = published / stanza["Filename"]
        assert (stanza["Size"], stanza["SHA256"]) == (
            str(path.stat().st_size),
            hashlib.sha256(path.read_bytes()).hexdigest(),
        )
        own = {"Filename", "Size", "MD5sum", "SHA1", "SHA256", "SHA512"}
        assert dpkg_fields(path) == {name: value for name, value in stanza.items() if name not in own}


def test_simulated_packages_are_marked(repository: Path, published: Path) -> None:
    described = {stanza["Package"]: stanza["Description"] for stanza in stanzas(published)}
    real = [name for name, text in described.items() if not text.startswith("SIMULATED")]
    assert real == (["cuda-keyring"] if published == repository else [])


def test_a_note_says_what_is_simulated(repository: Path, tmp_path: Path) -> None:
    """The probe and the report print each line of the notes (module_utils/nvidia/installed_stack.py, SIMULATED)."""
    for path in repository.glob("*.deb"):
        subprocess.run(["dpkg-deb", "-x", path, tmp_path / path.stem], check=True)
    notes = [path.read_text() for path in tmp_path.glob("*/usr/share/gpuhost-simulated/*.txt")]
    assert notes
    assert [note for note in notes if not re.fullmatch(r"NVIDIA .*[0-9.]+ \(.*simulated.*\)\n", note)] == []


def test_dependencies_are_met_inside_the_repository(published: Path) -> None:
    listed = list(stanzas(published))
    offered: dict[str, list[str]] = {}
    for stanza in listed:
        offered.setdefault(stanza["Package"], []).append(stanza["Version"])
    assert any(stanza.get("Depends") for stanza in listed)
    for stanza in listed:
        for group in filter(None, stanza.get("Depends", "").split(", ")):
            assert any(satisfied(choice, offered) for choice in group.split(" | ")), (stanza["Package"], group)


def satisfied(choice: str, offered: dict[str, list[str]]) -> bool:
    name, _, rule = choice.partition(" ")
    if name in OF_THE_DISTRIBUTION:
        return True
    operator, version = rule.strip("()").split(" ") if rule else (">=", "0")
    return any(
        subprocess.run(["dpkg", "--compare-versions", found, operator, version]).returncode == 0
        for found in offered.get(name, [])
    )


def test_later_state_has_a_newer_version_of_every_package_without_files(repository: Path) -> None:
    now = [(s["Package"], s["Version"]) for s in stanzas(repository) if s["Package"] != "cuda-keyring"]
    now += [(p.control["Package"], p.control["Version"]) for p in contents.library_packages(slug_of(repository))]
    later = [(s["Package"], s["Version"]) for s in stanzas(later_than(repository))]
    assert sorted(name for name, _ in now) == sorted(name for name, _ in later)
    assert not set(now) & set(later)
    for name, version in now:
        newer = [found for other, found in later if other == name]
        assert any(subprocess.run(["dpkg", "--compare-versions", v, "gt", version]).returncode == 0 for v in newer)
    for path in later_than(repository).glob("*.deb"):
        listing = subprocess.run(["dpkg-deb", "-c", str(path)], capture_output=True, text=True, check=True)
        assert [line.split()[-1] for line in listing.stdout.splitlines()] == ["./"], path.name


@pytest.mark.parametrize(
    ("version", "next_one"),
    [
        ("570.211.01-1", "570.211.02-1"),
        ("580.126.16-1ubuntu1", "580.126.17-1ubuntu1"),
        ("13.0.88-1", "13.0.89-1"),
        ("2.28.9-1+cuda13.0", "2.28.10-1+cuda13.0"),
        ("9.28.0.42-1", "9.28.0.43-1"),
        ("580-1ubuntu1", "580-2ubuntu1"),
        ("580.126.16", "580.126.17"),
        ("580", "580"),
    ],
)
def test_next_version_stays_in_its_branch_and_series(version: str, next_one: str) -> None:
    assert contents.later_version(version) == next_one


def test_repository_has_the_catalogs_packages_of_each_branch(repository: Path) -> None:
    slug, catalog = slug_of(repository), load_catalog().driver
    offered = {(stanza["Package"], stanza["Version"]) for stanza in stanzas(repository)}
    drivers = [driver for driver in contents.driver_contents()["drivers"] if driver["branch"] in slug.drivers]
    assert list(dict.fromkeys(driver["branch"] for driver in drivers)) == list(slug.drivers)
    for driver in drivers:
        branch = next(known for known in catalog.branches if known.branch == driver["branch"])
        assert (branch.native_cuda, driver["driver"]) in [
            (driver["cuda"], v.version) for v in branch.versions if "nvidia" in v.archives
        ]
        names = next(
            entry
            for entry in catalog.packages
            if entry.family == slug.family
            and int(entry.first_branch) <= int(branch.branch) <= int(entry.last_branch or branch.branch)
        )
        for name in names.names():
            assert (name.format(branch=branch.branch), f"{driver['driver']}-{names.revision}") in offered
        pinned = int(branch.branch) >= int(catalog.pinning.first_branch)
        pinning = catalog.pinning.package.format(branch=branch.branch)
        assert (pinning in {name for name, _ in offered}) == pinned


def test_packages_that_share_a_path_conflict(repository: Path) -> None:
    """Branches of the driver, and flavours of its modules, have files of the same path."""
    owners: dict[str, dict[str, Package]] = {}
    for package in contents.driver_packages(slug_of(repository)):
        for path in {*package.text, *package.links}:
            owners.setdefault(path, {})[package.control["Package"]] = package
    assert len(owners["/usr/bin/nvidia-smi"]) == {"debian12": 1, "ubuntu2404": 3}[repository.parent.name]
    for path, packages in owners.items():
        for one, other in itertools.combinations(packages.values(), 2):
            assert conflicts(one, other) or conflicts(other, one), (path, one.name, other.name)


def conflicts(one: Package, other: Package) -> bool:
    names = {other.control["Package"], *other.control.get("Provides", "").split(", ")}
    return bool(names & set(one.control.get("Conflicts", "").split(", ")))


def test_the_pin_has_the_published_stanza_and_names_source_packages(repository: Path, tmp_path: Path) -> None:
    text = extract(repository, "nvidia-driver-pinning-595.71.05_*.deb", tmp_path).joinpath(PIN).read_text()
    # /etc/apt/preferences.d/nvidia-driver-pin of a host with Debian 13 and NVIDIA's 595.71.05, as published.
    assert text.startswith(
        "Package: cuda-drivers* src:nvidia-open:any\nPin: version 595.71.05-*\nPin-Priority: 1000\n\n"
    )
    named = {word.split(":")[1] for word in text.split() if word.startswith("src:")}
    sources = {s.get("Source", s["Package"]) for s in stanzas(repository) if s["Version"].startswith("595.71.05-")}
    assert sources - named == {
        "cuda-drivers",
        "nvidia-driver-pinning-595.71.05",
        "nvidia-fabricmanager",
        "libnvidia-nscq",
    }


@pytest.fixture
def host(repository: Path, tmp_path: Path) -> RealApt:
    """Return a host with the repository, and what its packages need of a distribution."""
    host = RealApt(tmp_path / "host")
    (host.root / "etc/apt/sources.list.d/cuda.list").write_text(f"deb [trusted=yes] file:{repository} /\n")
    host.offer(*(host.build(name, {}) for name in OF_THE_DISTRIBUTION))
    return host


def candidates(host: RealApt, *names: str) -> dict[str, str]:
    found = apt_output.parse_policy(host.do("apt-cache", "policy", *names).stdout)
    return {name: found[name].version.partition("-")[0] for name in names}


@needs_apt
@pytest.mark.parametrize("pinned", ["595.58.03", "595.71.05", "595", "580", "580.126.16"])
def test_apt_follows_the_pin_by_source(host: RealApt, pinned: str) -> None:
    assert versions(host, "nvidia-open") == {"595.71.05"}, "without a pin the newest"
    host.do("apt-get", "-y", "install", f"nvidia-driver-pinning-{pinned}")
    (version,) = versions(host, "nvidia-open")
    assert version.startswith(pinned)
    assert candidates(host, "cuda-drivers")["cuda-drivers"].startswith(pinned), "bound by its name"
    # Of neither source, so NVIDIA's may float: gpuhost asks for their version.
    assert candidates(host, "nvidia-fabricmanager") == {"nvidia-fabricmanager": "595.71.05"}


@needs_apt
@pytest.mark.parametrize("repository", ["ubuntu2404"], indirect=True)
def test_the_pin_of_580_leaves_the_names_from_590_on(host: RealApt) -> None:
    """As in nvidia_chroot.sh of kata-containers, whose comment has apt's message."""
    host.do("apt-get", "-y", "install", "nvidia-driver-pinning-580.126.16")
    done = host.do("apt-get", "--simulate", "install", "libnvidia-compute")
    assert done.returncode == 100
    assert "libnvidia-compute : Depends: nvidia-persistenced (= 595.71.05-1ubuntu1)" in done.stdout


def versions(host: RealApt, name: str) -> set[str]:
    """Return the versions of the driver's packages that apt would install."""
    done = host.do("apt-get", "--simulate", "install", name)
    assert done.returncode == 0, done.stdout + done.stderr
    changes = apt_output.parse_simulation(done.stdout)
    assert len(changes) > 8
    return {str(change.new).partition("-")[0] for change in changes if change.name not in OF_THE_DISTRIBUTION}


def test_driver_package_has_a_working_nvidia_smi_and_is_marked(repository: Path, tmp_path: Path) -> None:
    owner = "nvidia-driver-cuda" if repository.parent.name == "debian12" else "libnvidia-compute"
    root = extract(repository, f"{owner}_595*.deb", tmp_path)
    note = (root / "usr/share/gpuhost-simulated/nvidia-driver.txt").read_text()
    assert note == "NVIDIA driver 595.71.05 (user space and nvidia-smi are simulated)\n"
    device = tmp_path / "sys/bus/pci/devices/0000:05:00.0"
    device.mkdir(parents=True)
    for name, text in {"vendor": "0x10de", "device": "0x2335", "class": "0x030200"}.items():
        (device / name).write_text(text + "\n")
    result = subprocess.run(
        [str(root / "usr/bin/nvidia-smi"), "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"],
        capture_output=True,
        text=True,
        env={**os.environ, "GPUHOST_SIMULATED_ROOT": str(tmp_path)},
    )
    assert (result.stdout, result.returncode) == ("NVIDIA H200, 595.71.05, 143771 MiB\n", 0)


def test_second_build_changes_nothing(repository: Path) -> None:
    out = repository.parents[4]

    def state() -> dict[Path, tuple[int, int]]:
        paths = [*out.rglob("*.deb"), *out.rglob("InRelease")]
        return {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in paths}

    before = state()
    build.build(
        out, contents.slug(repository.parent.name, "http://repository.lab"), out / "no-wheels", simulated_only=True
    )
    assert before == state()


def test_toolkit_has_the_components_of_its_release() -> None:
    assert {
        release["series"]: release["components"] for release in contents.contents()["releases"]
    } == TOOLKIT_COMPONENTS


def test_every_wheel_has_a_hash_and_is_used() -> None:
    repositories = [contents.slug(name, "") for name in SLUGS]
    used = {name for slug in repositories for package in contents.library_packages(slug) for name in package.wheels}
    assert used == set(contents.contents()["wheels"])


def test_two_files_with_one_path_are_refused(tmp_path: Path) -> None:
    package = Package(
        control={"Package": "a", "Version": "1", "Architecture": "all"}, text={"/x": "1"}, links={"/x": "y"}
    )
    with pytest.raises(ValueError, match="/x has two sources"):
        deb.build(package, {}, tmp_path / "a.deb")


@pytest.mark.parametrize("distribution", sorted(contents.driver_contents()["distribution_archives"]))
def test_simulated_parts_of_an_archives_driver_are_those_of_the_catalogs_set(distribution: str, tmp_path: Path) -> None:
    made = contents.driver_contents()["distribution_archives"][distribution]
    catalog = load_catalog()
    entry = next(e for e in catalog.distros[distribution].distro_drivers if e.branch == made["branch"])
    branch = next(b for b in catalog.driver.branches if b.branch == made["branch"])
    assert (entry.version, branch.native_cuda) == (made["driver"], made["cuda"])
    names = archive.build(distribution, tmp_path)
    index = (tmp_path / "Packages").read_text()
    parts = [part for part in index.split("\n\n") if part]
    found = [dict(line.split(": ", 1) for line in part.splitlines() if ": " in line) for part in parts]
    assert sorted(names) == sorted(Path(stanza["Filename"]).name for stanza in found)
    simulated = {stanza["Package"] for stanza in found}
    assert simulated < set(entry.names()), "the rest of the set is the archive's own"
    for stanza in found:
        assert stanza["Description"].startswith("SIMULATED ")
        # apt prefers the newer version; the archive's revisions have no "+simulated".
        assert stanza["Version"].startswith(made["driver"])
        assert stanza["Version"].endswith("+simulated1")
    root = extract(tmp_path, "nvidia-smi_*.deb", tmp_path / "root")
    device = tmp_path / "sys/bus/pci/devices/0000:05:00.0"
    device.mkdir(parents=True)
    for name, text in {"vendor": "0x10de", "device": "0x13f2", "class": "0x030000"}.items():
        (device / name).write_text(text + "\n")
    shutil.copytree(root / "usr/share", tmp_path / "usr/share")
    # Where Debian's own package has it; nvidia-alternative links it to /usr/bin.
    command = [root / "usr/lib/nvidia/current/nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    environment = {**os.environ, "GPUHOST_SIMULATED_ROOT": str(tmp_path)}
    result = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert (result.stdout, result.returncode) == (f"Tesla M60, {made['driver']}\n", 0)


def test_an_archive_without_a_simulated_driver_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^debian-12: no simulated driver of its own archive; .* one of debian-13$"):
        contents.archive_packages("debian-12")
