# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Download with the standard library; http_proxy, https_proxy and SSL_CERT_FILE apply. Runs on the managed host."""

from __future__ import annotations

from ansible_collections.gpuhost.stack.plugins.module_utils.host import urls

SCHEMES = ("http://", "https://", "file://")
LIMIT_BYTES = 64 * 1024 * 1024


class DownloadError(Exception):
    """A download failed; the message has the URL and the cause."""


def fetch(url: str, timeout: float, limit: int = LIMIT_BYTES) -> bytes:
    """Return the content of `url`. Raise DownloadError on a failure or for more than `limit` bytes.

    A user name and password in the URL are sent as basic authentication, and are in no message.
    """
    secret, url = urls.user_info(url), urls.without_credentials(url)
    if not url.startswith(SCHEMES):
        raise DownloadError("%s: the URL must start with one of %s" % (url, ", ".join(SCHEMES)))
    import base64
    import http.client
    import urllib.error
    import urllib.parse
    import urllib.request  # imported here, as it takes 40 ms and most runs download nothing

    try:
        request = urllib.request.Request(url)
        if secret:
            encoded = base64.b64encode(urllib.parse.unquote(secret).encode()).decode()
            request.add_unredirected_header("Authorization", "Basic " + encoded)  # not to where a server redirects
        with urllib.request.build_opener().open(request, timeout=timeout) as response:
            body = response.read(limit + 1)
    except urllib.error.HTTPError as error:
        raise DownloadError("%s: the server answered %s %s" % (url, error.code, error.reason)) from error
    except urllib.error.URLError as error:
        raise DownloadError("%s: %s" % (url, error.reason)) from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise DownloadError("%s: %s: %s" % (url, type(error).__name__, error)) from error
    if len(body) > limit:
        raise DownloadError("%s: larger than %d bytes" % (url, limit))
    return bytes(body)
