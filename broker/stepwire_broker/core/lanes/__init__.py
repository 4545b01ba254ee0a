"""Lanes that this broker begins to own, loses and releases while it runs."""
