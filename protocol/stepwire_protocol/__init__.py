"""The language on the wire: messages, their bytes, topics, limits and refusals. Shared by broker and SDK."""
