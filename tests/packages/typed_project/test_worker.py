"""Tests of the handlers, without a broker."""

from stepwire import testing
from worker import charge, ship, worker


def test_a_charge_has_a_receipt() -> None:
    outcome = testing.run(charge, {"order_id": 7, "cents": 1200}, idempotency_key="order-7/pay")
    assert outcome.is_completed
    assert outcome.output == {"receipt": "order-7/pay"}


def test_a_charge_of_nothing_is_not_retried() -> None:
    outcome = testing.run(worker, {"order_id": 7, "cents": 0}, handler_class="payments.charge")
    assert outcome.error is not None
    assert (outcome.error.code, outcome.error.retryable) == ("no_amount", False)


def test_a_parcel_names_its_payment() -> None:
    outcome = testing.run(ship, {"address": "Oslo"}, results={"pay": {"receipt": "r"}})
    assert outcome.output["tracking"] == "Oslo-r"


if __name__ == "__main__":
    test_a_charge_has_a_receipt()
    test_a_charge_of_nothing_is_not_retried()
    test_a_parcel_names_its_payment()
