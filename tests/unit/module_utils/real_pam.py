"""This machine's pam_env, with the files of a host in a directory, in the order of Debian's sshd, login and su."""

from __future__ import annotations

import ctypes
import ctypes.util
from pathlib import Path

import pytest

SERVICE, RULES = "login", "etc/security/pam_env.conf"
LIBRARY = ctypes.util.find_library("pam")
needs_pam = pytest.mark.skipif(
    LIBRARY is None
    or not hasattr(ctypes.CDLL(LIBRARY), "pam_start_confdir")
    or not any(Path("/").glob("usr/lib/*/security/pam_env.so")),
    reason="libpam 1.4 or later with pam_env is not on this machine",
)


class Conversation(ctypes.Structure):
    """Nobody answers: pam_env asks nothing."""

    _fields_ = (("converse", ctypes.c_void_p), ("data", ctypes.c_void_p))


def environment(root: Path) -> dict[str, str]:
    """Return what a session of root's gets of the files below `root`. Raise RuntimeError where PAM fails."""
    pam = ctypes.CDLL(LIBRARY)
    services = root.parent / f"{root.name}-pam.d"
    services.mkdir(exist_ok=True)
    session = f"session optional pam_env.so user_readenv=0 conffile={root}/{RULES} envfile={root}"
    (services / SERVICE).write_text(f"{session}/etc/environment\n{session}/etc/default/locale\n")
    (services / "other").write_text("session required pam_permit.so\n")
    handle, conversation = ctypes.c_void_p(), Conversation()
    pam.pam_getenvlist.restype = ctypes.POINTER(ctypes.c_char_p)
    words = (SERVICE.encode(), b"root", ctypes.byref(conversation), str(services).encode())
    status = pam.pam_start_confdir(*words, ctypes.byref(handle))
    if status:
        raise RuntimeError(f"pam_start_confdir: {status}")
    pam.pam_open_session(handle, 0)  # of a line that it cannot read it makes an error, after what it has set
    pairs, listed = {}, pam.pam_getenvlist(handle)
    for pair in listed:
        if pair is None:
            break
        name, _equal, value = pair.decode().partition("=")
        pairs[name] = value
    pam.pam_end(handle, 0)
    return pairs
