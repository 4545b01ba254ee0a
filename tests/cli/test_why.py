"""`stepwire why`: a sentence for people, a document for programs."""

from .a_place import Place

OK, USAGE, NOT_FOUND = 0, 2, 3


def test_one_sentence_explains_a_task_and_a_step(shop: Place) -> None:
    task_id = shop.stepwire("task", "submit", "shop::slow", "--json").json["task_id"]
    sentence = "no worker offers `nobody.offers` (1 worker connected, offering shop.charge)\n"
    of_task = shop.stepwire("why", str(task_id))
    assert (of_task.code, of_task.out, of_task.err) == (OK, f"`dream`: {sentence}", "")
    assert shop.stepwire("why", f"{task_id}/dream").out == sentence
    assert shop.stepwire("why", str(task_id + 1)).out == sentence  # the step's id
    document = shop.stepwire("why", f"{task_id}/dream", "--json").json
    assert (document["code"], document["step"]) == ("no_worker_offers", "dream")


def test_an_unknown_task_or_step_is_not_found(shop: Place) -> None:
    task_id = shop.stepwire("task", "submit", "shop::slow", "--json").json["task_id"]
    missing = shop.stepwire("why", "999999")
    assert (missing.code, missing.out) == (NOT_FOUND, "")
    assert "there is no task 999999" in missing.err
    step = shop.stepwire("why", f"{task_id}/nothing")
    assert step.code == NOT_FOUND
    assert "its steps: dream" in step.err
    for wrong in ("", "x", "1/", "/dream"):
        assert shop.stepwire("why", wrong).code == USAGE
