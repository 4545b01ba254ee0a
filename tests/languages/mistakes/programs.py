"""A small worker in each language, written as its README shows it. The variable MISTAKE says what it does wrong.

`no_handlers`, `twice`, `too_late` and `handler_name` register handlers wrongly; `blocking` waits in async code.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests.languages.sdks import Sdk

BUILD_S: Final = 300.0

_PYTHON: Final = """
import os
import time

from stepwire import Worker

mistake = os.environ["MISTAKE"]
worker = Worker.from_env()


async def ship(ctx, order):
    if mistake == "blocking":
        time.sleep(5)


if mistake != "no_handlers":
    first = {"too_late": "pay", "handler_name": "ship order"}.get(mistake, "ship_order")
    worker.handler(first)(ship)
if mistake == "twice":
    worker.handler("ship_order")(ship)
if mistake == "too_late":
    worker.start()
    worker.handler("ship_order")(ship)
worker.run()
"""

_NODE: Final = """
import { Worker } from '%(sdk)s/src/index.js'

const mistake = process.env.MISTAKE
const worker = Worker.fromEnv()

async function ship() {
  const until = Date.now() + 5000
  while (mistake === 'blocking' && Date.now() < until);
}

if (mistake !== 'no_handlers') {
  worker.handle({ too_late: 'pay', handler_name: 'ship order' }[mistake] ?? 'ship_order', ship)
}
if (mistake === 'twice') worker.handle('ship_order', ship)
if (mistake === 'too_late') {
  worker.start()
  worker.handle('ship_order', ship)
}
await worker.run()
"""

_RUBY: Final = """
require "%(sdk)s/lib/stepwire"

mistake = ENV.fetch("MISTAKE")
worker = Stepwire::Worker.from_env
unless mistake == "no_handlers"
  first = { "too_late" => "pay", "handler_name" => "ship order" }.fetch(mistake, "ship_order")
  worker.handler(first) { |_ctx| nil }
end
worker.handler("ship_order") { |_ctx| nil } if mistake == "twice"
if mistake == "too_late"
  worker.start
  worker.handler("ship_order") { |_ctx| nil }
end
worker.run
"""

_GO: Final = """
package main

import (
	"context"
	"log"
	"os"

	"github.com/stepwire/stepwire/handlers_sdk/go"
)

func ship(context.Context, *stepwire.Step[map[string]any]) (any, error) { return nil, nil }

func main() {
	mistake := os.Getenv("MISTAKE")
	worker, err := stepwire.FromEnv()
	if err != nil {
		log.Fatal(err)
	}
	switch mistake {
	case "no_handlers":
	case "too_late":
		stepwire.Handle(worker, "pay", ship)
	case "handler_name":
		stepwire.Handle(worker, "ship order", ship)
	default:
		stepwire.Handle(worker, "ship_order", ship)
	}
	if mistake == "twice" {
		stepwire.Handle(worker, "ship_order", ship)
	}
	if mistake == "too_late" {
		if err := worker.Start(); err != nil {
			log.Fatal(err)
		}
		stepwire.Handle(worker, "ship_order", ship)
		if err := worker.Wait(); err != nil {
			log.Fatal(err)
		}
		return
	}
	if err := worker.Run(); err != nil {
		log.Fatal(err)
	}
}
"""

_RUST: Final = """
use serde_json::Value;
use stepwire::{ConfigurationError, Context, StepError, Worker};

async fn ship(_ctx: Context, order: Value) -> Result<Value, StepError> {
    Ok(order)
}

fn run() -> Result<(), ConfigurationError> {
    let mistake = std::env::var("MISTAKE").unwrap();
    let mut worker = Worker::from_env()?;
    match &*mistake {
        "no_handlers" => {}
        "too_late" => {
            worker.handle("pay", ship)?;
        }
        "handler_name" => {
            worker.handle("ship order", ship)?;
        }
        _ => {
            worker.handle("ship_order", ship)?;
        }
    }
    if mistake == "twice" {
        worker.handle("ship_order", ship)?;
    }
    if mistake == "too_late" {
        worker.start()?;
        worker.handle("ship_order", ship)?;
    }
    worker.run()
}

