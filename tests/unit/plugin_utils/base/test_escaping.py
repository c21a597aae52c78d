"""Text of a host on a terminal, in Markdown and as the name of a file."""

from __future__ import annotations

import pytest
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base import escaping
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base.tables import markdown_table
from markdown_it import MarkdownIt
from markdown_it.token import Token

# What would be markup: HTML, references, images, links, code, emphasis, tables, headings, lists, rules, fences.
MARKUP = [
    "<script>alert(1)</script>", "<!-- x -->", "<http://evil.example>", "&lt;b&gt; &#60; &amp; R&D; AT&T",
    "![x](http://e/x.png)", "[a](http://e)", "[a]: http://e", "`code` ``x``", "*a* **b** ***",
    "_a_ __b__ a_b __init__.py",
    "~~gone~~ 1.2~deb12u1", "a | b |", "| --- | --- |", ":--- | ---", "# heading", "#", "> quoted", "- item", "+ item",
    "1. one", "2) two", "---", "===", "~~~", "```sh", "\\", "\\| x", "\\* y \\", "\\\\<b>", "{{ 7*7 }}", "<2.0,>=1.27",
    "!\\[x](y)", "$x$ @somebody", "-", "2026-11-01",
]  # fmt: skip


def parsed(text: str) -> list[Token]:
    tokens = MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(text)
    return [inner for token in tokens for inner in ([token, *(token.children or ())])]


def shown(tokens: list[Token]) -> str:
    """Return what a reader sees, if it is nothing but text."""
    return "".join("\n" if token.type == "softbreak" else token.content for token in tokens if token.type != "inline")


PARAGRAPH = {"paragraph_open", "paragraph_close", "inline", "text", "text_special", "softbreak"}
CELLS = {f"{tag}_{end}" for tag in ("table", "thead", "tbody", "tr", "th", "td") for end in ("open", "close")}


@pytest.mark.parametrize("text", MARKUP)
def test_a_text_is_no_markup(text: str) -> None:
    paragraph = parsed(escaping.for_markdown_lines(text))
    assert {token.type for token in paragraph} <= PARAGRAPH
    assert shown(paragraph) == text
    heading = parsed(f"## {escaping.for_markdown(text)}: failed")
    assert shown(heading) == f"{text}: failed"
    assert [token.tag for token in heading if token.type.endswith("open")] == ["h2"]


@pytest.mark.parametrize("text", MARKUP)
def test_a_text_is_no_markup_in_a_table(text: str) -> None:
    cells = parsed("\n".join(markdown_table(["A", "B"], [[escaping.for_markdown(text), "end"]])))
    assert {token.type for token in cells} <= {*CELLS, "inline", "text", "text_special"}
    assert [token.content for token in cells if token.type == "inline"][-1] == "end"
    assert shown(cells) == f"AB{text}end"


def test_lines_of_a_text_stay_lines_of_one_item() -> None:
    text = "\n".join(["apt says:", *MARKUP[:4], "", "    indented", "a | b", "--- | ---", "1 | 2", "===", "# end"])
    item = parsed("- " + escaping.for_markdown_lines(text) + "\n- next")
    assert [token.type for token in item if token.type == "list_item_open"] == ["list_item_open"] * 2
    assert {token.type for token in item} <= {*PARAGRAPH, "bullet_list_open", "bullet_list_close", "list_item_open",
                                              "list_item_close"}  # fmt: skip
    assert shown(item) == "\n".join(line.strip() for line in text.splitlines() if line) + "next"


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("\033[31mRED\033[0m", r"\x1b[31mRED\x1b[0m"),
        ("\x9b31m", r"\x9b31m"),
        ("a\rb\x08\x07\x00\x7f", r"a\rb\x08\x07\x00\x7f"),
        ("abc\u202e\u200b\u2028\ufeff", r"abc\u202e\u200b\u2028\ufeff"),
        ("kaputt \udcff", r"kaputt \udcff"),
        ("one\ntwo\tthree", "one\ntwo three"),
        ("Größe 70 °C, 研究室", "Größe 70 °C, 研究室"),
    ],
)
def test_control_characters_are_shown(text: str, seen: str) -> None:
    assert escaping.for_terminal(text) == seen


@pytest.mark.parametrize(
    ("name", "file_name"),
    [
        ("gpu01.example.org", "gpu01.example.org"),
        ("fe80::1", "fe80::1"),
        ("web/01", "web%2F01"),
        ("web%2F01", "web%252F01"),
        ("..", "%2E%2E"),
        (".", "%2E"),
        ("../../etc", "..%2F..%2Fetc"),
        ("<b>evil|host</b>", "%3Cb%3Eevil%7Chost%3C%2Fb%3E"),
        ("a\nb\x1b", "a%0Ab%1B"),
        ("größe", "gr%C3%B6%C3%9Fe"),
    ],
)
def test_a_name_is_one_component_of_a_path(name: str, file_name: str) -> None:
    assert escaping.for_file_name(name) == file_name


def test_warnings_of_a_module_are_escaped_and_records_of_ansible_left_as_they_are() -> None:
    """From ansible-core 2.21 on, a result has its warnings as WarningSummary, which is no text."""
    record = object()
    shown = escaping.result_for_terminal({"changed": False, "warnings": ["\x1b[31mred", record]})
    text, left = shown["warnings"]
    assert "\x1b" not in text
    assert "red" in text
    assert left is record
    assert escaping.result_for_terminal({"changed": False}) == {"changed": False}
