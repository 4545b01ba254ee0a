"""The data that decisions are made on: tasks, steps, sessions, facts, events and answers."""
