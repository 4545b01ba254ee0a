"""The progress of a task: how it begins, how steps become ready and end, and how the task ends."""
