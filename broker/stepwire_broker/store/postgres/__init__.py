"""The store on PostgreSQL: the only package that uses its driver and its SQL. No URL leads to it yet."""
