"""Checks the syntax of code that the pages show and the tests do not run: that of other products."""

import ast
import shutil
import subprocess


class WrongSyntax(AssertionError):
    """The page shows code that its language does not accept."""


def check(language: str, text: str) -> None:
    match language:
        case "python":
            try:
                ast.parse(text)
            except SyntaxError as error:
                raise WrongSyntax(f"the Python is not valid: {error}") from None
        case "ruby":
            if shutil.which("ruby") is None:
                return
            done = subprocess.run(["ruby", "-c"], input=text, capture_output=True, text=True, timeout=60)
            if done.returncode != 0:
                raise WrongSyntax(f"the Ruby is not valid: {done.stderr}")
        case _:
            raise WrongSyntax(f"a block of {language!r} cannot be parsed here; write `not run: why`")
