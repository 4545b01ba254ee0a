"""Circuit breakers and retry budgets of handlers that fail."""
