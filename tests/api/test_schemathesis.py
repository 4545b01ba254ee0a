"""An independent check of the OpenAPI document: schemathesis reads it from a running broker, sends valid and invalid
requests, uses values of one answer in the next request, and checks every answer.

test_openapi.py generates requests of its own, which reach deeper. This check knows only the document.
"""

import json
import socket
import subprocess
import sys
from pathlib import Path

from openapi_spec_validator import OpenAPIV30SpecValidator
from stepwire_broker.api import openapi

from tests.cli.a_place import a_shop

CONFIGURATION = Path(__file__).with_name("schemathesis.toml")


def test_the_document_is_an_openapi_document() -> None:
    document = json.loads(json.dumps(openapi.document()))
    assert [str(error) for error in OpenAPIV30SpecValidator(document).iter_errors()] == []


def test_the_broker_answers_as_its_document_declares(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with a_shop(tmp_path, port) as shop:
        token = (tmp_path / ".stepwire/token").read_text().strip()
        command = [sys.executable, "-m", "schemathesis.cli", "--no-color", "--config-file", str(CONFIGURATION), "run"]
        command += [f"http://127.0.0.1:{port}/openapi.json", "--header", f"Authorization: Bearer {token}"]
        command += [
            "--phases",
            "coverage,fuzzing,stateful",
            "--continue-on-failure",
            "--seed",
            "1",
            "--warnings",
            "off",
        ]
        done = subprocess.run(
            command, cwd=shop.directory, env=shop.environ, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stdout[-20_000:] + done.stderr
