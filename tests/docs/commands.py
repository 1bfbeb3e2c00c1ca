"""Documents and their code blocks, command lines that are parsed by what they start."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import click

from retryapp.cli.main import cli

ROOT = Path(__file__).resolve().parents[2]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def blocks(text: str, language: str) -> list[str]:
    return [body for found, body in FENCE.findall(text) if found == language]


def prose(text: str) -> str:
    """Return a document without its code blocks."""
    return FENCE.sub("", text)


def subcommand(words: list[str]) -> tuple[click.Command, list[str]]:
    """Find the command of `retryapp` that these words begin with, and the rest of them."""
    found: click.Command = cli
    while isinstance(found, click.Group) and words and not words[0].startswith("-"):
        child = found.get_command(click.Context(found), words[0])
        assert child is not None, f"no such command: {words}"
        found, words = child, words[1:]
    return found, words


def resolve(command: list[str]) -> tuple[click.Command, list[str]]:
    """Find the click command that a command line starts, and its arguments."""
    if command[:2] == ["python", "-m"]:
        module = import_module(command[2])
        main = module.main if hasattr(module, "main") else import_module(f"{command[2]}.__main__").main
        assert isinstance(main, click.Command)
        return main, command[3:]
    if command[0] == "faust":
        faust_cli: click.Group = import_module("faust.cli.faust").cli
        assert command[1] == "-A", f"no app is named: {command}"
        found = faust_cli.commands.get(command[3])
        assert found is not None, f"no such command: {command}"
        return found, command[4:]
    assert command[0] == "retryapp"
    return subcommand(command[1:])


def assert_parses(command: list[str]) -> None:
    found, rest = resolve(command)
    found.make_context("test", list(rest), resilient_parsing=False)
