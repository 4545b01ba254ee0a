"""What this machine can do, measured side by side: the bus alone, a bare durable loop, and the product.

The first two are limits, made as short as they can be: they have none of the product's promises. What the product
costs on top of them is the third number over the second.
"""
