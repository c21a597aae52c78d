"""The options of script/capture, which are read before anything is installed: imports the standard library alone."""

from __future__ import annotations

from ansible_collections.gpuhost.stack.plugins.plugin_utils.base import command_line


def parser() -> command_line.Parser:
    """Return the parser of the command line."""
    result = command_line.Parser(
        "script/capture",
        description="Write what this host says of its GPUs, driver, packages and kernels into one file, masked: for a "
        "bug report, for script/plan --probe, and as a fixture of a test. Changes nothing, and sends nothing anywhere.",
        epilog="Exit status: 0 written, 2 bad usage. What cannot be read, as without root, is in the file with why.",
    )
    result.add_argument(
        "--output", metavar="FILE", help="the file to write (default: gpuhost-capture-DATE.json); none is overwritten"
    )
    result.add_argument(
        "--repository-url",
        metavar="URL",
        help="the mirror of NVIDIA's repositories that the inventory names (gpu_stack_repository_url; default: the one "
        "that this host's apt has, else NVIDIA's)",
    )
    return result


if __name__ == "__main__":
    command_line.run(parser().check)
