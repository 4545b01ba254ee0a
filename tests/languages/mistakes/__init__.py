"""The errors that a newcomer makes, made for real with each SDK; `handlers_sdk/mistakes.md` has the resulting texts."""
