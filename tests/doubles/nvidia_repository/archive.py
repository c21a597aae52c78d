"""Build the simulated driver of a distribution's own archive.

    python -m tests.doubles.nvidia_repository.archive debian-13 DIR

DIR becomes a flat apt repository: the packages and their index. It belongs on the host (deb [trusted=yes] file:DIR ./),
beside the distribution's real archive, which has everything that the packages depend on.
"""

import argparse
import sys
from pathlib import Path

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from tests.doubles.nvidia_repository import contents, deb


def build(distribution: str, folder: Path) -> list[str]:
    """Write packages and index to an empty or missing directory; return the file names of the packages."""
    packages = contents.archive_packages(distribution)
    folder.mkdir(parents=True, exist_ok=True)
    for package in packages:
        deb.build(package, {}, folder / deb.file_name(package))
    return [deb.file_name(package) for package in packages]


def main() -> int:
    """Build what the arguments name, print the packages and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("distribution", help="debian-13")
    parser.add_argument("folder", type=Path, metavar="DIR")
    options = parser.parse_args()
    try:
        print(*build(options.distribution, options.folder), sep="\n")
    except ValueError as error:
        parser.error(str(error))
    return 0


if __name__ == "__main__":
    sys.exit(main())
