"""The coordinator: it observes the five stages as pools of members, and judges their health."""
