"""The configuration: where each value comes from, what it means, and a sentence for each way it can be wrong."""
