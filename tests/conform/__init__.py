"""Tests of the worker conformance kit: planted faulty workers, and programs that misbehave as processes."""
