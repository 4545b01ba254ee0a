"""Measures what this machine can do: the bus alone, a bare durable loop, and the product.

The first two measurements are upper limits. Their programs are as short as possible and keep none of the product's
promises. The third figure divided by the second is the cost of those promises.
"""