fn main() {
    if let Err(error) = run() {
        eprintln!("{error}");
        std::process::exit(1);
    }
}
"""

_JAVA: Final = """
import io.stepwire.Worker;

public final class Shop {
  public static void main(String[] arguments) {
    String mistake = System.getenv("MISTAKE");
    Worker worker = Worker.fromEnv();
    if (!mistake.equals("no_handlers")) {
      String first =
          mistake.equals("too_late") ? "pay" : mistake.equals("handler_name") ? "ship order" : "ship_order";
      worker.handle(first, Object.class, (context, input) -> null);
    }
    if (mistake.equals("twice")) {
      worker.handle("ship_order", Object.class, (context, input) -> null);
    }
    if (mistake.equals("too_late")) {
      worker.start();
      worker.handle("ship_order", Object.class, (context, input) -> null);
    }
    worker.run();
  }
}
"""

_CARGO: Final = """
[package]
name = "shop"
version = "0.1.0"
edition = "2021"

[dependencies]
serde_json = "1"
stepwire = { path = "%(sdk)s" }

[workspace]
"""


def built(sdk: Sdk, directory: Path) -> tuple[str, ...]:
    """Write the program of this language into the directory, and build it. Returns its command."""
    directory.mkdir(parents=True, exist_ok=True)
    return _BUILD[sdk.name](sdk, directory)


def _python(sdk: Sdk, directory: Path) -> tuple[str, ...]:
    return sys.executable, _written(directory / "shop.py", _PYTHON)


def _node(sdk: Sdk, directory: Path) -> tuple[str, ...]:
    return "node", _written(directory / "shop.mjs", _NODE % {"sdk": sdk.folder})


def _ruby(sdk: Sdk, directory: Path) -> tuple[str, ...]:
    return "ruby", _written(directory / "shop.rb", _RUBY % {"sdk": sdk.folder})


def _go(sdk: Sdk, directory: Path) -> tuple[str, ...]:
    module = "github.com/stepwire/stepwire/handlers_sdk/go"
    needs = (sdk.folder / "go.mod").read_text().partition("require")[2]
    text = f"module shop\n\ngo 1.19\n\nrequire{needs}\nrequire {module} v0.0.0\n\nreplace {module} => {sdk.folder}\n"
    _written(directory / "go.mod", text)
    shutil.copy(sdk.folder / "go.sum", directory)
    _written(directory / "main.go", _GO)
    _run(directory, os.environ.get("GO", "go"), "build", "-o", "shop", ".")
    return (str(directory / "shop"),)


def _rust(sdk: Sdk, directory: Path) -> tuple[str, ...]:
    _written(directory / "Cargo.toml", _CARGO % {"sdk": sdk.folder})
    shutil.copy(sdk.folder / "Cargo.lock", directory)
    (directory / "src").mkdir(exist_ok=True)
    _written(directory / "src" / "main.rs", _RUST)
    # The dependencies are those of the SDK, which `check.sh build` has compiled already.
    target = sdk.folder / "target"
    _run(directory, "cargo", "build", "--release", "--target-dir", str(target))
    return (str(shutil.copy(target / "release" / "shop", directory / "shop")),)


def _java(sdk: Sdk, directory: Path) -> tuple[str, ...]:
    source = _written(directory / "Shop.java", _JAVA)
    target = sdk.folder / "target"
    classes = os.pathsep.join([str(target / "classes"), (target / "classpath").read_text().strip()])
    _run(directory, "javac", "-cp", classes, "-d", str(directory), source)
    return "java", "-XX:+UseSerialGC", "-cp", f"{directory}{os.pathsep}{classes}", "Shop"


_BUILD: Final[dict[str, Callable[[Sdk, Path], tuple[str, ...]]]] = {
    "python": _python,
    "go": _go,
    "java": _java,
    "node": _node,
    "ruby": _ruby,
    "rust": _rust,
}


def _written(path: Path, text: str) -> str:
    path.write_text(text.lstrip())
    return str(path)


def _run(directory: Path, *words: str) -> None:
    done = subprocess.run(words, cwd=directory, capture_output=True, text=True, timeout=BUILD_S)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)}\n{done.stdout}{done.stderr}")
