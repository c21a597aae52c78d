# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Download as the host's package manager does: its proxies, its certificates. Runs on the managed host.

Where there is apt its own helper does it, which detects proxies as well; elsewhere curl, with dnf's proxy.
"""

from __future__ import annotations

import configparser
import contextlib
import os
import re
import tempfile
import urllib.parse

from ansible_collections.gpuhost.stack.plugins.module_utils.base import command, urls
from ansible_collections.gpuhost.stack.plugins.module_utils.base.command import Run

SCHEMES = ("http://", "https://", "file://")
LIMIT_BYTES = 64 * 1024 * 1024
APT_HELPER = "/usr/lib/apt/apt-helper"
CURL = "/usr/bin/curl"  # on EL of each image, as dnf needs its library
DNF_SETTINGS = "/etc/dnf/dnf.conf"
_REASON = re.compile(r"^E: Failed to fetch \S+\s+(.*)$", re.MULTILINE)
_NOISE = re.compile(r"^(W: Download is performed unsandboxed|E: Download Failed)")
WHOLE = 10  # times the silence that is accepted, for the whole download


class DownloadError(Exception):
    """A download failed; the message has the URL and the cause in the words of apt or curl."""


def fetch(url: str, timeout: float, limit: int = LIMIT_BYTES, run: Run = command.run) -> bytes:
    """Return the content of `url`. Raise DownloadError on a failure or for more than `limit` bytes.

    timeout: seconds without an answer. A user name and password in the URL are sent to its server, and are in no
    message and no process list.
    """
    secret, url = urls.user_info(url), urls.without_credentials(url)
    if not url.startswith(SCHEMES):
        raise DownloadError("%s: the URL must start with one of %s" % (url, ", ".join(SCHEMES)))
    try:
        with tempfile.TemporaryDirectory(prefix="gpuhost-") as directory:
            return _fetch(url, secret, timeout, limit, directory, run)
    except OSError as error:
        raise DownloadError("%s: %s" % (url, error)) from error


def _fetch(url: str, secret: str | None, timeout: float, limit: int, directory: str, run: Run) -> bytes:
    target = os.path.join(directory, "file")
    if not os.path.exists(APT_HELPER):
        settings = _curl_settings(url, secret, target, timeout)
        path = _written(os.path.join(directory, "curl"), settings)
        return _read(url, target, limit, run([CURL, "--disable", "--config", path], WHOLE * timeout))
    # apt's method `file` makes a link to the file, and `copy` copies it.
    source = "copy://" + url[len("file://") :] if url.startswith("file://") else url
    seconds = "%d" % max(1, timeout)
    options = ["Acquire::Retries=0", "Acquire::http::Timeout=" + seconds, "Acquire::https::Timeout=" + seconds]
    if secret:
        options.append("Dir::Etc::netrc=" + _netrc(url, secret, directory))
    words = [word for option in options for word in ("-o", option)]
    return _read(url, target, limit, run([APT_HELPER, *words, "download-file", source, target], WHOLE * timeout))


def _read(url: str, target: str, limit: int, answer: command.Answer) -> bytes:
    if answer.exit_code:
        raise DownloadError("%s: %s" % (url, _reason(answer)))
    with open(target, "rb") as stream:
        body = stream.read(limit + 1)
    if len(body) > limit:
        raise DownloadError("%s: larger than %d bytes" % (url, limit))
    return body


def _reason(answer: command.Answer) -> str:
    errors = answer.stderr.decode("utf-8", "replace")
    found = _REASON.search(errors)
    lines = [found.group(1)] if found else [line for line in errors.splitlines() if line and not _NOISE.match(line)]
    return " ".join(" ".join(lines).split()) or "exit %d" % answer.exit_code


def _netrc(url: str, secret: str, directory: str) -> str:
    """Write apt's file for one password, see apt_auth.conf(5); return its path."""
    user, _unused, password = (urllib.parse.unquote(part) for part in secret.partition(":"))
    line = "machine %s login %s password %s\n" % (url.rsplit("/", 1)[0], user, password)
    return _written(os.path.join(directory, "netrc"), line)


def _curl_settings(url: str, secret: str | None, target: str, timeout: float) -> str:
    """Return curl's file of options (curl(1), --config): no password is in the process list."""
    seconds = "%d" % max(1, timeout)
    options = {"url": url, "output": target, "connect-timeout": seconds, "speed-time": seconds, "speed-limit": "1"}
    if secret:
        options["user"] = urllib.parse.unquote(secret)
    settings = configparser.ConfigParser(interpolation=None, strict=False)
    with contextlib.suppress(configparser.Error):  # dnf itself says what is wrong with it
        settings.read(DNF_SETTINGS)
    proxy = settings.get("main", "proxy", fallback="")
    if proxy and proxy != "_none_":
        user = [settings.get("main", "proxy_" + name, fallback="") for name in ("username", "password")]
        options.update({"proxy": proxy}, **({"proxy-user": ":".join(user)} if user[0] else {}))
    quoted = {name: value.replace("\\", "\\\\").replace('"', '\\"') for name, value in options.items()}
    lines = ['%s = "%s"' % pair for pair in quoted.items()]
    return "\n".join([*lines, "fail", "silent", "show-error", "location", "globoff", ""])


def _written(path: str, text: str) -> str:
    """Write a file that its owner alone can read; return its path."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "w") as stream:
        stream.write(text)
    return path
