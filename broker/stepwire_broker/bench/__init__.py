"""Measures what this machine can do: the bus alone, a bare durable loop, and the product.

The first two are limits, written as short as possible and without any of the product's promises. The third number
divided by the second is the cost of those promises.
"""
