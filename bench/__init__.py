"""The benchmark of queue_ext against other queues in Postgres. Start with README.md, then __main__.py."""
