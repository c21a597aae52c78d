"""Say why NVIDIA's repository cannot be read from a host, and what to do about it."""

from __future__ import annotations

import dataclasses
import re

# What meanings and remedies name, by the package manager that a message is of.
_APT = {
    "manager": "apt",
    "proxy": "Acquire::http::Proxy in /etc/apt/apt.conf.d",
    "login": "in a file in /etc/apt/apt.conf.d that only root can read (Acquire::http::Proxy "
    '"http://USER:PASSWORD@PROXY:PORT";)',
    "authority": "/usr/local/share/ca-certificates/NAME.crt and run update-ca-certificates",
    "unsigned": "no repository",
    "signed": "InRelease",
    "show": "`/usr/lib/apt/apt-helper download-file URL/InRelease /tmp/InRelease`",
}
_DNF = {
    "manager": "dnf",
    "proxy": "proxy= in /etc/dnf/dnf.conf",
    "login": "in /etc/dnf/dnf.conf (proxy_username= and proxy_password=; chmod 0600)",
    "authority": "/etc/pki/ca-trust/source/anchors/NAME.crt and run update-ca-trust",
    "unsigned": "nothing",
    "signed": "the packages, and repodata/repomd.xml.asc for repo_gpgcheck=1 in /etc/dnf/dnf.conf,",
    "show": "`curl --head --location URL/repodata/repomd.xml`",
}
# On Enterprise Linux, curl downloads what dnf does not.
_IS_OF_DNF = re.compile(r"\bdnf\b|\b[Cc]url\b|repomd\.xml|\.rpm\b")


@dataclasses.dataclass(frozen=True)
class Cause:
    """What a package manager's message means; pattern: a regular expression of it."""

    pattern: str
    meaning: str
    remedy: str


# The first one that matches. The messages are those of apt's methods http and https, with GnuTLS and OpenSSL, and of
# librepo and libcurl, which dnf prints.
CAUSES = (
    Cause(
        r"unexpected size|Hash Sum mismatch|[Cc]hecksum doesn't match|Mirror sync in progress",
        "the package list and the index of the repository do not fit together: the server, a mirror or a cache on the "
        "way has one of them older than the other",
        "run this again in an hour; if it stays, update the mirror, or clear the proxy's cache",
    ),
    Cause(
        r"\b407 |Proxy Authentication",
        "the proxy asks for a user name and password",
        "give {manager}'s proxy one {login}, or have the proxy let this host through by its address",
    ),
    Cause(
        r"Unsupported proxy configured",
        "apt needs the scheme of a proxy's address",
        "write http:// before the proxy's name, in gpu_stack_environment ({{http_proxy: http://PROXY:PORT}}) or in "
        "{proxy}",
    ),
    Cause(
        r"[Rr]esolv|Name or service not known",
        "the name of the server, or of {manager}'s proxy, is not found",
        "correct the host's name servers (resolvectl status, or /etc/resolv.conf); a host that reaches the internet "
        "through a proxy alone needs {proxy}, or gpu_stack_environment",
    ),
    Cause(
        r"not (yet valid|valid yet|yet activated)",
        "this host's clock is slow, or the signature's date is wrong",
        "set the clock (timedatectl set-ntp true; timedatectl shows whether it is synchronised)",
    ),
    Cause(
        r"expired",
        "this host's clock is fast, or what the server sends is no longer maintained",
        "compare the clock (timedatectl); if it is right, update the mirror, or use NVIDIA's own repository",
    ),
    Cause(
        r"[Cc]ertificate|verification failed",
        "the host does not trust the server's certificate; a proxy that inspects HTTPS signs with its own",
        "install the package ca-certificates if the host lacks it; copy the certificate of that proxy's authority to "
        "{authority}, or exempt the server from inspection",
    ),
    Cause(
        r"SSL|TLS|handshake|[Rr]eset by peer|closed connection",
        "what answers is no HTTPS server, or a firewall or proxy cuts the connection",
        "correct the scheme and port in gpu_stack_repository_url or in the proxy's address, or open the way to the "
        "server there (a proxy must let CONNECT through to port 443)",
    ),
    Cause(
        r"not signed|NO_PUBKEY|signature",
        "{manager} accepts {unsigned} without a signature; a portal or proxy may answer in place of the server",
        "open the address in a browser from that network; a mirror must serve {signed} as NVIDIA signed it, or its "
        "own with gpu_stack_repository_key_url",
    ),
    Cause(
        r"\b40[13] ",
        "the server, or a proxy on the way, refuses this host",
        "have the proxy or firewall let it through; a mirror with a password needs it in gpu_stack_repository_url",
    ),
    Cause(
        r"\b404 |No such file|Failed to stat",
        "there is no such repository at that address",
        "correct gpu_stack_repository_url: expected a mirror of NVIDIA's directory compute/cuda/repos",
    ),
    Cause(
        r"package list cannot be read",
        "what arrives is no package list; a portal or proxy may answer in place of the server",
        "open the address in a browser from that network, and correct gpu_stack_repository_url or the proxy",
    ),
    Cause(
        r"(Could not|Couldn't|Unable to|Failed to) connect|Connection (refused|failed|timed)|[Uu]nreachable|did not end"
        r"|[Tt]imed? ?out",
        "nothing answers at that address; a firewall may drop the connection",
        "open the way to it, or set a proxy ({proxy}, or gpu_stack_environment) or a mirror (gpu_stack_repository_url)",
    ),
)
OTHER = Cause(
    "",
    "",
    "run {show} on the host, with the URL above, which shows the same error, and correct its cause",
)


# What apt and dnf print of a file that they could not download, or that has no signature.
_DOWNLOAD = re.compile(
    r"^(?:E: Failed to fetch|Err:\d|.*(?:Cannot|Failed to) download|.*\.rpm is not signed) ?.*$", re.MULTILINE
)


def cause(error: str, output: str = "") -> Cause:
    """Return what a message of apt or dnf means; output: what it is a line of."""
    found = next((known for known in CAUSES if re.search(known.pattern, error)), OTHER)
    names = _DNF if _IS_OF_DNF.search(output or error) else _APT
    return Cause(found.pattern, found.meaning.format(**names), found.remedy.format(**names))


def failed_download(message: str) -> tuple[str, Cause] | None:
    """Return the line about a file that a package manager could not download, and why; None if it failed otherwise."""
    found = _DOWNLOAD.findall(message)
    if not found:
        return None
    line = next((line for line in found if line.startswith("E: ")), found[0])
    why = cause(line, message)
    return line.removeprefix("E: "), why if why.meaning else cause(message)
