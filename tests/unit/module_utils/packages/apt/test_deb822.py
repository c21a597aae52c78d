"""deb822 files: fields, paragraphs, and the index of a file with many packages."""

import re

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.apt import deb822

PACKAGES = b"""Package: gcc
Version: 1

Package: gcc-12
Version: 2
Description: a compiler
 Package: not a field
Status: hold ok installed

Package: gcc
Version: 3
"""


def test_fields_have_names_in_lower_case_and_lines_as_they_are():
    text = "Types: deb\n# Types: deb-src\nSIGNED-BY:\n -----BEGIN\n .\n#comment\n mQ\t\r\nURIs:  http://x:80/  \n"
    assert deb822.parse(text) == {"types": "deb", "signed-by": "\n -----BEGIN\n .\n mQ", "uris": "http://x:80/"}


@pytest.mark.parametrize("text", ["", "\n\n", "# a comment\n", " a line without a field\n"])
def test_text_without_a_field_has_no_paragraph(text):
    assert deb822.paragraphs(text) == []


def test_paragraphs_are_separated_by_blank_lines():
    assert deb822.paragraphs("\n# c\n\nA: 1\n \t\nB: 2\r\n\r\n\nC: 3") == [{"a": "1"}, {"b": "2"}, {"c": "3"}]


@pytest.mark.parametrize(
    ("globs", "names"),
    [
        (None, ["gcc", "gcc-12"]),
        (["gcc"], ["gcc"]),
        (["gcc*"], ["gcc", "gcc-12"]),
        (["gcc-??"], ["gcc-12"]),
        (["g.c", "cc"], []),
        ([], []),
    ],
)
def test_names_are_selected_by_globs(globs, names):
    assert deb822.Index(PACKAGES).names(globs) == names


def test_every_paragraph_of_a_package_is_found():
    index = deb822.Index(PACKAGES)
    assert index.paragraphs("gcc") == [{"package": "gcc", "version": "1"}, {"package": "gcc", "version": "3"}]
    assert index.paragraphs("gcc-12")[0]["status"] == "hold ok installed"
    assert index.paragraphs("none") == []


def test_paragraphs_are_found_by_a_field():
    found = deb822.Index(PACKAGES).containing(re.compile(rb"\nStatus: hold"))
    assert [fields["package"] for fields in found] == ["gcc-12"]


def test_an_empty_file_has_no_package():
    assert deb822.Index(b"").names() == []
