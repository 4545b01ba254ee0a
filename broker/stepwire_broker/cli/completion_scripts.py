"""How each shell asks for completions. bash needs its own way, because it splits words at `:` and `=`.

`shop::or` is three words for bash, of which it replaces only the last. The script therefore passes the whole line, and
removes everything up to the last colon of the word from each value.
"""

import os
import shlex
from typing import Final

from click.shell_completion import BashComplete, CompletionItem, add_completion_class

_BASH: Final = """\
%(complete_func)s() {
    local IFS=$'\\n' line=${COMP_LINE:0:COMP_POINT} word value prefix=
    word=${line##*[[:space:]]}
    [[ $COMP_WORDBREAKS == *=* && $word == -*=* ]] && word=${word#*=}
    [[ $COMP_WORDBREAKS == *:* && $word == *:* ]] && prefix=${word%%"${word##*:}"}
    COMPREPLY=()
    for value in $(env STEPWIRE_COMPLETE_LINE="$line" %(complete_var)s=bash_complete "$1" 2>/dev/null); do
        case ${value%%%%,*} in
            dir) compopt -o dirnames 2>/dev/null ;;
            file) compopt -o default 2>/dev/null ;;
            *) value=${value#*,}; COMPREPLY+=("${value#"$prefix"}") ;;
        esac
    done
}

complete -o nosort -F %(complete_func)s %(prog_name)s
"""


class BashLine(BashComplete):
    """Completion for bash that reads the whole line, as the shell's user sees it."""

    source_template = _BASH

    @staticmethod
    def _check_version() -> None:
        """Not checked: the script may be meant for another machine."""

    def get_completion_args(self) -> tuple[list[str], str]:
        line = os.environ["STEPWIRE_COMPLETE_LINE"]
        words = _words(line)
        incomplete = words.pop() if words and not line[-1:].isspace() else ""
        return words[1:], incomplete

    def format_completion(self, item: CompletionItem) -> str:
        return f"{item.type},{item.value}"


def register() -> None:
    add_completion_class(BashLine, "bash")


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError:  # a quote is still open
        return line.split()
