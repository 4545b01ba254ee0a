"""The `stepwire` command. Without the broker's packages, the command prints how to install them."""

import sys


def main() -> None:
    try:
        from stepwire_broker.cli.main import main as cli
    except ModuleNotFoundError as error:
        print(
            f"stepwire: the command line needs the broker's packages ({error.name} is missing).\n"
            "Install them:  pip install 'stepwire[broker]'   (in a clone of the repository: pip install '.[broker]')",
            file=sys.stderr,
        )
        sys.exit(2)
    cli(prog_name="stepwire")  # also under `python -m stepwire`: messages name commands as users type them


if __name__ == "__main__":
    main()
