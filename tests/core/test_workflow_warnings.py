"""Warnings about workflows: mistakes in the document, and handlers that no connected worker offers."""

from stepwire_broker.core.definitions.workflow import Workflow, read_workflow
from stepwire_broker.core.workflow_warnings import COMPARED_MAX, of_document, of_handlers

from .world import ONE, World


def flow(*handlers: str) -> Workflow:
    return read_workflow(
        {"name": "w", "steps": [{"name": f"s{n}", "handler_class": name} for n, name in enumerate(handlers)]}
    )


def test_an_offered_handler_gives_no_warning() -> None:
    world = World()
    world.hello(handlers=["order.validate", "mail.**"])
    assert of_handlers(world.state, flow("order.validate", "mail.send.now", "order.validate")) == []


def test_a_misspelled_handler_is_named_with_the_offered_one() -> None:
    world = World()
    world.hello(handlers=["order.price", "order.validate", "zzz"])
    (warning,) = of_handlers(world.state, flow("order.price", "order.validat", "order.validat"))
    assert warning.message == "`order.validat` is offered by no connected worker; did you mean `order.validate`?"
    assert (warning.code, warning.handlers, warning.nearest) == ("not_offered", ("order.validat",), "order.validate")


def test_handlers_without_a_similar_name_share_one_warning() -> None:
    world = World()
    world.hello(handlers=["x"])
    (warning,) = of_handlers(world.state, flow("alpha", "beta"))
    assert warning.message == "`alpha`, `beta` are offered by no connected worker"
    assert (warning.handlers, warning.nearest) == (("alpha", "beta"), None)


def test_a_warning_says_that_no_worker_is_connected_at_all() -> None:
    (warning,) = of_handlers(World().state, flow("alpha"))
    assert warning.message == "`alpha` is offered by no connected worker (no worker is connected)"


def test_a_handler_that_the_only_worker_has_refused_is_not_offered() -> None:
    world = World()
    world.hello()
    world.task(ONE)
    world.refuse(world.batches()[0], "unknown_handler")
    (warning,) = of_handlers(world.state, flow("h"))
    assert warning.handlers == ("h",)


def test_a_workflow_of_many_unknown_handlers_is_compared_in_bounded_time() -> None:
    world = World()
    world.hello(handlers=["order.validate"])
    warnings = of_handlers(world.state, flow(*(f"order.validate{n}" for n in range(COMPARED_MAX + 30))))
    assert len(warnings) == COMPARED_MAX + 1
    assert len(warnings[-1].handlers) == 30


def test_a_mistake_in_the_document_keeps_its_place_and_code() -> None:
    read = read_workflow({"name": "w", "steps": [{"name": "a", "handler_class": "h", "on_unknown": "fail"}]})
    (warning,) = of_document(read)
    assert (warning.code, warning.path) == ("no_effect", "steps[0].on_unknown")
    assert str(warning) == "steps[0].on_unknown: on_unknown has no effect: the step is not at_most_once"
