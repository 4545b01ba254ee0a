"""PostgreSQL for tests: servers, poolers and cutting proxies, and the figures of the statements on a real server."""
