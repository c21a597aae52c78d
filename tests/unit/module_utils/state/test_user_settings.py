"""The settings of a host's users: which of them programs of ours drop, and which file sets them."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.state import user_settings
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.loader import CATALOG_FOLDER

from tests.unit.module_utils import real_pam

ROWS = user_settings.read(str(CATALOG_FOLDER / "user_settings.csv"))
OWN = {"LC_ALL": "C.UTF-8", "PYTHONNOUSERSITE": "1", "KERAS_HOME": "/job"}
THIS_RUN = "(the environment of this run)"


def write(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


@pytest.mark.parametrize(
    "name",
    [
        *("KERAS_BACKEND", "KERAS_HOME", "TF_USE_LEGACY_KERAS", "TF_XLA_FLAGS", "TF_CONFIG", "XLA_FLAGS"),
        *("PYTHONPATH", "PYTHONHOME", "PYTHONWARNINGS", "PYTHONOPTIMIZE", "PYTHONSTARTUP", "PYTHONSAFEPATH"),
        *("LD_PRELOAD", "LD_LIBRARY_PATH", "LD_AUDIT", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "GLIBC_TUNABLES"),
        *("CUDA_LAUNCH_BLOCKING", "CUDA_DEVICE_ORDER", "NVIDIA_TF32_OVERRIDE", "CUBLAS_WORKSPACE_CONFIG"),
        *("PYTORCH_CUDA_ALLOC_CONF", "TORCH_LOGS", "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION", "NVCC_APPEND_FLAGS"),
        *("CPLUS_INCLUDE_PATH", "RANK", "MASTER_ADDR"),
    ],
)
def test_what_changes_programs_is_dropped_and_named(tmp_path: Path, name: str) -> None:
    assert user_settings.isolated({name: "x"}, ROWS, "/job", str(tmp_path)) == (OWN, [f"{name}=x {THIS_RUN}"])


@pytest.mark.parametrize(
    "name",
    [
        *("http_proxy", "HTTPS_PROXY", "no_proxy", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
        *("NCCL_IB_DISABLE", "NCCL_SOCKET_IFNAME", "NCCL_DEBUG", "CUDA_MPS_PIPE_DIRECTORY", "TMPDIR", "PATH", "HOME"),
        *("PIP_INDEX_URL", "PIP_CONFIG_FILE", "UV_DEFAULT_INDEX", "UV_INDEX", "PIP_USER", "UV_SYSTEM_PYTHON"),
    ],
)
def test_what_a_host_or_its_network_needs_is_kept(tmp_path: Path, name: str) -> None:
    assert user_settings.isolated({name: "x"}, ROWS, "/job", str(tmp_path)) == ({name: "x", **OWN}, [])


@pytest.mark.parametrize("name", ["LANG", "LC_NUMERIC", "LANGUAGE"])
def test_another_locale_needs_no_word(tmp_path: Path, name: str) -> None:
    assert user_settings.isolated({name: "de_DE"}, ROWS, "/job", str(tmp_path)) == (OWN, [])


@pytest.mark.parametrize(
    ("name", "is_kept"),
    [
        *(("PIP_TARGET", False), ("PIP_CONSTRAINT", False), ("PIP_BUILD_CONSTRAINT", False), ("UV_PYTHON", False)),
        *(("UV_SYSTEM_PYTHON", False), ("UV_EXCLUDE_NEWER", False), ("UV_OVERRIDE", False), ("VIRTUAL_ENV", False)),
        *(("UV_NO_VERIFY_HASHES", False), ("UV_TORCH_BACKEND", False), ("UV_RESOLUTION", False)),
        *(("PIP_NO_BINARY", False), ("PIP_REQUIREMENT", False), ("PIP_DRY_RUN", False), ("CONDA_PREFIX", False)),
        *(("PIP_INDEX_URL", True), ("PIP_EXTRA_INDEX_URL", True), ("PIP_CERT", True), ("PIP_CONFIG_FILE", True)),
        *(("UV_DEFAULT_INDEX", True), ("UV_INDEX", True), ("UV_CONFIG_FILE", True), ("UV_PYTHON_INSTALL_MIRROR", True)),
        *(("UV_NATIVE_TLS", True), ("UV_HTTP_TIMEOUT", True)),
    ],
)
def test_builds_keep_the_index_and_nothing_that_leads_elsewhere(tmp_path: Path, name: str, is_kept: bool) -> None:
    kept, ignored = user_settings.isolated({name: "x"}, ROWS, "/job", str(tmp_path), programs="build")
    assert (kept.get(name), bool(ignored), kept["PIP_USER"]) == ("x" if is_kept else None, not is_kept, "0")


def test_gpus_are_hidden_by_whoever_asks_for_it_but_by_no_file_for_all_users(tmp_path: Path) -> None:
    environment = {"CUDA_VISIBLE_DEVICES": "0"}
    assert user_settings.isolated(environment, ROWS, "/job", str(tmp_path)) == ({**environment, **OWN}, [])
    write(tmp_path, "etc/environment", 'FOO=1\nCUDA_VISIBLE_DEVICES="0"\n')
    ignored = ["CUDA_VISIBLE_DEVICES=0 (/etc/environment, line 2)"]
    assert user_settings.isolated(environment, ROWS, "/job", str(tmp_path)) == (OWN, ignored)


@pytest.mark.parametrize(
    ("path", "text", "line"),
    [
        ("etc/environment", "# KERAS_BACKEND=jax\nKERAS_BACKEND=torch\n", 2),
        ("etc/environment", "export KERAS_BACKEND='torch'\n", 1),
        ("etc/security/pam_env.conf", "# see pam_env.conf(5)\nKERAS_BACKEND\tDEFAULT=torch\n", 2),
        ("etc/security/pam_env.conf", 'KERAS_BACKEND DEFAULT= OVERRIDE="torch"\n', 1),
        ("etc/environment", "KERAS_BACKEND=\\\n\ntorch\n", 1),
        ("etc/security/pam_env.conf", "KERAS_BACKEND \\\n  DEFAULT=torch\n", 1),
        ("etc/default/locale", "LANG=C\nKERAS_BACKEND=torch\n", 2),
        ("etc/profile", "umask 022\nif true; then export KERAS_BACKEND=torch; fi\n", 2),
        ("etc/profile.d/keras.sh", "OTHER_KERAS_BACKEND=a\nKERAS_BACKEND=torch; export KERAS_BACKEND\n", 2),
        ("etc/bash.bashrc", "declare -x KERAS_BACKEND=torch\n", 1),
    ],
)
def test_file_that_sets_a_variable_for_all_users(tmp_path: Path, path: str, text: str, line: int) -> None:
    write(tmp_path, path, text)
    assert user_settings.place(str(tmp_path), "KERAS_BACKEND", "torch") == f"/{path}, line {line}"
    assert user_settings.place(str(tmp_path), "KERAS_BACKEND", "jax") is None
    assert user_settings.place(str(tmp_path), "BACKEND") is None


@pytest.mark.parametrize("path", ["root/.bashrc", "etc/profile.d/keras.csh", "etc/environment"])
def test_what_is_read_by_no_shell_of_all_users_sets_nothing(tmp_path: Path, path: str) -> None:
    write(tmp_path, path, "#KERAS_BACKEND=torch\n" if path == "etc/environment" else "export KERAS_BACKEND=torch\n")
    assert user_settings.place(str(tmp_path), "KERAS_BACKEND") is None


# pam_env.conf, /etc/environment, /etc/default/locale, and what a login gets of them.
LOGINS = {
    "order": (
        "A DEFAULT=/a\nB DEFAULT=${A}/b OVERRIDE=\nC DEFAULT=1 OVERRIDE=2\n",
        "B='3'\nC=3\nD=3\nnonsense\n# E=4\nLANG=C\n",
        "LANG=de_DE.UTF-8\n",
        {"A": "/a", "B": "/a/b", "C": "2", "D": "3", "LANG": "de_DE.UTF-8"},
    ),
    "override-of-nothing": ("A DEFAULT=/x OVERRIDE=${A}\n", "", "", {"A": "/x"}),
    "override-of-another-file": ("A DEFAULT=/x OVERRIDE=${A}\n", "A=/y\n", "", {"A": "/y"}),
    "override-alone": ("A OVERRIDE=${A}:/x\nB OVERRIDE=${C}\n", "A=/y\n", "", {"A": "/y:/x"}),
    "continued": (
        "A DEFAULT=1 \\\n  OVERRIDE=2\n",
        "B=\\\n/x\nC=\\\n# why\n\n/y\n",
        "",
        {"A": "2", "B": "/x", "C": "/y"},
    ),
    "comments": ("A DEFAULT=/x # c\nB DEFAULT=/x#c\n", "C=/x#ros\nD=1 # c\n", "", {"B": "/x", "C": "/x", "D": "1 "}),
    "spaces": (" A DEFAULT=1\nB DEFAULT=1 \n", "C = 1\nexport\tD=1\nexport E=1\n  F=1 \n", "", {"E": "1", "F": "1 "}),
    "line-of-windows": ("", "A=1\r\nB=2\n", "", {"A": "1\r", "B": "2"}),
    "quotes": (
        'A DEFAULT="a b"\nB DEFAULT=""\nC DEFAULT=\nD DEFAULT="a"b\nE DEFAULT=\'a b\'\n',
        'F="a b"\nG=\'a"b\'c"\nH="x" \nI=a\'b\'\nJ="\n',
        "",
        {"A": "a b", "B": "", "F": "a b", "G": "a\"b'c", "H": 'x" ', "I": "a'b'", "J": ""},
    ),
    "items": ("A DEFAULT=@{HOME}/lib\nB DEFAULT=@{PAM_TTY}@{PAM_USER}@{X}\n", "", "", {"A": "/root/lib", "B": "root"}),
    "escapes": ("A DEFAULT=\\$x\\@{y}\\z$1\n", "", "", {"A": "$x@{y}z$1"}),
    "removed": ("A\nB=1\nC DEFAULT=1 PREFIX=2\nD DEFAULT=1 DEFAULT=2\n", "E=1\nE\n", "", {"B": "1", "D": "2"}),
    "names": ("A-B DEFAULT=1\n", "C-D=1\n=1\n\u00c9=1\nE=\u00e9\n", "", {"A-B": "1", "E": "\u00e9"}),
    "reference-without-an-end": ("A DEFAULT=1\nB DEFAULT=${A\nC DEFAULT=1\n", "D=1\n", "", {"A": "1"}),
    "continued-by-nothing": ("A DEFAULT=1\nB DEFAULT=1 \\", "C=1\n", "", {"A": "1"}),
    "no-end-of-line": ("A DEFAULT=1", "B=1\nC=1", "D=1\\", {"A": "1", "B": "1", "C": "1"}),
}


@pytest.fixture(params=LOGINS.values(), ids=LOGINS)
def login(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, dict[str, str]]:
    """A host in a directory, and what its users get."""
    *texts, found = request.param
    for path, text in zip((real_pam.RULES, "etc/environment", "etc/default/locale"), texts, strict=True):
        write(tmp_path / "root", path, text)
    return tmp_path / "root", found


def test_variables_of_a_login(login: tuple[Path, dict[str, str]]) -> None:
    root, found = login
    assert user_settings.login_environment(str(root)) == found


@real_pam.needs_pam
def test_pam_env_sets_these_variables(login: tuple[Path, dict[str, str]]) -> None:
    root, found = login
    assert real_pam.environment(root) == found


def test_settings_of_this_collection_are_ours(tmp_path: Path) -> None:
    write(
        tmp_path, "etc/profile.d/cuda.sh", "# Managed by gpuhost (role env_paths)\nexport CUDA_HOME=/usr/local/cuda\n"
    )
    write(tmp_path, "etc/environment", "KERAS_BACKEND=torch\n")
    assert user_settings.is_ours(str(tmp_path), "CUDA_HOME")
    assert not user_settings.is_ours(str(tmp_path), "KERAS_BACKEND")
