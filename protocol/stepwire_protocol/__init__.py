"""The wire protocol: messages, their bytes, topics, limits and error codes. The broker and the Python SDK share it."""
